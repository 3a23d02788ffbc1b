//! The layers of a block: attention, the two or three linear layers behind it, and adapters beside any of them.

use plimsoll_graph::{MatMulAddOps, SoftmaxOps, TensorOps};
use plimsoll_nn::{Init, Net};
use plimsoll_run::{Result, Tensor};

use super::{Decoder, Memory, Sight, capped};
use crate::base::Small;
use crate::config::Family;
use crate::tuning::{Lora, Tuning};

impl Decoder {
    /// x Wᵀ + b, with an adapter where the layer has one. GPT-2 keeps W the other way round.
    fn linear(&self, net: &mut Net, name: &str, x: &Tensor, units: usize, bias: bool) -> Result<Tensor> {
        self.linear_onto(net, name, x, units, bias, None)
    }

    /// The same, added to what is there.
    fn linear_onto(
        &self,
        net: &mut Net,
        name: &str,
        x: &Tensor,
        units: usize,
        bias: bool,
        onto: Option<&Tensor>,
    ) -> Result<Tensor> {
        let width = x.shape().last().copied().unwrap_or(0);
        let is_turned = self.config.family == Family::Gpt2;
        let shape = if is_turned { [width, units] } else { [units, width] };
        let (dtype, path) = (net.dtype(), net.path_of(name).replace('/', "."));
        net.scope(name, |net| {
            let bias = match bias {
                true => Some(self.kept_weight(net, "bias", &[units], Init::Constant(0.0))?.cast(dtype)?),
                false => None,
            };
            let lora = match &self.tuning {
                Tuning::Lora(lora) => Some(lora).filter(|lora| lora.targets.has(&path)),
                Tuning::Full | Tuning::Frozen => None,
            };
            if let Some(lora) = lora.filter(|lora| lora.has_magnitudes) {
                let y = self.with_magnitudes(net, lora, x, units)?;
                let y = bias.iter().try_fold(y, |y, bias| y.add(bias))?;
                return onto.map_or(Ok(y.clone()), |onto| onto.add(&y));
            }
            let y = match (self.base.filter(|_| self.is_frozen()), &bias, onto) {
                (Some(form), None, _) => Small::of(net, form, shape)?.product(x, is_turned)?,
                (Some(form), Some(bias), _) => {
                    Small::of(net, form, shape)?.product(x, is_turned)?.add(bias)?
                }
                (None, None, Some(onto)) => {
                    let w = self.weight(net, "weight", shape)?;
                    x.matmul_onto(&w, false, !is_turned, 1.0, onto)?
                }
                (None, bias, _) => {
                    let w = self.weight(net, "weight", shape)?;
                    x.matmul_with(&w, bias.as_ref(), false, !is_turned)?
                }
            };
            // A product of few bits, or with a bias, is added when it is there.
            let y = match onto.filter(|_| self.base.is_some() && self.is_frozen() || bias.is_some()) {
                Some(onto) => onto.add(&y)?,
                None => y,
            };
            let Some(lora) = lora else { return Ok(y) };
            let [a, b] = self.adapter(net, lora, width, units)?;
            let x = match lora.dropout > 0.0 && net.is_training() {
                true => net.dropout("lora_dropout", x, lora.dropout)?,
                false => x.clone(),
            };
            x.matmul_with(&a, None, false, true)?.matmul_onto(&b, false, true, lora.scale(), &y)
        })
    }

    /// A and B of an adapter. A starts as a dense layer does, B with zeros: at first an adapter changes nothing.
    pub(super) fn adapter(
        &self,
        net: &mut Net,
        lora: &Lora,
        width: usize,
        units: usize,
    ) -> Result<[Tensor; 2]> {
        let a = net.param("lora_A/weight", [lora.rank, width], Init::fan_in(width))?;
        let b = net.param("lora_B/weight", [units, lora.rank], Init::Constant(0.0))?;
        Ok([a, b])
    }

    /// One block: attention and a pair of layers, each adding to the residual stream.
    pub(super) fn block(
        &self,
        net: &mut Net,
        x: &Tensor,
        layer: usize,
        sight: &Sight,
        memory: &mut dyn Memory,
    ) -> Result<Tensor> {
        let is_gpt2 = self.config.family == Family::Gpt2;
        let is_gemma = self.config.is_gemma();
        let [first, after, second, last] = match (is_gpt2, is_gemma) {
            (true, _) => ["ln_1", "", "ln_2", ""],
            (_, true) => [
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ],
            _ => ["input_layernorm", "", "post_attention_layernorm", ""],
        };
        let y = self.norm(net, first, x)?;
        let name = if is_gpt2 { "attn" } else { "self_attn" };
        // Where nothing stands between them, the last product of a part is added to the stream as it is made.
        let is_direct = after.is_empty() && !self.drops(net);
        let onto = Some(x).filter(|_| is_direct);
        let y = net.scope(name, |net| self.attention(net, &y, onto, layer, sight, memory))?;
        let y = if after.is_empty() { y } else { self.norm(net, after, &y)? };
        let x = if is_direct { y } else { x.add(&self.dropped(net, "attention_dropped", y)?)? };
        let y = self.norm(net, second, &x)?;
        let onto = Some(&x).filter(|_| is_direct);
        let y = net.scope("mlp", |net| self.feed_forward(net, &y, onto))?;
        let y = if last.is_empty() { y } else { self.norm(net, last, &y)? };
        if is_direct { Ok(y) } else { x.add(&self.dropped(net, "mlp_dropped", y)?) }
    }

    /// Whether what is added to the residual stream is dropped in part.
    fn drops(&self, net: &Net) -> bool {
        self.config.dropout.residual > 0.0 && net.is_training()
    }

    fn dropped(&self, net: &mut Net, name: &str, x: Tensor) -> Result<Tensor> {
        match self.drops(net) {
            true => net.dropout(name, &x, self.config.dropout.residual),
            false => Ok(x),
        }
    }

    fn feed_forward(&self, net: &mut Net, x: &Tensor, onto: Option<&Tensor>) -> Result<Tensor> {
        let (config, inner) = (&self.config, self.config.inner);
        if !config.is_gated() {
            let y = self.linear(net, "c_fc", x, inner, true)?;
            return self.linear_onto(net, "c_proj", &config.activation.of(&y)?, config.width, true, onto);
        }
        let (gate, up) = if config.family == Family::Phi3 {
            let parts = self.linear(net, "gate_up_proj", x, 2 * inner, false)?.split(2, &[inner, inner])?;
            (parts[0].clone(), parts[1].clone())
        } else {
            let gate = self.linear(net, "gate_proj", x, inner, config.biases.mlp)?;
            (gate, self.linear(net, "up_proj", x, inner, config.biases.mlp)?)
        };
        self.linear_onto(
            net,
            "down_proj",
            &config.activation.of(&gate)?.mul(&up)?,
            config.width,
            config.biases.mlp,
            onto,
        )
    }

    /// Queries, keys and values `[B, T, heads, features]`, before positions turn them.
    fn projected(&self, net: &mut Net, x: &Tensor) -> Result<[Tensor; 3]> {
        let config = &self.config;
        let (q, kv) = (config.heads * config.head, config.kv_heads * config.head);
        let fused = match config.family {
            Family::Gpt2 => Some("c_attn"),
            Family::Phi3 => Some("qkv_proj"),
            _ => None,
        };
        let [b, t] = [x.shape()[0], x.shape()[1]];
        let heads = |x: &Tensor, n: usize| x.reshape([b, t, n, config.head]);
        let parts: Vec<Tensor> = match fused {
            Some(name) => self
                .linear(net, name, x, q + 2 * kv, config.biases.qkv)?
                .split(2, &[q, kv, kv])?
                .into_iter()
                .collect(),
            None => [("q_proj", q), ("k_proj", kv), ("v_proj", kv)]
                .into_iter()
                .map(|(name, units)| self.linear(net, name, x, units, config.biases.qkv))
                .collect::<Result<_>>()?,
        };
        let (mut q, mut k) = (heads(&parts[0], config.heads)?, heads(&parts[1], config.kv_heads)?);
        if config.qk_norm {
            (q, k) = (self.norm(net, "q_norm", &q)?, self.norm(net, "k_norm", &k)?);
        }
        Ok([q, k, heads(&parts[2], config.kv_heads)?])
    }

    fn attention(
        &self,
        net: &mut Net,
        x: &Tensor,
        onto: Option<&Tensor>,
        layer: usize,
        sight: &Sight,
        memory: &mut dyn Memory,
    ) -> Result<Tensor> {
        let config = &self.config;
        let own = &config.layers[layer];
        let [q, k, v] = self.projected(net, x)?;
        let (q, k) = (sight.turned(&q, own.rope)?, sight.turned(&k, own.rope)?);
        let (k, v) = memory.extended(layer, k, v)?;
        let [b, t] = [x.shape()[0], x.shape()[1]];
        let y = match config.dropout.attention > 0.0 && net.is_training() {
            true => self.dropped_attention(net, [&q, &k, &v], &sight.mask(own.window)?, own.scale)?,
            false => sight.attended([&q, &k, &v], own.window, own.scale, config.caps.attention)?,
        };
        let y = y.reshape([b, t, config.heads * config.head])?;
        let name = if config.family == Family::Gpt2 { "c_proj" } else { "o_proj" };
        self.linear_onto(net, name, &y, config.width, config.biases.out, onto)
    }

    /// Attention by its parts, for weights that are dropped.
    fn dropped_attention(
        &self,
        net: &mut Net,
        [q, k, v]: [&Tensor; 3],
        hidden: &Tensor,
        scale: f64,
    ) -> Result<Tensor> {
        let config = &self.config;
        let (heads, kv, d) = (config.heads, config.kv_heads, config.head);
        let ([b, t], s) = ([q.shape()[0], q.shape()[1]], k.shape()[1]);
        let group = heads / kv;
        // [B, T, kv, group, D] → [B, kv, group · T, D]: heads that share a key stand together.
        let q =
            q.reshape([b, t, kv, group, d])?.transpose(&[0, 2, 3, 1, 4])?.reshape([b, kv, group * t, d])?;
        let (k, v) = (k.transpose(&[0, 2, 1, 3])?, v.transpose(&[0, 2, 1, 3])?);
        let scores = q.matmul_with(&k, None, false, true)?.mul_scalar(scale)?;
        let scores = capped(&scores, config.caps.attention)?.reshape([b, kv * group, t, s])?;
        let weights = scores.add(hidden)?.softmax(-1)?;
        let weights = net.dropout("attention_weights", &weights, config.dropout.attention)?;
        let y = weights.reshape([b, kv, group * t, s])?.matmul(&v)?;
        y.reshape([b, kv, group, t, d])?.transpose(&[0, 3, 1, 2, 4])?.reshape([b, t, heads, d])
    }
}
