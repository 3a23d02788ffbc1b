//! Turns a model of our own layers into a Keras file: a Sequential model, layer for layer.
//!
//! Layers of ours are functions, so the caller says again which they are, in the words of [`plimsoll_nn::Sequential`]. What
//! was said is not trusted: the file is read back, and refused if it computes something else than the model.

use std::path::Path;

use plimsoll_formats::Element;
use plimsoll_formats::keras::{Contents, Variable, write_keras};
use plimsoll_graph::{DType, Padding, RandomOps, TensorOps, Type};
use plimsoll_nn::{Activation, Conv2d, Model, Net, Param, Recurrent};
use plimsoll_run::Tensor;
use serde_json::{Value, json};

use crate::KerasModel;
use crate::error::{Error, Result};

/// The version of Keras for whose reader files are meant.
const KERAS_VERSION: &str = "3.0.0";
/// How far outputs of the file may be from the model's.
const TOLERANCE: f64 = 1e-4;

/// A Sequential model for Keras, with the parameters' names of [`plimsoll_nn::Sequential`].
///
/// ```
/// use plimsoll_keras::{Export, KerasModel};
/// use plimsoll_nn::{Net, Sequential};
/// let model = Sequential::new([8, 8, 1]).conv2d(4, 3).batch_norm().relu().max_pool2d(2).flatten().dense(3);
/// let params = Net::discover(&[model.input(1)], &model)?;
/// let values = params.iter().map(|p| p.init.draw(&p.name, &p.ty, 1)).collect::<Result<Vec<_>, _>>()?;
/// # let path = std::env::temp_dir().join(format!("plimsoll-keras-export-{}.keras", std::process::id()));
/// let export = Export::new("small", [8, 8, 1]).conv2d(4, 3).batch_norm().relu().max_pool2d(2).flatten().dense(3);
/// export.write(&path, &model, &params, &values)?;
/// assert_eq!(KerasModel::open(&path)?.params().len(), 8);
/// # std::fs::remove_file(&path).expect("removing what was written");
/// # Ok::<(), plimsoll_keras::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Export {
    name: String,
    sample: Vec<usize>,
    dtype: DType,
    layers: Vec<Exported>,
    counts: Vec<(&'static str, usize)>,
    /// The next layer's name, where it is not a number of its kind.
    own_name: Option<String>,
    /// What the model cannot be written for, found while it was described.
    problem: Option<(String, String)>,
}

#[derive(Clone, Debug)]
struct Exported {
    class: &'static str,
    /// The class as Keras files its weights: in snake case.
    snake: &'static str,
    /// The object below the layer that holds its weights.
    holder: &'static str,
    config: Value,
    weights: Vec<From>,
}

/// Where a Keras weight comes from.
#[derive(Clone, Debug)]
enum From {
    Param(String),
    /// The sum of two: Keras has one bias where we have two.
    Sum(String, String),
    /// The first two of three gates in the other order.
    Swapped(String),
    /// Two of them, one above the other.
    SwappedPair(String, String),
}

impl Export {
    /// A model of samples of this shape, f32.
    pub fn new(name: &str, sample: impl Into<plimsoll_graph::Shape>) -> Export {
        let sample: plimsoll_graph::Shape = sample.into();
        Export {
            name: name.into(),
            sample: sample.to_vec(),
            dtype: DType::F32,
            layers: Vec::new(),
            counts: Vec::new(),
            own_name: None,
            problem: None,
        }
    }

    /// A model of sequences of that many tokens.
    pub fn tokens(name: &str, length: usize) -> Export {
        Export { dtype: DType::I64, ..Export::new(name, [length]) }
    }

    /// Says how the next layer is called in the model: layers of one's own functions have names of one's own.
    #[must_use]
    pub fn named(mut self, name: &str) -> Export {
        self.own_name = Some(name.into());
        self
    }

    /// The name of the next layer of a kind, as [`plimsoll_nn::Sequential`] counts them.
    fn next(&mut self, kind: &'static str) -> String {
        if let Some(name) = self.own_name.take() {
            return name;
        }
        let n = match self.counts.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, n)) => {
                *n += 1;
                *n
            }
            None => {
                self.counts.push((kind, 1));
                1
            }
        };
        format!("{kind}{n}")
    }

    fn push(mut self, class: &'static str, snake: &'static str, config: Value, weights: Vec<From>) -> Export {
        self.layers.push(Exported { class, snake, holder: "", config, weights });
        self
    }

    fn refuse(mut self, place: &str, why: &str) -> Export {
        self.problem.get_or_insert_with(|| (place.into(), why.into()));
        self
    }

    /// A dense layer with bias.
    pub fn dense(mut self, units: usize) -> Export {
        let name = self.next("dense");
        let config =
            json!({"name": keras_name(&name), "units": units, "activation": "linear", "use_bias": true});
        self.push("Dense", "dense", config, both(&name, true))
    }

    /// A convolution with square windows, no padding, with bias.
    pub fn conv2d(self, channels: usize, window: usize) -> Export {
        self.conv2d_with(Conv2d::new(channels, window))
    }

    /// A convolution. Padding that Keras has no word for becomes a layer of its own before it.
    pub fn conv2d_with(mut self, conv: Conv2d) -> Export {
        let name = self.next("conv");
        let geometry = conv.geometry;
        let padding = if geometry.pad == Padding::Same { "same" } else { "valid" };
        if let Padding::Explicit([(top, bottom), (left, right)]) = geometry.pad {
            let sides = json!([[top, bottom], [left, right]]);
            let config = json!({"name": keras_name(&format!("{name}_pad")), "padding": sides, "data_format": "channels_last"});
            self = self.push("ZeroPadding2D", "zero_padding2d", config, Vec::new());
        }
        let config = json!({
            "name": keras_name(&name), "filters": conv.channels, "kernel_size": conv.window, "strides": geometry.stride,
            "padding": padding, "data_format": "channels_last", "dilation_rate": geometry.dilation,
            "groups": geometry.groups, "activation": "linear", "use_bias": conv.bias,
        });
        self.push("Conv2D", "conv2d", config, both(&name, conv.bias))
    }

    fn pool(mut self, class: &'static str, snake: &'static str, window: usize) -> Export {
        let name = self.next("pool");
        let config = json!({
            "name": keras_name(&name), "pool_size": [window, window], "strides": [window, window], "padding": "valid",
            "data_format": "channels_last",
        });
        self.push(class, snake, config, Vec::new())
    }

    /// The largest of every window; windows do not overlap.
    pub fn max_pool2d(self, window: usize) -> Export {
        self.pool("MaxPooling2D", "max_pooling2d", window)
    }

    /// The mean of every window; windows do not overlap.
    pub fn avg_pool2d(self, window: usize) -> Export {
        self.pool("AveragePooling2D", "average_pooling2d", window)
    }

    /// The mean of every channel of an image.
    pub fn global_avg_pool2d(mut self) -> Export {
        let config = json!({"name": self.next("pool"), "data_format": "channels_last", "keepdims": false});
        self.push("GlobalAveragePooling2D", "global_average_pooling2d", config, Vec::new())
    }

    /// Batch norm, with the settings that our layer has.
    pub fn batch_norm(mut self) -> Export {
        let name = self.next("norm");
        let config = json!({
            "name": keras_name(&name), "axis": -1, "momentum": 0.9, "epsilon": 1e-5, "center": true, "scale": true,
        });
        let weights = ["gamma", "beta", "mean", "var"].map(|own| From::Param(format!("{name}/{own}")));
        self.push("BatchNormalization", "batch_normalization", config, weights.to_vec())
    }

    /// Layer norm over the last axis, with the settings that our layer has.
    pub fn layer_norm(mut self) -> Export {
        let name = self.next("norm");
        let config =
            json!({"name": keras_name(&name), "axis": [-1], "epsilon": 1e-5, "center": true, "scale": true});
        let weights = ["gamma", "beta"].map(|own| From::Param(format!("{name}/{own}")));
        self.push("LayerNormalization", "layer_normalization", config, weights.to_vec())
    }

    /// Dropout.
    pub fn dropout(mut self, rate: f64) -> Export {
        let config = json!({"name": self.next("dropout"), "rate": rate, "seed": null, "noise_shape": null});
        self.push("Dropout", "dropout", config, Vec::new())
    }

    /// Rows of a table, by index.
    pub fn embedding(mut self, rows: usize, width: usize) -> Export {
        let name = self.next("embedding");
        let config =
            json!({"name": keras_name(&name), "input_dim": rows, "output_dim": width, "mask_zero": false});
        self.push("Embedding", "embedding", config, vec![From::Param(format!("{name}/table"))])
    }

    /// A long short-term memory.
    pub fn lstm(mut self, layer: Recurrent) -> Export {
        let name = self.next("lstm");
        let weights = vec![
            From::Param(format!("{name}/input_weight")),
            From::Param(format!("{name}/hidden_weight")),
            From::Sum(format!("{name}/input_bias"), format!("{name}/hidden_bias")),
        ];
        self.recurrent("LSTM", "lstm", &name, layer, weights)
    }

    /// A gated recurrent unit.
    pub fn gru(mut self, layer: Recurrent) -> Export {
        let name = self.next("gru");
        let weights = vec![
            From::Swapped(format!("{name}/input_weight")),
            From::Swapped(format!("{name}/hidden_weight")),
            From::SwappedPair(format!("{name}/input_bias"), format!("{name}/hidden_bias")),
        ];
        self.recurrent("GRU", "gru", &name, layer, weights)
    }

    fn recurrent(
        mut self,
        class: &'static str,
        snake: &'static str,
        name: &str,
        layer: Recurrent,
        weights: Vec<From>,
    ) -> Export {
        if layer.is_bidirectional {
            return self.refuse(name, "layers in both directions are not written");
        }
        let config = json!({
            "name": keras_name(name), "units": layer.units, "return_sequences": layer.gives_all, "activation": "tanh",
            "recurrent_activation": "sigmoid", "use_bias": true, "reset_after": true,
        });
        let mut config = config;
        if class == "LSTM" {
            config.as_object_mut().map(|map| map.remove("reset_after"));
        }
        self.layers.push(Exported { class, snake, holder: "cell/", config, weights });
        self
    }

    /// max(x, 0)
    pub fn relu(self) -> Export {
        self.activation(Activation::Relu)
    }

    /// An activation.
    pub fn activation(mut self, f: Activation) -> Export {
        let name = self.next("activation");
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
            Activation::LeakyRelu(slope) => {
                let config = json!({"name": keras_name(&name), "negative_slope": slope});
                return self.push("LeakyReLU", "leaky_re_lu", config, Vec::new());
            }
            Activation::Elu(alpha) => {
                return self.push(
                    "ELU",
                    "elu",
                    json!({"name": keras_name(&name), "alpha": alpha}),
                    Vec::new(),
                );
            }
            Activation::GeluTanh => {
                return self.refuse(&name, "Keras has the approximate gelu only as a function");
            }
        };
        self.push(
            "Activation",
            "activation",
            json!({"name": keras_name(&name), "activation": word}),
            Vec::new(),
        )
    }

    /// All axes of a sample joined into one.
    pub fn flatten(mut self) -> Export {
        let config = json!({"name": self.next("flatten"), "data_format": "channels_last"});
        self.push("Flatten", "flatten", config, Vec::new())
    }

    /// The configuration that Keras reads.
    fn config(&self) -> Value {
        let shape: Vec<Value> =
            std::iter::once(Value::Null).chain(self.sample.iter().map(|n| json!(n))).collect();
        let dtype = if self.dtype == DType::F32 { "float32" } else { "int64" };
        let input = json!({
            "module": "keras.layers", "class_name": "InputLayer", "registered_name": null,
            "config": {"batch_shape": shape, "dtype": dtype, "sparse": false, "name": "input"},
        });
        let layer = |layer: &Exported| {
            let mut config = layer.config.clone();
            config["trainable"] = json!(true);
            config["dtype"] = json!({
                "module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null,
            });
            json!({
                "module": "keras.layers", "class_name": layer.class, "config": config, "registered_name": null,
            })
        };
        let layers: Vec<Value> = std::iter::once(input).chain(self.layers.iter().map(layer)).collect();
        json!({
            "module": "keras", "class_name": "Sequential", "registered_name": null,
            "config": {"name": self.name, "trainable": true, "layers": layers, "build_input_shape": shape},
            "build_config": {"input_shape": shape},
        })
    }

    /// Writes the file with a model's values, in the order of its parameters, once it was seen to compute the same.
    ///
    /// # Errors
    /// What was described is not the model: a parameter is missing, left over or has another shape, or outputs differ.
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        model: &impl Model,
        params: &[Param],
        values: &[Tensor],
    ) -> Result<()> {
        if let Some((place, why)) = &self.problem {
            return Err(Error::Export { place: place.clone(), why: why.clone() });
        }
        let (variables, contents) = self.variables(params, values)?;
        let (config, metadata) =
            (self.config().to_string(), json!({"keras_version": KERAS_VERSION}).to_string());
        let part = path.as_ref().with_extension("part");
        let labels = Default::default();
        let whole = Contents { config: &config, metadata: &metadata, variables: &variables, labels: &labels };
        write_keras(&part, &whole, |variable, out| {
            let at = variables.iter().position(|v| v.path == variable.path);
            let values =
                at.map(|at| &contents[at]).ok_or_else(|| std::io::Error::other("an unknown variable"))?;
            values.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()))
        })?;
        let checked = self.check(&part, model, params, values).and_then(|()| {
            std::fs::rename(&part, path.as_ref())
                .map_err(|e| Error::Export { place: self.name.clone(), why: e.to_string() })
        });
        if checked.is_err() {
            // What is wrong with the file matters more than whether it could be removed.
            std::fs::remove_file(&part).ok();
        }
        checked
    }

    fn variables(&self, params: &[Param], values: &[Tensor]) -> Result<(Vec<Variable>, Vec<Vec<f32>>)> {
        let mut used = Vec::new();
        let mut get = |name: &str| -> Result<(Vec<usize>, Vec<f32>)> {
            let at = params.iter().position(|p| p.name == name);
            let missing =
                || Error::Export { place: name.into(), why: "the model has no such parameter".into() };
            let value = at.and_then(|at| values.get(at)).ok_or_else(missing)?;
            used.push(name.to_string());
            Ok((value.shape().to_vec(), value.cast(DType::F32)?.to_vec::<f32>()?))
        };
        let (mut variables, mut contents) = (Vec::new(), Vec::new());
        let mut counts: Vec<(&str, usize)> = Vec::new();
        for layer in &self.layers {
            let n = match counts.iter_mut().find(|(snake, _)| *snake == layer.snake) {
                Some((_, n)) => {
                    *n += 1;
                    *n
                }
                None => {
                    counts.push((layer.snake, 0));
                    0
                }
            };
            let number = if n == 0 { String::new() } else { format!("_{n}") };
            for (i, weight) in layer.weights.iter().enumerate() {
                let (shape, data) = match weight {
                    From::Param(name) => get(name)?,
                    From::Sum(a, b) => {
                        let ((shape, a), (_, b)) = (get(a)?, get(b)?);
                        (shape, a.iter().zip(&b).map(|(a, b)| a + b).collect())
                    }
                    From::Swapped(name) => {
                        let (shape, data) = get(name)?;
                        let swapped = swap(&shape, &data);
                        (shape, swapped)
                    }
                    From::SwappedPair(a, b) => {
                        let ((shape, a), (_, b)) = (get(a)?, get(b)?);
                        let columns = shape.first().copied().unwrap_or(0);
                        (vec![2, columns], [swap(&shape, &a), swap(&shape, &b)].concat())
                    }
                };
                let path = format!("layers/{}{number}/{}vars/{i}", layer.snake, layer.holder);
                variables.extend(Variable::new(&path, Element::F32, &shape));
                contents.push(data);
            }
        }
        match params.iter().find(|p| !used.contains(&p.name)) {
            Some(extra) => {
                let why = "the model has this parameter, but no layer that was described".into();
                Err(Error::Export { place: extra.name.clone(), why })
            }
            None => Ok((variables, contents)),
        }
    }

    /// Reads the file back and compares what it computes.
    fn check(&self, path: &Path, model: &impl Model, params: &[Param], values: &[Tensor]) -> Result<()> {
        let keras = KerasModel::open(path)?;
        let shape: Vec<usize> = std::iter::once(2).chain(self.sample.iter().copied()).collect();
        let key = Tensor::from_slice(&[7i64, 0, 0], [3])?;
        let x = match self.dtype {
            DType::F32 => key.random_normal(Type::new(DType::F32, &shape[..]), 1, 0.0, 1.0)?,
            dtype => Tensor::zeros(Type::new(dtype, &shape[..]))?,
        };
        let ours = model.forward(&mut Net::bound(params, values, false), std::slice::from_ref(&x))?.one()?;
        let theirs = keras.forward(&mut Net::bound(keras.params(), &keras.values()?, false), &[x])?.one()?;
        let differs = |why: String| Err(Error::Export { place: self.name.clone(), why });
        if ours.shape() != theirs.shape() {
            return differs(format!(
                "the model gives {}, but what was described gives {}",
                ours.ty(),
                theirs.ty()
            ));
        }
        let (a, b) = (ours.to_f64()?, theirs.to_f64()?);
        let size = a.iter().fold(1.0f64, |most, x| most.max(x.abs()));
        let far = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        if far.is_nan() || far > TOLERANCE * size {
            return differs(format!("what was described computes something else: outputs differ by {far}"));
        }
        Ok(())
    }
}

/// Names of ours are paths, which Keras does not allow.
fn keras_name(name: &str) -> String {
    name.replace('/', "_")
}

fn both(name: &str, bias: bool) -> Vec<From> {
    let own = ["weight", "bias"].into_iter().take(1 + usize::from(bias));
    own.map(|own| From::Param(format!("{name}/{own}"))).collect()
}

/// The first two thirds of every row in the other order.
fn swap(shape: &[usize], data: &[f32]) -> Vec<f32> {
    let columns = shape.last().copied().unwrap_or(1).max(3);
    let units = columns / 3;
    let mut swapped = data.to_vec();
    for row in swapped.chunks_exact_mut(columns) {
        let (first, rest) = row.split_at_mut(units);
        first.swap_with_slice(&mut rest[..units]);
    }
    swapped
}
