//! Turns kernel sources into functions of the host: a stand-in for a card, for tests on machines without one.
//!
//! The text that NVRTC would compile for a card is compiled by the machine's C++ compiler instead, with a shim in which
//! the threads of a block are fibers. It shows that kernels compute what they should; it shows nothing of their speed,
//! and what only happens between blocks that run at once does not happen here.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::compile::{Cache, fingerprint, own_name};
use crate::error::Error;
use crate::launch::{Code, Launch};

const SHIM: &str = include_str!("host/shim.cpp");

type Run = unsafe extern "C" fn(*const c_void, *const c_void, u32, u32, u32, u32, i32);

/// A compiled source: its library and the function that runs its kernels.
struct Module {
    library: Library,
    run: Run,
    fibers: bool,
}

/// The host in the place of a card.
pub(crate) struct Emulator {
    compiler: String,
    cache: Cache,
    modules: Mutex<HashMap<u64, Arc<Module>>>,
}

/// Kernels keep the state of their block in statics, so that one runs at a time in the whole process.
static TURN: Mutex<()> = Mutex::new(());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Emulator {
    /// The emulator, if there is a C++ compiler: the one that `CXX` names, or `c++`.
    pub(crate) fn new() -> Result<Emulator, Error> {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        match Command::new(&compiler).arg("--version").output() {
            Ok(output) if output.status.success() => {}
            Ok(_) => return Err(Error::Emulator { path: compiler.into(), why: "it does not run".into() }),
            Err(why) => return Err(Error::Emulator { path: compiler.into(), why: why.to_string() }),
        }
        Ok(Emulator { compiler, cache: Cache::new(), modules: Mutex::default() })
    }

    /// Runs a kernel to its end.
    ///
    /// # Safety
    /// The arguments must be what the kernel takes, and its memory live.
    pub(crate) unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), Error> {
        let Launch { code, kernel, grid, args } = launch;
        let module = self.module(code)?;
        // SAFETY: the symbol is a kernel of that source; it is only passed on as an address.
        let function = unsafe { module.library.get::<*const c_void>(kernel.as_bytes()) }
            .map_err(|why| Error::Emulator { path: kernel.into(), why: why.to_string() })?;
        let address = *function;
        let [x, y, z] = grid.blocks;
        let fibers = i32::from(module.fibers);
        let turn = locked(&TURN);
        // SAFETY: the caller's promise; the shim calls the kernel with the address of its arguments.
        unsafe { (module.run)(address, args.0.as_ptr().cast(), x, y, z, grid.threads, fibers) };
        drop(turn);
        Ok(())
    }

    /// The compiled source. Nobody waits while another is compiled: of two that compile the same, one's is kept.
    fn module(&self, code: &Code<'_>) -> Result<Arc<Module>, Error> {
        let found = locked(&self.modules).get(&code.key()).cloned();
        match found {
            Some(module) => Ok(module),
            None => {
                let built = Arc::new(self.build(code)?);
                Ok(locked(&self.modules).entry(code.key()).or_insert(built).clone())
            }
        }
    }

    fn build(&self, code: &Code<'_>) -> Result<Module, Error> {
        // Where `PLIMSOLL_TARGET` names an architecture, every source is compiled for it too, to see that it does.
        if let Ok(target) = std::env::var("PLIMSOLL_TARGET") {
            self.cache.code(code, &target)?;
        }
        let source = format!("{SHIM}\n{}", code.source());
        let contract = if code.contract { "-ffp-contract=fast" } else { "-ffp-contract=off" };
        let name = format!("{}-{}.so", code.name, fingerprint(&[&source, contract, &self.compiler]));
        let path = match self.cache.find(&name) {
            Some(path) => path,
            None => self.compile(code, &source, contract, &name)?,
        };
        let failed = |why: libloading::Error| Error::Emulator { path: path.clone(), why: why.to_string() };
        // SAFETY: the library is the one that was just made from our own source; it has no initialisers.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
        // SAFETY: the shim defines it with this signature.
        let run = *unsafe { library.get::<Run>(b"plimsoll_run") }.map_err(failed)?;
        Ok(Module { library, run, fibers: code.meets() })
    }

    fn compile(&self, code: &Code<'_>, source: &str, contract: &str, name: &str) -> Result<PathBuf, Error> {
        let own = own_name(name);
        let text = self.cache.write(&format!("{own}.cpp"), source.as_bytes())?;
        let made = text.with_file_name(own);
        let output = Command::new(&self.compiler)
            .args(["-x", "c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-fno-gnu-unique", "-w", contract])
            .arg("-nostdinc++")
            // A jump to another fiber's stack is what it would take for an error.
            .arg("-U_FORTIFY_SOURCE")
            .arg(&text)
            .arg("-o")
            .arg(&made)
            .output()
            .map_err(|why| Error::Emulator { path: text.clone(), why: why.to_string() })?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr).chars().take(4000).collect();
            return Err(Error::Compile { name: code.name.into(), target: "the host".into(), log });
        }
        let path = text.with_file_name(name);
        std::fs::rename(&made, &path)
            .map_err(|why| Error::Emulator { path: path.clone(), why: why.to_string() })?;
        let _ = std::fs::remove_file(&text);
        Ok(path)
    }
}
