//! A tensor whose axes are read in another order than they lie in: a transpose that is not done until somebody needs it.
//!
//! A channels-first program over channels-last kernels would transpose around every convolution. Here the order of axes travels
//! with the value: element by element nothing depends on it, a convolution takes what lies channels last as it is, and two transposes
//! that cancel leave nothing behind.

use std::borrow::Cow;

use plimsoll_graph::{Shape, TensorOps};
use plimsoll_run::{Result, Tensor};
use smallvec::SmallVec;

/// Axes in an order: axis i of what is read is axis `order[i]` of what lies there.
type Order = SmallVec<[usize; 6]>;

/// A tensor, and the order in which its axes are read.
///
/// ```
/// use plimsoll_nn::blocks::Laid;
/// use plimsoll_run::Tensor;
/// let images = Laid::channels_last(Tensor::from_slice(&[0.0f32; 24], [1, 2, 3, 4])?);
/// assert_eq!(images.shape()[..], [1, 4, 2, 3]);
/// // Channels last, as they lie: nothing is moved.
/// assert!(images.permute(&[0, 2, 3, 1]).is_plain());
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Laid {
    tensor: Tensor,
    order: Order,
    shape: Shape,
}

impl From<Tensor> for Laid {
    fn from(tensor: Tensor) -> Laid {
        let (order, shape) = ((0..tensor.shape().rank()).collect(), tensor.shape().clone());
        Laid { tensor, order, shape }
    }
}

impl Laid {
    /// A tensor `[N, .., C]` that is read as `[N, C, ..]`.
    pub fn channels_last(tensor: Tensor) -> Laid {
        let rank = tensor.shape().rank();
        let order: Vec<usize> = match rank {
            0 | 1 => (0..rank).collect(),
            _ => [0, rank - 1].into_iter().chain(1..rank - 1).collect(),
        };
        Laid::from(tensor).permute(&order)
    }

    /// A tensor whose axis `order[i]` is read as axis i.
    pub fn ordered(tensor: Tensor, order: &[usize]) -> Laid {
        Laid::from(tensor).permute(order)
    }

    /// The lengths in the order in which they are read.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.order.len()
    }

    /// The element type.
    pub fn dtype(&self) -> plimsoll_graph::DType {
        self.tensor.dtype()
    }

    /// The tensor as it lies.
    pub fn lying(&self) -> &Tensor {
        &self.tensor
    }

    /// The order in which its axes are read.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Whether it lies as it is read.
    pub fn is_plain(&self) -> bool {
        self.order.iter().enumerate().all(|(i, &axis)| i == axis)
    }

    /// As it is read: transposed where it must be.
    #[track_caller]
    pub fn plain(&self) -> Result<Tensor> {
        transposed(&self.tensor, &self.order)
    }

    /// As a tensor whose axis i is axis `order[i]` of what is read: `[0, 2, 3, 1]` gives channels-first images channels last.
    #[track_caller]
    pub fn in_order(&self, order: &[usize]) -> Result<Tensor> {
        self.permute(order).plain()
    }

    /// `[N, C, ..]` as a tensor `[N, .., C]`.
    #[track_caller]
    pub fn to_channels_last(&self) -> Result<Tensor> {
        let rank = self.rank();
        let order: Vec<usize> = std::iter::once(0).chain(2..rank).chain([1]).take(rank).collect();
        self.in_order(&order)
    }

    /// Axis i of the result is axis `order[i]` of this. Nothing is moved.
    pub fn permute(&self, order: &[usize]) -> Laid {
        let axes: Order = order.iter().map(|&axis| self.order[axis]).collect();
        let shape = axes.iter().map(|&axis| self.tensor.shape()[axis]).collect();
        Laid { tensor: self.tensor.clone(), order: axes, shape }
    }

    /// Something done to every element by itself.
    #[track_caller]
    pub fn map(&self, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Laid> {
        let tensor = f(&self.tensor)?;
        Ok(Laid { tensor, ..self.clone() })
    }

    /// Something done to the elements of several, which are broadcast to one shape. All are brought into the order of the largest.
    #[track_caller]
    pub fn zip(all: &[&Laid], f: impl FnOnce(&[Tensor]) -> Result<Tensor>) -> Result<Laid> {
        let rank = all.iter().map(|x| x.rank()).max().unwrap_or(0);
        let weight = |x: &&&Laid| (x.rank() == rank, x.shape.elements(), !x.is_plain());
        let Some(lead) = all.iter().max_by_key(weight) else {
            return Err(crate::error::refuse("combines no tensors"));
        };
        let order = lead.with_rank(rank)?.order;
        let place = inverse(&order);
        let aligned = |x: &&Laid| -> Result<Tensor> {
            if x.rank() == 0 {
                return Ok(x.tensor.clone());
            }
            x.with_rank(rank)?.permute(&place).plain()
        };
        let tensors = all.iter().map(aligned).collect::<Result<Vec<Tensor>>>()?;
        let tensor = f(&tensors)?;
        let shape = order.iter().map(|&axis| tensor.shape()[axis]).collect();
        Ok(Laid { tensor, order, shape })
    }

    /// With axes of length 1 in front, so many in all.
    #[track_caller]
    fn with_rank(&self, rank: usize) -> Result<Laid> {
        let more = rank - self.rank();
        if more == 0 {
            return Ok(self.clone());
        }
        let lengths: Shape =
            std::iter::repeat_n(1, more).chain(self.tensor.shape().iter().copied()).collect();
        let order: Order = (0..more).chain(self.order.iter().map(|axis| axis + more)).collect();
        Ok(Laid::ordered(self.tensor.reshape(lengths)?, &order))
    }

    /// The same elements, in the order in which they are read, under another shape. Where axes that are joined or cut lie beside each
    /// other, nothing is moved.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Laid> {
        let shape = shape.into();
        if self.is_plain() {
            return Ok(self.tensor.reshape(shape)?.into());
        }
        match self.regrouped(&shape) {
            Some((lying, order)) => Ok(Laid::ordered(self.tensor.reshape(lying)?, &order)),
            None => Ok(self.plain()?.reshape(shape)?.into()),
        }
    }

    /// The lengths in which it lies under another shape, and the order in which these are read; none where elements must move.
    fn regrouped(&self, shape: &Shape) -> Option<(Shape, Order)> {
        if shape.elements() != self.shape.elements() || shape.elements() == 0 {
            return None;
        }
        // Runs of axes read, before and after, over which the elements are the same.
        let mut runs: Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> = Vec::new();
        let (mut i, mut j) = (0, 0);
        while i < self.rank() || j < shape.rank() {
            let (from, to) = (i, j);
            let (mut a, mut b) = (1usize, 1usize);
            if i < self.rank() {
                a = self.shape[i];
                i += 1;
            }
            if j < shape.rank() {
                b = shape[j];
                j += 1;
            }
            while a != b {
                if a < b {
                    a *= *self.shape.get(i)?;
                    i += 1;
                } else {
                    b *= *shape.get(j)?;
                    j += 1;
                }
            }
            runs.push((from..i, to..j));
        }
        // Axes of a run must lie behind one another, in their order; those of length 1 lie anywhere.
        let mut starts: Vec<(usize, usize)> = Vec::new();
        for (n, (old, _)) in runs.iter().enumerate() {
            let axes: Order = old.clone().filter(|&i| self.shape[i] != 1).map(|i| self.order[i]).collect();
            let long_between = |a: usize, b: usize| (a + 1..b).any(|axis| self.tensor.shape()[axis] != 1);
            if axes.windows(2).any(|pair| pair[1] < pair[0] || long_between(pair[0], pair[1])) {
                return None;
            }
            // A run of nothing but 1s lies in front.
            starts.push((axes.first().map_or(0, |axis| axis + 1), n));
        }
        starts.sort_unstable();
        let (mut lying, mut order) = (Shape::default(), smallvec::smallvec![0; shape.rank()]);
        for (_, n) in starts {
            for axis in runs[n].1.clone() {
                order[axis] = lying.rank();
                lying.push(shape[axis]);
            }
        }
        Some((lying, order))
    }
}

/// The order that undoes another.
fn inverse(order: &[usize]) -> Order {
    let mut back: Order = smallvec::smallvec![0; order.len()];
    for (i, &axis) in order.iter().enumerate() {
        back[axis] = i;
    }
    back
}

/// A tensor with its axes in another order; where only axes of length 1 change their places, nothing is moved.
#[track_caller]
pub fn transposed(x: &Tensor, order: &[usize]) -> Result<Tensor> {
    if order.iter().enumerate().all(|(i, &axis)| i == axis) {
        return Ok(x.clone());
    }
    let long: Order = order.iter().copied().filter(|&axis| x.shape()[axis] != 1).collect();
    if long.is_sorted() {
        let shape: Shape = order.iter().map(|&axis| x.shape()[axis]).collect();
        return x.reshape(shape);
    }
    x.transpose(order)
}

/// Elements of so many bytes with their axes in another order: axis i of the result is axis `order[i]`. Those that are in it are not copied.
pub fn reordered<'a>(
    bytes: impl Into<Cow<'a, [u8]>>,
    width: usize,
    shape: &[usize],
    order: &[usize],
) -> Cow<'a, [u8]> {
    let bytes = bytes.into();
    if order.is_sorted() || bytes.is_empty() {
        return bytes;
    }
    let strides = Shape::from(shape).strides();
    let lengths: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
    let steps: Vec<usize> = order.iter().map(|&axis| strides[axis]).collect();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = vec![0; order.len()];
    let mut place = 0usize;
    for _ in 0..bytes.len() / width.max(1) {
        out.extend_from_slice(&bytes[place * width..(place + 1) * width]);
        for axis in (0..at.len()).rev() {
            at[axis] += 1;
            place += steps[axis];
            if at[axis] < lengths[axis] {
                break;
            }
            place -= steps[axis] * lengths[axis];
            at[axis] = 0;
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(shape: &[usize]) -> Tensor {
        let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| i as f32).collect();
        Tensor::from_slice(&values, shape).unwrap()
    }

    fn read(x: &Laid) -> Vec<f32> {
        x.plain().unwrap().to_vec::<f32>().unwrap()
    }

    #[test]
    fn reshaping_what_is_read_in_another_order_gives_the_same_elements() {
        let x = numbers(&[2, 3, 4, 5]);
        let lazy = Laid::channels_last(x.clone());
        let eager = lazy.plain().unwrap();
        for shape in [
            vec![2, 5, 12],
            vec![2, 5, 3, 2, 2],
            vec![10, 12],
            vec![120],
            vec![2, 1, 5, 12],
            vec![2, 5, 3, 4, 1],
            vec![1, 2, 5, 1, 3, 4],
            vec![4, 30],
        ] {
            let expected = eager.reshape(&shape[..]).unwrap().to_vec::<f32>().unwrap();
            let found = lazy.reshape(&shape[..]).unwrap();
            assert_eq!(found.shape()[..], shape[..]);
            assert_eq!(read(&found), expected, "{shape:?}");
        }
        // Height and width lie beside each other: a transformer's tokens need no transpose.
        let tokens = lazy.reshape([2, 5, 12]).unwrap().permute(&[0, 2, 1]);
        assert!(tokens.is_plain());
        assert!(!lazy.reshape([10, 12]).unwrap().order().is_empty());
    }

    #[test]
    fn operands_in_other_orders_are_brought_into_that_of_the_largest() {
        let x = Laid::channels_last(numbers(&[2, 3, 4, 5]));
        let bias = Laid::from(numbers(&[5, 1, 1]));
        let y = Laid::zip(&[&x, &bias], |t| t[0].add(&t[1])).unwrap();
        assert_eq!(y.order(), x.order());
        let expected = x.plain().unwrap().add(&bias.plain().unwrap()).unwrap();
        assert_eq!(read(&y), expected.to_vec::<f32>().unwrap());
        let other = Laid::from(numbers(&[2, 5, 3, 4]));
        let y = Laid::zip(&[&other, &x], |t| t[0].mul(&t[1])).unwrap();
        let expected = other.plain().unwrap().mul(&x.plain().unwrap()).unwrap();
        assert_eq!(read(&y), expected.to_vec::<f32>().unwrap());
        // A larger rank with fewer elements still broadcasts.
        let lead = Laid::from(numbers(&[3, 1, 1, 1, 1]));
        let y = Laid::zip(&[&x, &lead], |t| t[0].mul(&t[1])).unwrap();
        assert_eq!(y.shape()[..], [3, 2, 5, 3, 4]);
        let expected = lead.plain().unwrap().mul(&x.plain().unwrap()).unwrap();
        assert_eq!(read(&y), expected.to_vec::<f32>().unwrap());
    }
}
