//! The devices that this machine has, and their memory.

use plimsoll_cuda::Cuda;
use plimsoll_testing::group;
use plimsoll_testing::reference::{Bench, Lent, Memory};

/// The first card, or a line that says that there is none.
#[track_caller]
pub fn card() -> Option<Cuda> {
    group("card", Cuda::new(0))
}

/// The emulator, or a line that says that there is none.
#[track_caller]
pub fn emulator() -> Option<Cuda> {
    group("emulator", Cuda::emulated())
}

/// A device to check kernels on.
pub fn bench(cuda: &Cuda) -> Bench<'_> {
    Bench { backend: cuda, take: if cuda.is_emulated() { Lent::host } else { on_card } }
}

/// Bytes of a device with a fence behind them.
pub fn memory(cuda: &Cuda, bytes: usize) -> Memory<'_> {
    Memory::new(&bench(cuda), bytes)
}

/// Memory of the card whose context is this thread's, as it is since the device was made or waited for.
fn on_card(bytes: usize) -> Lent {
    struct Taken(u64);
    impl Drop for Taken {
        fn drop(&mut self) {
            // SAFETY: nobody else has it, and all that used it was waited for.
            unsafe {
                let _ = cudarc::driver::sys::cuMemFree_v2(self.0);
            }
        }
    }
    let mut at = 0;
    // SAFETY: the address is of a number.
    let status = unsafe { cudarc::driver::sys::cuMemAlloc_v2(&mut at, bytes.max(1)) };
    assert_eq!(status, cudarc::driver::sys::CUresult::CUDA_SUCCESS);
    Lent { ptr: at as *mut u8, owner: Box::new(Taken(at)) }
}
