//! Turns a prompt into what a model says next, token by token, with keys and values kept within the memory limit.

use std::sync::Arc;

use plimsoll_graph::quant::QuantForm;
use plimsoll_graph::{DType, GatherOps, IndexPutOps, TensorOps, Type};
use plimsoll_nn::blocks::refuse;
use plimsoll_nn::{Net, Param, Precision};
use plimsoll_run::{
    Kind, MemoryRequest, Mode, PlanFigures, Result as RunResult, StateTensor, Step, StepArgs, StepOptions,
    StepResult, Tensor,
};

use crate::adapter::Adapter;
use crate::decoder::{Decoder, Memory, Sight};
use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::tuning::Tuning;

/// Tokens of a prompt that are read at once.
const CHUNK: usize = 64;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest; above, logits are divided by it and the token is drawn.
    pub temperature: f64,
    /// Only the likeliest tokens that have this share together are drawn from.
    pub top_p: f64,
    /// Where randomness starts.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_p: 1.0, seed: 42 }
    }
}

/// A model that says what comes next. Weights, keys and values and everything else it takes are planned within one memory limit.
pub struct Generator {
    step: Step,
    /// Tokens that were read or said.
    read: usize,
    /// Tokens that there is room for.
    room: usize,
    vocabulary: usize,
    random: u64,
}

/// Keys and values of the tokens so far, as state.
struct Kept<'a> {
    before: &'a Tensor,
    caches: Vec<Tensor>,
}

impl Memory for Kept<'_> {
    fn extended(&mut self, layer: usize, k: Tensor, v: Tensor) -> RunResult<(Tensor, Tensor)> {
        let length = k.shape()[1];
        let rows = k.iota_like(Type::new(DType::I64, [length]), 0)?.add(&self.before.cast(DType::I64)?)?;
        for (i, new) in [k, v].into_iter().enumerate() {
            let cache = &mut self.caches[2 * layer + i];
            *cache = cache.index_put(&rows, &new, 1)?;
        }
        Ok((self.caches[2 * layer].clone(), self.caches[2 * layer + 1].clone()))
    }
}

impl Generator {
    /// A folder's model, with adapters where there are some, for conversations of at most so many tokens: planned, compiled and loaded; with
    /// the weights of linear layers in few bits, where a base is named.
    /// Runs on the device of the scope it is made in.
    ///
    /// # Errors
    /// There is no plan within the limit; or a file is damaged or does not fit.
    pub fn new(
        folder: &mut Folder,
        mut adapter: Option<&mut Adapter>,
        request: &MemoryRequest,
        length: usize,
        seed: u64,
        base: Option<QuantForm>,
    ) -> Result<Generator> {
        if length > folder.config.context {
            let why =
                format!("{length} tokens are more than the model's {} positions", folder.config.context);
            return Err(Error::Asked(why));
        }
        let tuning = adapter.as_ref().map_or(Tuning::Frozen, |adapter| Tuning::Lora(adapter.lora.clone()));
        let decoder = Decoder { base, ..folder.decoder(tuning) };
        let precision = request.precision;
        let input = Type::new(DType::I64, [1, 1]);
        let params = Net::discover_in(precision, &[input], &decoder)?;
        // A chunk that is not full is written whole, and written over by what follows.
        let rows = length + CHUNK;
        let config = &decoder.config;
        let cache = Type::new(precision.compute(), [1, rows, config.kv_heads, config.head]);
        let n_layers = config.layers.len();
        let mut held = Vec::new();
        for param in &params {
            let tensor = Tensor::zeros(param.ty.clone())?;
            held.push(StateTensor { name: param.name.clone(), kind: Kind::Parameter, tensor });
        }
        for i in 0..2 * n_layers {
            let name = format!("{}.{}", if i % 2 == 0 { "keys" } else { "values" }, i / 2);
            held.push(StateTensor { name, kind: Kind::Activation, tensor: Tensor::zeros(cache.clone())? });
        }
        let options = StepOptions { request: request.clone(), ..StepOptions::default() };
        let types = [Type::new(DType::I64, [1, 1]), Type::new(DType::F32, []), Type::new(DType::I64, [1])];
        let (vocabulary, own) = (config.vocabulary, params.clone());
        let model = Arc::new((decoder, own));
        let (one, many) = (model.clone(), model);
        let mut step =
            Step::compile_with(options, held, &types, move |args| next(&one.0, &one.1, precision, args))?;
        // Tokens of a prompt, a chunk at a time: another mode over the same state.
        step.set_body(Mode::Evaluate, move |args| next(&many.0, &many.1, precision, args));
        let mut give = |param: &Param, start: usize, bytes: &[u8]| {
            let at = params.iter().position(|own| own.name == param.name);
            let at = at.ok_or_else(|| Error::Asked(format!("there is no parameter {}", param.name)))?;
            Ok(step.set_state_bytes(at, start, bytes)?)
        };
        folder.load_in_pieces(&params, &mut give)?;
        if let Some(adapter) = &mut adapter {
            adapter.load(&params, |param, bytes| give(param, 0, bytes))?;
        }
        Ok(Generator { step, read: 0, room: length, vocabulary, random: seed })
    }

    /// What was planned.
    pub fn info(&self) -> &PlanFigures {
        self.step.info()
    }

    /// Reads tokens; the logits of the one that follows them.
    pub fn read(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        if tokens.is_empty() {
            return Err(Error::Asked("nothing follows no tokens; give a prompt".into()));
        }
        if self.read + tokens.len() > self.room {
            let why = format!(
                "{} tokens are more than the {} that there is room for",
                self.read + tokens.len(),
                self.room
            );
            return Err(Error::Asked(why));
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= self.vocabulary) {
            return Err(Error::Asked(format!(
                "token {token} is outside the vocabulary of {}",
                self.vocabulary
            )));
        }
        let mut logits = Vec::new();
        for chunk in tokens.chunks(CHUNK) {
            let width = if chunk.len() == 1 { 1 } else { CHUNK };
            let mut padded: Vec<i64> = chunk.iter().map(|token| i64::from(*token)).collect();
            padded.resize(width, 0);
            let x = Tensor::from_slice(&padded, [1, width])?;
            let before = Tensor::from_slice(&[self.read as f32], [])?;
            let last = Tensor::from_slice(&[chunk.len() as i64 - 1], [1])?;
            let mode = if width == 1 { Mode::Train } else { Mode::Evaluate };
            logits = self.step.run_mode(mode, &[&x, &before, &last])?[0].to_vec::<f32>()?;
            self.read += chunk.len();
        }
        Ok(logits)
    }

    /// The token that logits say comes next.
    pub fn choose(&mut self, logits: &[f32], sampling: &Sampling) -> u32 {
        let likeliest = || {
            let best = logits
                .iter()
                .enumerate()
                .fold((0, f32::NEG_INFINITY), |best, (i, x)| if *x > best.1 { (i, *x) } else { best });
            best.0 as u32
        };
        if sampling.temperature <= 0.0 {
            return likeliest();
        }
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut shares: Vec<(u32, f64)> = logits
            .iter()
            .enumerate()
            .map(|(i, x)| (i as u32, (f64::from(x - most) / sampling.temperature).exp()))
            .collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let total: f64 = shares.iter().map(|(_, share)| share).sum();
        let mut sum = 0.0;
        let n = shares.iter().position(|(_, share)| {
            sum += share;
            sum >= sampling.top_p * total
        });
        shares.truncate(n.map_or(shares.len(), |n| n + 1));
        let kept: f64 = shares.iter().map(|(_, share)| share).sum();
        let mut at = self.uniform() * kept;
        for (token, share) in &shares {
            at -= share;
            if at < 0.0 {
                return *token;
            }
        }
        shares.last().map_or_else(likeliest, |(token, _)| *token)
    }

    /// A number from 0 to 1, by SplitMix64.
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// One step: tokens `[1, T]`, how many came before them, and which of them is the last that counts.
fn next(
    decoder: &Decoder,
    params: &[Param],
    precision: Precision,
    args: &StepArgs<'_>,
) -> RunResult<StepResult> {
    let [tokens, before, last] = args.inputs else {
        return Err(refuse("gives a generator other inputs than three"));
    };
    let (values, caches) = args.state.split_at(params.len());
    let mut net = Net::bound(params, values, false).precision(precision).predicting();
    let keys = caches.first().map_or(0, |cache| cache.shape()[1]);
    let sight = Sight::of_next(&decoder.config, tokens, before, keys, net.dtype())?;
    let mut memory = Kept { before, caches: caches.to_vec() };
    let features = decoder.features(&mut net, tokens, &sight, &mut memory)?;
    let head = decoder.head(&mut net)?;
    let logits = decoder.logits(&features.gather(last, 1)?, &head)?.reshape([decoder.config.vocabulary])?;
    let state = values.iter().cloned().chain(memory.caches).collect();
    Ok(StepResult { state, outputs: vec![logits], totals: Vec::new() })
}
