//! LSTM and GRU over a sequence: products for all steps at once where they can be, one product and one pointwise kernel
//! a step where they cannot. Sums and what a step hands back are kept in the accumulator's type, in scratch.

use std::ptr::null_mut;

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::{Gru, GruGrad, Lstm, LstmGrad, RecurrentDims};
use plimsoll_graph::{DType, Type};

use super::matmul::{Matrix, Product};
use super::{Kernel, Parts, padded};
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("recurrent.cu");

/// All addresses and row lengths that the kernels know, in their order.
#[derive(Clone, Copy)]
struct At {
    sums: *mut u8,
    state: *mut u8,
    bias: *mut u8,
    bias_u: *mut u8,
    h: *mut u8,
    c: *mut u8,
    y: *mut u8,
    last_h: *mut u8,
    last_c: *mut u8,
    gates: *mut u8,
    cells: *mut u8,
    dy: *mut u8,
    dh: *mut u8,
    dc: *mut u8,
    to_x: *mut u8,
    to_h: *mut u8,
    sums_row: usize,
    h_row: usize,
    y_row: usize,
    to_row: usize,
}

const NOWHERE: At = At {
    sums: null_mut(),
    state: null_mut(),
    bias: null_mut(),
    bias_u: null_mut(),
    h: null_mut(),
    c: null_mut(),
    y: null_mut(),
    last_h: null_mut(),
    last_c: null_mut(),
    gates: null_mut(),
    cells: null_mut(),
    dy: null_mut(),
    dh: null_mut(),
    dc: null_mut(),
    to_x: null_mut(),
    to_h: null_mut(),
    sums_row: 0,
    h_row: 0,
    y_row: 0,
    to_row: 0,
};

/// What a pass needs to know.
struct Pass<'a> {
    cuda: &'a Cuda,
    d: RecurrentDims,
    dtype: DType,
    wide: DType,
    gates: usize,
    products: *mut u8,
    product_bytes: usize,
}

impl<'a> Pass<'a> {
    fn new(cuda: &'a Cuda, x: &Type, u: &Type, gates: usize) -> Result<Pass<'a>, Error> {
        let refused = |why| Error::Library { library: "the CUDA backend", call: "a recurrence", why };
        let d = RecurrentDims::new(x, u, gates).map_err(refused)?;
        let (dtype, wide) = (x.dtype, x.dtype.accumulator());
        Ok(Pass { cuda, d, dtype, wide, gates, products: null_mut(), product_bytes: 0 })
    }

    /// Columns of the gates of one step.
    fn columns(&self) -> usize {
        self.gates * self.d.units
    }

    /// Bytes of the gates' sums of all steps.
    fn all_sums(&self) -> usize {
        self.d.batch * self.d.steps * self.columns() * self.wide.bytes()
    }

    fn state_bytes(&self) -> usize {
        self.d.batch * self.d.units * self.wide.bytes()
    }

    /// Scratch of a forward pass: the sums of all steps, and for a GRU the state's own of one step.
    fn forward_parts(&self) -> [usize; 2] {
        let own = if self.gates == 3 { self.d.batch * self.columns() * self.wide.bytes() } else { 0 };
        [self.all_sums(), own]
    }

    /// Scratch of a backward pass: gradients at the two sums of all steps, of state and cell, and the states before.
    fn backward_parts(&self) -> [usize; 5] {
        let all = self.d.batch * self.d.steps * self.columns() * self.dtype.bytes();
        let own = if self.gates == 3 { all } else { 0 };
        let before = self.d.batch * self.d.steps * self.d.units * self.dtype.bytes();
        [all, own, self.state_bytes(), self.state_bytes(), before]
    }

    unsafe fn point(&self, kernel: &str, at: &At) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(kernel, at, self.d.batch, self.d.batch * self.d.units) }
    }

    unsafe fn launch(&self, kernel: &str, a: &At, batch: usize, threads: usize) -> Result<(), Error> {
        if threads == 0 {
            return Ok(());
        }
        let addresses = [
            a.sums, a.state, a.bias, a.bias_u, a.h, a.c, a.y, a.last_h, a.last_c, a.gates, a.cells, a.dy,
            a.dh, a.dc, a.to_x, a.to_h,
        ];
        let args = addresses.into_iter().fold(Args::new(), Args::at).int(batch).int(self.d.units).ints(
            [a.sums_row, a.h_row, a.y_row, a.to_row],
            4,
            0,
        );
        let code = Code::of("recurrent", TEXT, self.dtype);
        // SAFETY: the caller's promise.
        unsafe { self.cuda.launch(&code, kernel, Grid::each(threads), &args) }
    }

    /// All products of a forward pass, to ask for their scratch: x w of all steps and h u of one.
    fn forward_products(&self, at: *mut u8) -> [Product; 2] {
        let (d, columns) = (self.d, self.columns());
        let narrow = |columns| Matrix::dense(at, self.dtype, columns);
        let wide = Matrix::dense(at, self.wide, columns);
        let state = Matrix { row: d.steps * d.units, ..narrow(d.units) };
        let sums = Matrix { row: if self.gates == 3 { columns } else { d.steps * columns }, ..wide };
        let all = Product::new(d.batch * d.steps, columns, d.inputs, narrow(d.inputs), narrow(columns), wide);
        let one = Product::new(d.batch, columns, d.units, state, narrow(columns), sums);
        [all, Product { accumulate: self.gates != 3, ..one }]
    }

    /// The product h u of a step, from the first state or from y.
    unsafe fn state_product(&self, h: *mut u8, h_row: usize, u: *mut u8, to: Matrix) -> Result<(), Error> {
        let (d, columns) = (self.d, self.columns());
        let h = Matrix { row: h_row, ..Matrix::dense(h, self.dtype, d.units) };
        let u = Matrix::dense(u, self.dtype, columns);
        let product = Product::new(d.batch, columns, d.units, h, u, to);
        let product = Product { accumulate: self.gates != 3, ..product };
        // SAFETY: the caller's promise.
        unsafe { product.run(self.cuda, self.products, self.product_bytes) }
    }

    /// dx = g wᵀ, dw = xᵀ g, du = beforeᵀ g_u over all steps, and handed back: dh += g_u uᵀ of one.
    fn backward_products(&self, a: &Backward) -> [Product; 4] {
        let (d, columns) = (self.d, self.columns());
        let rows = d.batch * d.steps;
        let narrow = |at, columns| Matrix::dense(at, self.dtype, columns);
        let gates = |at| Matrix::dense(at, self.dtype, columns);
        let w = narrow(a.w, columns).turned();
        let dx = Product::new(rows, d.inputs, columns, gates(a.to_x), w, narrow(a.dx, d.inputs));
        let x = narrow(a.x, d.inputs).turned();
        let dw = Product::new(d.inputs, columns, rows, x, gates(a.to_x), narrow(a.dw, columns));
        let before = narrow(a.before, d.units).turned();
        let du = Product::new(d.units, columns, rows, before, gates(a.to_h), narrow(a.du, columns));
        let step = Matrix { row: d.steps * columns, ..gates(a.to_h) };
        let u = narrow(a.u, columns).turned();
        let dh = Matrix::dense(a.dh, self.wide, d.units);
        let back = Product::new(d.batch, d.units, columns, step, u, dh);
        [dx, dw, du, Product { accumulate: true, ..back }]
    }
}

/// The addresses of the products of a backward pass.
#[derive(Clone, Copy)]
struct Backward {
    x: *mut u8,
    w: *mut u8,
    u: *mut u8,
    before: *mut u8,
    to_x: *mut u8,
    to_h: *mut u8,
    dx: *mut u8,
    dw: *mut u8,
    du: *mut u8,
    dh: *mut u8,
}

/// An aligned address, for questions that depend on alignment alone.
const ANYWHERE: *mut u8 = 4096 as *mut u8;
const ASKING: Backward = Backward {
    x: ANYWHERE,
    w: ANYWHERE,
    u: ANYWHERE,
    before: ANYWHERE,
    to_x: ANYWHERE,
    to_h: ANYWHERE,
    dx: ANYWHERE,
    dw: ANYWHERE,
    du: ANYWHERE,
    dh: ANYWHERE,
};

fn total(parts: &[usize], products: &[Product], cuda: &Cuda) -> usize {
    let products = products.iter().map(|p| p.scratch(cuda)).max().unwrap_or(0);
    parts.iter().map(|&bytes| padded(bytes)).sum::<usize>() + products
}

/// An address so many elements of a type further.
fn beyond(at: *mut u8, elements: usize, dtype: DType) -> *mut u8 {
    at.wrapping_add(elements * dtype.bytes())
}

impl Pass<'_> {
    /// The steps of a forward pass. Inputs: x, w, u, bias, h₀ … as both ops have them.
    unsafe fn forward(mut self, call: &Call<'_>) -> Result<(), Error> {
        let lstm = self.gates == 4;
        let (i, o) = (call.inputs, call.outputs);
        let (x, w, u, bias) = (i[0].ptr, i[1].ptr, i[2].ptr, i[3].ptr);
        let (bias_u, h0, c0) =
            if lstm { (null_mut(), i[4].ptr, i[5].ptr) } else { (i[4].ptr, i[5].ptr, null_mut()) };
        let (y, last_h) = (o[0].ptr, o[1].ptr);
        let (last_c, gates, cells) =
            if lstm { (o[2].ptr, o[3].ptr, o[4].ptr) } else { (null_mut(), o[2].ptr, null_mut()) };
        let (d, columns, mut parts) = (self.d, self.columns(), Parts::new(call));
        let [sums, own] = self.forward_parts().map(|bytes| parts.take(bytes));
        self.products = parts.take(0);
        self.product_bytes = parts.left(call);
        let mut all = self.forward_products(sums)[0];
        (all.a.at, all.b.at) = (x, w);
        let states = d.batch * d.units;
        // SAFETY: the caller's promise; the parts of the scratch are as long as declared.
        unsafe {
            if d.steps == 0 {
                self.cuda.copy(last_h, h0, states * self.dtype.bytes())?;
                return if lstm { self.cuda.copy(last_c, c0, states * self.dtype.bytes()) } else { Ok(()) };
            }
            all.run(self.cuda, self.products, self.product_bytes)?;
            for t in 0..d.steps {
                let (h, h_row) = match t {
                    0 => (h0, d.units),
                    _ => (beyond(y, (t - 1) * d.units, self.dtype), d.steps * d.units),
                };
                let c = if t == 0 { c0 } else { beyond(cells, (t - 1) * states, self.dtype) };
                let sums = beyond(sums, t * columns, self.wide);
                let to = if lstm {
                    Matrix { row: d.steps * columns, ..Matrix::dense(sums, self.wide, columns) }
                } else {
                    Matrix::dense(own, self.wide, columns)
                };
                self.state_product(h, h_row, u, to)?;
                let is_last = t + 1 == d.steps;
                let last = |at: *mut u8| if is_last { at } else { null_mut() };
                let at = At {
                    sums,
                    state: own,
                    bias,
                    bias_u,
                    h,
                    c,
                    y: beyond(y, t * d.units, self.dtype),
                    last_h: last(last_h),
                    last_c: last(last_c),
                    gates: beyond(gates, t * 4 * states, self.dtype),
                    cells: beyond(cells, t * states, self.dtype),
                    sums_row: d.steps * columns,
                    h_row,
                    y_row: d.steps * d.units,
                    ..NOWHERE
                };
                self.point(if lstm { "lstm_step" } else { "gru_step" }, &at)?;
            }
        }
        Ok(())
    }

    /// The steps of a backward pass, last to first, and then the gradients of the weights over all steps at once.
    unsafe fn backward(mut self, call: &Call<'_>) -> Result<(), Error> {
        let lstm = self.gates == 4;
        let (i, o) = (call.inputs, call.outputs);
        let p = |k: usize| i[k].ptr;
        let (x, w, u, h0) = (p(0), p(1), p(2), p(3));
        let (c0, y, gates, cells, dy, dh_last, dc_last) = if lstm {
            (p(4), p(5), p(6), p(7), p(8), p(9), p(10))
        } else {
            (null_mut(), p(4), p(5), null_mut(), p(6), p(7), null_mut())
        };
        let (d, columns, mut parts) = (self.d, self.columns(), Parts::new(call));
        let [to_x, own, dh, dc, before] = self.backward_parts().map(|bytes| parts.take(bytes));
        let (to_h, dc) = if lstm { (to_x, dc) } else { (own, null_mut()) };
        self.products = parts.take(0);
        self.product_bytes = parts.left(call);
        let (dx, dw, du) = (o[0].ptr, o[1].ptr, o[2].ptr);
        let places = Backward { x, w, u, before, to_x, to_h, dx, dw, du, dh };
        let [dx, dw, du, back] = self.backward_products(&places);
        let states = d.batch * d.units;
        // SAFETY: the caller's promise; the parts of the scratch are as long as declared.
        unsafe {
            self.point("widen_state", &At { h: dh_last, c: dc_last, dh, dc, ..NOWHERE })?;
            for t in (0..d.steps).rev() {
                let (h, h_row) = match t {
                    0 => (h0, d.units),
                    _ => (beyond(y, (t - 1) * d.units, self.dtype), d.steps * d.units),
                };
                let c = if t == 0 { c0 } else { beyond(cells, (t - 1) * states, self.dtype) };
                let at = At {
                    h,
                    c,
                    gates: beyond(gates, t * 4 * states, self.dtype),
                    cells: beyond(cells, t * states, self.dtype),
                    dy: beyond(dy, t * d.units, self.dtype),
                    dh,
                    dc,
                    to_x: beyond(to_x, t * columns, self.dtype),
                    to_h: if lstm { null_mut() } else { beyond(to_h, t * columns, self.dtype) },
                    h_row,
                    y_row: d.steps * d.units,
                    to_row: d.steps * columns,
                    ..NOWHERE
                };
                self.point(if lstm { "lstm_back" } else { "gru_back" }, &at)?;
                Product { a: back.a.beyond(t * columns), ..back }.run(
                    self.cuda,
                    self.products,
                    self.product_bytes,
                )?;
            }
            let (dh0, dc0) = if lstm { (o[4].ptr, o[5].ptr) } else { (o[5].ptr, null_mut()) };
            self.point("narrow_state", &At { last_h: dh0, last_c: dc0, dh, dc, ..NOWHERE })?;
            let at = At { h: h0, y: before, dy: y, y_row: d.steps * d.units, ..NOWHERE };
            self.launch("states_before", &at, d.batch, d.batch * d.steps * d.units)?;
            let (own, second) = if lstm { (null_mut(), null_mut()) } else { (to_h, o[4].ptr) };
            let at = At { to_x, to_h: own, last_h: o[3].ptr, last_c: second, to_row: columns, ..NOWHERE };
            self.launch("bias_grads", &at, d.batch * d.steps, columns)?;
            for product in [dx, dw, du] {
                product.run(self.cuda, self.products, self.product_bytes)?;
            }
        }
        Ok(())
    }
}

macro_rules! recurrences {
    ($($op:ty, $gates:literal, $pass:ident, $parts:ident, $products:ident, $asking:expr;)+) => { $(
        impl Kernel for $op {
            fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
                let pass = Pass::new(cuda, inputs[0], inputs[2], $gates)?;
                Ok(total(&pass.$parts(), &pass.$products($asking), cuda))
            }

            unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
                let pass = Pass::new(cuda, call.inputs[0].ty, call.inputs[2].ty, $gates)?;
                // SAFETY: the caller's promise.
                unsafe { pass.$pass(call) }
            }
        }
    )+ };
}
recurrences! {
    Lstm, 4, forward, forward_parts, forward_products, ANYWHERE;
    Gru, 3, forward, forward_parts, forward_products, ANYWHERE;
    LstmGrad, 4, backward, backward_parts, backward_products, &ASKING;
    GruGrad, 3, backward, backward_parts, backward_products, &ASKING;
}
