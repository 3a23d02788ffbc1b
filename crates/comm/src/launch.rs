//! Turns the environment of a process into its place among ranks.

use std::time::Duration;

use crate::error::{CommError, Result};
use crate::local;
use crate::mpi::{self, Family};
use crate::ranks::Ranks;
use crate::tcp::{self, Meeting};

/// Overrides what the environment says: `one`, `mpi` or `tcp`.
const LAUNCH_VARIABLE: &str = "PLIMSOLL_RANKS";

/// Where torch's programs meet unless told otherwise.
const PORT: u16 = 29_500;

/// How a process was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// By itself.
    One,
    /// By MPI's launcher.
    Mpi,
    /// With its rank and a place to meet.
    Tcp(Meeting),
}

impl Launch {
    /// As a rank that meets the others at an address, `host:port`, where rank 0 listens, and waits so long for them.
    pub fn tcp(rank: usize, ranks: usize, address: String, patience: Duration) -> Launch {
        Launch::Tcp(Meeting { rank, ranks, address, patience })
    }

    /// How this process was started, by variables of its environment: those of Open MPI and MPICH (`OMPI_COMM_WORLD_RANK`, `PMIX_RANK`, `PMI_RANK`), of `torchrun`
    /// (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), of Slurm (`SLURM_PROCID`, `SLURM_NTASKS`); `PLIMSOLL_RANKS=one|mpi|tcp` overrides
    /// which of these counts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use plimsoll_comm::Launch;
    /// let set = [("RANK", "1"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node0"), ("MASTER_PORT", "1234")];
    /// let of = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.to_string());
    /// let Launch::Tcp(meeting) = Launch::of(of, Duration::from_secs(60))? else { unreachable!() };
    /// assert_eq!((meeting.rank, meeting.ranks, meeting.address.as_str()), (1, 8, "node0:1234"));
    /// assert_eq!(Launch::of(|_| None, Duration::from_secs(60))?, Launch::One);
    /// # Ok::<(), plimsoll_comm::CommError>(())
    /// ```
    ///
    /// # Errors
    /// Variables contradict each other or are no numbers.
    pub fn of(variable: impl Fn(&str) -> Option<String>, patience: Duration) -> Result<Launch> {
        let tcp = || meeting(&variable, patience);
        match variable(LAUNCH_VARIABLE).as_deref() {
            Some("one") => Ok(Launch::One),
            Some("mpi") => Ok(Launch::Mpi),
            Some("tcp") => tcp()?.map(Launch::Tcp).ok_or_else(|| {
                CommError::Start(format!(
                    "{LAUNCH_VARIABLE}=tcp needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and RANK is not set"
                ))
            }),
            Some(other) => {
                Err(CommError::Start(format!("{LAUNCH_VARIABLE}={other} is not known: one, mpi or tcp")))
            }
            // One alone has nobody to reach, and is spared what the library takes.
            None if Family::of(&variable).is_some() => {
                let sizes = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];
                let is_alone = sizes.into_iter().any(|size| variable(size).is_some_and(|n| n.trim() == "1"));
                Ok(if is_alone { Launch::One } else { Launch::Mpi })
            }
            None => Ok(tcp()?.map_or(Launch::One, Launch::Tcp)),
        }
    }
}

/// Connects this process to the others that were started with it, as its environment says ([`Launch::of`]). By itself, it is a world of one.
///
/// ```
/// use std::time::Duration;
/// use plimsoll_comm::{Communicator, RANK_TIMEOUT, connect};
/// let ranks = connect(Duration::from_secs(60), RANK_TIMEOUT)?;
/// assert_eq!((ranks.rank(), ranks.ranks()), (0, 1));
/// # Ok::<(), plimsoll_comm::CommError>(())
/// ```
///
/// # Errors
/// The others cannot be reached; the error says what is missing.
pub fn connect(patience: Duration, timeout: Duration) -> Result<Ranks> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    connect_as(&Launch::of(variable, patience)?, timeout)
}

/// Connects this process to others, however it was started.
///
/// # Errors
/// As of [`connect`].
pub fn connect_as(launch: &Launch, timeout: Duration) -> Result<Ranks> {
    match launch {
        Launch::Mpi => mpi::start(timeout),
        Launch::Tcp(meeting) => tcp::join(meeting, timeout),
        Launch::One => match local::ranks(1, timeout).pop() {
            Some(rank) => Ok(rank),
            None => Err(CommError::Start("a world of one has no rank".into())),
        },
    }
}

fn meeting(variable: &impl Fn(&str) -> Option<String>, patience: Duration) -> Result<Option<Meeting>> {
    let number = |name: &str| {
        let Some(text) = variable(name) else {
            return Err(CommError::Start(format!("this process has a rank, and {name} is not set")));
        };
        let parsed = text.trim().parse::<usize>();
        parsed.map_err(|_| CommError::Start(format!("{name}={text} is not a number")))
    };
    let (rank, ranks) = if variable("RANK").is_some() && variable("WORLD_SIZE").is_some() {
        ("RANK", "WORLD_SIZE")
    } else if variable("SLURM_PROCID").is_some() && variable("SLURM_NTASKS").is_some_and(|n| n != "1") {
        ("SLURM_PROCID", "SLURM_NTASKS")
    } else if variable("RANK").is_some() && variable(LAUNCH_VARIABLE).is_some() {
        ("RANK", "WORLD_SIZE")
    } else {
        return Ok(None);
    };
    let (rank, ranks) = (number(rank)?, number(ranks)?);
    let host = variable("MASTER_ADDR").or_else(|| first_host(&variable("SLURM_STEP_NODELIST")?));
    let Some(host) = host else {
        return Err(CommError::Start(
            "MASTER_ADDR is not set: it names the machine of rank 0, where all ranks meet".into(),
        ));
    };
    let port = match variable("MASTER_PORT") {
        Some(_) => number("MASTER_PORT")?,
        // Two jobs on a machine meet at different places.
        None => {
            usize::from(PORT) + variable("SLURM_JOB_ID").and_then(|id| id.parse().ok()).unwrap_or(0) % 10_000
        }
    };
    let Ok(port) = u16::try_from(port) else {
        return Err(CommError::Start(format!("MASTER_PORT={port} is no port")));
    };
    let is_v6 = host.contains(':') && !host.starts_with('[');
    let address = if is_v6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    Ok(Some(Meeting { rank, ranks, address, patience }))
}

/// The first machine of Slurm's list: `node[03-05,9],other` is `node03`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let Some(numbers) = rest.strip_prefix('[') else { return (!name.is_empty()).then(|| name.into()) };
    let number: String = numbers.chars().take_while(char::is_ascii_digit).collect();
    Some(format!("{name}{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Result<Launch> {
        let variable =
            |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.to_string());
        Launch::of(variable, Duration::from_secs(1))
    }

    fn address(set: &[(&str, &str)]) -> String {
        match of(set) {
            Ok(Launch::Tcp(meeting)) => {
                format!("{} of {} at {}", meeting.rank, meeting.ranks, meeting.address)
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn launchers_are_told_apart_by_their_variables() {
        assert_eq!(of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]), Ok(Launch::Mpi));
        assert_eq!(of(&[("OMPI_COMM_WORLD_RANK", "0"), ("RANK", "1")]), Ok(Launch::Mpi));
        assert_eq!(of(&[("PMI_RANK", "0"), ("PLIMSOLL_RANKS", "one")]), Ok(Launch::One));
        // Started by a launcher, and alone.
        assert_eq!(of(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]), Ok(Launch::One));
        assert_eq!(of(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]), Ok(Launch::One));
        let slurm = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "4"), ("SLURM_STEP_NODELIST", "gpu[07-09,12]")];
        assert_eq!(address(&slurm), "3 of 4 at gpu07:29500");
        let torch = [("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", "80")];
        assert_eq!(address(&torch), "3 of 4 at [::1]:80");
        // One task of a batch script is no rank.
        assert_eq!(of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]), Ok(Launch::One));
    }

    #[test]
    fn what_is_missing_or_no_number_is_named() {
        let why = |set: &[(&str, &str)]| of(set).unwrap_err().to_string();
        assert!(why(&[("RANK", "1"), ("WORLD_SIZE", "2")]).contains("MASTER_ADDR"));
        assert!(why(&[("RANK", "x"), ("WORLD_SIZE", "2")]).contains("RANK=x is not a number"));
        assert!(why(&[("RANK", "1"), ("PLIMSOLL_RANKS", "tcp")]).contains("WORLD_SIZE is not set"));
        assert!(why(&[("PLIMSOLL_RANKS", "tcp")]).contains("RANK is not set"));
        assert!(why(&[("PLIMSOLL_RANKS", "smoke")]).contains("one, mpi or tcp"));
        let port = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")];
        assert!(why(&port).contains("70000"));
    }

    #[test]
    fn the_first_machine_of_a_list_is_found() {
        let hosts = ["a", "a,b", "n[1,3]", "n[010-20]-x", ""].map(first_host);
        assert_eq!(
            hosts,
            [Some("a"), Some("a"), Some("n1"), Some("n010"), None].map(|host| host.map(String::from))
        );
    }
}
