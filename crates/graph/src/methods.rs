//! Turns method calls into ops: the one op set of eager tensors and traced values.
//!
//! A type that can emit an op gets every method. Methods of larger families (convolution, norms, attention …) stand
//! in extension traits beside their ops; this trait holds what all of them build on.

use smallvec::SmallVec;

use crate::error::Error;
use crate::ops::{self, Binary, Compare, MatMul, PadAxis, Reduce, ReduceKind, SliceAxis, Unary};
use crate::{DType, Op, Scalar, Shape, Site, Type};

macro_rules! unary_methods {
    ($( $(#[$doc:meta])+ $method:ident => $kind:expr; )+) => {
        $( $(#[$doc])+ #[track_caller]
        fn $method(&self) -> Result<Self, Self::Error> {
            self.emit_one($kind, &[self], Site::here())
        } )+
    };
}

macro_rules! scalar_methods {
    ($( $(#[$doc:meta])+ $method:ident => $kind:path; )+) => {
        $( $(#[$doc])+ #[track_caller]
        fn $method(&self, scalar: f64) -> Result<Self, Self::Error> {
            self.emit_one($kind(Scalar(scalar)), &[self], Site::here())
        } )+
    };
}

macro_rules! reductions {
    ($( $(#[$doc:meta])+ $method:ident => $kind:expr; )+) => {
        $( $(#[$doc])+ #[track_caller]
        fn $method(&self, axes: &[usize], keep: bool) -> Result<Self, Self::Error> {
            self.reduce($kind, axes, keep)
        } )+
    };
}

macro_rules! binary_methods {
    ($( $(#[$doc:meta])+ $method:ident => $kind:expr; )+) => {
        $( $(#[$doc])+ #[track_caller]
        fn $method(&self, other: &Self) -> Result<Self, Self::Error> {
            self.emit_one($kind, &[self, other], Site::here())
        } )+
    };
}

/// Methods that give the same value where it has the shape already.
macro_rules! reshapings {
    ($( $(#[$doc:meta])+ $method:ident => $op:path; )+) => {
        $( $(#[$doc])+ #[track_caller]
        fn $method(&self, shape: impl Into<Shape>) -> Result<Self, Self::Error> {
            let shape = shape.into();
            if *self.shape() == shape {
                return Ok(self.clone());
            }
            self.emit_one($op(shape), &[self], Site::here())
        } )+
    };
}

/// Everything one can do with a tensor, eager or traced.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [8, 4]));
/// let w = trace.input("w", Type::new(DType::F32, [4, 2]));
/// assert_eq!(x.matmul(&w)?.relu()?.shape().to_string(), "[8, 2]");
/// let error = w.matmul(&x).unwrap_err().to_string();
/// assert!(error.contains("matmul at") && error.contains("[4, 2]") && error.contains("[8, 4]"));
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait TensorOps: Clone + Sized {
    /// What can go wrong.
    type Error: From<Error>;

    /// Element type and shape.
    fn ty(&self) -> &Type;

    /// Applies an op. `self` says where (which trace, which device) and need not be among the inputs.
    fn emit(&self, op: Op, inputs: &[&Self], site: Site) -> Result<SmallVec<[Self; 2]>, Self::Error>;

    /// Applies an op and takes its first outputs.
    fn emit_first<const N: usize>(
        &self,
        op: impl Into<Op>,
        inputs: &[&Self],
        site: Site,
    ) -> Result<[Self; N], Self::Error> {
        let op = op.into();
        let name = op.name();
        let outputs: Vec<Self> = self.emit(op, inputs, site)?.into_iter().take(N).collect();
        outputs.try_into().map_err(|outputs: Vec<Self>| {
            Error::Internal(format!("{name} gave {} outputs, not {N}", outputs.len())).into()
        })
    }

    /// Applies an op and takes its first output.
    fn emit_one(&self, op: impl Into<Op>, inputs: &[&Self], site: Site) -> Result<Self, Self::Error> {
        let op = op.into();
        let name = op.name();
        let mut outputs = self.emit(op, inputs, site)?;
        if outputs.is_empty() {
            return Err(Error::Internal(format!("{name} gave no output")).into());
        }
        Ok(outputs.swap_remove(0))
    }

    /// The axis lengths.
    fn shape(&self) -> &Shape {
        &self.ty().shape
    }

    /// The element type.
    fn dtype(&self) -> DType {
        self.ty().dtype
    }

    unary_methods! {
        /// -x
        neg => Unary::Neg;
        /// |x|
        abs => Unary::Abs;
        /// -1, 0 or 1
        sign => Unary::Sign;
        /// the largest integer not above x
        floor => Unary::Floor;
        /// e^x
        exp => Unary::Exp;
        /// ln x
        log => Unary::Log;
        /// √x
        sqrt => Unary::Sqrt;
        /// 1/√x
        rsqrt => Unary::Rsqrt;
        /// x²
        square => Unary::Square;
        /// 1/x
        reciprocal => Unary::Reciprocal;
        /// sin x
        sin => Unary::Sin;
        /// cos x
        cos => Unary::Cos;
        /// tanh x
        tanh => Unary::Tanh;
        /// 1/(1+e^-x)
        sigmoid => Unary::Sigmoid;
        /// the error function
        erf => Unary::Erf;
        /// max(x, 0)
        relu => Unary::Relu;
        /// x · Φ(x), with the normal distribution itself
        gelu => Unary::Gelu;
        /// gelu by its tanh approximation
        gelu_tanh => Unary::GeluTanh;
        /// x · sigmoid(x)
        silu => Unary::Silu;
        /// ln(1 + e^x)
        softplus => Unary::Softplus;
        /// true where a truth value is false
        not => Unary::Not;
        /// true where x is neither infinite nor not-a-number
        is_finite => Unary::IsFinite;
    }

    scalar_methods! {
        /// x + s
        add_scalar => Unary::AddScalar;
        /// x · s
        mul_scalar => Unary::MulScalar;
        /// s - x
        rsub_scalar => Unary::RsubScalar;
        /// s / x
        rdiv_scalar => Unary::RdivScalar;
        /// x^s
        pow_scalar => Unary::PowScalar;
        /// x where x > 0, else s · x
        leaky_relu => Unary::LeakyRelu;
    }

    binary_methods! {
        /// a + b, with broadcasting
        add => Binary::Add;
        /// a - b
        sub => Binary::Sub;
        /// a · b, element by element
        mul => Binary::Mul;
        /// a / b
        div => Binary::Div;
        /// a^b
        pow => Binary::Pow;
        /// the larger of two elements
        maximum => Binary::Max;
        /// the smaller of two elements
        minimum => Binary::Min;
        /// both true
        and => Binary::And;
        /// either true
        or => Binary::Or;
        /// a = b, as a truth value
        equal => Compare::Eq;
        /// a ≠ b
        not_equal => Compare::Ne;
        /// a < b
        less => Compare::Lt;
        /// a ≤ b
        less_equal => Compare::Le;
        /// a > b
        greater => Compare::Gt;
        /// a ≥ b
        greater_equal => Compare::Ge;
    }

    /// x held between two bounds.
    #[track_caller]
    fn clamp(&self, low: f64, high: f64) -> Result<Self, Self::Error> {
        self.emit_one(Unary::Clamp(Scalar(low), Scalar(high)), &[self], Site::here())
    }

    /// Where self is true the element of `yes`, else that of `no`.
    #[track_caller]
    fn select(&self, yes: &Self, no: &Self) -> Result<Self, Self::Error> {
        self.emit_one(ops::Select, &[self, yes, no], Site::here())
    }

    /// In another element type; the same value where it has that type already.
    #[track_caller]
    fn cast(&self, dtype: DType) -> Result<Self, Self::Error> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        self.emit_one(ops::Cast(dtype), &[self], Site::here())
    }

    /// A constant beside this value: same trace, same device.
    #[track_caller]
    fn full_like(&self, ty: Type, value: f64) -> Result<Self, Self::Error> {
        self.emit_one(ops::Full { ty, value: Scalar(value) }, &[], Site::here())
    }

    /// 0, 1, 2 … along an axis of a new value beside this one.
    #[track_caller]
    fn iota_like(&self, ty: Type, axis: usize) -> Result<Self, Self::Error> {
        self.emit_one(ops::Iota { ty, axis }, &[], Site::here())
    }

    reshapings! {
        /// Repeated along axes of length 1 to a larger shape.
        broadcast => ops::Broadcast;
        /// The same elements under another shape.
        reshape => ops::Reshape;
    }

    /// All axes from `first` on joined into one.
    #[track_caller]
    fn flatten(&self, first: usize) -> Result<Self, Self::Error> {
        let mut shape = Shape::from(&self.shape()[..first.min(self.shape().rank())]);
        shape.push(self.shape()[first.min(self.shape().rank())..].iter().product());
        self.reshape(shape)
    }

    /// The axes in another order: axis i of the result is axis `order[i]` of this.
    #[track_caller]
    fn transpose(&self, order: &[usize]) -> Result<Self, Self::Error> {
        self.emit_one(ops::Transpose(order.into()), &[self], Site::here())
    }

    /// `start..stop` of one axis.
    #[track_caller]
    fn narrow(&self, axis: usize, start: usize, stop: usize) -> Result<Self, Self::Error> {
        self.slice(&[(axis, start, stop, 1)])
    }

    /// Ranges `(axis, start, stop, step)` of some axes; the others whole.
    #[track_caller]
    fn slice(&self, ranges: &[(usize, usize, usize, usize)]) -> Result<Self, Self::Error> {
        let site = Site::here();
        let mut axes: SmallVec<[SliceAxis; 4]> =
            self.shape().iter().map(|&n| SliceAxis { start: 0, stop: n, step: 1 }).collect();
        for &(axis, start, stop, step) in ranges {
            self.axis(axis as isize, "slice", site)?;
            axes[axis] = SliceAxis { start, stop, step };
        }
        self.emit_one(ops::Slice(axes), &[self], site)
    }

    /// `low` and `high` elements of a value added to each axis.
    #[track_caller]
    fn pad(&self, padding: &[(usize, usize)], value: f64) -> Result<Self, Self::Error> {
        let axes = padding.iter().map(|&(low, high)| PadAxis { low, high, inner: 0 }).collect();
        self.emit_one(ops::Pad { axes, value: Scalar(value) }, &[self], Site::here())
    }

    /// The pieces of the given lengths along an axis (negative: from the last).
    #[track_caller]
    fn split(&self, axis: isize, sizes: &[usize]) -> Result<SmallVec<[Self; 2]>, Self::Error> {
        let site = Site::here();
        let axis = self.axis(axis, "split", site)?;
        self.emit(ops::Split { axis, sizes: sizes.into() }.into(), &[self], site)
    }

    /// The values one after the other along an axis (negative: from the last).
    #[track_caller]
    fn concat(values: &[&Self], axis: isize) -> Result<Self, Self::Error> {
        let site = Site::here();
        let Some(first) = values.first() else {
            let why = "it takes at least one input".into();
            return Err(Error::Shape { op: "concat", layer: String::new(), site, inputs: vec![], why }.into());
        };
        let axis = first.axis(axis, "concat", site)?;
        first.emit_one(ops::Concat { axis }, values, site)
    }

    /// A reduction over axes (none named: all of them).
    #[track_caller]
    fn reduce(&self, kind: ReduceKind, axes: &[usize], keep: bool) -> Result<Self, Self::Error> {
        let mut axes: SmallVec<[usize; 4]> =
            if axes.is_empty() { (0..self.shape().rank()).collect() } else { axes.into() };
        axes.sort_unstable();
        self.emit_one(Reduce { kind, axes, keep }, &[self], Site::here())
    }

    reductions! {
        /// The sum over axes (none named: all of them), which go or stay with length 1.
        sum => ReduceKind::Sum;
        /// The mean over axes.
        mean => ReduceKind::Mean;
        /// The largest over axes.
        max => ReduceKind::Max;
        /// The smallest over axes.
        min => ReduceKind::Min;
        /// The product over axes.
        prod => ReduceKind::Prod;
    }

    /// The index of the largest along an axis (negative: from the last).
    #[track_caller]
    fn argmax(&self, axis: isize) -> Result<Self, Self::Error> {
        let site = Site::here();
        let axis = self.axis(axis, "argmax", site)?;
        self.emit_one(ops::ArgMax { axis }, &[self], site)
    }

    /// The sum over the axes along which a value of `shape` is repeated to become this one.
    #[track_caller]
    fn sum_to(&self, shape: &Shape) -> Result<Self, Self::Error> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let missing = self.shape().rank().saturating_sub(shape.rank());
        let repeated = |axis: usize| axis < missing || shape[axis - missing] != self.shape()[axis];
        let axes: Vec<usize> = (0..self.shape().rank()).filter(|&axis| repeated(axis)).collect();
        if axes.is_empty() {
            return self.reshape(shape);
        }
        self.reduce(ReduceKind::Sum, &axes, false)?.reshape(shape)
    }

    /// The matrix product.
    #[track_caller]
    fn matmul(&self, other: &Self) -> Result<Self, Self::Error> {
        self.emit_one(MatMul::default(), &[self, other], Site::here())
    }

    /// The matrix product with operands transposed at will and a bias added.
    #[track_caller]
    fn matmul_with(
        &self,
        other: &Self,
        bias: Option<&Self>,
        ta: bool,
        tb: bool,
    ) -> Result<Self, Self::Error> {
        let op = MatMul { ta, tb, bias: bias.is_some(), act: None };
        match bias {
            Some(bias) => self.emit_one(op, &[self, other, bias], Site::here()),
            None => self.emit_one(op, &[self, other], Site::here()),
        }
    }

    /// The number of an axis that may be counted from the last (-1), or the error that says there is none.
    fn axis(&self, axis: isize, op: &'static str, site: Site) -> Result<usize, Self::Error> {
        let rank = self.shape().rank() as isize;
        let index = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&index) {
            return Ok(index as usize);
        }
        let why = format!("axis {axis} does not exist in shape {}", self.shape());
        Err(Error::Shape { op, layer: String::new(), site, inputs: vec![self.ty().clone()], why }.into())
    }
}
