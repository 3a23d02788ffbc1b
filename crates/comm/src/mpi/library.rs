//! An MPI library, found and loaded at run time, and the few of its functions that carry messages.

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};

use super::abi::{Constants, Handle};

/// Room for a status of either interface; nothing of it is read here but by the library.
#[repr(C, align(8))]
pub struct Status([u8; 64]);

impl Status {
    pub const fn new() -> Status {
        Status([0; 64])
    }
}

/// At least one thread at a time may call (`MPI_THREAD_SERIALIZED`).
const SERIALIZED: c_int = 2;
const SUCCESS: c_int = 0;

macro_rules! functions {
    ($($name:ident: $symbol:literal fn($($argument:ty),*);)*) => {
        /// The functions, by their names in the library.
        pub struct Functions<H> {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl<H: Handle> Functions<H> {
            fn find(library: &Loaded) -> Result<Functions<H>, String> {
                Ok(Functions {
                    // SAFETY: the MPI standard gives these functions these arguments; the handles are of the library's interface.
                    $($name: unsafe {
                        *library.get::<unsafe extern "C" fn($($argument),*) -> c_int>($symbol)
                            .map_err(|e| format!("it has no {}: {e}", $symbol))?
                    },)*
                })
            }
        }
    };
}

functions! {
    init_thread: "MPI_Init_thread" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    initialized: "MPI_Initialized" fn(*mut c_int);
    finalize: "MPI_Finalize" fn();
    comm_rank: "MPI_Comm_rank" fn(H, *mut c_int);
    comm_size: "MPI_Comm_size" fn(H, *mut c_int);
    comm_dup: "MPI_Comm_dup" fn(H, *mut H);
    comm_set_errhandler: "MPI_Comm_set_errhandler" fn(H, H);
    isend: "MPI_Isend" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H);
    irecv: "MPI_Irecv" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H);
    recv: "MPI_Recv" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut Status);
    test: "MPI_Test" fn(*mut H, *mut c_int, *mut Status);
    cancel: "MPI_Cancel" fn(*mut H);
    iprobe: "MPI_Iprobe" fn(c_int, c_int, H, *mut c_int, *mut Status);
    get_count: "MPI_Get_count" fn(*const Status, H, *mut c_int);
    error_class: "MPI_Error_class" fn(c_int, *mut c_int);
    error_string: "MPI_Error_string" fn(c_int, *mut c_char, *mut c_int);
}

/// A library of one of the interfaces.
pub struct Library<H> {
    pub call: Functions<H>,
    pub fixed: Constants<H>,
    /// Kept loaded: the functions are in it.
    _loaded: Loaded,
}

/// What a function said, where it did not succeed.
#[derive(Debug)]
pub struct Refused {
    pub text: String,
    pub is_truncated: bool,
}

impl<H: Handle> Library<H> {
    pub fn new(loaded: Loaded) -> Result<Library<H>, String> {
        let fixed = H::constants(&loaded).ok_or("it has not the symbols of its interface")?;
        Ok(Library { call: Functions::find(&loaded)?, fixed, _loaded: loaded })
    }

    /// The result of a function as a value.
    pub fn check(&self, name: &str, code: c_int) -> Result<(), Refused> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut text = [0u8; 1024];
        let (mut len, mut class) = (0, 0);
        // SAFETY: longer than any library's `MPI_MAX_ERROR_STRING`.
        let said = unsafe { (self.call.error_string)(code, text.as_mut_ptr().cast(), &mut len) };
        // SAFETY: a place for one number.
        let classed = unsafe { (self.call.error_class)(code, &mut class) };
        let len = if said == SUCCESS { (len.max(0) as usize).min(text.len()) } else { 0 };
        let text = format!("{name} failed with {code}: {}", String::from_utf8_lossy(&text[..len]).trim());
        Err(Refused { text, is_truncated: classed == SUCCESS && class == H::TRUNCATED })
    }

    /// Starts MPI for this process and returns a communicator of our own, whose errors come back as values.
    pub fn start(&self) -> Result<H, String> {
        let said = |refused: Refused| refused.text;
        let (mut is_running, mut level) = (0, 0);
        // SAFETY: places for one number each; the arguments of the program may be left out.
        unsafe {
            self.check("MPI_Initialized", (self.call.initialized)(&mut is_running)).map_err(said)?;
            if is_running != 0 {
                return Err("MPI was started in this process before".into());
            }
            let none = std::ptr::null_mut();
            let code = (self.call.init_thread)(none, std::ptr::null_mut(), SERIALIZED, &mut level);
            self.check("MPI_Init_thread", code).map_err(said)?;
        }
        if level < SERIALIZED {
            return Err(format!("it was built without threads (level {level}, needed is {SERIALIZED})"));
        }
        let mut own = H::EMPTY;
        // SAFETY: the world is there since MPI was started.
        unsafe {
            let code = (self.call.comm_set_errhandler)(self.fixed.world, self.fixed.errors_return);
            self.check("MPI_Comm_set_errhandler", code).map_err(said)?;
            // So that nobody else's messages are met. It takes over the error handler.
            self.check("MPI_Comm_dup", (self.call.comm_dup)(self.fixed.world, &mut own)).map_err(said)?;
        }
        Ok(own)
    }

    /// This rank and how many there are.
    pub fn size(&self, communicator: H) -> Result<(usize, usize), String> {
        let (mut rank, mut ranks) = (0, 0);
        // SAFETY: places for one number each.
        unsafe {
            self.check("MPI_Comm_rank", (self.call.comm_rank)(communicator, &mut rank))
                .map_err(|e| e.text)?;
            self.check("MPI_Comm_size", (self.call.comm_size)(communicator, &mut ranks))
                .map_err(|e| e.text)?;
        }
        Ok((rank as usize, ranks as usize))
    }
}

/// Loads the first of these libraries that is there.
pub fn load(names: &[String]) -> Result<Loaded, String> {
    let mut failed = Vec::new();
    for name in names {
        // Open MPI's own modules look their symbols up among all that is loaded.
        // SAFETY: an MPI library; what it does when it is loaded is what it does for any program that is linked to it.
        match unsafe { Loaded::open(Some(name), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => return Ok(library),
            Err(e) => failed.push(format!("{name} ({e})")),
        }
    }
    Err(failed.join(", "))
}

/// What a library says of itself, in its first line.
pub fn version(library: &Loaded) -> Option<String> {
    type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
    let mut text = vec![0u8; 8192];
    let mut len = 0;
    // SAFETY: longer than any library's `MPI_MAX_LIBRARY_VERSION_STRING`; it may be called before MPI is started.
    let code = unsafe {
        let get = library.get::<Version>("MPI_Get_library_version").ok()?;
        get(text.as_mut_ptr().cast(), &mut len)
    };
    text.truncate((len.max(0) as usize).min(8192));
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.trim_end_matches('\0').lines().next()?.trim();
    let words: Vec<&str> =
        line.split([',', '\t', ' ']).filter(|word| !word.is_empty() && *word != "Version:").collect();
    (code == SUCCESS).then(|| words.iter().take(3).copied().collect::<Vec<_>>().join(" "))
}
