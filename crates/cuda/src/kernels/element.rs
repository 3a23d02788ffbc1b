//! Elementwise ops, alone and in chains: writes a kernel for a chain's structure; shapes and numbers are arguments.

use std::borrow::Cow;
use std::fmt::Write;

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::ops::{Arg, Binary, Cast, Compare, ElementOp, Fused, ReluGrad, Select, Step, Unary};
use plimsoll_graph::{DType, Op, Shape, Type};
use smallvec::{SmallVec, smallvec};

use super::Kernel;
use super::strided::{MAX_RANK, Strided, broadcast_strides};
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid, c_name};

const TEXT: &str = include_str!("element.cu");

/// The type that values of an element type are computed in.
fn wide(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => "float",
        DType::F64 => "double",
        DType::I64 | DType::U32 => "i64",
        DType::I32 | DType::I16 | DType::I8 | DType::U16 | DType::U8 | DType::Bool => "int",
    }
}

/// A chain's kernel as text, and the numbers that stand in it.
struct Written {
    text: String,
    numbers: Vec<f64>,
}

/// How an input is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Dense,
    Scalar,
    /// With strides; the last axis element after element.
    Rows,
    /// With strides; the last axis the same element again.
    Columns,
    /// With strides throughout.
    Strided,
}

impl Reading {
    fn has_offset(self) -> bool {
        !matches!(self, Reading::Dense | Reading::Scalar)
    }
}

fn write_chain(
    steps: &[Step],
    outputs: &[u16],
    types: &[DType],
    readings: &[Reading],
    rank: usize,
    narrow_index: bool,
    pack: usize,
) -> Written {
    let mut numbers: Vec<f64> = Vec::new();
    let (mut loads, mut body, mut stores) = (String::new(), String::new(), String::new());
    let index = if narrow_index { "u32" } else { "i64" };
    for (i, (dtype, reading)) in types.iter().zip(readings).enumerate() {
        let (ty, wide) = (c_name(*dtype), wide(*dtype));
        let _ = match reading {
            Reading::Dense => {
                writeln!(loads, "Pack<{ty}, {pack}> v{i} = load_pack<{ty}, {pack}>(p.in[{i}], i);")
            }
            Reading::Rows => {
                writeln!(loads, "Pack<{ty}, {pack}> v{i} = load_pack<{ty}, {pack}>(p.in[{i}], o{i});")
            }
            Reading::Scalar => writeln!(loads, "{wide} x{i} = load<{ty}>(p.in[{i}], 0);"),
            Reading::Columns => writeln!(loads, "{wide} x{i} = load<{ty}>(p.in[{i}], o{i});"),
            Reading::Strided => writeln!(body, "{wide} x{i} = load<{ty}>(p.in[{i}], o{i});"),
        };
        if matches!(reading, Reading::Dense | Reading::Rows) {
            let _ = writeln!(body, "{wide} x{i} = widen(v{i}.v[e]);");
        }
    }
    let mut number = |value: f64, ty: &str| {
        numbers.push(value);
        format!("({ty})p.number[{}]", numbers.len() - 1)
    };
    let dtype_of = |arg: &Arg| match *arg {
        Arg::Input(n) => Some(types[usize::from(n)]),
        Arg::Step(n) => Some(steps[usize::from(n)].dtype),
        Arg::Const(_) => None,
    };
    for (i, step) in steps.iter().enumerate() {
        let known = step.args.iter().find_map(dtype_of);
        // The type in which operands meet: that of the result, but for ops whose result is a truth value.
        let meet = match step.op {
            ElementOp::Compare(_) | ElementOp::Unary(Unary::IsFinite) | ElementOp::Unary(Unary::Not) => {
                known.unwrap_or(DType::F64)
            }
            _ => step.dtype,
        };
        let ty = wide(meet);
        let mut arg = |a: &Arg, to: DType| match *a {
            Arg::Input(n) => format!("({})x{n}", wide(to)),
            Arg::Step(n) => format!("({})s{n}", wide(to)),
            // A number stands for a value that would have been stored in the operands' type.
            Arg::Const(value) => format!("rounded<{}>({})", c_name(to), number(value.0, wide(to))),
        };
        let args: SmallVec<[String; 3]> = match step.op {
            ElementOp::Cast => smallvec![String::new()],
            ElementOp::Select => smallvec![
                arg(&step.args[0], dtype_of(&step.args[0]).unwrap_or(DType::F64)),
                arg(&step.args[1], meet),
                arg(&step.args[2], meet)
            ],
            _ => step.args.iter().map(|a| arg(a, meet)).collect(),
        };
        let value = match step.op {
            ElementOp::Unary(f) => {
                let scalars: String = f.scalars().iter().map(|s| format!(", {}", number(s.0, ty))).collect();
                format!("u_{}({}{scalars})", Op::Unary(f).name(), args[0])
            }
            ElementOp::Binary(f) => format!("b_{}({}, {})", Op::Binary(f).name(), args[0], args[1]),
            ElementOp::Compare(f) => {
                let sign = match f {
                    Compare::Eq => "==",
                    Compare::Ne => "!=",
                    Compare::Lt => "<",
                    Compare::Le => "<=",
                    Compare::Gt => ">",
                    Compare::Ge => ">=",
                };
                format!("(int)({} {sign} {})", args[0], args[1])
            }
            ElementOp::Select => format!("({} != 0 ? {} : {})", args[0], args[1], args[2]),
            ElementOp::ReluGrad(slope) => {
                format!("relu_grad({}, {}, {})", args[0], args[1], number(slope.0, ty))
            }
            ElementOp::Cast => {
                let from = match step.args[0] {
                    Arg::Input(n) => format!("x{n}"),
                    Arg::Step(n) => format!("s{n}"),
                    Arg::Const(value) => number(value.0, "double"),
                };
                match (step.dtype, step.dtype.range()) {
                    (DType::U8, _) => format!("to_byte({from})"),
                    (DType::Bool, _) => format!("to_bool({from})"),
                    // What does not fit is held at the ends of the range.
                    (to, Some((low, high))) => {
                        format!("({})held(Convert<i64>::of({from}), {low}ll, {high}ll)", wide(to))
                    }
                    (to, None) => format!("Convert<{}>::of({from})", wide(to)),
                }
            }
        };
        let _ = match step.dtype {
            DType::BF16 | DType::F16 => {
                writeln!(body, "float s{i} = rounded<{}>({value});", c_name(step.dtype))
            }
            other => writeln!(body, "{} s{i} = {value};", wide(other)),
        };
    }
    for (o, &s) in outputs.iter().enumerate() {
        let ty = c_name(steps[usize::from(s)].dtype);
        let _ = writeln!(loads, "Pack<{ty}, {pack}> y{o};");
        let _ = writeln!(body, "y{o}.v[e] = narrow<{ty}>(s{s});");
        let _ = writeln!(stores, "store_pack<{ty}, {pack}>(p.out[{o}], i, y{o});");
    }
    let mut offsets = String::new();
    let strided: Vec<usize> = (0..types.len()).filter(|&i| readings[i].has_offset()).collect();
    if !strided.is_empty() {
        let _ = writeln!(offsets, "{index} r = i;");
        for i in &strided {
            let _ = writeln!(offsets, "{index} o{i} = 0;");
        }
        for axis in (0..rank).rev() {
            let _ = writeln!(offsets, "{{ {index} l = p.length[{axis}], k = r % l; r /= l;");
            for (place, i) in strided.iter().enumerate() {
                let _ = writeln!(offsets, "o{i} += k * ({index})p.stride[{place}][{axis}];");
            }
            let _ = writeln!(offsets, "}}");
        }
    }
    let (n_in, n_out) = (types.len().max(1), outputs.len().max(1));
    let (n_number, n_strided) = (numbers.len().max(1), strided.len().max(1));
    let text = format!(
        "struct P {{ i64 n; const void *in[{n_in}]; void *out[{n_out}]; double number[{n_number}]; \
         i64 length[{MAX_RANK}]; i64 stride[{n_strided}][{MAX_RANK}]; }};\n\
         KERNEL(chain, P) {{\n\
         for ({index} g = ({index})blockIdx.x * blockDim.x + threadIdx.x; g < p.n / {pack}; g += ({index})gridDim.x * blockDim.x) {{\n\
         {index} i = g * {pack};\n{offsets}{loads}\
         #pragma unroll\nfor (int e = 0; e < {pack}; e++) {{\n{body}}}\n{stores}}}\n}}\n"
    );
    Written { text, numbers }
}

/// Runs a chain over a shape.
///
/// # Safety
/// As for a kernel's run.
pub(super) unsafe fn run_chain(
    cuda: &Cuda,
    shape: &Shape,
    steps: &[Step],
    outputs: &[u16],
    inputs: &[Operand<'_>],
    results: &[Operand<'_>],
) -> Result<(), Error> {
    let n = shape.elements();
    if n == 0 {
        return Ok(());
    }
    let strides: Vec<_> = inputs.iter().map(|x| broadcast_strides(&x.ty.shape, shape)).collect();
    let joined = Strided::new(shape, &strides);
    if joined.rank() > MAX_RANK {
        return Err(too_many_axes(shape));
    }
    let readings: Vec<Reading> = (0..inputs.len())
        .map(|i| match () {
            () if joined.is_dense(i) => Reading::Dense,
            () if joined.is_scalar(i) => Reading::Scalar,
            () if joined.strides[i].last() == Some(&1) => Reading::Rows,
            () if joined.strides[i].last() == Some(&0) => Reading::Columns,
            () => Reading::Strided,
        })
        .collect();
    let types: Vec<DType> = inputs.iter().map(|x| x.ty.dtype).collect();
    let pack = pack(&joined, &readings, inputs, results);
    // Grid strides are added to the index before it is compared, so 32 bits must hold that sum too.
    let narrow_index = n < 1 << 31;
    let written = write_chain(steps, outputs, &types, &readings, joined.rank(), narrow_index, pack);
    let mut args = Args::new().int(n);
    for x in inputs {
        args = args.at(x.ptr);
    }
    if inputs.is_empty() {
        args = args.int(0);
    }
    for y in results {
        args = args.at(y.ptr);
    }
    for &value in &written.numbers {
        args = args.float(value);
    }
    if written.numbers.is_empty() {
        args = args.float(0.0);
    }
    args = args.ints(joined.lengths.iter().copied(), MAX_RANK, 1);
    let strided = readings.iter().enumerate().filter(|(_, r)| r.has_offset());
    let mut any = false;
    for (i, _) in strided {
        args = args.ints(joined.strides[i].iter().copied(), MAX_RANK, 0);
        any = true;
    }
    if !any {
        args = args.ints([], MAX_RANK, 0);
    }
    let code = Code {
        name: "element",
        text: TEXT,
        head: String::new(),
        tail: Cow::Owned(written.text),
        contract: false,
    };
    // SAFETY: the caller's promise; the arguments are packed as the written struct says.
    unsafe { cuda.launch(&code, "chain", Grid::each(n / pack), &args) }
}

/// How many elements a thread takes at once: what sixteen bytes of the narrowest type hold, or as many as addresses, lengths
/// and strides allow. Types of eight bytes and readings that jump are taken one by one.
fn pack(joined: &Strided, readings: &[Reading], inputs: &[Operand<'_>], results: &[Operand<'_>]) -> usize {
    let n: usize = joined.lengths.iter().product();
    let has_offsets = readings.iter().any(|r| r.has_offset());
    let inner = if has_offsets { joined.lengths.last().copied().unwrap_or(1) } else { n };
    let fits = |pack: usize| {
        let aligned = |x: &Operand<'_>| (x.ptr as usize).is_multiple_of((pack * x.ty.dtype.bytes()).min(16));
        let even = |(i, reading): (usize, &Reading)| match reading {
            Reading::Rows => joined.strides[i].iter().rev().skip(1).all(|s| s.is_multiple_of(pack)),
            _ => true,
        };
        inner.is_multiple_of(pack)
            && inputs
                .iter()
                .zip(readings)
                .all(|(x, r)| *r == Reading::Scalar || *r == Reading::Columns || aligned(x))
            && results.iter().all(aligned)
            && readings.iter().enumerate().all(even)
    };
    let bytes = || inputs.iter().chain(results).map(|x| x.ty.dtype.bytes());
    if readings.contains(&Reading::Strided) || bytes().any(|b| b == 8) {
        return 1;
    }
    let most = if bytes().all(|b| b <= 2) { 8 } else { 4 };
    [8, 4, 2].into_iter().find(|&pack| pack <= most && fits(pack)).unwrap_or(1)
}

/// The error for a shape of more axes than kernels count.
pub(super) fn too_many_axes(shape: &Shape) -> Error {
    Error::Library {
        library: "the CUDA backend",
        call: "a kernel",
        why: format!("shape {shape} has more than {MAX_RANK} axes that cannot be joined"),
    }
}

/// One op as a chain of one step.
unsafe fn run_one(cuda: &Cuda, call: &Call<'_>, op: ElementOp) -> Result<(), Error> {
    let args = (0..call.inputs.len()).map(|i| Arg::Input(i as u16)).collect();
    let y = call.outputs[0].ty;
    let steps = [Step { op, args, dtype: y.dtype }];
    // SAFETY: the caller's promise.
    unsafe { run_chain(cuda, &y.shape, &steps, &[0], call.inputs, call.outputs) }
}

macro_rules! one_step {
    ($($op:ty, $this:ident => $step:expr;)+) => { $(
        impl Kernel for $op {
            unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
                let $this = self;
                // SAFETY: the caller's promise.
                unsafe { run_one(cuda, call, $step) }
            }
        }
    )+ };
}
one_step! {
    Unary, this => ElementOp::Unary(*this);
    Binary, this => ElementOp::Binary(*this);
    Compare, this => ElementOp::Compare(*this);
    Select, _this => ElementOp::Select;
    Cast, _this => ElementOp::Cast;
    ReluGrad, this => ElementOp::ReluGrad(this.slope);
}

impl Kernel for Fused {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Error> {
        // All arguments must fit into what a launch can take.
        let bytes = 8 * (8 + 9 * inputs.len() + outputs.len() + 2 * self.0.steps.len());
        if bytes > 4000 {
            return Err(too_many_axes(&self.0.shape));
        }
        Ok(0)
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let chain = &*self.0;
        // SAFETY: the caller's promise.
        unsafe { run_chain(cuda, &chain.shape, &chain.steps, &chain.outputs, call.inputs, call.outputs) }
    }
}
