//! Turns requests into calls of the CUDA driver: the context, the stream that kernels run on, loaded code.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys;
use plimsoll_device::backend::Meeting;
use plimsoll_device::stopwatch::during;

use crate::compile::Cache;
use crate::error::Error;
use crate::holders;
use crate::launch::{Code, Grid, Launch};
use crate::library::Library;

/// A call of the driver as a result.
pub(crate) fn check(call: &'static str, status: sys::CUresult) -> Result<(), Error> {
    if status == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    if status == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the addresses are of numbers; where the driver refuses, they stay.
        unsafe {
            let _ = sys::cuMemGetInfo_v2(&mut free, &mut total);
        }
        return Err(Error::NoRoom { call, free });
    }
    let mut text = std::ptr::null();
    // SAFETY: the driver gives the address of a text of its own, or leaves null.
    let words = unsafe {
        sys::cuGetErrorString(status, &mut text);
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    };
    Err(Error::Driver { call, why: format!("{words} ({status:?})") })
}

/// Calls a function of the driver and names it in the error.
macro_rules! cu {
    ($f:ident($($arg:expr),* $(,)?)) => {
        $crate::card::check(stringify!($f), cudarc::driver::sys::$f($($arg),*))
    };
}
pub(crate) use cu;

/// The oldest driver that has all functions that are called, by the CUDA version it stands for: 12.8.
const LEAST_DRIVER: i32 = 12_080;

/// A loaded source with the functions that were asked of it.
struct Module {
    module: sys::CUmodule,
    functions: HashMap<String, sys::CUfunction>,
}

/// What the driver says of a card before a context is made on it.
pub(crate) struct Identity {
    pub device: sys::CUdevice,
    pub name: String,
    pub bus: String,
    pub capability: (usize, usize),
    pub shared_limit: usize,
    pub multiprocessors: usize,
    pub total_bytes: usize,
}

impl Identity {
    /// The card with a number below [`Card::count`], which has started the driver.
    pub(crate) fn new(ordinal: usize) -> Result<Identity, Error> {
        let (mut device, mut total_bytes) = (0, 0);
        let (mut name, mut bus) = ([0u8; 128], [0u8; 32]);
        // SAFETY: every address is of a value of the right type that outlives the call.
        unsafe {
            cu!(cuDeviceGet(&mut device, ordinal as i32))?;
            cu!(cuDeviceGetName(name.as_mut_ptr().cast(), 127, device))?;
            cu!(cuDeviceGetPCIBusId(bus.as_mut_ptr().cast(), 31, device))?;
            cu!(cuDeviceTotalMem_v2(&mut total_bytes, device))?;
        }
        let text = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes.split(|&b| b == 0).next().unwrap_or_default()).into_owned()
        };
        let attribute = |which| -> Result<usize, Error> {
            let mut value = 0;
            // SAFETY: the address is of a number.
            unsafe { cu!(cuDeviceGetAttribute(&mut value, which, device)) }?;
            Ok(value.max(0) as usize)
        };
        use sys::CUdevice_attribute as A;
        let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Identity {
            device,
            name: text(&name),
            bus: text(&bus),
            capability: (major, minor),
            shared_limit: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            total_bytes,
        })
    }
}

/// A card, its context and its stream.
pub(crate) struct Card {
    pub device: sys::CUdevice,
    pub ordinal: usize,
    context: sys::CUcontext,
    pub stream: sys::CUstream,
    /// The architecture, as compilers name it: `sm_90`.
    pub target: String,
    /// What generation it is of.
    pub capability: (usize, usize),
    pub name: String,
    pub bus: String,
    /// Bytes of the card in use when the context had been made, by whomever, as the driver's free memory shows.
    pub context_bytes: usize,
    /// Bytes that the process held then, as NVML counts them; none where NVML cannot tell.
    pub context_own: Option<u64>,
    /// Bytes that the card had less of once code was loaded.
    code: AtomicUsize,
    pub shared_limit: usize,
    pub multiprocessors: usize,
    cache: Cache,
    modules: Mutex<HashMap<u64, Module>>,
}

// SAFETY: handles of the driver may be used by any thread that has made the context current, which `enter` does.
unsafe impl Send for Card {}
// SAFETY: as above; the driver locks its own state, and the map of modules has a lock.
unsafe impl Sync for Card {}

impl Card {
    /// The number of cards that the driver sees, or that there is no driver.
    pub(crate) fn count() -> Result<usize, Error> {
        if !Library::Driver.is_present() {
            return Err(Error::Missing { library: Library::Driver.name() });
        }
        let mut count = 0;
        let mut version = 0;
        // SAFETY: the library is there; the addresses are of numbers.
        unsafe {
            cu!(cuDriverGetVersion(&mut version))?;
            if version < LEAST_DRIVER {
                return Err(Error::OldDriver { found: version, least: LEAST_DRIVER });
            }
            let status = sys::cuInit(0);
            if status == sys::CUresult::CUDA_ERROR_NO_DEVICE {
                return Ok(0);
            }
            check("cuInit", status)?;
            cu!(cuDeviceGetCount(&mut count))?;
        }
        Ok(count.max(0) as usize)
    }

    /// Makes the context and the stream of a card.
    pub(crate) fn new(ordinal: usize) -> Result<Card, Error> {
        let count = Card::count()?;
        if ordinal >= count {
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        if !Library::Nvrtc.is_present() {
            return Err(Error::Missing { library: Library::Nvrtc.name() });
        }
        let identity = Identity::new(ordinal)?;
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        let Identity { device, name, bus, capability, shared_limit, multiprocessors, .. } = identity;
        let before = holders::of(&bus);
        // SAFETY: every address is of a value of the right type that outlives the call.
        unsafe {
            cu!(cuDevicePrimaryCtxRetain(&mut context, device))?;
            cu!(cuCtxSetCurrent(context))?;
            cu!(cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))?;
        }
        holders::learn(before, holders::of(&bus));
        let mut card = Card {
            device,
            ordinal,
            context,
            stream,
            target: format!("sm_{}{}", capability.0, capability.1),
            capability,
            name,
            bus,
            context_bytes: 0,
            context_own: None,
            code: AtomicUsize::new(0),
            shared_limit,
            multiprocessors,
            cache: Cache::new(),
            modules: Mutex::default(),
        };
        let (free, total) = card.memory()?;
        card.context_bytes = total - free;
        card.context_own = card.process_bytes();
        Ok(card)
    }

    /// Makes the context current for this thread.
    pub(crate) fn enter(&self) -> Result<(), Error> {
        // SAFETY: the context lives as long as the card.
        unsafe { cu!(cuCtxSetCurrent(self.context)) }
    }

    /// Waits for the work of all streams, other libraries' too: they share the card's primary context.
    pub(crate) fn synchronize_all(&self) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the context is current.
        unsafe { cu!(cuCtxSynchronize()) }
    }

    /// The card as other libraries of the process know it.
    pub(crate) fn meeting(&self) -> Meeting {
        Meeting { ordinal: self.device, stream: self.stream as usize }
    }

    /// Whether everything on the stream is done. A card that has failed is not at work either; the next wait says why.
    pub(crate) fn is_idle(&self) -> bool {
        if self.enter().is_err() {
            return true;
        }
        // SAFETY: the stream is live.
        let state = unsafe { sys::cuStreamQuery(self.stream) };
        state != sys::CUresult::CUDA_ERROR_NOT_READY
    }

    /// Free and total bytes of the card.
    pub(crate) fn memory(&self) -> Result<(usize, usize), Error> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the addresses are of numbers.
        unsafe { cu!(cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok((free, total))
    }

    /// Whether what is put on the stream is recorded instead of run.
    pub(crate) fn is_capturing(&self) -> Result<bool, Error> {
        self.enter()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is live, and the address is of a status.
        unsafe { cu!(cuStreamIsCapturing(self.stream, &mut status)) }?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Where compiled code and what was measured are kept.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Puts a kernel on the stream.
    ///
    /// # Safety
    /// The arguments must be what the kernel takes, and its memory live until the stream has run it.
    pub(crate) unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), Error> {
        let Launch { code, kernel, grid, args } = launch;
        self.enter()?;
        let function = self.function(code, kernel, grid.shared)?;
        let ([x, y, z], mut params) = (grid.blocks, [args.0.as_ptr() as *mut c_void]);
        let none = std::ptr::null_mut();
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        unsafe {
            cu!(cuLaunchKernel(
                function,
                x,
                y,
                z,
                grid.threads,
                1,
                1,
                grid.shared,
                self.stream,
                params.as_mut_ptr(),
                none
            ))
        }
    }

    /// Loads a kernel without running it.
    pub(crate) fn load(&self, code: &Code<'_>, kernel: &str, grid: Grid) -> Result<(), Error> {
        self.enter()?;
        self.function(code, kernel, grid.shared).map(drop)
    }

    fn function(&self, code: &Code<'_>, kernel: &str, shared: u32) -> Result<sys::CUfunction, Error> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = modules.get(&code.key()).and_then(|module| module.functions.get(kernel)) {
            return Ok(function);
        }
        during("code loaded", || self.load_function(&mut modules, code, kernel, shared))
    }

    fn load_function(
        &self,
        modules: &mut HashMap<u64, Module>,
        code: &Code<'_>,
        kernel: &str,
        shared: u32,
    ) -> Result<sys::CUfunction, Error> {
        // The driver loads code as late as when a function is asked for.
        let (before, _) = self.memory()?;
        let module = match modules.entry(code.key()) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(vacant) => {
                let binary = self.cache.code(code, &self.target)?;
                let mut module = std::ptr::null_mut();
                // SAFETY: the image is a whole one, and the driver copies it.
                unsafe { cu!(cuModuleLoadData(&mut module, binary.as_ptr().cast())) }?;
                vacant.insert(Module { module, functions: HashMap::new() })
            }
        };
        let name = CString::new(kernel).unwrap_or_default();
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded and the name ends in zero.
        unsafe {
            cu!(cuModuleGetFunction(&mut function, module.module, name.as_ptr()))?;
            if shared > 48 * 1024 {
                use sys::CUfunction_attribute as Attribute;
                // What a kernel declares for itself counts too: a limit for both together is refused.
                let mut declared = 0;
                let which = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
                cu!(cuFuncGetAttribute(&mut declared, which, function))?;
                let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                cu!(cuFuncSetAttribute(function, which, self.shared_limit as i32 - declared))?;
            }
        }
        module.functions.insert(kernel.into(), function);
        let (after, _) = self.memory()?;
        self.code.fetch_add(before.saturating_sub(after), Ordering::Relaxed);
        Ok(function)
    }

    /// Unloads all code; what is needed again is loaded again, from the cache on disk.
    pub(crate) fn unload(&self) -> Result<(), Error> {
        self.enter()?;
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, module) in modules.drain() {
            // SAFETY: the stream has been waited for, no graph is alive, and no other place keeps functions of it.
            unsafe { cu!(cuModuleUnload(module.module)) }?;
        }
        self.code.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// The number of sources that are loaded.
    pub(crate) fn compiled(&self) -> usize {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Bytes that the card had less of once the code that is loaded was.
    pub(crate) fn code_bytes(&self) -> usize {
        self.code.load(Ordering::Relaxed)
    }

    /// What the whole process holds of the card, as NVML counts it, where NVML can tell.
    pub(crate) fn process_bytes(&self) -> Option<u64> {
        holders::mine(&holders::of(&self.bus)?)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        let modules = self.modules.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nothing else uses these handles any more. A drop cannot report what the driver refuses.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.stream);
            for module in modules.values() {
                let _ = sys::cuModuleUnload(module.module);
            }
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}
