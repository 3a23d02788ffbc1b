//! Turns a closure over tensors into traced, compiled programs, one for each signature it is called with.

use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_graph::{Site, TensorOps, Type, passes};

use crate::device::{Buffer, Device};
use crate::error::{Error, Result};
use crate::lower::{PlannableGraph, Roles};
use crate::program::{Program, ProgramMemory};
use crate::tensor::{Tensor, Tracing, tape, timed};

/// How many signatures a function keeps programs for, unless told otherwise.
const CACHED_SIGNATURES: usize = 16;

/// A traced function: its body runs once for each signature (types of the arguments, device), its program every time.
pub struct Function<F> {
    body: F,
    capacity: usize,
    /// Most recently used last.
    cache: Mutex<Vec<Arc<Compiled>>>,
}

struct Compiled {
    types: Vec<Type>,
    device: Device,
    program: Program,
    captured: Vec<Tensor>,
}

/// Makes a traced function of a closure. Eager and traced runs give the same bits.
///
/// ```
/// use plimsoll_run::{Tape, Tensor, TensorOps, function};
/// let slope = function(|x| {
///     let tape = Tape::new();
///     tape.watch(&x[0])?;
///     let y = x[0].sigmoid()?.sum(&[], false)?;
///     tape.gradient(&y, &[&x[0]])
/// });
/// let x = Tensor::from_slice(&[0.0f32, 0.0], [2])?;
/// assert_eq!(slope.call(&[&x])?[0].to_vec::<f32>()?, [0.25, 0.25]);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub fn function<F: Fn(&[Tensor]) -> Result<Vec<Tensor>>>(body: F) -> Function<F> {
    Function { body, capacity: CACHED_SIGNATURES, cache: Mutex::new(Vec::new()) }
}

impl<F: Fn(&[Tensor]) -> Result<Vec<Tensor>>> Function<F> {
    /// Keeps at most this many programs (at least one); the least recently used goes first.
    pub fn keep_at_most(mut self, signatures: usize) -> Self {
        self.capacity = signatures.max(1);
        self
    }

    /// The number of programs kept.
    pub fn n_cached(&self) -> usize {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Runs the function.
    #[track_caller]
    pub fn call(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let site = Site::here();
        if inputs.iter().any(|t| t.is_traced()) || tape::follows(inputs) {
            // Part of another trace, or of a tape: the body's own ops are what must be recorded.
            let inputs: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
            return (self.body)(&inputs);
        }
        let compiled = self.compiled(inputs, site)?;
        let program = &compiled.program;
        let arena =
            Buffer::new(&compiled.device, program.arena_bytes(), "function", program.site().unwrap_or(site))?;
        let results = program
            .result_types()
            .map(|ty| {
                Ok((ty.clone(), Arc::new(Buffer::new(&compiled.device, ty.bytes(), "function", site)?)))
            })
            .collect::<Result<Vec<(Type, Arc<Buffer>)>>>()?;
        let arguments = inputs
            .iter()
            .copied()
            .chain(&compiled.captured)
            .map(|t| Ok(t.buffer(site)?.ptr()))
            .collect::<Result<Vec<*mut u8>>>()?;
        let pointers: Vec<*mut u8> = results.iter().map(|(_, buffer)| buffer.ptr()).collect();
        let memory =
            ProgramMemory { arguments: &arguments, results: &pointers, arena: arena.ptr(), host: None };
        // SAFETY: arguments are alive and only read (nothing is replaced), results and arena are fresh, all are on the
        // program's device with the sizes of its types.
        let run = || unsafe { program.run(&compiled.device, memory, None) };
        let bytes =
            || inputs.iter().map(|t| t.ty().bytes()).chain(results.iter().map(|(ty, _)| ty.bytes())).sum();
        timed(&compiled.device, "function", bytes, site, run)?;
        Ok(results.into_iter().map(|(ty, buffer)| Tensor::eager(ty, buffer)).collect())
    }

    fn compiled(&self, inputs: &[&Tensor], site: Site) -> Result<Arc<Compiled>> {
        let device = match inputs.first() {
            Some(first) => first.buffer(site)?.device().clone(),
            None => Device::current()?,
        };
        for other in inputs {
            let other = other.buffer(site)?.device();
            if !other.same(&device) {
                let (first, second) = (device.name().to_string(), other.name().to_string());
                return Err(Error::TwoDevices { op: "function", site, first, second });
            }
        }
        let types: Vec<Type> = inputs.iter().map(|t| t.ty().clone()).collect();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = cache.iter().position(|c| c.types == types && c.device.same(&device)) {
            let hit = cache.remove(i);
            cache.push(hit.clone());
            return Ok(hit);
        }
        let tracing = Tracing::new();
        let arguments: Vec<Tensor> = types
            .iter()
            .enumerate()
            .map(|(i, ty)| tracing.argument(&format!("argument {i}"), ty.clone()))
            .collect();
        let results = device.scope(|| (self.body)(&arguments))?;
        let graph = passes::optimize(&tracing.finish(&results, site)?)?;
        let planned = PlannableGraph::new(graph, &Roles::default(), &device, None)?.fastest()?;
        let program = Program::new(&planned)?;
        device.log_graph(program.graph())?;
        let compiled = Arc::new(Compiled { types, device, program, captured: tracing.captured() });
        if cache.len() >= self.capacity {
            cache.remove(0);
        }
        cache.push(compiled.clone());
        Ok(compiled)
    }
}
