//! Matrix products: by cuBLASLt where it is loaded and knows the types, else by the crate's own tiles.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::{Arg, ElementOp, MatMul, Step, Unary};
use plimsoll_graph::{DType, Op, Type};
use smallvec::smallvec;

use super::Kernel;
use super::element::run_chain;
use super::straight::Straight;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid, is_only_loading};

const TEXT: &str = concat!(include_str!("element.cu"), include_str!("tile.cu"), include_str!("matmul.cu"));

/// A matrix in device memory: distances from one row, column and matrix of a batch to the next, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub at: *mut u8,
    pub dtype: DType,
    pub row: usize,
    pub column: usize,
    pub batch: usize,
}

impl Matrix {
    /// A dense matrix of `columns` columns, or one that is stored transposed.
    pub(crate) fn dense(at: *mut u8, dtype: DType, columns: usize) -> Matrix {
        Matrix { at, dtype, row: columns, column: 1, batch: 0 }
    }

    /// The same matrix, transposed.
    pub(crate) fn turned(self) -> Matrix {
        Matrix { row: self.column, column: self.row, ..self }
    }

    /// The matrix that starts a number of elements further.
    pub(crate) fn beyond(self, elements: usize) -> Matrix {
        Matrix { at: self.at.wrapping_add(elements * self.dtype.bytes()), ..self }
    }
}

/// c = act(scale · a · b + bias), or that added to what is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    /// Whether it is added to what c holds.
    pub accumulate: bool,
    pub scale: f64,
    pub bias: Option<*mut u8>,
    pub act: Option<Unary>,
}

impl Product {
    /// A plain product of single matrices.
    pub(crate) fn new(m: usize, n: usize, k: usize, a: Matrix, b: Matrix, c: Matrix) -> Product {
        Product { batch: 1, m, n, k, a, b, c, accumulate: false, scale: 1.0, bias: None, act: None }
    }

    /// The bytes of scratch that it needs.
    pub(crate) fn scratch(&self, cuda: &Cuda) -> usize {
        let direct = self.direct_scratch(cuda);
        self.straight(cuda).map_or(direct, |straight| straight.scratch(cuda, self).max(direct))
    }

    /// The slices in which the library computes it faster, where it does.
    fn straight(&self, cuda: &Cuda) -> Option<Straight> {
        cuda.0.blas.as_ref().and_then(|_| Straight::of(self))
    }

    /// The bytes of scratch that it needs where its matrices are taken as they are.
    pub(super) fn direct_scratch(&self, cuda: &Cuda) -> usize {
        match &cuda.0.blas {
            Some(blas) => blas.scratch(self).unwrap_or(0),
            None => 0,
        }
    }

    /// Puts it on the stream.
    ///
    /// # Safety
    /// All operands must be live memory of the device, and the scratch of the declared bytes.
    pub(crate) unsafe fn run(&self, cuda: &Cuda, scratch: *mut u8, bytes: usize) -> Result<(), Error> {
        if self.m == 0 || self.n == 0 || self.batch == 0 {
            return Ok(());
        }
        if let Some(straight) = self.straight(cuda)
            && straight.scratch(cuda, self) <= bytes
        {
            // SAFETY: the caller's promise.
            return unsafe { straight.run(cuda, self, scratch, bytes) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.run_direct(cuda, scratch, bytes) }
    }

    /// The same, of its matrices as they are.
    ///
    /// # Safety
    /// As for [`Product::run`].
    pub(super) unsafe fn run_direct(&self, cuda: &Cuda, scratch: *mut u8, bytes: usize) -> Result<(), Error> {
        if let Some(blas) = &cuda.0.blas
            && self.k > 0
        {
            if is_only_loading() {
                // The library loads its own code; what may be left to do after it is ours.
                // SAFETY: nothing is put on the stream.
                return unsafe { self.activate(cuda, self.act) };
            }
            let card = cuda.card("a product")?;
            // SAFETY: the caller's promise.
            if let Some(left) = unsafe { blas.run(card, self, scratch, bytes) }? {
                // SAFETY: the caller's promise.
                return unsafe { self.activate(cuda, left) };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.run_tiles(cuda) }
    }

    /// Applies what the library left undone, over the result.
    ///
    /// # Safety
    /// The result must be live memory of the device, and dense.
    pub(super) unsafe fn activate(&self, cuda: &Cuda, act: Option<Unary>) -> Result<(), Error> {
        let Some(act) = act else { return Ok(()) };
        let ty = Type::new(self.c.dtype, [self.batch * self.m * self.n]);
        let y = plimsoll_device::backend::Operand { ty: &ty, ptr: self.c.at };
        let steps = [Step { op: ElementOp::Unary(act), args: smallvec![Arg::Input(0)], dtype: self.c.dtype }];
        // SAFETY: the caller's promise; products with an activation are dense.
        unsafe { run_chain(cuda, &ty.shape, &steps, &[0], &[y], &[y]) }
    }

    unsafe fn run_tiles(&self, cuda: &Cuda) -> Result<(), Error> {
        let Product { a, b, c, .. } = self;
        let mut code = Code::of("matmul", TEXT, c.dtype)
            .with_type("TA", a.dtype)
            .with_type("TB", b.dtype)
            .with_type("TC", c.dtype)
            .with("A_DEEP", usize::from(a.column == 1))
            .with("B_DEEP", usize::from(b.row == 1 && b.column != 1));
        let (text, s0, s1) = activation(self.act);
        code.head += &text;
        let args = Args::new()
            .at(a.at)
            .at(b.at)
            .at(c.at)
            .at(self.bias.unwrap_or(std::ptr::null_mut()))
            .ints([self.m, self.n, self.k], 3, 0)
            .ints([a.row, a.column, a.batch, b.row, b.column, b.batch, c.row, c.batch], 8, 0)
            .int(usize::from(self.accumulate))
            .at(c.at)
            .float(self.scale)
            .float(s0)
            .float(s1);
        let tiles = self.m.div_ceil(64) * self.n.div_ceil(64);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "product", Grid::tiles(tiles, self.batch, 1, 256), &args) }
    }
}

/// How kernels write an activation: a macro, and the two numbers that stand in it.
pub(super) fn activation(act: Option<Unary>) -> (String, f64, f64) {
    let Some(act) = act else { return ("#define ACT(x) (x)\n".into(), 0.0, 0.0) };
    let name = Op::Unary(act).name();
    match &act.scalars()[..] {
        [low, high, ..] => (format!("#define ACT(x) u_{name}(x, (A)p.s0, (A)p.s1)\n"), low.0, high.0),
        [s] => (format!("#define ACT(x) u_{name}(x, (A)p.s0)\n"), s.0, 0.0),
        [] => (format!("#define ACT(x) u_{name}(x)\n"), 0.0, 0.0),
    }
}

/// The product of an op, of operands at addresses.
pub(super) fn product(
    op: &MatMul,
    types: &[&Type],
    addresses: &[*mut u8],
    y: *mut u8,
) -> Result<Product, Error> {
    let (a, b) = (types[0], types[1]);
    let d =
        op.dims(a, b).map_err(|why| Error::Library { library: "the CUDA backend", call: "matmul", why })?;
    let matrix = |ty: &Type, at: *mut u8, turned: bool, shared: bool| {
        let (rows, columns) = (ty.shape[ty.shape.rank() - 2], ty.shape[ty.shape.rank() - 1]);
        let dense = Matrix::dense(at, ty.dtype, columns);
        let dense = Matrix { batch: if shared { 0 } else { rows * columns }, ..dense };
        if turned { dense.turned() } else { dense }
    };
    let mut product = Product {
        batch: d.batch,
        m: d.m,
        n: d.n,
        k: d.k,
        a: matrix(a, addresses[0], op.ta, d.a_shared),
        b: matrix(b, addresses[1], op.tb, d.b_shared),
        c: Matrix { batch: d.m * d.n, ..Matrix::dense(y, a.dtype, d.n) },
        accumulate: false,
        scale: 1.0,
        bias: op.bias.then(|| addresses[2]),
        act: op.act,
    };
    // Rows of a batch that meets a single matrix are rows of one taller matrix.
    if d.b_shared && !d.a_shared && !op.ta {
        product.m *= product.batch;
        product.batch = 1;
    }
    Ok(product)
}

impl Kernel for MatMul {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        anywhere(inputs, |at, y| product(self, inputs, at, y)).map(|product| product.scratch(cuda))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let product = of_call(call, |types, at, y| product(self, types, at, y))?;
        // SAFETY: the caller's promise.
        unsafe { product.run(cuda, call.scratch, call.scratch_bytes) }
    }
}

/// A product before there are operands. Any aligned address will do: what is chosen depends on sizes and alignment alone.
pub(super) fn anywhere<T>(inputs: &[&Type], made: impl FnOnce(&[*mut u8], *mut u8) -> T) -> T {
    let address = 4096 as *mut u8;
    made(&vec![address; inputs.len()], address)
}

/// A product of the operands of a call.
pub(super) fn of_call<T>(call: &Call<'_>, made: impl FnOnce(&[&Type], &[*mut u8], *mut u8) -> T) -> T {
    let types: Vec<&Type> = call.inputs.iter().map(|x| x.ty).collect();
    let at: Vec<*mut u8> = call.inputs.iter().map(|x| x.ptr).collect();
    made(&types, &at, call.outputs[0].ptr)
}
