//! The flags of adapters, as `plimsoll tune` and `plimsoll plan` take them.

use plimsoll::hub::{Lora, Targets, Tuning};
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
}

impl LoraArgs {
    pub fn is_asked(&self) -> bool {
        *self != LoraArgs::default()
    }

    /// What is tuned.
    pub fn tuning(&self) -> Result<Tuning, Failure> {
        let Some(rank) = self.lora else { return Ok(Tuning::Full) };
        let mut lora = Lora::new(rank);
        lora.alpha = self.lora_alpha.unwrap_or(lora.alpha);
        lora.dropout = self.lora_dropout.unwrap_or(0.0);
        lora.rank_stabilised = self.rslora;
        if let Some(named) = &self.lora_targets {
            let names = named.split(',').map(str::trim).filter(|name| !name.is_empty());
            lora.targets = Targets::Named(names.map(String::from).collect());
        }
        lora.check()?;
        Ok(Tuning::Lora(lora))
    }
}
