//! Images read at places that a grid names, and the gradients of that for both: spatial transformers, warps.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::ops::ResizeMode;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Site, Type, ops};

/// y[n, i, j, c] = x[n, .., .., c] at the place grid[n, i, j] = (across, down). Inputs: x `[N, H, W, C]`, grid `[N, H', W', 2]`.
///
/// A place is from -1 to 1 over the image. Where it is not a number, so is the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GridSample {
    /// The nearest pixel, or a mean of the four around a place.
    pub mode: ResizeMode,
    /// Whether places outside are moved to the border; else zeros lie around the image.
    pub border: bool,
    /// Whether -1 and 1 are the middles of the outermost pixels; else they are their outer edges.
    pub align: bool,
}

/// dx and dgrid of a grid sample. Inputs: x, grid, dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GridSampleGrad(pub GridSample);

impl GridSample {
    /// Where a place lies along an axis of `n` pixels, in pixels, and how fast that changes with the place.
    fn position(&self, place: f64, n: usize) -> (f64, f64) {
        let n = n as f64;
        let (at, slope) = if self.align {
            ((place + 1.0) / 2.0 * (n - 1.0), (n - 1.0) / 2.0)
        } else {
            (((place + 1.0) * n - 1.0) / 2.0, n / 2.0)
        };
        if self.border && (at <= 0.0 || at >= n - 1.0) {
            return (at.clamp(0.0, n - 1.0), 0.0);
        }
        (at, slope)
    }

    /// The pixels along an axis of `n` that make up a place: number, share, and how fast the share changes with the place.
    fn taps(&self, place: f64, n: usize) -> Vec<(usize, f64, f64)> {
        let (at, slope) = self.position(place, n);
        let pixels = match self.mode {
            ResizeMode::Nearest => vec![(at.round_ties_even(), 1.0, 0.0)],
            ResizeMode::Bilinear => {
                let low = at.floor();
                vec![(low, 1.0 - (at - low), -slope), (low + 1.0, at - low, slope)]
            }
        };
        let inside = pixels.into_iter().filter(|&(pixel, ..)| pixel >= 0.0 && pixel < n as f64);
        inside.map(|(pixel, share, change)| (pixel as usize, share, change)).collect()
    }

    /// Calls `f` with sample, output pixel, input pixel, share, and the share's change with both coordinates.
    fn for_each(&self, x: &Array, grid: &Array, mut f: impl FnMut(usize, [usize; 2], [usize; 2], [f64; 3])) {
        for n in 0..grid.shape[0] {
            for i in 0..grid.shape[1] {
                for j in 0..grid.shape[2] {
                    let (across, down) = (grid.at(&[n, i, j, 0]), grid.at(&[n, i, j, 1]));
                    for (row, down_share, down_change) in self.taps(down, x.shape[1]) {
                        for &(column, share, change) in &self.taps(across, x.shape[2]) {
                            let shares = [share * down_share, change * down_share, share * down_change];
                            f(n, [i, j], [row, column], shares);
                        }
                    }
                }
            }
        }
    }

    fn check(&self, x: &Type, grid: &Type) -> Result<Type, String> {
        ops::float(x)?;
        let (&[n, h, w, c], &[samples, rows, columns, 2]) = (&x.shape[..], &grid.shape[..]) else {
            return Err(format!(
                "it takes images [N, H, W, C] and a grid [N, H', W', 2], not {} and {}",
                x.shape, grid.shape
            ));
        };
        if samples != n {
            return Err(format!("there are {n} images and {samples} grids"));
        }
        if h == 0 || w == 0 {
            return Err(format!("images {} have no pixels", x.shape));
        }
        // Eight bits of a place would not tell pixels apart.
        if grid.dtype != x.dtype.accumulator() {
            return Err(format!(
                "the grid of {} images must be {}, not {}; cast it first",
                x.dtype,
                x.dtype.accumulator(),
                grid.dtype
            ));
        }
        Ok(x.with_shape([n, rows, columns, c]))
    }

    /// Types of x, grid and y for every way to sample; few and many channels.
    fn samples(dice: &mut Dice) -> Vec<(GridSample, Type, Type, Type)> {
        let mut samples = Vec::new();
        for mode in [ResizeMode::Bilinear, ResizeMode::Nearest] {
            for (border, align) in [(false, false), (false, true), (true, false), (true, true)] {
                let op = GridSample { mode, border, align };
                let channels = if border == align { dice.range(1, 4) } else { dice.range(30, 40) };
                let n = dice.range(1, 3);
                let x = Type::new(DType::F32, [n, dice.range(1, 6), dice.range(2, 7), channels]);
                let grid = Type::new(DType::F32, [n, dice.range(1, 5), dice.range(1, 5), 2]);
                let y = x.with_shape([n, grid.shape[1], grid.shape[2], channels]);
                samples.push((op, x, grid, y));
            }
        }
        samples
    }
}

/// The flops of reading four pixels an element, and what is read and written.
fn work(inputs: &[&Type], outputs: &[&Type], elements: usize) -> Cost {
    Cost { flops: 8.0 * elements as f64, bytes: traffic(inputs, outputs) }
}

impl Rule for GridSample {
    const NAME: &'static str = "grid_sample";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, grid] = ops::arity(inputs)?;
        Ok(smallvec![self.check(x, grid)?])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == 0
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        work(inputs, outputs, outputs[0].elements())
    }

    const KEEP: Keep = Keep::inputs(3);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let grads = at.push(GridSampleGrad(*self), &[&at.input(0)?, &at.input(1)?, &at.grad(0)?])?;
        Ok(grads.into_iter().map(Some).collect())
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, grid) = (inputs[0], inputs[1]);
        let mut y = Array::new(outputs[0].shape.clone(), vec![0.0; outputs[0].elements()]);
        let channels = x.shape[3];
        self.for_each(x, grid, |n, [i, j], [row, column], [share, ..]| {
            let (to, from) = (y.offset(&[n, i, j, 0]), x.offset(&[n, row, column, 0]));
            (0..channels).for_each(|c| y.data[to + c] += share * x.data[from + c]);
        });
        for (pixel, place) in y.data.chunks_mut(channels.max(1)).zip(grid.data.chunks(2)) {
            if place.iter().any(|p| p.is_nan()) {
                pixel.fill(f64::NAN);
            }
        }
        vec![y]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |(op, x, grid, _): (GridSample, Type, Type, Type)| {
            Example::new(op, vec![(x, Domain::Normal), (grid, Domain::Normal)]).wide(2)
        };
        GridSample::samples(dice).into_iter().map(example).collect()
    }
}

impl Rule for GridSampleGrad {
    const NAME: &'static str = "grid_sample_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, grid, dy] = ops::arity(inputs)?;
        let y = self.0.check(x, grid)?;
        if y != *dy {
            return Err(format!("the gradient of {y} cannot be {dy}"));
        }
        Ok(smallvec![(*x).clone(), (*grid).clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == 0
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        work(inputs, outputs, 2 * inputs[2].elements())
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient("the second derivative of a grid sample is not defined here"))
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let (x, grid, dy) = (inputs[0], inputs[1], inputs[2]);
        let mut dx = Array::new(x.shape.clone(), vec![0.0; x.data.len()]);
        let mut dgrid = Array::new(grid.shape.clone(), vec![0.0; grid.data.len()]);
        self.0.for_each(x, grid, |n, [i, j], [row, column], [share, across, down]| {
            let (of, to) = (dy.offset(&[n, i, j, 0]), x.offset(&[n, row, column, 0]));
            let place = dgrid.offset(&[n, i, j, 0]);
            for c in 0..x.shape[3] {
                let (slope, value) = (dy.data[of + c], x.data[to + c]);
                dx.data[to + c] += share * slope;
                dgrid.data[place] += across * slope * value;
                dgrid.data[place + 1] += down * slope * value;
            }
        });
        for (slopes, place) in dgrid.data.chunks_mut(2).zip(grid.data.chunks(2)) {
            if place.iter().any(|p| p.is_nan()) {
                slopes.fill(f64::NAN);
            }
        }
        vec![dx, dgrid]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |(op, x, grid, y): (GridSample, Type, Type, Type)| {
            let inputs = vec![(x, Domain::Normal), (grid, Domain::Normal), (y, Domain::Normal)];
            Example::new(GridSampleGrad(op), inputs).wide(2)
        };
        GridSample::samples(dice).into_iter().map(example).collect()
    }
}

/// Images read at places of a grid.
///
/// ```
/// use plimsoll_graph::ops::ResizeMode;
/// use plimsoll_graph::{DType, GridSampleOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let images = trace.input("images", Type::new(DType::F32, [8, 32, 32, 3]));
/// let grid = trace.input("grid", Type::new(DType::F32, [8, 20, 24, 2]));
/// let y = images.grid_sample(&grid, ResizeMode::Bilinear, false, false)?;
/// assert_eq!(y.shape().to_string(), "[8, 20, 24, 3]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait GridSampleOps: TensorOps {
    /// The images `[N, H, W, C]` at the places of a grid `[N, H', W', 2]`, whose last axis is (across, down), each from -1 to 1.
    ///
    /// Places outside give zeros or, with `border`, the pixel at the border. With `align`, -1 and 1 are the middles of the
    /// outermost pixels, else their outer edges. The grid of 16-bit images is f32. A gradient flows to images and grid; to the grid
    /// of [`ResizeMode::Nearest`] it is 0.
    #[track_caller]
    fn grid_sample(
        &self,
        grid: &Self,
        mode: ResizeMode,
        border: bool,
        align: bool,
    ) -> Result<Self, Self::Error> {
        self.emit_one(GridSample { mode, border, align }, &[self, grid], Site::here())
    }
}

impl<T: TensorOps> GridSampleOps for T {}
