//! How a parameter starts.

use plimsoll_graph::{RandomOps, TensorOps, Type};
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
}

impl Init {
    /// Uniform with the bound 1/√fan_in, as PyTorch starts dense and convolutional layers.
    pub fn fan_in(fan_in: usize) -> Init {
        Init::Uniform(1.0 / (fan_in.max(1) as f64).sqrt())
    }

    /// A tensor drawn from it. The name picks the random stream, so a parameter's start depends on the seed and on
    /// what it is called, not on what else there is.
    pub fn draw(self, name: &str, ty: &Type, seed: u64) -> Result<Tensor> {
        let wide = ty.with_dtype(ty.dtype.accumulator());
        let key = Tensor::from_slice(&[seed as i64, 0, 0], [3])?;
        let drawn = match self {
            Init::Constant(value) => Tensor::full(wide, value)?,
            Init::Uniform(bound) => key.random_uniform(wide, stream(name), -bound, bound)?,
            Init::Normal(std) => key.random_normal(wide, stream(name), 0.0, std)?,
        };
        drawn.cast(ty.dtype)
    }
}

/// A number for a name: FNV-1a, folded to 32 bits.
fn stream(name: &str) -> u32 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash ^ (hash >> 32)) as u32
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
}
