//! Turns kernel calls into launches: finds or compiles the code, packs the arguments, chooses the grid.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};

use plimsoll_graph::DType;
use smallvec::SmallVec;

thread_local! {
    static ONLY_LOADING: Cell<bool> = const { Cell::new(false) };
    static COLLECTED: RefCell<Option<Vec<Code<'static>>>> = const { RefCell::new(None) };
}

/// Lets this thread load the code of what `body` launches, and put nothing on the stream.
pub(crate) fn only_loading<T>(body: impl FnOnce() -> T) -> T {
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            ONLY_LOADING.set(self.0);
        }
    }
    let _back = Back(ONLY_LOADING.replace(true));
    body()
}

/// Whether this thread only loads code.
pub(crate) fn is_only_loading() -> bool {
    ONLY_LOADING.get()
}

/// The sources of what `body` would load on this thread, each once; none of them is loaded.
pub(crate) fn collect(body: impl FnOnce()) -> Vec<Code<'static>> {
    struct Back(Option<Vec<Code<'static>>>);
    impl Drop for Back {
        fn drop(&mut self) {
            COLLECTED.set(self.0.take());
        }
    }
    let _back = Back(COLLECTED.replace(Some(Vec::new())));
    body();
    COLLECTED.take().unwrap_or_default()
}

/// Whether sources are collected on this thread: this one was, then.
pub(crate) fn is_collected(code: &Code<'_>) -> bool {
    COLLECTED.with_borrow_mut(|collected| {
        let Some(codes) = collected else { return false };
        if codes.iter().all(|other| other.key() != code.key()) {
            codes.push(code.to_owned_text());
        }
        true
    })
}

/// A kernel, how many threads run it, and what it is given.
pub(crate) struct Launch<'a> {
    pub code: &'a Code<'a>,
    pub kernel: &'a str,
    pub grid: Grid,
    pub args: &'a Args,
}

/// What every source starts with.
pub(crate) const PRELUDE: &str = include_str!("kernels/prelude.cu");

/// Threads of a block where a kernel has no wish of its own.
pub(crate) const THREADS: u32 = 256;

/// A source to compile: the prelude, the types and sizes that stand in its head, and the text of a family.
#[derive(Clone, Debug)]
pub(crate) struct Code<'a> {
    /// The family's name.
    pub name: &'static str,
    /// The family's text.
    pub text: &'static str,
    /// Type names and sizes that the text uses.
    pub head: String,
    /// More text, written for one call.
    pub tail: Cow<'a, str>,
    /// Whether products and sums may be contracted.
    pub contract: bool,
}

impl Code<'_> {
    /// A family whose text uses `T` and its accumulator `A`.
    pub(crate) fn of(name: &'static str, text: &'static str, dtype: DType) -> Code<'static> {
        let head = format!("typedef {} T;\ntypedef {} A;\n", c_name(dtype), c_name(dtype.accumulator()));
        Code { name, text, head, tail: Cow::Borrowed(""), contract: true }
    }

    /// The same with another name for a type.
    pub(crate) fn with_type(mut self, name: &str, dtype: DType) -> Self {
        self.head += &format!("typedef {} {name};\n", c_name(dtype));
        self
    }

    /// The same with a number.
    pub(crate) fn with(mut self, name: &str, value: usize) -> Self {
        self.head += &format!("#define {name} {value}\n");
        self
    }

    /// The same, for longer than the call that it was written for.
    fn to_owned_text(&self) -> Code<'static> {
        Code { tail: Cow::Owned(self.tail.clone().into_owned()), head: self.head.clone(), ..*self }
    }

    /// What tells this source from others.
    pub(crate) fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.name, &self.head, &self.tail, self.contract).hash(&mut hasher);
        hasher.finish()
    }

    /// The whole text.
    pub(crate) fn source(&self) -> String {
        format!("{PRELUDE}\n{}\n{}\n{}\n", self.head, self.text, self.tail)
    }

    /// Whether its threads meet at barriers.
    pub(crate) fn meets(&self) -> bool {
        let uses = |text: &str| text.contains("__syncthreads") || text.contains("in_block<");
        uses(self.text) || uses(&self.tail)
    }
}

/// The name of an element type in kernels.
pub(crate) fn c_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        DType::I64 => "i64",
        DType::I32 => "int",
        DType::I16 => "i16",
        DType::I8 => "i8",
        DType::U32 => "u32",
        DType::U16 => "u16",
        DType::U8 | DType::Bool => "u8",
    }
}

/// The arguments of a kernel: one struct whose fields all have eight bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Args(pub(crate) SmallVec<[u64; 64]>);

impl Args {
    /// No arguments yet.
    pub(crate) fn new() -> Args {
        Args::default()
    }

    /// An address of the device.
    pub(crate) fn at(mut self, address: *mut u8) -> Args {
        self.0.push(address as u64);
        self
    }

    /// A number.
    pub(crate) fn int(mut self, value: usize) -> Args {
        self.0.push(value as u64);
        self
    }

    /// Numbers, filled up with a value to a length.
    pub(crate) fn ints(
        mut self,
        values: impl IntoIterator<Item = usize>,
        length: usize,
        fill: usize,
    ) -> Args {
        let start = self.0.len();
        self.0.extend(values.into_iter().map(|v| v as u64));
        self.0.resize(start + length, fill as u64);
        self
    }

    /// A floating-point number.
    pub(crate) fn float(mut self, value: f64) -> Args {
        self.0.push(value.to_bits());
        self
    }
}

/// How many blocks of how many threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// Blocks along x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory beside what the kernel declares itself.
    pub shared: u32,
}

impl Grid {
    /// Enough blocks for a thread an element; kernels loop where there are more elements.
    pub(crate) fn each(n: usize) -> Grid {
        let blocks = n.div_ceil(THREADS as usize).clamp(1, 1 << 20) as u32;
        Grid { blocks: [blocks, 1, 1], threads: THREADS, shared: 0 }
    }

    /// A block a row, with as many threads as the row's length has use for.
    pub(crate) fn rows(rows: usize, length: usize) -> Grid {
        let threads = (length.next_power_of_two() as u32).clamp(32, 512);
        Grid { blocks: [rows.clamp(1, 1 << 30) as u32, 1, 1], threads, shared: 0 }
    }

    /// Blocks in two directions.
    pub(crate) fn tiles(x: usize, y: usize, z: usize, threads: u32) -> Grid {
        Grid { blocks: [x as u32, y as u32, z as u32], threads, shared: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_is_collected_once_and_only_while_that_is_asked_for() {
        let [first, other] = [DType::F32, DType::F16].map(|dtype| Code::of("sums", "", dtype));
        assert!(!is_collected(&first));
        let found = collect(|| assert!([&first, &other, &first].map(is_collected).iter().all(|&was| was)));
        assert_eq!(found.iter().map(Code::key).collect::<Vec<_>>(), [first.key(), other.key()]);
        assert!(!is_collected(&first));
        assert!(collect(|| ()).is_empty());
    }
}
