//! Turns kernel sources into code of a card, by NVRTC, once: what was compiled before is read from disk.

use std::ffi::CString;
use std::os::raw::c_char;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cudarc::nvrtc::sys as nvrtc;
use plimsoll_device::process;
use plimsoll_device::stopwatch::during;

use crate::error::Error;
use crate::launch::Code;
use crate::library::Library;

/// A name for texts that no other texts have: 128 bits, the same on every machine.
pub(crate) fn fingerprint(texts: &[&str]) -> String {
    // Two runs of FNV-1a from different starts. Nobody attacks a cache that only its owner can write.
    let run = |start: u64| {
        let bytes = texts.iter().flat_map(|t| t.bytes().chain([0xff]));
        bytes.fold(start, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)).rotate_left(29)
    };
    format!("{:016x}{:016x}", run(0xcbf2_9ce4_8422_2325), run(0x6c62_272e_07bb_0142))
}

/// A name that no other thread of any process writes to meanwhile.
pub(crate) fn own_name(name: &str) -> String {
    static NAMED: AtomicUsize = AtomicUsize::new(0);
    format!("{name}.{}-{}", std::process::id(), NAMED.fetch_add(1, Ordering::Relaxed))
}

/// A folder of compiled code.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The folder that `PLIMSOLL_CACHE` names, or the user's own cache folder.
    pub(crate) fn new() -> Cache {
        let named = std::env::var_os("PLIMSOLL_CACHE").map(PathBuf::from);
        let of = |variable: &str, below: &str| {
            std::env::var_os(variable).filter(|v| !v.is_empty()).map(|v| PathBuf::from(v).join(below))
        };
        let folder = named
            .or_else(|| of("XDG_CACHE_HOME", "plimsoll"))
            .or_else(|| of("HOME", ".cache/plimsoll"))
            .unwrap_or_else(|| std::env::temp_dir().join("plimsoll"));
        Cache { folder: folder.join("kernels") }
    }

    /// The path of a file, whether it is there or not.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The path of a file, if it is there.
    pub(crate) fn find(&self, name: &str) -> Option<PathBuf> {
        let path = self.folder.join(name);
        path.is_file().then_some(path)
    }

    /// Writes a file so that others see it whole or not at all.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, Error> {
        let path = self.folder.join(name);
        let failed = |why: std::io::Error| Error::Emulator { path: path.clone(), why: why.to_string() };
        std::fs::create_dir_all(&self.folder).map_err(failed)?;
        let draft = self.folder.join(own_name(name));
        std::fs::write(&draft, bytes).and_then(|()| std::fs::rename(&draft, &path)).map_err(failed)?;
        Ok(path)
    }

    /// The code of a source for an architecture such as `sm_90`: from disk, or compiled and kept there.
    pub(crate) fn code(&self, code: &Code<'_>, target: &str) -> Result<Vec<u8>, Error> {
        let text = Text::of(code, target);
        if let Some(found) = self.find(&text.file).and_then(|path| std::fs::read(path).ok())
            && found.starts_with(b"\x7fELF")
        {
            return Ok(found);
        }
        during("code compiled", || self.compile(code, &text, target))
    }

    fn compile(&self, code: &Code<'_>, text: &Text, target: &str) -> Result<Vec<u8>, Error> {
        let binary = compile(code, &text.source, &text.options, target)?;
        // A cache that cannot be written costs time and nothing else.
        let _ = self.write(&text.file, &binary);
        Ok(binary)
    }

    /// Compiles what is not on disk yet, on all cores. What fails is left to whoever asks for its code, and is told there.
    pub(crate) fn compile_ahead(&self, codes: &[Code<'_>], target: &str) {
        let texts = codes.iter().map(|code| (code, Text::of(code, target)));
        let fresh: Vec<(&Code<'_>, Text)> =
            texts.filter(|(_, text)| self.find(&text.file).is_none()).collect();
        let workers = thread::available_parallelism().map_or(1, usize::from).min(fresh.len());
        if workers < 2 {
            return;
        }
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((code, text)) = fresh.get(next.fetch_add(1, Ordering::Relaxed)) {
                let _ = self.compile(code, text, target);
            }
        };
        during("code compiled", || thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work)))));
        // The compiler's heaps of threads that have ended would count against the host's limit.
        process::release_unused_heap();
    }
}

/// A source as the compiler gets it, and the file that its code is kept in.
struct Text {
    source: String,
    options: Vec<String>,
    file: String,
}

impl Text {
    fn of(code: &Code<'_>, target: &str) -> Text {
        let (source, options) = (code.source(), options(code, target));
        let mut texts: Vec<&str> = vec![&source];
        texts.extend(options.iter().map(String::as_str));
        let file = format!("{}-{}.cubin", code.name, fingerprint(&texts));
        Text { source, options, file }
    }
}

fn options(code: &Code<'_>, target: &str) -> Vec<String> {
    let fmad = if code.contract { "--fmad=true" } else { "--fmad=false" };
    vec![format!("--gpu-architecture={target}"), "--std=c++17".into(), "--device-int128".into(), fmad.into()]
}

/// Compiles for an architecture. Needs neither a card nor a driver.
pub(crate) fn compile(
    code: &Code<'_>,
    source: &str,
    options: &[String],
    target: &str,
) -> Result<Vec<u8>, Error> {
    if !Library::Nvrtc.is_present() {
        return Err(Error::Missing { library: Library::Nvrtc.name() });
    }
    let failed = |log: String| Error::Compile { name: code.name.into(), target: target.into(), log };
    let text = CString::new(source).map_err(|_| failed("the source has a zero byte".into()))?;
    let options: Vec<CString> = options.iter().filter_map(|o| CString::new(o.as_str()).ok()).collect();
    let addresses: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let mut program = std::ptr::null_mut();
    let none = std::ptr::null();
    // SAFETY: all texts end in zero and outlive the calls; sizes are asked for before buffers are filled.
    unsafe {
        let made = nvrtc::nvrtcCreateProgram(&mut program, text.as_ptr(), none, 0, none.cast(), none.cast());
        if made != nvrtc::nvrtcResult::NVRTC_SUCCESS {
            return Err(failed(format!("{made:?}")));
        }
        let status = nvrtc::nvrtcCompileProgram(program, addresses.len() as i32, addresses.as_ptr());
        let result = if status == nvrtc::nvrtcResult::NVRTC_SUCCESS {
            let mut bytes = 0;
            let sized = nvrtc::nvrtcGetCUBINSize(program, &mut bytes);
            let mut binary = vec![0u8; bytes];
            let got = nvrtc::nvrtcGetCUBIN(program, binary.as_mut_ptr().cast());
            let fine = sized == nvrtc::nvrtcResult::NVRTC_SUCCESS && got == nvrtc::nvrtcResult::NVRTC_SUCCESS;
            if fine && bytes > 0 { Ok(binary) } else { Err(failed(format!("it gave no code: {got:?}"))) }
        } else {
            let mut bytes = 0;
            nvrtc::nvrtcGetProgramLogSize(program, &mut bytes);
            let mut log = vec![0u8; bytes];
            nvrtc::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
            Err(failed(String::from_utf8_lossy(&log).trim_end_matches('\0').to_string()))
        };
        nvrtc::nvrtcDestroyProgram(&mut program);
        result
    }
}
