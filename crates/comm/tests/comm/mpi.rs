//! Ranks that are processes of `mpirun`, under Open MPI and MPICH: this test program, started by them.

use std::process::Command;
use std::time::{Duration, Instant};

use plimsoll_comm::{Collectives, Communicator, Reduce, agree, connect, local, measure};
use plimsoll_testing::{Launcher, child, launchers};

use crate::reference::{hold, hold_all};
use crate::worlds::{PATIENCE, on_each};

const RANKS: usize = 3;
const LENS: &[usize] = &[0, 1, 7, 1001];
const LONG: &[usize] = &[400_003];

/// Starts this test on ranks; what they wrote, and whether all ended well.
fn ask(launcher: Launcher, test: &str, question: &str) -> (String, bool) {
    let (command, _kept) = launcher.command(RANKS);
    started(command, test, question)
}

/// Starts this test by a command.
fn started(mut command: Command, test: &str, question: &str) -> (String, bool) {
    command.arg(std::env::current_exe().unwrap()).args([
        "--exact",
        test,
        "--nocapture",
        "--test-threads",
        "1",
    ]);
    let output = command.env("PLIMSOLL_CHILD", question).output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (text, output.status.success())
}

#[test]
fn every_call_over_mpi_gives_the_bits_of_threads() {
    if child::question().is_some() {
        let rank = connect(PATIENCE, PATIENCE).unwrap();
        let digests = [hold_all(&rank, LENS), hold::<f32>(&rank, LONG)];
        agree(&rank, &[("version", "1")]).unwrap();
        let own = rank.rank().to_string();
        let why = agree(&rank, &[("limit", if own == "1" { "2GiB" } else { "3GiB" })]).unwrap_err();
        assert!(why.to_string().contains("limit is '2GiB' on rank 1 and '3GiB' on ranks 0, 2"), "{why}");
        let link = measure(&rank).unwrap().unwrap();
        println!("\nrank {own} by {}: {digests:?}", rank.backend());
        let own = rank.own_bytes();
        assert!((1 << 20..1 << 30).contains(&own), "the library took {own} bytes");
        let (latency, bandwidth) = (link.latency * 1e6, link.bandwidth / 1e9);
        println!("\nlink: {latency:.1} us, {bandwidth:.2} GB/s, {} MiB of the library's own", own >> 20);
        return;
    }
    let threads =
        on_each(local::ranks(RANKS, PATIENCE), |rank| [hold_all(&rank, LENS), hold::<f32>(&rank, LONG)]);
    for launcher in launchers() {
        let name = launcher.name;
        let (text, is_well) = ask(launcher, "mpi::every_call_over_mpi_gives_the_bits_of_threads", "calls");
        assert!(is_well, "{name}: {text}");
        for (rank, digests) in threads.iter().enumerate() {
            let line = text.lines().find(|line| line.starts_with(&format!("rank {rank} by ")));
            let line = line.unwrap_or_else(|| panic!("{name}: no rank {rank} in {text}"));
            assert!(line.ends_with(&format!("{digests:?}")), "{name}: {line} is not {digests:?}");
            let library = if name.ends_with("mpich") { "MPICH" } else { "Open MPI" };
            assert!(line.contains(library), "{line}");
        }
        text.lines()
            .filter(|line| line.starts_with("link: "))
            .take(1)
            .for_each(|line| println!("{name}, {line}"));
    }
}

#[test]
fn a_rank_of_mpi_that_hangs_or_makes_another_call_is_named_by_all_in_time() {
    if let Some(question) = child::question() {
        let rank = connect(PATIENCE, Duration::from_millis(500)).unwrap();
        rank.barrier().unwrap();
        let said = match (question[0].as_str(), rank.rank()) {
            ("hang", 1) => {
                std::thread::sleep(Duration::from_millis(1500));
                rank.all_reduce(Reduce::Sum, &mut [1f32; 90_000])
            }
            ("mismatch", 1) => rank.all_reduce(Reduce::Sum, &mut [1f32; 90_001]),
            _ => rank.all_reduce(Reduce::Sum, &mut [1f32; 90_000]),
        };
        let why = said.and_then(|()| rank.barrier()).and_then(|()| rank.barrier()).unwrap_err();
        println!("\nrank {} says: {why}", rank.rank());
        // The launcher ends all when the first has; all are to have said it.
        std::thread::sleep(Duration::from_millis(2000));
        return;
    }
    let questions = [("hang", "rank 1 has not answered"), ("mismatch", "do not make the same calls")];
    // All at once: they wait more than they compute.
    std::thread::scope(|threads| {
        for (question, word) in questions {
            for launcher in launchers() {
                let name = launcher.name;
                threads.spawn(move || {
                    let test = "mpi::a_rank_of_mpi_that_hangs_or_makes_another_call_is_named_by_all_in_time";
                    let start = Instant::now();
                    let (text, _) = ask(launcher, test, question);
                    // Who hung may be ended by the launcher, or not hear why the others stopped.
                    for rank in (0..RANKS).filter(|rank| (question, *rank) != ("hang", 1)) {
                        let line = text.lines().find(|line| line.starts_with(&format!("rank {rank} says: ")));
                        let line =
                            line.unwrap_or_else(|| panic!("{name}, {question}: no rank {rank} in {text}"));
                        assert!(line.contains(word) && line.contains("rank 1"), "{name}, {question}: {line}");
                        let call = "all-reduce (sum) of 90000 f32, number 1";
                        assert!(line.contains(call), "{name}, {question}: {line}");
                    }
                    assert!(start.elapsed() < Duration::from_secs(30), "{name}, {question}");
                });
            }
        }
    });
}

#[test]
fn a_rank_of_mpi_that_is_killed_ends_the_others() {
    if child::question().is_some() {
        let rank = connect(PATIENCE, Duration::from_secs(5)).unwrap();
        rank.barrier().unwrap();
        if rank.rank() == 1 {
            let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
        }
        let why = rank.barrier().unwrap_err();
        println!("\nrank {} says: {why}", rank.rank());
        std::process::exit(3);
    }
    std::thread::scope(|threads| {
        for launcher in launchers() {
            let name = launcher.name;
            threads.spawn(move || {
                let start = Instant::now();
                let (text, is_well) =
                    ask(launcher, "mpi::a_rank_of_mpi_that_is_killed_ends_the_others", "kill");
                assert!(!is_well, "{name}: {text}");
                assert!(start.elapsed() < Duration::from_secs(20), "{name}");
            });
        }
    });
}

#[test]
fn without_a_library_or_with_the_wrong_one_a_sentence_says_so() {
    const TEST: &str = "mpi::without_a_library_or_with_the_wrong_one_a_sentence_says_so";
    if child::question().is_some() {
        println!("\nsays: {}", connect(PATIENCE, PATIENCE).err().unwrap());
        return;
    }
    let said = |variables: &[(&str, &str)]| {
        // The launcher is the environment's.
        let mut command = Command::new("env");
        command.args(variables.iter().map(|(name, value)| format!("{name}={value}")));
        let (text, is_well) = started(command, TEST, "start");
        let line = text.lines().find_map(|line| line.strip_prefix("says: ")).map(String::from);
        line.filter(|_| is_well).unwrap_or_else(|| panic!("{text}"))
    };
    let why = said(&[("PLIMSOLL_RANKS", "mpi"), ("PLIMSOLL_MPI", "/nowhere/libmpi.so")]);
    assert!(why.starts_with("there is no library of MPI to load: tried /nowhere/libmpi.so ("), "{why}");
    assert!(why.contains("install it (Debian: libopenmpi3 or libmpich12)"), "{why}");
    let why = said(&[("PLIMSOLL_RANKS", "mpi"), ("PLIMSOLL_MPI", "libc.so.6")]);
    assert!(why.starts_with("MPI of unknown version: its binary interface is not known"), "{why}");
    if launchers().iter().any(|launcher| launcher.name == "mpirun.mpich") {
        let why = said(&[("OMPI_COMM_WORLD_RANK", "0"), ("PLIMSOLL_MPI", "mpich")]);
        assert!(why.contains("MPICH") && why.contains("this process was started by Open MPI"), "{why}");
    }
}
