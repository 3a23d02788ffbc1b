//! Our layers as Keras's.

use plimsoll_graph::Padding;
use plimsoll_nn::{Activation, Conv, Conv2d, LayerCall, LayerKind, MultiHead, Recurrent};
use serde_json::{Value, json};

use super::config::policy;
use super::emit::{Argument, Emitter, NN, New, Weight};
use super::source::Source;
use crate::error::{Error, Result};

impl Emitter<'_> {
    /// Adds the layer of a call.
    pub(super) fn call(&mut self, call: &LayerCall) -> Result<usize> {
        let path = &call.path;
        let mut inputs = Vec::new();
        for &id in &call.inputs {
            inputs.push(self.tensor(id, path)?);
        }
        let first = inputs.first().copied();
        let x = first.ok_or_else(|| Error::export(path.clone(), "it reads nothing"))?;
        let sample = self.sample(call.inputs[0]);
        let width = sample.last().copied().unwrap_or(1);
        let param = |own: &str| Source::Param(format!("{path}/{own}"));
        let row = |own: &str| Weight::new([width], param(own));
        let refuse = |why: &str| Err(Error::export(path.clone(), why));
        let reads_padding =
            matches!(call.kind, LayerKind::Lstm(_) | LayerKind::Gru(_) | LayerKind::SelfAttention(_));
        if reads_padding && inputs.len() > 1 {
            return refuse(
                "it leaves out padding, which is not written to Keras files; export the model without padding",
            );
        }
        let new = match call.kind {
            LayerKind::Dense { units, bias } => {
                let config = json!({"units": units, "activation": "linear", "use_bias": bias});
                New::layer("Dense", config, x).weights("dense", kernel(path, [width, units], units, bias))
            }
            LayerKind::Embedding { rows, width } => {
                let config = json!({"input_dim": rows, "output_dim": width, "mask_zero": false});
                let weights = vec![Weight::new([rows, width], param("table"))];
                New::layer("Embedding", config, x).weights("embedding", weights)
            }
            LayerKind::Conv1d(conv) => {
                let geometry = conv.geometry;
                let x = match geometry.pad {
                    Padding::Explicit([(before, after)]) => {
                        let pad = New::layer("ZeroPadding1D", json!({"padding": [before, after]}), x);
                        self.add(
                            &format!("{path}_pad"),
                            pad,
                            &[sample[0] + before + after, width],
                            self.dtype,
                        )
                    }
                    _ => x,
                };
                let config = conv_config(&conv, padding(&geometry.pad));
                let shape = [conv.window[0], width / geometry.groups.max(1), conv.channels];
                New::layer("Conv1D", config, x)
                    .weights("conv1d", kernel(path, shape, conv.channels, conv.bias))
            }
            LayerKind::Conv2d(conv) => {
                let x = self.padded(path, &conv, x, &sample);
                self.conv2d(path, conv, x, width)
            }
            LayerKind::ConvTranspose2d(conv) => {
                let geometry = conv.geometry;
                let is_padded = matches!(geometry.pad, Padding::Explicit(sides) if sides != [(0, 0); 2]);
                let is_gapped =
                    (0..2).any(|i| (conv.window[i] - 1) * geometry.dilation[i] + 1 < geometry.stride[i]);
                if is_padded || is_gapped || geometry.groups > 1 {
                    return refuse(
                        "a transposed convolution with padding, groups or gaps between its windows",
                    );
                }
                let mut config = conv_config(&conv, padding(&geometry.pad));
                config.as_object_mut().map(|map| map.remove("groups"));
                let shape = [conv.window[0], conv.window[1], conv.channels, width];
                let weights = kernel(path, shape, conv.channels, conv.bias);
                New::layer("Conv2DTranspose", config, x).weights("conv2d_transpose", weights)
            }
            LayerKind::BatchNorm { momentum, eps } => {
                // We count the share of the new batch, Keras that of the old.
                let config = json!({
                    "axis": -1, "momentum": 1.0 - momentum, "epsilon": eps, "center": true, "scale": true,
                });
                let weights = ["gamma", "beta", "mean", "var"].map(row).to_vec();
                New::layer("BatchNormalization", config, x).weights("batch_normalization", weights)
            }
            LayerKind::LayerNorm { eps } => {
                let config = json!({"axis": [-1], "epsilon": eps, "center": true, "scale": true});
                let weights = ["gamma", "beta"].map(row).to_vec();
                New::layer("LayerNormalization", config, x).weights("layer_normalization", weights)
            }
            LayerKind::GroupNorm { groups, eps } => {
                let config =
                    json!({"groups": groups, "axis": -1, "epsilon": eps, "center": true, "scale": true});
                let weights = ["gamma", "beta"].map(row).to_vec();
                New::layer("GroupNormalization", config, x).weights("group_normalization", weights)
            }
            LayerKind::RmsNorm { eps } => {
                let config = json!({"axis": -1, "epsilon": eps});
                New::layer("RMSNormalization", config, x).weights("rms_normalization", vec![row("gamma")])
            }
            LayerKind::Dropout { rate } => {
                New::layer("Dropout", json!({"rate": rate, "seed": null, "noise_shape": null}), x)
            }
            LayerKind::SpatialDropout { rate } => {
                let class = match sample.len() {
                    2 => "SpatialDropout1D",
                    3 => "SpatialDropout2D",
                    _ => return refuse("dropout of channels over other than one or two axes"),
                };
                New::layer(class, json!({"rate": rate, "seed": null}), x)
            }
            LayerKind::Lstm(layer) => self.recurrent(path, Cell::Lstm, layer, x, width),
            LayerKind::Gru(layer) => self.recurrent(path, Cell::Gru, layer, x, width),
            LayerKind::SelfAttention(layer) => attention(path, layer, [x, x], width, |i, own, shape| {
                Weight { shape, ..Weight::new([], Source::Part(format!("{path}/qkv/{own}"), i, 3)) }
            }),
            LayerKind::CrossAttention(layer) => {
                let [q, context] = inputs[..] else { return refuse("it reads not two sequences") };
                if self.sample(call.inputs[1]).last() != Some(&width) {
                    return refuse("its two sequences have other widths");
                }
                let names = ["query", "key", "value"];
                attention(path, layer, [q, context], width, |i, own, shape| Weight {
                    shape,
                    ..Weight::new([], Source::Param(format!("{path}/{}/{own}", names[i])))
                })
            }
            LayerKind::Activation(f) => activation(f, x),
        };
        self.give(path, new, call.output)
    }

    fn conv2d(&self, path: &str, conv: Conv2d, x: usize, width: usize) -> New {
        let [kh, kw] = conv.window;
        let config = conv_config(&conv, padding(&conv.geometry.pad));
        let groups = conv.geometry.groups.max(1);
        if groups == 1 || groups != width {
            let shape = [kh, kw, width / groups, conv.channels];
            return New::layer("Conv2D", config, x)
                .weights("conv2d", kernel(path, shape, conv.channels, conv.bias));
        }
        // Every channel by itself has a layer of its own in Keras, and kernels there.
        let multiplier = conv.channels / width.max(1);
        let mut config = config;
        if let Some(map) = config.as_object_mut() {
            map.remove("filters");
            map.remove("groups");
            map.insert("depth_multiplier".into(), json!(multiplier));
        }
        let weights = kernel(path, [kh, kw, width, multiplier], conv.channels, conv.bias);
        New::layer("DepthwiseConv2D", config, x).weights("depthwise_conv2d", weights)
    }

    /// Padding that Keras has no word for becomes a layer of its own before the convolution.
    fn padded(&mut self, path: &str, conv: &Conv2d, x: usize, sample: &[usize]) -> usize {
        match conv.geometry.pad {
            Padding::Explicit(sides) if sides != [(0, 0); 2] => self.zero_padded(path, x, sides, sample),
            _ => x,
        }
    }

    pub(super) fn zero_padded(
        &mut self,
        path: &str,
        x: usize,
        sides: [(usize, usize); 2],
        sample: &[usize],
    ) -> usize {
        let [(top, bottom), (left, right)] = sides;
        let config = json!({"padding": [[top, bottom], [left, right]], "data_format": "channels_last"});
        let shape = [sample[0] + top + bottom, sample[1] + left + right, sample[2]];
        self.add(&format!("{path}_pad"), New::layer("ZeroPadding2D", config, x), &shape, self.dtype)
    }

    fn recurrent(&self, path: &str, cell: Cell, layer: Recurrent, x: usize, width: usize) -> New {
        let (class, snake, gates) = match cell {
            Cell::Lstm => ("LSTM", "lstm", 4),
            Cell::Gru => ("GRU", "gru", 3),
        };
        let config = |name: Option<&str>, backwards: bool| {
            let mut config = json!({
                "units": layer.units, "return_sequences": layer.gives_all, "activation": "tanh",
                "recurrent_activation": "sigmoid", "use_bias": true, "go_backwards": backwards,
            });
            if let Cell::Gru = cell {
                config["reset_after"] = json!(true);
            }
            if let Some(name) = name {
                (config["name"], config["trainable"], config["dtype"]) =
                    (json!(name), json!(true), policy(self.dtype));
            }
            config
        };
        let weights = |path: &str, holder: &'static str| {
            let columns = gates * layer.units;
            let own = |own: &str| format!("{path}/{own}");
            let (w, u) = (own("input_weight"), own("hidden_weight"));
            let (b, c) = (own("input_bias"), own("hidden_bias"));
            let found = match cell {
                Cell::Lstm => [
                    Weight::new([width, columns], Source::Param(w)),
                    Weight::new([layer.units, columns], Source::Param(u)),
                    Weight::new([columns], Source::Sum(b, c)),
                ],
                Cell::Gru => [
                    Weight::new([width, columns], Source::Swapped(w)),
                    Weight::new([layer.units, columns], Source::Swapped(u)),
                    Weight::new([2, columns], Source::SwappedPair(b, c)),
                ],
            };
            found.map(|weight| Weight { holder, ..weight }).to_vec()
        };
        if !layer.is_bidirectional {
            return New::layer(class, config(None, false), x).weights(snake, weights(path, "cell/"));
        }
        let inner = |name: &str, backwards: bool| {
            json!({
                "module": "keras.layers", "class_name": class, "config": config(Some(name), backwards),
                "registered_name": null,
            })
        };
        let both = json!({
            "merge_mode": "concat", "layer": inner(&format!("forward_{snake}"), false),
            "backward_layer": inner(&format!("backward_{snake}"), true),
        });
        let mut all = weights(path, "forward_layer/cell/");
        all.extend(weights(&format!("{path}/backward"), "backward_layer/cell/"));
        New::layer("Bidirectional", both, x).weights("bidirectional", all)
    }
}

#[derive(Clone, Copy)]
enum Cell {
    Lstm,
    Gru,
}

/// The weights of a layer with a kernel and, where it has one, a bias.
fn kernel(path: &str, shape: impl Into<Vec<usize>>, units: usize, bias: bool) -> Vec<Weight> {
    let mut weights = vec![Weight::new(shape, Source::Param(format!("{path}/weight")))];
    if bias {
        weights.push(Weight::new([units], Source::Param(format!("{path}/bias"))));
    }
    weights
}

fn padding<const AXES: usize>(pad: &Padding<AXES>) -> &'static str {
    if *pad == Padding::Same { "same" } else { "valid" }
}

fn conv_config<const AXES: usize>(conv: &Conv<AXES>, padding: &str) -> Value {
    let geometry = conv.geometry;
    json!({
        "filters": conv.channels, "kernel_size": conv.window.to_vec(), "strides": geometry.stride.to_vec(),
        "padding": padding, "data_format": "channels_last", "dilation_rate": geometry.dilation.to_vec(),
        "groups": geometry.groups, "activation": "linear", "use_bias": conv.bias,
    })
}

/// Attention of the first tensor to the second. `weight` is the kernel or bias of query, key or value.
fn attention(
    path: &str,
    layer: MultiHead,
    [q, context]: [usize; 2],
    width: usize,
    weight: impl Fn(usize, &str, Vec<usize>) -> Weight,
) -> New {
    let each = width / layer.heads.max(1);
    let mut weights = Vec::new();
    for (i, holder) in ["query_dense/", "key_dense/", "value_dense/"].into_iter().enumerate() {
        weights.push(Weight { holder, ..weight(i, "weight", vec![width, layer.heads, each]) });
        if layer.bias {
            weights.push(Weight { holder, ..weight(i, "bias", vec![layer.heads, each]) });
        }
    }
    let holder = "output_dense/";
    let proj = kernel(&format!("{path}/proj"), [layer.heads, each, width], width, layer.bias);
    weights.extend(proj.into_iter().map(|weight| Weight { holder, ..weight }));
    let config = json!({
        "num_heads": layer.heads, "key_dim": each, "value_dim": each, "dropout": 0.0, "use_bias": layer.bias,
        "output_shape": null, "attention_axes": null,
    });
    let mut new = New::layer("MultiHeadAttention", config, q).weights("multi_head_attention", weights);
    new.args.push(Argument::Tensor(context));
    if layer.is_causal {
        new.kwargs = json!({"use_causal_mask": true});
    }
    new
}

/// An activation as a layer, or as a function where Keras has only that.
pub(super) fn activation(f: Activation, x: usize) -> New {
    let word = match f {
        Activation::Relu => "relu",
        Activation::Relu6 => "relu6",
        Activation::Selu => "selu",
        Activation::Gelu => "gelu",
        Activation::Silu => "silu",
        Activation::Mish => "mish",
        Activation::Sigmoid => "sigmoid",
        Activation::HardSigmoid => "hard_sigmoid",
        Activation::HardSwish => "hard_silu",
        Activation::Tanh => "tanh",
        Activation::Softplus => "softplus",
        Activation::Softsign => "softsign",
        Activation::Softmax => "softmax",
        Activation::LeakyRelu(slope) => return New::layer("LeakyReLU", json!({"negative_slope": slope}), x),
        Activation::Elu(alpha) => return New::layer("ELU", json!({"alpha": alpha}), x),
        Activation::GeluTanh => {
            return New::function("Gelu", NN, json!({"approximate": true}), vec![Argument::Tensor(x)]);
        }
    };
    New::layer("Activation", json!({"activation": word}), x)
}
