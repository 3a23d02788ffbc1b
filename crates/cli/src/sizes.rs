//! Turns the sizes that a command names into those of a model. A size that means nothing for it is refused by name.

use plimsoll::nn::zoo::{Entry, Kind};

use crate::Failure;
use crate::config::Config;

/// The sizes of a model that can be set, by flag.
pub fn of(entry: &Entry) -> Vec<(&'static str, usize)> {
    let size = entry.size;
    let all = [("width", size.width), ("depth", size.depth), ("heads", size.heads), ("patch", size.patch)];
    all.into_iter().filter(|(_, value)| *value > 0).collect()
}

/// What data a model takes, in words.
pub fn takes(entry: &Entry) -> String {
    let side = entry.size.image;
    match entry.kind {
        Kind::Vectors => "numbers or images, and a class each".into(),
        Kind::Images if entry.size.patch > 0 => {
            format!("images whose sides are multiples of --patch, as {side} × {side}, and a class each")
        }
        Kind::Images => format!("images, as {side} × {side}, and a class each"),
        Kind::Pixels => {
            format!("images, as {side} × {side}, and a class a pixel (folders images and masks, or shapes)")
        }
        Kind::Tokens => format!("a text (.txt), in sequences of {} tokens", entry.size.sequence),
    }
}

/// Refuses sizes that mean nothing for the model: none where the model is a file's or the demo's.
pub fn check(config: &Config, name: &str, entry: Option<&Entry>) -> Result<(), Failure> {
    let own = entry.map(of).unwrap_or_default();
    let said =
        [("width", config.width), ("depth", config.depth), ("heads", config.heads), ("patch", config.patch)];
    for (flag, value) in said {
        if value.is_some() && !own.iter().any(|(known, _)| *known == flag) {
            let known: Vec<String> = own.iter().map(|(flag, _)| format!("--{flag}")).collect();
            let has = match known.is_empty() {
                true => "its sizes are fixed".to_string(),
                false => format!("it has {}", known.join(" and ")),
            };
            return Err(Failure(format!("--{flag} means nothing for {name}: {has}")));
        }
    }
    if entry.is_none() && config.classes.is_some() && name != "demo" {
        return Err(Failure(format!("--classes means nothing for {name}: its outputs are in the file")));
    }
    Ok(())
}

/// Refuses sizes of random data that mean nothing for the model: none where it is the demo's, which reads images.
pub fn check_data(config: &Config, name: &str, entry: Option<&Entry>) -> Result<(), Failure> {
    let reads_tokens = entry.is_some_and(|entry| entry.kind == Kind::Tokens);
    let (flag, value, reads) = match reads_tokens {
        true => ("--image", config.image, "tokens, so that it has --sequence"),
        false => ("--sequence", config.sequence, "images, so that it has --image"),
    };
    match value {
        Some(value) => Err(Failure(format!("{flag} {value} means nothing for {name}: it reads {reads}"))),
        None => Ok(()),
    }
}

/// Refuses images of a size that the model cannot cut up.
pub fn fits(entry: &Entry, data: &str, shape: &[usize]) -> Result<(), Failure> {
    let (width, heads) = (entry.size.width, entry.size.heads);
    if heads > 0 && !width.is_multiple_of(heads) {
        return Err(Failure(format!(
            "--width {width} cannot be cut in --heads {heads}; the width is a multiple of the heads"
        )));
    }
    let [height, width, _] = *shape else { return Ok(()) };
    let is_multiple = |n: usize| n > 0 && height.is_multiple_of(n) && width.is_multiple_of(n);
    let patch = entry.size.patch;
    if patch > 0 && !is_multiple(patch) {
        return Err(Failure(format!(
            "{} cuts images into patches of {patch} × {patch}, and those of {data} are {height} × {width}; say --patch, or --image for \
             a folder of images",
            entry.name
        )));
    }
    let factor = 1usize.checked_shl(entry.size.depth.saturating_sub(1) as u32).unwrap_or(usize::MAX);
    if entry.kind == Kind::Pixels && !is_multiple(factor) {
        return Err(Failure(format!(
            "{} of depth {} halves images {} times, so their sides must be multiples of {factor}, and those of {data} are {height} × \
             {width}; say a smaller --depth, or --image for a folder of images",
            entry.name,
            entry.size.depth,
            entry.size.depth - 1,
        )));
    }
    Ok(())
}
