//! In which element type a model computes.

pub use plimsoll_run::Precision;
use plimsoll_run::{Result, Tensor};

use crate::{Model, Net, Outputs};

/// A precision for a whole model, and others for some of its layers: most of a network in 16 bits, its head in f32.
///
/// A layer is named by its path, which names all layers in it too; a `*` at the end stands for any rest. What a layer reads is
/// cast to its own type. Of several names that fit, the last counts, and an inner layer's counts before an outer's.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Type};
/// use plimsoll_nn::{Net, Precision, Precisions, model};
/// let two = model(|net, x| {
///     let y = net.dense("trunk", &x[0], 16, true)?.relu()?;
///     net.dense("head", &y, 10, true)
/// });
/// let precisions = Precisions::new(Precision::MixedBf16).layer("head", Precision::F32);
/// Net::discover(&[Type::new(DType::F32, [8, 4])], &precisions.over(two))?;
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Precisions {
    /// Of every layer that is not named.
    pub all: Precision,
    /// Of layers by name.
    pub layers: Vec<(String, Precision)>,
}

impl Precisions {
    /// One precision for all layers.
    pub fn new(all: Precision) -> Precisions {
        Precisions { all, layers: Vec::new() }
    }

    /// With another for a layer.
    #[must_use]
    pub fn layer(mut self, name: &str, precision: Precision) -> Precisions {
        self.layers.push((name.into(), precision));
        self
    }

    /// The precision that a recipe should have: half precision anywhere needs a scaled loss.
    pub fn of_recipe(&self) -> Precision {
        let halves = self.layers.iter().any(|(_, precision)| *precision == Precision::MixedF16);
        if halves { Precision::MixedF16 } else { self.all }
    }

    /// The model in these precisions. A name that none of its layers has is an error of the forward pass.
    pub fn over(self, model: impl Model) -> impl Model {
        Layered { model, precisions: self }
    }

    /// The precision of the layer at a path, where it or a layer around it is named.
    pub fn of_layer(&self, path: &str) -> Option<Precision> {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        let outwards: Vec<usize> = ends.collect();
        outwards.into_iter().rev().find_map(|end| {
            let named = self.layers.iter().rev().find(|(name, _)| names_layer(name, &path[..end]));
            named.map(|(_, precision)| *precision)
        })
    }

    /// Whether every name is one of these layers'; otherwise what is wrong.
    pub fn check(&self, layers: &[String]) -> std::result::Result<(), String> {
        let fits = |name: &str| layers.iter().any(|layer| names_layer(name, layer));
        let Some((name, _)) = self.layers.iter().find(|(name, _)| !fits(name)) else { return Ok(()) };
        let mut known: Vec<&str> = Vec::new();
        for layer in layers {
            if !known.contains(&layer.as_str()) {
                known.push(layer);
            }
        }
        let shown = known.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
        let rest = match known.len().saturating_sub(SHOWN) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        Err(format!("names a precision for {name}, which is no layer of the model; there are {shown}{rest}"))
    }
}

/// How many layers a refusal lists.
const SHOWN: usize = 8;

/// Whether a name, which may end in `*`, is that of the layer at a path.
pub(crate) fn names_layer(name: &str, path: &str) -> bool {
    match name.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => name == path,
    }
}

/// A model whose layers have precisions of their own.
struct Layered<M> {
    model: M,
    precisions: Precisions,
}

impl<M: Model> Model for Layered<M> {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Outputs> {
        net.with_precisions(&self.precisions, |net| self.model.forward(net, inputs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Adam, Recipe, Training, model};
    use plimsoll_graph::{DType, TensorOps, Type};

    /// What two layers and a block give.
    fn seen(precisions: Precisions) -> Result<Vec<DType>> {
        let types = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let noted = types.clone();
        let traced = model(move |net, x| {
            let a = net.dense("trunk", &x[0], 4, true)?.relu()?;
            let b = net.residual("block", &a, |net, x| net.layer_norm("norm", x))?;
            let c = net.dense("head", &b, 2, true)?;
            noted.lock().unwrap().extend([a.dtype(), b.dtype(), c.dtype()]);
            Ok(c)
        });
        Net::discover(&[Type::new(DType::F32, [8, 4])], &precisions.over(traced))?;
        let found = types.lock().unwrap().clone();
        Ok(found)
    }

    #[test]
    fn a_named_layer_computes_in_its_own_precision() {
        use DType::{BF16, F16, F32};
        let mixed = || Precisions::new(Precision::MixedBf16);
        assert_eq!(seen(mixed()).unwrap(), [BF16, BF16, BF16]);
        assert_eq!(seen(mixed().layer("head", Precision::F32)).unwrap(), [BF16, BF16, F32]);
        assert_eq!(seen(mixed().layer("block", Precision::MixedF16)).unwrap(), [BF16, F16, BF16]);
        // A branch in another precision comes back to its block's.
        assert_eq!(seen(mixed().layer("block/norm", Precision::F32)).unwrap(), [BF16, BF16, BF16]);
        assert_eq!(
            seen(mixed().layer("*", Precision::F32).layer("tr*", Precision::MixedF16)).unwrap(),
            [F16, F32, F32]
        );
        let precisions = mixed().layer("block", Precision::F32).layer("block/norm", Precision::MixedF16);
        assert_eq!(precisions.of_layer("block/other/deep"), Some(Precision::F32));
        assert_eq!(precisions.of_layer("block/norm"), Some(Precision::MixedF16));
        assert_eq!(precisions.of_layer("blocks"), None);
        assert_eq!(mixed().layer("block", Precision::MixedF16).of_recipe(), Precision::MixedF16);
    }

    #[test]
    fn a_name_that_no_layer_has_is_refused_with_those_there_are() {
        let error =
            seen(Precisions::new(Precision::F32).layer("haed", Precision::F32)).unwrap_err().to_string();
        assert!(error.contains("haed") && error.contains("trunk, block, block/norm, head"), "{error}");
    }

    #[test]
    fn a_model_with_layers_in_several_precisions_trains() {
        let net = model(|net, x| {
            let y = net.dense("trunk", &x[0], 8, true)?.relu()?;
            net.dense("head", &y, 2, true)
        });
        let (x, y) = (Type::new(DType::F32, [4, 2]), Type::new(DType::I64, [4]));
        let mut recipe = Recipe::cross_entropy(Adam::new(0.05), x, y);
        let precisions = Precisions::new(Precision::MixedBf16).layer("head", Precision::F32);
        recipe.request.precision = precisions.of_recipe();
        let mut training = Training::new(precisions.over(net), recipe, 7).unwrap();
        let x = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.0, 0.1, 0.9, 0.8, 0.2], [4, 2]).unwrap();
        let y = Tensor::from_slice(&[1i64, 0, 1, 0], [4]).unwrap();
        let losses: Vec<f64> = (0..40).map(|_| training.step(&[&x], &y).unwrap()).collect();
        assert!(losses[39] < losses[0] / 2.0, "{losses:?}");
    }
}
