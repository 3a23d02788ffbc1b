//! What of a run may change when it goes on: how long, how fast and in how much memory, but not what is trained on what.

use std::path::Path;

use crate::Failure;
use crate::config::Config;
use crate::source::is_path;

/// What was asked for over what the run was begun with.
///
/// # Errors
/// Something is asked for that would make it another run.
pub fn settings(asked: Config, begun: Config, run: &Path) -> Result<Config, Failure> {
    macro_rules! same {
        ($($field:ident $flag:literal),*) => {$(
            if let (Some(asked), kept) = (&asked.$field, &begun.$field)
                && kept.as_ref() != Some(asked)
            {
                let was = kept.as_ref().map_or("without it".to_string(), |kept| format!("with {} {kept}", $flag));
                return Err(Failure(format!(
                    "{} was begun {was}, and now {} {asked} is asked for; leave it out to go on, or begin a new run with another --out",
                    run.display(), $flag
                )));
            }
        )*};
    }
    same!(
        model "the model", batch "--batch", optimizer "--optimizer", weight_decay "--weight-decay", loss "--loss", class_weights "--class-weights", metrics "--metrics",
        precision "--precision", state "--state", seed "--seed", take "--take", classes "--classes", width "--width",
        depth "--depth", heads "--heads", patch "--patch", image "--image", sequence "--sequence",
        scale "--scale", augment "--augment", columns "--columns", stratified "--stratified", validation_split "--validation-split", on_error "--on-error", clip_norm "--clip-norm", average "--average",
        prune "--prune", prune_schedule "--prune-schedule", prune_pattern "--prune-pattern", quantize_aware "--quantize-aware", sync_batch_norm "--sync-batch-norm"
    );
    // Data that was moved may be named anew; its checkpoints say whether it is the same.
    let moved = begun.data.as_deref().is_some_and(|kept| is_path(kept) && !Path::new(kept).exists());
    if !moved {
        same!(data "--data");
    }
    Ok(asked.over(begun))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::BatchSize;

    fn begun() -> Config {
        let data = Some("digits".into());
        Config {
            model: Some("cnn".into()),
            data,
            batch: Some(BatchSize::Samples(32)),
            epochs: Some(2),
            ..Config::default()
        }
    }

    #[test]
    fn a_run_goes_on_for_longer_and_in_other_memory() {
        let asked = Config {
            epochs: Some(5),
            memory: Some("1GiB".into()),
            batch: Some(BatchSize::Samples(32)),
            ..Config::default()
        };
        let both = settings(asked, begun(), Path::new("run")).map_err(|Failure(why)| why).unwrap();
        assert_eq!((both.epochs, both.samples(), both.memory.as_deref()), (Some(5), Some(32), Some("1GiB")));
    }

    #[test]
    fn another_model_batch_or_data_is_refused_by_name() {
        let refuse = |asked: Config, expected: &str| {
            let Err(Failure(why)) = settings(asked, begun(), Path::new("run")) else { panic!("{expected}") };
            assert!(why.contains(expected) && why.contains("begin a new run"), "{why}");
        };
        refuse(
            Config { model: Some("mlp".into()), ..Config::default() },
            "begun with the model cnn, and now the model mlp",
        );
        refuse(
            Config { batch: Some(BatchSize::Samples(16)), ..Config::default() },
            "begun with --batch 32, and now --batch 16",
        );
        refuse(Config { batch: Some(BatchSize::Auto), ..Config::default() }, "--batch auto");
        refuse(Config { data: Some("shapes".into()), ..Config::default() }, "--data shapes");
        refuse(Config { width: Some(8), ..Config::default() }, "begun without it, and now --width 8");
    }
}
