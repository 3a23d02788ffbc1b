//! How a parameter starts.
//!
//! [`Init`] is a distribution; [`Start`] is a rule that picks one from a layer's fans, as PyTorch, Keras or a paper
//! does.

use plimsoll_graph::ops::TruncatedNormal;
use plimsoll_graph::{DType, RandomOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

/// The distribution a parameter is drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// One value everywhere.
    Constant(f64),
    /// Uniform between minus and plus this bound.
    Uniform(f64),
    /// Normal around zero with this standard deviation.
    Normal(f64),
    /// Normal around zero with this standard deviation, drawn again where it is more than twice that.
    TruncatedNormal(f64),
    /// Orthonormal rows or columns, whichever are fewer, times this gain. All axes but the last count as rows.
    Orthogonal(f64),
    /// What a file says: it is never drawn. Of a value that is not trained, checkpoints hold no copy.
    Given,
}

/// A standard normal loses this much of its deviation when it is cut at twice that.
const TRUNCATED_STD: f64 = 0.879_625_661_034_239_8;

fn fan(n: usize) -> f64 {
    n.max(1) as f64
}

impl Init {
    /// Uniform with the bound 1/√fan_in, as PyTorch starts dense and convolutional layers.
    pub fn fan_in(fan_in: usize) -> Init {
        Init::Uniform(1.0 / fan(fan_in).sqrt())
    }

    /// Uniform with the variance 2 / (fan_in + fan_out), as Keras starts dense and convolutional layers.
    pub fn glorot_uniform(fan_in: usize, fan_out: usize) -> Init {
        Init::Uniform((6.0 / (fan(fan_in) + fan(fan_out))).sqrt())
    }

    /// Truncated normal with the variance 2 / (fan_in + fan_out).
    pub fn glorot_normal(fan_in: usize, fan_out: usize) -> Init {
        Init::TruncatedNormal((2.0 / (fan(fan_in) + fan(fan_out))).sqrt() / TRUNCATED_STD)
    }

    /// Uniform with the variance 2 / fan_in.
    pub fn he_uniform(fan_in: usize) -> Init {
        Init::Uniform((6.0 / fan(fan_in)).sqrt())
    }

    /// Truncated normal with the variance 2 / fan_in.
    pub fn he_normal(fan_in: usize) -> Init {
        Init::TruncatedNormal((2.0 / fan(fan_in)).sqrt() / TRUNCATED_STD)
    }

    /// A tensor drawn from it. The name picks the random stream, so a parameter's start depends on the seed and on
    /// what it is called, not on what else there is. Nothing is taken beside the tensor: the largest weight of a model is drawn inside the
    /// memory limit, too.
    pub fn draw(self, name: &str, ty: &Type, seed: u64) -> Result<Tensor> {
        let key = Tensor::from_slice(&[seed as i64, 0, 0], [3])?;
        let ty = ty.clone();
        match self {
            Init::Constant(value) => Tensor::full(ty, value),
            Init::Uniform(bound) => key.random_uniform(ty, stream(name), -bound, bound),
            Init::Normal(std) => key.random_normal(ty, stream(name), 0.0, std),
            Init::TruncatedNormal(std) => {
                let streams: [u32; TruncatedNormal::DRAWS] = std::array::from_fn(|draw| match draw {
                    0 => stream(name),
                    again => stream(&format!("{name}#{again}")),
                });
                key.random_truncated_normal(ty, streams, std)
            }
            Init::Orthogonal(gain) => {
                let columns = ty.shape.last().copied().unwrap_or(1).max(1);
                // 16-bit types are too coarse for it.
                let wide = ty.with_dtype(ty.dtype.accumulator());
                let mut drawn = key.random_normal(wide.clone(), stream(name), 0.0, 1.0)?;
                drawn.fill_bytes(|bytes| match wide.dtype {
                    DType::F64 => orthogonal::<8>(bytes, columns, gain),
                    _ => orthogonal::<4>(bytes, columns, gain),
                })?;
                drawn.cast(ty.dtype)
            }
            Init::Given => {
                Err(crate::error::refuse(format!("draws {name}, whose values come from a file; load them")))
            }
        }
    }
}

/// A rule that says how a layer's weights and biases start, given its fans.
///
/// ```
/// use plimsoll_nn::{Init, Start};
/// assert_eq!(Start::Torch.weight(4, 8), Init::Uniform(0.5));
/// assert_eq!(Start::Keras.bias(4), Init::Constant(0.0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Start {
    /// PyTorch's: weights and biases uniform in ± 1/√fan_in.
    #[default]
    Torch,
    /// Keras's: Glorot-uniform weights, zero biases.
    Keras,
    /// He-normal weights, zero biases: for layers before a relu.
    He,
    /// Normal weights of this deviation, zero biases: the transformers' 0.02.
    Normal(f64),
    /// Truncated normal weights of this deviation, zero biases.
    TruncatedNormal(f64),
    /// Orthogonal weights of this gain, zero biases.
    Orthogonal(f64),
}

impl Start {
    /// The start of a weight with these fans.
    pub fn weight(self, fan_in: usize, fan_out: usize) -> Init {
        match self {
            Start::Torch => Init::fan_in(fan_in),
            Start::Keras => Init::glorot_uniform(fan_in, fan_out),
            Start::He => Init::he_normal(fan_in),
            Start::Normal(std) => Init::Normal(std),
            Start::TruncatedNormal(std) => Init::TruncatedNormal(std),
            Start::Orthogonal(gain) => Init::Orthogonal(gain),
        }
    }

    /// The start of the bias beside it.
    pub fn bias(self, fan_in: usize) -> Init {
        match self {
            Start::Torch => Init::fan_in(fan_in),
            _ => Init::Constant(0.0),
        }
    }
}

/// A number for a name: FNV-1a, folded to 32 bits.
pub(crate) fn stream(name: &str) -> u32 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash ^ (hash >> 32)) as u32
}

/// Makes normal draws orthonormal along their shorter side, where they are, by Gram and Schmidt's process, each vector cleaned twice. Only the
/// vector at hand is beside them.
fn orthogonal<const WIDTH: usize>(bytes: &mut [u8], columns: usize, gain: f64) {
    let rows = bytes.len() / WIDTH / columns;
    let is_in_rows = rows <= columns;
    let (n, length) = (rows.min(columns), rows.max(columns));
    // Vector i, element j: a row where rows are fewer, else a column.
    let place = |i: usize, j: usize| WIDTH * if is_in_rows { i * columns + j } else { j * columns + i };
    let (mut vector, mut along) = (vec![0.0; length], vec![0.0; n]);
    for i in 0..n {
        (0..length).for_each(|j| vector[j] = number(&bytes[place(i, j)..][..WIDTH]));
        for _ in 0..2 {
            if is_in_rows {
                for before in bytes.chunks_exact(WIDTH * columns).take(i) {
                    let along: f64 = numbers::<WIDTH>(before).zip(&vector).map(|(u, v)| u * v).sum();
                    vector.iter_mut().zip(numbers::<WIDTH>(before)).for_each(|(v, u)| *v -= along * u);
                }
                continue;
            }
            // Columns side by side, so that memory is read in its order.
            let before = |row: &mut dyn FnMut(usize, &[u8])| {
                let each = bytes.chunks_exact(WIDTH * columns).map(|row| &row[..WIDTH * i]);
                each.enumerate().for_each(|(j, numbers)| row(j, numbers));
            };
            along.fill(0.0);
            before(&mut |j, row| {
                along.iter_mut().zip(numbers::<WIDTH>(row)).for_each(|(a, u)| *a += u * vector[j]);
            });
            before(&mut |j, row| {
                vector[j] -= along.iter().zip(numbers::<WIDTH>(row)).map(|(a, u)| a * u).sum::<f64>();
            });
        }
        let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
        (0..length).for_each(|j| set_number(&mut bytes[place(i, j)..][..WIDTH], vector[j] / norm));
    }
    bytes.chunks_exact_mut(WIDTH).for_each(|bytes| set_number(bytes, gain * number(bytes)));
}

/// Floats of so many bytes each.
fn numbers<const WIDTH: usize>(bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes.chunks_exact(WIDTH).map(number)
}

/// The float of four or eight bytes, which may lie anywhere.
fn number(bytes: &[u8]) -> f64 {
    match *bytes {
        [a, b, c, d] => f32::from_ne_bytes([a, b, c, d]).into(),
        _ => f64::from_ne_bytes(std::array::from_fn(|byte| bytes[byte])),
    }
}

/// Writes a float of four or eight bytes.
fn set_number(bytes: &mut [u8], value: f64) {
    match bytes.len() {
        4 => bytes.copy_from_slice(&(value as f32).to_ne_bytes()),
        _ => bytes.copy_from_slice(&value.to_ne_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::DType;

    #[test]
    fn equal_names_and_seeds_start_equal_and_others_do_not() {
        let ty = Type::new(DType::F32, [64]);
        let draw =
            |name: &str, seed| Init::Uniform(0.5).draw(name, &ty, seed).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(draw("a", 1), draw("a", 1));
        assert_ne!(draw("a", 1), draw("b", 1));
        assert_ne!(draw("a", 1), draw("a", 2));
        assert!(draw("a", 1).iter().all(|x| x.abs() <= 0.5));
    }

    fn moments(init: Init) -> (f64, f64, f64) {
        let ty = Type::new(DType::F32, [200, 500]);
        let x = init.draw("w", &ty, 3).unwrap().to_f64().unwrap();
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        (mean, var, x.iter().fold(0.0, |m, x| m.max(x.abs())))
    }

    #[test]
    fn drawn_values_have_the_variance_that_the_rule_names() {
        for (init, variance) in [
            (Init::fan_in(200), 1.0 / 600.0),
            (Init::glorot_uniform(200, 500), 2.0 / 700.0),
            (Init::glorot_normal(200, 500), 2.0 / 700.0),
            (Init::he_uniform(200), 0.01),
            (Init::he_normal(200), 0.01),
            (Init::Normal(0.02), 0.0004),
            (Init::Orthogonal(1.0), 1.0 / 500.0),
        ] {
            let (mean, var, _) = moments(init);
            assert!(mean.abs() < 0.02 * f64::sqrt(variance), "{init:?}: mean {mean}");
            assert!((var / variance - 1.0).abs() < 0.02, "{init:?}: variance {var}, not {variance}");
        }
    }

    #[test]
    fn a_truncated_normal_stays_within_two_deviations() {
        let (_, var, largest) = moments(Init::TruncatedNormal(0.5));
        assert!(largest <= 1.0 && largest > 0.99, "{largest}");
        assert!((var.sqrt() / 0.5 - TRUNCATED_STD).abs() < 0.01, "{var}");
    }

    #[test]
    fn what_lies_beyond_two_deviations_is_what_the_next_draws_have_there() {
        let (ty, key) = (Type::new(DType::F32, [50, 41]), Tensor::from_slice(&[3i64, 0, 0], [3]).unwrap());
        let normal = |name: &str| key.random_normal(ty.clone(), stream(name), 0.0, 0.5).unwrap();
        let mut steps = normal("w");
        let bound = Tensor::full(ty.with_shape([]), 1.0).unwrap();
        for draw in 1..TruncatedNormal::DRAWS {
            let again = normal(&format!("w#{draw}"));
            steps = steps.abs().unwrap().less_equal(&bound).unwrap().select(&steps, &again).unwrap();
        }
        let drawn = Init::TruncatedNormal(0.5).draw("w", &ty, 3).unwrap();
        assert_eq!(drawn.to_vec::<f32>().unwrap(), steps.to_vec::<f32>().unwrap());
    }

    #[test]
    fn drawing_takes_no_memory_beside_the_tensor() {
        use plimsoll_device::Bytes;
        let device = plimsoll_run::Device::cpu_with(1, Bytes::mib(8)).unwrap();
        for init in [Init::Normal(0.1), Init::TruncatedNormal(0.1), Init::Uniform(0.1), Init::Orthogonal(1.0)]
        {
            let before = device.memory_info().peak;
            device.scope(|| init.draw("w", &Type::new(DType::F32, [8, 64 << 10]), 1).map(drop)).unwrap();
            let peak = device.memory_info().peak;
            assert!(peak <= before.max(Bytes::mib(2) + Bytes::kib(4)), "{init:?}: {peak}");
        }
    }

    #[test]
    fn orthogonal_rows_are_orthonormal_in_both_orientations() {
        for shape in [[5, 9], [9, 5]] {
            let q =
                Init::Orthogonal(2.0).draw("w", &Type::new(DType::F64, shape), 1).unwrap().to_f64().unwrap();
            let at = |i: usize, j: usize| if shape[0] < shape[1] { q[i * 9 + j] } else { q[j * 5 + i] };
            for i in 0..5 {
                for k in 0..5 {
                    let dot: f64 = (0..9).map(|j| at(i, j) * at(k, j)).sum();
                    assert!((dot - if i == k { 4.0 } else { 0.0 }).abs() < 1e-12, "{i} {k} {dot}");
                }
            }
        }
    }
}
