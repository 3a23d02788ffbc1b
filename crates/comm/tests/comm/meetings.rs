//! Ranks that meet over TCP, and those that do not.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll_comm::tcp::{Meeting, join};
use plimsoll_comm::{Collectives, Communicator, Reduce, connect};
use plimsoll_testing::child;

use crate::worlds::{PATIENCE, free_address};

fn meeting(rank: usize, ranks: usize, address: &str, patience: Duration) -> Meeting {
    Meeting { rank, ranks, address: address.into(), patience }
}

#[test]
fn a_rank_that_never_comes_is_named_to_all_that_did() {
    let address = &free_address();
    let start = Instant::now();
    let said: Vec<String> = std::thread::scope(|threads| {
        let come = |rank| {
            threads.spawn(move || {
                let met = join(&meeting(rank, 4, address, Duration::from_millis(500)), PATIENCE);
                met.err().unwrap().to_string()
            })
        };
        let all = [0, 2].map(come);
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for why in &said {
        assert!(why.contains("not all ranks have come") && why.contains("missing: rank 1, rank 3"), "{why}");
    }
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn without_rank_0_the_others_say_where_they_looked() {
    let address = free_address();
    let why = join(&meeting(1, 2, &address, Duration::from_millis(200)), PATIENCE).err().unwrap().to_string();
    assert!(why.contains(&format!("rank 1 cannot reach rank 0 at {address} within 0.2 s")), "{why}");
    let why = join(&meeting(3, 3, &address, PATIENCE), PATIENCE).err().unwrap().to_string();
    assert_eq!(why, "there is no rank 3 among 3");
    let why = join(&meeting(0, 2, "no port", PATIENCE), PATIENCE).err().unwrap().to_string();
    assert!(why.contains("rank 0 cannot listen at no port"), "{why}");
}

#[test]
fn who_counts_on_other_ranks_or_is_a_double_is_sent_away_with_a_reason() {
    let address = &free_address();
    std::thread::scope(|threads| {
        let first = threads.spawn(|| join(&meeting(0, 3, address, PATIENCE), PATIENCE).unwrap());
        let other =
            |rank, ranks| join(&meeting(rank, ranks, address, PATIENCE), PATIENCE).err().unwrap().to_string();
        let why = other(1, 4);
        assert!(why.contains("rank 1 counts on 4 ranks, and rank 0 on 3"), "{why}");
        let second = threads.spawn(|| join(&meeting(1, 3, address, PATIENCE), PATIENCE).unwrap());
        // Either of two who say that they are rank 1 may come first; the world below needs one of them.
        let (double, third) = std::thread::scope(|more| {
            std::thread::sleep(Duration::from_millis(100));
            let double = other(1, 3);
            let third = more.spawn(|| join(&meeting(2, 3, address, PATIENCE), PATIENCE).unwrap());
            (double, third.join().unwrap())
        });
        assert!(double.contains("there is another rank 1"), "{double}");
        let all = [first.join().unwrap(), second.join().unwrap(), third];
        for rank in all {
            threads.spawn(move || {
                let mut value = [rank.rank() as i64];
                rank.all_reduce(Reduce::Sum, &mut value).unwrap();
                assert_eq!(value, [3]);
            });
        }
    });
}

#[test]
fn strangers_at_the_door_do_not_keep_ranks_from_meeting() {
    let address = &free_address();
    std::thread::scope(|threads| {
        let first = threads.spawn(|| join(&meeting(0, 2, address, PATIENCE), PATIENCE).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").unwrap();
        let second = join(&meeting(1, 2, address, PATIENCE), PATIENCE).unwrap();
        threads.spawn(move || second.barrier().unwrap());
        first.join().unwrap().barrier().unwrap();
    });
}

/// A process of this test as a rank of three, by the variables of `torchrun`.
fn process(test: &str, rank: usize, port: &str, signal: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("PLIMSOLL_CHILD", signal);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", "3");
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_process_that_is_killed_or_stopped_is_named_by_all_others_in_time() {
    const TEST: &str = "meetings::a_process_that_is_killed_or_stopped_is_named_by_all_others_in_time";
    if let Some(signal) = child::question() {
        let rank = connect(PATIENCE, Duration::from_secs(1)).unwrap();
        let mut values = vec![1f32; 200_000];
        rank.all_reduce(Reduce::Sum, &mut values).unwrap();
        if rank.rank() == 1 {
            let own = std::process::id().to_string();
            let _ = Command::new("kill").args([&signal[0], &own]).status();
            // Whichever thread the signal reaches, this one goes no further.
            std::thread::sleep(PATIENCE);
        }
        let why = rank.all_reduce(Reduce::Sum, &mut values).unwrap_err();
        println!("\nsays: {why}");
        return;
    }
    std::thread::scope(|threads| {
        for (signal, word) in [("-KILL", "rank 1 has ended"), ("-STOP", "rank 1 has not answered")] {
            threads.spawn(move || {
                let address = free_address();
                let port = address.rsplit(':').next().unwrap();
                let start = Instant::now();
                let [first, mut hurt, last] = [0, 1, 2].map(|rank| process(TEST, rank, port, signal));
                for other in [first, last] {
                    let output = other.wait_with_output().unwrap();
                    let [text, errors] =
                        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
                    let line = text.lines().find_map(|line| line.strip_prefix("says: "));
                    let line = line.unwrap_or_else(|| panic!("{signal}: {text}{errors}"));
                    assert!(line.contains(word), "{signal}: {line}");
                    assert!(line.contains("all-reduce (sum) of 200000 f32, number 1"), "{signal}: {line}");
                }
                hurt.kill().unwrap();
                hurt.wait().unwrap();
                assert!(start.elapsed() < Duration::from_secs(20), "{signal}");
            });
        }
    });
}
