//! NCCL on a real card: a world of one, whose calls give back what they were given, and whose own memory is measured.

use std::ffi::{c_int, c_uint, c_void};
use std::time::Duration;

use libloading::Library;
use plimsoll_comm::nccl::{Cards, LIBRARY_VARIABLE};
use plimsoll_comm::{Buffers, Call, Communicator, Kind, Reduce, local};
use plimsoll_graph::DType;
use plimsoll_testing::{alone, group};

/// As much of the CUDA driver as a test needs: a context and one block of memory.
struct Card {
    driver: Library,
    block: u64,
}

const BLOCK: usize = 1 << 20;

impl Card {
    fn open() -> Result<Card, String> {
        for name in [std::env::var(LIBRARY_VARIABLE).unwrap_or("libnccl.so.2".into()), "libcuda.so.1".into()]
        {
            // SAFETY: NVIDIA's own libraries.
            unsafe { Library::new(&name) }.map_err(|e| format!("{name} cannot be loaded: {e}"))?;
        }
        // SAFETY: as above.
        let driver = unsafe { Library::new("libcuda.so.1") }.map_err(|e| e.to_string())?;
        let mut card = Card { driver, block: 0 };
        let (mut device, mut context): (c_int, *mut c_void) = (0, std::ptr::null_mut());
        // SAFETY: the driver's functions, each with the arguments of its header.
        unsafe {
            let init = card.driver.get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit");
            if init.map_err(|e| e.to_string())?(0) != 0 {
                return Err("there is no card".into());
            }
            card.call::<unsafe extern "C" fn(*mut c_int, c_int) -> c_int>("cuDeviceGet", |f| {
                f(&mut device, 0)
            });
            card.call::<unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int>(
                "cuDevicePrimaryCtxRetain",
                |f| f(&mut context, device),
            );
            card.call::<unsafe extern "C" fn(*mut c_void) -> c_int>("cuCtxSetCurrent", |f| f(context));
            let mut block = 0;
            card.call::<unsafe extern "C" fn(*mut u64, usize) -> c_int>("cuMemAlloc_v2", |f| {
                f(&mut block, BLOCK)
            });
            card.block = block;
        }
        Ok(card)
    }

    /// Calls a function of the driver and asks that it succeeds.
    fn call<F: Copy>(&self, name: &str, run: impl FnOnce(F) -> c_int) {
        // SAFETY: the caller names the function's type.
        let function = unsafe { self.driver.get::<F>(name.as_bytes()) }.unwrap();
        assert_eq!(run(*function), 0, "{name}");
    }

    fn write(&self, bytes: &[u8]) {
        // SAFETY: within the block.
        self.call::<unsafe extern "C" fn(u64, *const c_void, usize) -> c_int>(
            "cuMemcpyHtoD_v2",
            |f| unsafe { f(self.block, bytes.as_ptr().cast(), bytes.len()) },
        );
    }

    fn read(&self, bytes: &mut [u8]) {
        // SAFETY: within the block.
        self.call::<unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int>("cuMemcpyDtoH_v2", |f| unsafe {
            f(bytes.as_mut_ptr().cast(), self.block, bytes.len())
        });
    }

    /// Bytes of the card that are taken, by whomever.
    fn taken(&self) -> u64 {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: places for two numbers.
        self.call::<unsafe extern "C" fn(*mut usize, *mut usize) -> c_int>("cuMemGetInfo_v2", |f| unsafe {
            f(&mut free, &mut total)
        });
        (total - free) as u64
    }
}

#[test]
fn a_world_of_one_card_gives_back_what_it_was_given() {
    let Some(card) = group("nccl", Card::open()) else { return };
    let _alone = alone();
    let host = local::ranks(1, Duration::from_secs(10)).remove(0);
    let host = std::sync::Arc::new(host);
    // SAFETY: a context is current on this thread.
    let cards = unsafe { Cards::connect(host, Duration::from_secs(10), &|| card.taken()) }.unwrap();
    println!("{} took {} MiB of the card", cards.backend(), cards.own_bytes() >> 20);
    assert!(cards.own_bytes() > 0, "what NCCL takes is counted");
    let kinds = [
        Kind::AllReduce(Reduce::Sum),
        Kind::AllReduce(Reduce::Max),
        Kind::ReduceScatter(Reduce::Sum),
        Kind::AllGather,
        Kind::Broadcast { root: 0 },
    ];
    for dtype in DType::ALL {
        for len in [1, 7, 4096, BLOCK / 8] {
            let given: Vec<u8> = (0..len * dtype.bytes()).map(|at| (at % 61) as u8).collect();
            for kind in kinds {
                card.write(&given);
                let call = Call { kind, dtype, len };
                assert_eq!(cards.scratch_bytes(&call), 0);
                let at = card.block as *mut u8;
                let buffers =
                    Buffers { input: at, output: at, scratch: std::ptr::null_mut(), scratch_bytes: 0 };
                // SAFETY: memory of the card that is longer than the call, and stays until it is waited for.
                let started = unsafe { cards.start(&call, buffers) };
                if matches!(dtype, DType::I16 | DType::U16 | DType::Bool) {
                    let why = started.unwrap_err().to_string();
                    assert!(why.contains("NCCL has no type") || why.contains("is not reduced"), "{why}");
                    continue;
                }
                cards.wait(started.unwrap()).unwrap();
                let mut got = vec![0; given.len()];
                card.read(&mut got);
                assert!(got == given, "{call}");
            }
        }
    }
    assert_eq!((cards.traffic().sent, cards.traffic().received), (0, 0), "one rank sends nothing");
}
