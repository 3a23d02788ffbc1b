//! Ranks that `mpirun` or `srun` started, connected by the MPI library of the machine.
//!
//! The library carries messages and nothing more: calls are made of them here, so that their bits are those of all other backends.
//! It is loaded at run time; a machine without one builds and runs everything else.

mod abi;
mod library;
mod messages;

use std::fmt;
use std::time::Duration;

use libloading::os::unix::Library as Loaded;

use crate::error::{CommError, Result};
use crate::ranks::Ranks;
use crate::transport::PointToPoint;
use abi::{Handle, Number, Pointer};
use library::Library;
use messages::Mpi;

/// Names the library to load, or its family: `openmpi`, `mpich`, or a path.
pub const LIBRARY_VARIABLE: &str = "PLIMSOLL_MPI";

/// Whose binary interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Open MPI.
    OpenMpi,
    /// MPICH, and what shares its interface: Intel MPI, MVAPICH, Cray MPICH.
    Mpich,
}

impl Family {
    /// The libraries to look for, the likeliest first.
    fn libraries(self) -> Vec<String> {
        let names: &[&str] = match self {
            Family::OpenMpi => &["libmpi.so.40", "libmpi.so"],
            Family::Mpich => &["libmpich.so.12", "libmpi.so.12", "libmpich.so", "libmpi.so"],
        };
        names.iter().map(|name| name.to_string()).collect()
    }

    /// Which family started this process, by the variables that it sets; none where no MPI did.
    ///
    /// ```
    /// use plimsoll_comm::mpi::Family;
    /// let started = |name: &str| Family::of(|variable| (variable == name).then(|| "0".into()));
    /// assert_eq!(started("OMPI_COMM_WORLD_RANK"), Some(Family::OpenMpi));
    /// assert_eq!(started("PMI_RANK"), Some(Family::Mpich));
    /// assert_eq!(started("RANK"), None);
    /// ```
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Option<Family> {
        // Both set PMIX_RANK or PMI_RANK under some launchers; the first of these only Open MPI's own does.
        if variable("OMPI_COMM_WORLD_RANK").is_some() || variable("PMIX_RANK").is_some() {
            return Some(Family::OpenMpi);
        }
        variable("PMI_RANK").map(|_| Family::Mpich)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::OpenMpi => "Open MPI",
            Family::Mpich => "MPICH",
        })
    }
}

/// Starts MPI in this process and connects it to all others that were started with it. Once in a process; MPI ends when what is
/// returned is dropped.
///
/// The library is that of the family that started the process, unless [`LIBRARY_VARIABLE`] names another.
///
/// ```no_run
/// use plimsoll_comm::{Collectives, Communicator, RANK_TIMEOUT, Reduce, mpi};
/// let ranks = mpi::start(RANK_TIMEOUT)?;
/// let mut loss = [0.5f64];
/// ranks.all_reduce(Reduce::Sum, &mut loss)?;
/// println!("rank {} of {}, {}: {loss:?}", ranks.rank(), ranks.ranks(), ranks.backend());
/// # Ok::<(), plimsoll_comm::CommError>(())
/// ```
///
/// # Errors
/// No library is there, it lacks something, or it refuses to start.
pub fn start(timeout: Duration) -> Result<Ranks> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let started_by = Family::of(variable);
    let names = match variable(LIBRARY_VARIABLE).as_deref() {
        Some("openmpi") => Family::OpenMpi.libraries(),
        Some("mpich") => Family::Mpich.libraries(),
        Some(path) => vec![path.to_string()],
        None => started_by.unwrap_or(Family::OpenMpi).libraries(),
    };
    let before = resident();
    let loaded = library::load(&names).map_err(|tried| {
        let family = started_by.map_or("MPI".to_string(), |family| family.to_string());
        CommError::Start(format!(
            "there is no library of {family} to load: tried {tried}; install it (Debian: libopenmpi3 or libmpich12) or name it with \
             {LIBRARY_VARIABLE}=openmpi|mpich|PATH"
        ))
    })?;
    let version = library::version(&loaded).unwrap_or_else(|| "MPI of unknown version".into());
    let why = |why| CommError::Start(format!("{version}: {why}"));
    let family = family_of(&loaded, &version).ok_or_else(|| {
        why("its binary interface is not known; known are those of Open MPI and of MPICH".to_string())
    })?;
    if let Some(other) = started_by.filter(|other| *other != family) {
        return Err(why(format!(
            "this process was started by {other}, whose ranks it cannot reach; start it with its own mpirun, or name a library with \
             {LIBRARY_VARIABLE}"
        )));
    }
    let link = match family {
        Family::OpenMpi => connect::<Pointer>(loaded, &version, before),
        Family::Mpich => connect::<Number>(loaded, &version, before),
    };
    Ok(Ranks::new(link.map_err(why)?, timeout))
}

fn connect<H: Handle>(
    loaded: Loaded,
    version: &str,
    before: u64,
) -> std::result::Result<Box<dyn PointToPoint>, String> {
    let library = Library::<H>::new(loaded)?;
    let communicator = library.start()?;
    let size = library.size(communicator)?;
    let own_bytes = resident().saturating_sub(before);
    Ok(Box::new(Mpi::new(library, communicator, size, version, own_bytes)))
}

/// What is resident of this process; nothing where the system does not say.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn family_of(library: &Loaded, version: &str) -> Option<Family> {
    if Pointer::constants(library).is_some() {
        return Some(Family::OpenMpi);
    }
    let known = ["MPICH", "Intel(R) MPI", "MVAPICH", "CRAY MPICH"];
    known.iter().any(|name| version.starts_with(name)).then_some(Family::Mpich)
}
