//! Ways out of a refusal that only the command knows, since it made the data: smaller images and shorter sequences, each with the least that
//! a training on them would need.

use plimsoll::internals::run::{Error, Job, Remedy};
use plimsoll::nn::zoo::{self, Kind};
use plimsoll::prelude::*;
use plimsoll::train;

use crate::config::Config;
use crate::form::Form;
use crate::setup::Setup;

/// A refusal with what smaller samples would need, where that is less; any other error as it is.
pub fn with_smaller_samples(
    error: train::Error,
    config: &Config,
    device: &Device,
    form: &Form,
) -> train::Error {
    let train::Error::Run(Error::Infeasible { asked, least, account, refusal, heaviest, mut ways }) = error
    else {
        return error;
    };
    let smaller = smaller_samples(config, device, form).and_then(|way| way());
    ways.extend(smaller.filter(|way| way.least < least));
    train::Error::Run(Error::Infeasible { asked, least, account, refusal, heaviest, ways })
}

/// What samples of half the side, or half the length, would need, where data and model can be had so: measured, and yet to be searched for.
pub fn smaller_samples(
    config: &Config,
    device: &Device,
    form: &Form,
) -> Option<Job<'static, Option<Remedy>>> {
    device.scope(|| smaller(config, device, form))
}

fn smaller(config: &Config, device: &Device, form: &Form) -> Option<Job<'static, Option<Remedy>>> {
    let shape = |form: &Form| form.fields.first().map(|field| field.shape.clone());
    let reads_tokens =
        config.model.as_deref().and_then(zoo::find).is_some_and(|entry| entry.kind == Kind::Tokens);
    let own = shape(form)?;
    let (flag, change, smaller) = match own[..] {
        [tokens] if reads_tokens && tokens > 1 => {
            let half = tokens / 2;
            let smaller = Config { sequence: Some(half), ..config.clone() };
            (format!("--sequence {half}"), format!("sequences of {half} tokens"), smaller)
        }
        [height, width, _] if height == width && height > 1 => {
            let half = height / 2;
            let smaller = Config { image: Some(half), ..config.clone() };
            (format!("--image {half}"), format!("images of {half} × {half}"), smaller)
        }
        _ => return None,
    };
    // Data of a fixed size, or a model that is made for one, has no such way.
    let setup = Setup::new(&smaller, device).ok()?;
    if shape(&setup.form)? == own {
        return None;
    }
    Some(setup.trainer.measured(&setup.train).ok()?.way(flag, change))
}
