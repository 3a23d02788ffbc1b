//! `plimsoll generate`: a language model of a folder and a prompt in; what follows it out.

use std::io::Write;
use std::path::PathBuf;

use plimsoll::hub::{Adapter, Config as ModelConfig, Generator, Message, Sampling, Tokenizer};
use plimsoll::prelude::*;
use serde_json::json;

use crate::config::Config;
use crate::lora_args::Base;
use crate::predict::Place;
use crate::{Failure, Stop, decoder_setup, device_args, merge};

/// Arguments of `plimsoll generate`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// A folder with config.json, model.safetensors (or its index and parts) and tokenizer.json; or adapters (PEFT's form) whose base is in
    /// the folder that they name.
    folder: PathBuf,
    /// What the model goes on from.
    #[arg(long)]
    prompt: String,
    /// The prompt is a message of a user: put it into the model's chat template.
    #[arg(long)]
    chat: bool,
    /// Tokens at most.
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Adapters beside its weights: a folder of PEFT's form, or a run of `plimsoll tune`.
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,
    /// Keep the weights of linear layers in fewer bits. What is computed from them is rounded accordingly. [default: as they are stored]
    #[arg(long, value_enum)]
    base: Option<Base>,
    /// 0 takes the likeliest token; above, tokens are drawn, the more freely the higher.
    #[arg(long, default_value_t = 0.0)]
    temperature: f64,
    /// Draw only from the likeliest tokens that have this share together.
    #[arg(long, default_value_t = 1.0)]
    top_p: f64,
    /// A word that ends the text and is not part of it; can be given again.
    #[arg(long, value_name = "WORD")]
    stop: Vec<String>,
    /// Where randomness starts.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// The memory limit, for weights, kept keys and values and everything else.
    #[arg(long)]
    memory: Option<String>,
    /// f32, mixed-bf16 or mixed-f16. [default: f32]
    #[arg(long)]
    precision: Option<String>,
    #[command(flatten)]
    place: Place,
    /// One JSON line in the end instead of text as it comes: `text`, `tokens`.
    #[arg(long)]
    json: bool,
}

/// Goes on from a prompt.
pub fn run(args: &Args) -> Result<(), Stop> {
    let wrong = |why: &str| Err(Stop::Usage(why.into()));
    if args.tokens == 0 {
        return wrong("--tokens 0 says nothing");
    }
    if !args.temperature.is_finite() || args.temperature < 0.0 {
        return wrong("--temperature must be a number of at least 0");
    }
    if !(args.top_p > 0.0 && args.top_p <= 1.0) {
        return wrong("--top-p must be above 0 and at most 1");
    }
    if args.stop.iter().any(String::is_empty) {
        return wrong("--stop is empty: every text would end at once");
    }
    let config = Config {
        memory: args.memory.clone(),
        precision: args.precision.clone(),
        device: args.place.device.clone(),
        threads: args.place.threads,
        ..Config::default()
    };
    let device = device_args::device(&config)?;
    Ok(device.scope(|| say_on(args, &config, &device))?)
}

fn say_on(args: &Args, config: &Config, device: &Device) -> Result<(), Failure> {
    let (all, layers) = config.precision()?;
    if !layers.is_empty() {
        return Err(Failure(
            "--precision names layers; a language model of a folder computes in one precision".into(),
        ));
    }
    let request = config.memory_request(all.unwrap_or_default(), device)?;
    let (model, adapter) = merge::with_base(&args.folder, args.adapter.as_deref())?;
    let mut folder = decoder_setup::open(&model)?;
    let mut adapter = adapter.as_deref().map(merge::adapter_of).map(Adapter::open).transpose()?;
    let tokenizer = Tokenizer::open(&model)?;
    tokenizer.fits(folder.config.vocabulary)?;
    let prompt = prompt(args, &tokenizer)?;
    let ends = ends(&model, &folder.config, &tokenizer)?;
    let (length, base) = (prompt.len() + args.tokens, args.base.map(Base::form));
    let mut generator = Generator::new(&mut folder, adapter.as_mut(), &request, length, args.seed, base)?;
    let sampling = Sampling { temperature: args.temperature, top_p: args.top_p, seed: args.seed };
    let (mut said, mut text, mut shown) = (Vec::new(), String::new(), 0);
    let mut logits = generator.read(&prompt)?;
    while said.len() < args.tokens {
        let token = generator.choose(&logits, &sampling);
        if ends.contains(&token) {
            break;
        }
        said.push(token);
        text = tokenizer.decode(&said)?;
        if let Some(at) = args.stop.iter().filter_map(|word| text.find(word.as_str())).min() {
            text.truncate(at);
            break;
        }
        if !args.json {
            shown = show(&text, shown, &args.stop)?;
        }
        if said.len() < args.tokens {
            logits = generator.read(&said[said.len() - 1..])?;
        }
    }
    match args.json {
        true => say!("{}", json!({ "text": text, "tokens": said })),
        false => say!("{}", &text[shown.min(text.len())..]),
    }
    Ok(())
}

/// Prints what is new of a text and cannot change any more: not half a letter, and not the beginning of a word that ends it.
fn show(text: &str, shown: usize, stops: &[String]) -> Result<usize, Failure> {
    let held = stops.iter().map(|word| word.len()).max().unwrap_or(0);
    let whole = text.trim_end_matches('\u{fffd}').len();
    let mut end = whole.saturating_sub(held).max(shown);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    if end > shown {
        let mut out = std::io::stdout().lock();
        out.write_all(&text.as_bytes()[shown..end])
            .and_then(|()| out.flush())
            .map_err(|e| Failure(e.to_string()))?;
    }
    Ok(end.max(shown))
}

/// The tokens of the prompt.
fn prompt(args: &Args, tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
    let encoded = match args.chat {
        false => tokenizer.encode(&args.prompt, true)?,
        true => {
            let Some(template) = &tokenizer.template else {
                let why = "it has no chat_template; leave --chat out";
                return Err(Failure(format!("{}: {why}", args.folder.display())));
            };
            let mut rest = serde_json::Map::new();
            rest.insert("content".into(), args.prompt.clone().into());
            let message = Message { role: "user".into(), rest };
            tokenizer.encode(&template.render(&[message], true)?, false)?
        }
    };
    match encoded.tokens.is_empty() {
        true => Err(Failure("the prompt has no tokens; say something".into())),
        false => Ok(encoded.tokens),
    }
}

/// The tokens that end a text: those of generation_config.json, or else the config's, or else the tokenizer's.
fn ends(folder: &std::path::Path, config: &ModelConfig, tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
    let own = plimsoll::internals::hub::end_tokens(folder)?;
    Ok([own, config.tokens.eos.clone(), tokenizer.eos.into_iter().collect()]
        .into_iter()
        .find(|ends| !ends.is_empty())
        .unwrap_or_default())
}
