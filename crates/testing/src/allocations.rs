//! The system's allocator, counting what it is asked for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HELD: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

/// The system's allocator, counting.
///
/// ```
/// use plimsoll_testing::Counting;
/// #[global_allocator]
/// static COUNTING: Counting = Counting;
/// let before = Counting::allocations();
/// let kept = vec![0u8; 100];
/// assert_eq!(Counting::allocations() - before, 1);
/// drop(kept);
/// ```
pub struct Counting;

impl Counting {
    /// How often memory was asked for, by any thread.
    pub fn allocations() -> usize {
        ALLOCATIONS.load(Ordering::Relaxed)
    }

    /// The most that was asked for at once since [`Counting::forget_largest`].
    pub fn largest() -> usize {
        LARGEST.load(Ordering::Relaxed)
    }

    /// Lets the largest request be looked for again.
    pub fn forget_largest() {
        LARGEST.store(0, Ordering::Relaxed);
    }

    /// Bytes that this thread has taken and not given back, and the most that it had since [`Counting::forget_most`].
    pub fn held() -> (i64, i64) {
        HELD.get()
    }

    /// Lets the most that this thread holds be looked for from now on; returns what it holds.
    pub fn forget_most() -> i64 {
        let (now, _) = HELD.get();
        HELD.set((now, now));
        now
    }
}

fn add(bytes: i64) {
    // A thread that ends has nothing left to count with.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: every call is passed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        add(layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        add(-(layout.size() as i64));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}
