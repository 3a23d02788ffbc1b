//! Open MPI's and MPICH's launchers, where they are installed, each start with a folder of its own for what it keeps while ranks run.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Scratch, group};

/// A kind of MPI.
#[derive(Clone, Copy, Debug)]
pub struct Launcher {
    /// The name of its command.
    pub name: &'static str,
    options: &'static [&'static str],
}

/// Those that are installed, which are counted as group `mpi`.
///
/// ```
/// for launcher in plimsoll_testing::launchers() {
///     let (command, _kept) = launcher.command(2);
///     assert_eq!(command.get_program(), launcher.name);
/// }
/// ```
pub fn launchers() -> Vec<Launcher> {
    const OPEN_MPI: &[&str] =
        &["--oversubscribe", "--allow-run-as-root", "--mca", "btl_vader_single_copy_mechanism", "none"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |launcher: &Launcher| std::env::split_paths(&path).any(|folder| folder.join(launcher.name).is_file());
    let all = [
        Launcher { name: "mpirun.openmpi", options: OPEN_MPI },
        Launcher { name: "mpirun.mpich", options: &[] },
    ];
    let there: Vec<Launcher> = all.into_iter().filter(is_there).collect();
    let there = if there.is_empty() { Err("neither Open MPI nor MPICH is installed") } else { Ok(there) };
    group("mpi", there).unwrap_or_default()
}

impl Launcher {
    /// What starts so many ranks of what is added to it; and a folder that it needs until they have ended. Two that start at once and share a folder fail
    /// now and then: each makes it where the other just has.
    pub fn command(&self, ranks: usize) -> (Command, Scratch) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let kept = Scratch::new(&format!("mpi-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let mut command = Command::new(self.name);
        command.env("TMPDIR", kept.folder()).args(self.options).args(["-n", &ranks.to_string()]);
        (command, kept)
    }
}
