//! The flags of adapters, as `plimsoll tune` and `plimsoll plan` take them.

use plimsoll::hub::{Decoder, Lora, Targets, Tuning};
use plimsoll::internals::graph::quant::QuantForm;
use serde::{Deserialize, Serialize};

use crate::Failure;

/// What of a language model is tuned.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoraArgs {
    /// Tune adapters of this rank beside the linear layers (LoRA), and keep all weights as they are. [default: all weights are tuned]
    #[arg(long, value_name = "RANK", help_heading = "Adapters")]
    pub lora: Option<usize>,
    /// What adapters are scaled by, divided by their rank. [default: twice the rank]
    #[arg(long, requires = "lora", help_heading = "Adapters")]
    pub lora_alpha: Option<f64>,
    /// The share of an adapter's input that is dropped in training. [default: 0]
    #[arg(long, requires = "lora", help_heading = "Adapters")]
    pub lora_dropout: Option<f64>,
    /// The layers that have adapters, with commas; `*` stands for any letters: `q_proj,v_proj`, `layers.1*.mlp.*`. [default: every linear
    /// layer but the output]
    #[arg(long, requires = "lora", value_name = "LAYER,…", help_heading = "Adapters")]
    pub lora_targets: Option<String>,
    /// Divide alpha by the root of the rank (rsLoRA).
    #[arg(long, requires = "lora", help_heading = "Adapters")]
    pub rslora: bool,
    /// Train a magnitude for each output of these layers beside the direction of its weights (DoRA), as PEFT has it.
    #[arg(long, requires = "lora", help_heading = "Adapters")]
    pub dora: bool,
    /// Keep the weights of linear layers, which adapters stand beside, in fewer bits: int8 (a scale a row) or nf4 (blocks of 64, double
    /// quantisation, as bitsandbytes has it). What is computed from them is rounded accordingly. [default: as they are stored]
    #[arg(long, value_enum, help_heading = "Adapters")]
    pub base: Option<Base>,
}

/// How frozen weights are kept.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Base {
    /// A byte a number.
    Int8,
    /// Half a byte a number.
    Nf4,
}

impl Base {
    pub fn form(self) -> QuantForm {
        match self {
            Base::Int8 => QuantForm::Int8,
            Base::Nf4 => QuantForm::Nf4,
        }
    }
}

impl LoraArgs {
    pub fn is_asked(&self) -> bool {
        *self != LoraArgs::default()
    }

    /// A decoder whose base is kept as it was asked for.
    pub fn based(&self, decoder: Decoder) -> Result<Decoder, Failure> {
        if self.base.is_some() && decoder.tuning == Tuning::Full {
            let why = "--base keeps weights that are not trained in few bits, and all are; tune adapters with --lora";
            return Err(Failure(why.into()));
        }
        Ok(Decoder { base: self.base.map(Base::form), ..decoder })
    }

    /// What is tuned.
    pub fn tuning(&self) -> Result<Tuning, Failure> {
        let Some(rank) = self.lora else { return Ok(Tuning::Full) };
        let mut lora = Lora::new(rank);
        lora.alpha = self.lora_alpha.unwrap_or(lora.alpha);
        lora.dropout = self.lora_dropout.unwrap_or(0.0);
        lora.rank_stabilised = self.rslora;
        lora.has_magnitudes = self.dora;
        if let Some(named) = &self.lora_targets {
            let names = named.split(',').map(str::trim).filter(|name| !name.is_empty());
            lora.targets = Targets::Named(names.map(String::from).collect());
        }
        lora.check()?;
        Ok(Tuning::Lora(lora))
    }
}
