//! Turns settings into a refusal where a value of them means nothing, before anything is opened or made.

use plimsoll::prelude::Precision;

use crate::config::Config;
use crate::request::is_model_file;
use crate::{Failure, batch_auto, names, ranks};

/// More threads than this are a mistake on any machine.
const MOST_THREADS: usize = 1024;

/// A model of more layers is a slip of the finger, and tracing it would take all memory there is.
const MOST_LAYERS: usize = 4096;

/// Whether all values are some that can be meant.
pub fn check(config: &Config) -> Result<(), Failure> {
    let counts = [
        ("--batch", config.samples().map(|n| n as u64)),
        ("--epochs", config.epochs),
        ("--threads", config.threads.map(|n| n as u64)),
        ("--keep", config.keep.map(|n| n as u64)),
        ("--take", config.take),
        ("--micro-batch", config.micro_batch.map(|n| n as u64)),
        ("--checkpoint-every", config.checkpoint_every),
        ("--patience", config.patience),
        ("--classes", config.classes.map(|n| n as u64)),
        ("--width", config.width.map(|n| n as u64)),
        ("--depth", config.depth.map(|n| n as u64)),
        ("--heads", config.heads.map(|n| n as u64)),
        ("--patch", config.patch.map(|n| n as u64)),
        ("--image", config.image.map(|n| n as u64)),
        ("--sequence", config.sequence.map(|n| n as u64)),
    ];
    for (flag, value) in counts {
        match value {
            Some(0) => return Err(Failure(format!("{flag} 0 means nothing; 1 is the least"))),
            // Sizes are multiplied with each other; beyond this nothing could be computed any more.
            Some(n) if n > u64::from(u32::MAX) => {
                return Err(Failure(format!("{flag} {n} is too much; {} is the most", u32::MAX)));
            }
            _ => {}
        }
    }
    ranks::check(config)?;
    if let Some(depth) = config.depth.filter(|&depth| depth > MOST_LAYERS) {
        return Err(Failure(format!("--depth {depth} is too much; {MOST_LAYERS} is the most")));
    }
    if let Some(threads) = config.threads.filter(|&threads| threads > MOST_THREADS) {
        return Err(Failure(format!("--threads {threads} is too much; {MOST_THREADS} is the most")));
    }
    let numbers =
        [("--lr", config.lr), ("--clip-norm", config.clip_norm), ("--weight-decay", config.weight_decay)];
    for (flag, value) in numbers {
        if let Some(value) = value.filter(|value| !(value.is_finite() && *value > 0.0)) {
            return Err(Failure(format!("{flag} {value} means nothing; it is a number above 0")));
        }
    }
    if let Some(part) = config.validation_split.filter(|part| !(*part > 0.0 && *part < 1.0)) {
        return Err(Failure(format!(
            "--validation-split {part} means nothing; it lies between 0 and 1, as 0.1 does"
        )));
    }
    if config.validation.is_some() && config.validation_split.is_some() {
        let why = "--validation names the data to evaluate on and --validation-split holds some back for it";
        return Err(Failure(format!("{why}; leave one of them out")));
    }
    if config.stratified == Some(true) && config.validation_split.is_none() {
        return Err(Failure(
            "--stratified is for --validation-split FRACTION, which is not asked for".into(),
        ));
    }
    if let (Some(micro), Some(batch)) = (config.micro_batch, config.samples())
        && micro > batch
    {
        return Err(Failure(format!("--micro-batch {micro} is more than the batch of {batch}")));
    }
    if config.patience.is_some() && config.early_stopping.is_none() {
        return Err(Failure("--patience is for --early-stopping METRIC, which is not asked for".into()));
    }
    if let Some(decay) = config.average.filter(|decay| !(*decay > 0.0 && *decay < 1.0)) {
        return Err(Failure(format!(
            "--average {decay} means nothing; it lies between 0 and 1, as 0.999 does"
        )));
    }
    if let Some(delta) = config.min_delta.filter(|delta| !(delta.is_finite() && *delta >= 0.0)) {
        return Err(Failure(format!("--min-delta {delta} means nothing; it is a number of at least 0")));
    }
    let followed = config.early_stopping.is_some() || config.best.is_some();
    if config.min_delta.is_some() && !followed {
        let why = "--min-delta is for --early-stopping METRIC and --best METRIC, and neither is asked for";
        return Err(Failure(why.into()));
    }
    if config.restore_best == Some(true) && !followed {
        let why = "--restore-best needs to know what is best; name it with --best METRIC or --early-stopping METRIC";
        return Err(Failure(why.into()));
    }
    batch_auto::check(config)?;
    check_names(config)
}

/// Whether weights in bf16 are asked of a model that can have them, with state that moves them.
fn check_narrow_weights(config: &Config) -> Result<(), Failure> {
    let (all, layers) = config.precision()?;
    let refused = |why: &str| Err(Failure(format!("--precision bf16 {why}")));
    if layers.iter().any(|(_, own)| *own == Precision::Bf16) {
        return refused("is for a whole model; a layer's own precision can be mixed-bf16");
    }
    if all != Some(Precision::Bf16) {
        return Ok(());
    }
    if config.kept()? != plimsoll::nn::Kept::Bf16 {
        return refused(
            "has the optimizer's state in bf16, too; leave --state out, or take --precision mixed-bf16",
        );
    }
    if config.model.as_deref().is_some_and(is_model_file) {
        return refused(
            "is for models by name and folders of language models; a file's weights are kept as it has them, so take mixed-bf16",
        );
    }
    if config.average.is_some() {
        return refused("rounds weights, of which an average (--average) would stand still; take mixed-bf16");
    }
    Ok(())
}

/// Whether all names are known ones.
fn check_names(config: &Config) -> Result<(), Failure> {
    if let Some(name) = &config.optimizer {
        let optimizer = names::optimizer(name, 1e-3, config.weight_decay)?;
        names::with_state(optimizer, config)?;
    }
    config.schedule(1)?;
    config.pruning(1)?;
    let (precision, _) = config.precision()?;
    let kept = config.kept()?;
    if kept != plimsoll::nn::Kept::F32 && precision == Some(Precision::F64) {
        let why =
            "is for parameters in f32, and --precision f64 makes all of them f64; leave one of the two out";
        return Err(Failure(format!("--state {} {why}", kept.name())));
    }
    check_narrow_weights(config)?;
    config.on_error()?;
    config.scale()?;
    config.augment()?;
    config.columns()?;
    config.written_memory_limit()?;
    config.host_memory()?;
    config.disk()?;
    config.allocator()?;
    config.measures()?;
    if let Some(losses) = &config.loss {
        for loss in losses.split(',').map(|part| part.rsplit('=').next().unwrap_or(part).trim()) {
            names::check_loss(loss)?;
        }
    }
    Ok(())
}

/// Whether early stopping and the best checkpoint follow something that will be measured.
pub fn followed(config: &Config, metrics: &[String], is_validated: bool) -> Result<(), Failure> {
    measured("--early-stopping", config.early_stopping.as_ref(), metrics, is_validated)?;
    measured("--best", config.best.as_ref(), metrics, is_validated)
}

fn measured(
    flag: &str,
    named: Option<&String>,
    metrics: &[String],
    is_validated: bool,
) -> Result<(), Failure> {
    let Some(named) = named else { return Ok(()) };
    let of_training = std::iter::once("loss").chain(metrics.iter().map(String::as_str));
    let mut known: Vec<String> = of_training.map(String::from).collect();
    if is_validated {
        known.extend(known.clone().into_iter().map(|name| format!("val_{name}")));
    }
    if known.contains(named) {
        return Ok(());
    }
    let none = match named.starts_with("val_") && !is_validated {
        true => ", since nothing is held back to evaluate on (--validation, --validation-split)",
        false => "",
    };
    Err(Failure(format!(
        "{flag} {named}: nothing of that name is measured{none}; there are {}",
        known.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(toml: &str) -> String {
        let config: Config = toml::from_str(toml).unwrap();
        check(&config).map_err(|Failure(why)| why).err().unwrap_or_else(|| panic!("{toml} was taken"))
    }

    #[test]
    fn values_that_mean_nothing_are_refused_by_flag() {
        for (toml, flag) in [
            ("batch = 0", "--batch 0"),
            ("epochs = 0", "--epochs 0"),
            ("width = 0", "--width 0"),
            ("depth = 100000000", "--depth 100000000"),
            ("threads = 100000", "--threads 100000"),
            ("lr = nan", "--lr NaN"),
            ("lr = -1.0", "--lr -1"),
            ("lr = inf", "--lr inf"),
            ("clip-norm = 0.0", "--clip-norm 0"),
            ("weight-decay = -1.0", "--weight-decay -1"),
            ("optimizer = \"lion\"\nweight-decay = 0.1", "--weight-decay is not for lion"),
            ("validation-split = 1.0", "--validation-split 1"),
            ("validation-split = nan", "--validation-split NaN"),
            ("validation-split = 0.1\nvalidation = \"x\"", "--validation-split"),
            ("batch = 4\nmicro-batch = 8", "--micro-batch 8"),
            ("patience = 2", "--patience"),
            ("batch = \"auto\"", "name one with --memory"),
            ("batch = \"auto\"\nmemory = \"1GiB\"\nmicro-batch = 8", "leave --micro-batch out"),
            ("average = 1.0", "--average 1"),
            ("min-delta = 0.1", "--min-delta is for"),
            ("min-delta = -0.1\nbest = \"loss\"", "--min-delta -0.1"),
            ("restore-best = true", "--restore-best needs to know"),
            ("optimizer = \"adamm\"", "optimizer adamm"),
            ("schedule = \"cosin\"", "schedule cosin"),
            ("loss = \"a=mse,b=msee\"", "loss msee"),
            ("metrics = \"acc\"", "metric acc"),
            ("precision = \"f8\"", "precision f8"),
            (
                "state = \"4bit\"",
                "--state 4bit is no way to keep an optimizer's state; use f32, bf16 or 8bit",
            ),
            ("state = \"8bit\"\noptimizer = \"adagrad\"", "adagrad has no 8-bit state"),
            ("state = \"8bit\"\noptimizer = \"sgd\"", "sgd has no 8-bit state"),
            ("state = \"bf16\"\noptimizer = \"sgd\"", "--state bf16: sgd has no bf16 state"),
            ("state = \"bf16\"\nprecision = \"f64\"", "--state bf16 is for parameters in f32"),
            ("state = \"8bit\"\nprecision = \"f64\"", "--state 8bit is for parameters in f32"),
            ("scale = \"half\"", "--scale half"),
            ("stratified = true", "--stratified"),
            ("columns = \"age\"", "--columns age"),
            ("augment = \"flip,blur\"", "--augment flip,blur"),
            ("memory = \"lots\"", "--memory"),
        ] {
            let why = refusal(toml);
            assert!(why.contains(flag), "{toml}: {why}");
        }
        assert!(check(&Config::default()).is_ok());
    }

    #[test]
    fn early_stopping_follows_what_is_measured() {
        let config = Config { early_stopping: Some("val_loss".into()), ..Config::default() };
        let metrics = ["accuracy".to_string()];
        assert!(followed(&config, &metrics, true).is_ok());
        let Err(Failure(why)) = followed(&config, &metrics, false) else { panic!("it was taken") };
        assert!(why.contains("--validation-split") && why.contains("loss, accuracy"), "{why}");
    }
}
