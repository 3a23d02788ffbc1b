//! A user's kernel for a card: CUDA source, what it is handed, and how many threads it wants.

use std::borrow::Cow;

use smallvec::SmallVec;

/// A kernel in CUDA C++, compiled for the card when it is first needed.
///
/// The source defines a struct whose fields all have eight bytes and a kernel over it. The fields are, in this order: a pointer to every
/// input, to every output, to the scratch where there is some, and the [`arguments`](CudaKernel::arguments). `KERNEL(name, P)` begins
/// a kernel whose argument is `p`; `EACH(i, n)` visits the numbers below n, however many threads there are; `i64`, `u8`, `bf16` and
/// `f16` are names of element types. Headers are not needed. The same text is compiled for the emulator, on which tests run without a card.
///
/// ```
/// use plimsoll_graph::custom::CudaKernel;
/// let kernel = CudaKernel::new(
///     "cube",
///     "struct P { const float *x; float *y; i64 n; };
///      KERNEL(cube, P) { EACH(i, p.n) { float x = p.x[i]; p.y[i] = x * x * x; } }",
///     1000,
/// )
/// .int(1000);
/// assert_eq!(kernel.arguments.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CudaKernel {
    /// The kernel's name in the source.
    pub name: Cow<'static, str>,
    /// The text.
    pub source: Cow<'static, str>,
    /// How many things there are to do: a thread each, up to a limit.
    pub threads: usize,
    /// Numbers behind the addresses.
    pub arguments: SmallVec<[CudaArgument; 8]>,
}

/// A number that a kernel is handed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CudaArgument {
    /// An `i64`.
    Int(i64),
    /// A `double`.
    Float(f64),
}

impl CudaKernel {
    /// A kernel by its name in a source, with so many things to do.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        source: impl Into<Cow<'static, str>>,
        threads: usize,
    ) -> CudaKernel {
        CudaKernel { name: name.into(), source: source.into(), threads, arguments: SmallVec::new() }
    }

    /// The same, handed a whole number more.
    #[must_use]
    pub fn int(mut self, value: usize) -> CudaKernel {
        self.arguments.push(CudaArgument::Int(value as i64));
        self
    }

    /// The same, handed a floating-point number more.
    #[must_use]
    pub fn float(mut self, value: f64) -> CudaKernel {
        self.arguments.push(CudaArgument::Float(value));
        self
    }
}
