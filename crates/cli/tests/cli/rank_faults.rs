//! Ranks that are killed, stopped, out of disk or of another kind: no run hangs, none loses more than what came after its last checkpoint, and one
//! message says which rank it was and where to go on.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll_testing::child::Said;
use serde_json::Value;

use crate::common::{Scratch, lines};
use crate::ranks::{SMALL, epochs, ranks, run, same_epochs, signal};

/// How long the others may take to end.
const SOON: Duration = Duration::from_secs(20);

/// A rank that runs, and what it says: in files, since nobody reads it while it runs.
struct Started {
    child: Child,
    said: std::path::PathBuf,
}

impl Started {
    fn new(mut command: Command, said: &str) -> Started {
        let file = |end: &str| Stdio::from(std::fs::File::create(format!("{said}.{end}")).unwrap());
        let child = command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err")).spawn().unwrap();
        Started { child, said: said.into() }
    }

    /// What it said, what went wrong, and whether it ended well. It must end soon.
    fn ended(mut self) -> (String, String, bool) {
        let until = Instant::now() + SOON;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < until, "a rank hangs"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let text = |end: &str| std::fs::read_to_string(self.said.with_extension(end)).unwrap();
        (text("out"), text("err"), status.success())
    }
}

fn start(scratch: &Scratch, commands: Vec<Command>) -> Vec<Started> {
    let of = |(rank, command)| Started::new(command, &scratch.path(&format!("rank{rank}")));
    commands.into_iter().enumerate().map(of).collect()
}

/// What ranks said was wrong.
fn wrong(ranks: &[Result<Said, String>]) -> String {
    ranks.iter().filter_map(|rank| rank.as_ref().err().map(String::as_str)).collect()
}

fn parsed(stdout: &str) -> Vec<Value> {
    stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Whether a folder has a checkpoint that is whole.
fn has_checkpoints(folder: &Path) -> bool {
    folder.read_dir().is_ok_and(|mut all| {
        all.any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with("step-"))
    })
}

/// A rank's command by another program, or with other words.
fn changed(own: &Command, program: &Path, words: &Command) -> Command {
    let mut command = Command::new(program);
    command.args(words.get_args());
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// How many times a rank is killed: in a loop of twenty where that is asked for.
fn kills() -> u64 {
    std::env::var("PLIMSOLL_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

#[test]
fn a_rank_that_is_killed_at_any_moment_loses_nothing_but_the_steps_since_the_last_checkpoint() {
    killed("shard");
}

#[test]
fn a_stage_that_is_killed_at_any_moment_loses_no_more() {
    killed("pipeline");
}

fn killed(parallel: &str) {
    let scratch = Scratch::new(&format!("rank-kills-{parallel}"));
    let out = scratch.path("run");
    let n = 60 * kills();
    let words =
        format!("train {SMALL} --precision f64 --epochs {n} --checkpoint-every 3 --parallel {parallel}");
    let whole = format!("{words} --ranks 2 --out {}", scratch.path("whole"));
    let whole = lines(&whole.split(' ').collect::<Vec<_>>()).unwrap();
    let mut all: Vec<Value> = Vec::new();
    // Moments of a fixed seed: while ranks connect, plan, train and write.
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for kill in 0..kills() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let after = Duration::from_millis((state >> 33) % 2500);
        let who = (kill % 2) as usize;
        let is_begun = Path::new(&out).join("config.toml").is_file();
        let words = match is_begun {
            true => format!("train --resume --json --rank-timeout 10 --out {out}"),
            false => format!("{words} --rank-timeout 10 --out {out}"),
        };
        let mut children = start(&scratch, ranks(2, &words));
        std::thread::sleep(after);
        signal(&children[who].child, "-KILL");
        let killed = children.remove(who);
        let (said, why, is_well) = children.remove(0).ended();
        let (of_killed, ..) = killed.ended();
        if is_well {
            // On a fast machine the run was over before.
            all.extend(parsed(if who == 0 { &of_killed } else { &said }));
            break;
        }
        let rank = format!("rank {who}");
        assert!(why.contains(&rank), "killed after {after:?}: {why}");
        if has_checkpoints(&Path::new(&out).join("checkpoints")) {
            assert!(why.contains("the last checkpoint is"), "killed after {after:?}: {why}");
        }
        all.extend(parsed(if who == 0 { &of_killed } else { &said }));
    }
    let is_begun = Path::new(&out).join("config.toml").is_file();
    let words =
        if is_begun { format!("train --resume --json --out {out}") } else { format!("{words} --out {out}") };
    for rank in start(&scratch, ranks(2, &words)) {
        let until = Instant::now() + Duration::from_secs(300);
        let mut rank = rank;
        while rank.child.try_wait().unwrap().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let (said, why, is_well) = rank.ended();
        assert!(is_well, "{why}");
        all.extend(parsed(&said));
    }
    // An epoch that was told of before a kill and is done again comes to the same.
    let mut last: Vec<Value> = Vec::new();
    for epoch in epochs(&all) {
        let number = |line: &Value| line["epoch"].as_u64();
        last.retain(|known| number(known) != number(epoch));
        last.push(epoch.clone());
    }
    last.sort_by_key(|line| line["epoch"].as_u64());
    same_epochs(&last, &whole, 1e-12, "killed and resumed");
}

#[test]
fn the_first_rank_that_hangs_is_named_by_the_others_with_the_last_checkpoint() {
    let scratch = Scratch::new("rank-first");
    let out = scratch.path("run");
    let words = format!("train {SMALL} --epochs 100000 --checkpoint-every 1 --rank-timeout 2 --out {out}");
    let mut children = start(&scratch, ranks(3, &words));
    let checkpoints = Path::new(&out).join("checkpoints");
    let until = Instant::now() + Duration::from_secs(60);
    while !has_checkpoints(&checkpoints) {
        assert!(Instant::now() < until, "no checkpoint");
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(&children[0].child, "-STOP");
    let others: Vec<_> = children.split_off(1).into_iter().map(Started::ended).collect();
    let mut first = children.pop().unwrap().child;
    first.kill().unwrap();
    first.wait().unwrap();
    let said: Vec<&str> =
        others.iter().map(|(_, why, _)| why.as_str()).filter(|why| !why.is_empty()).collect();
    assert!(others.iter().all(|(.., is_well)| !is_well), "{others:?}");
    assert!(!said.is_empty());
    for why in said {
        assert!(why.contains("rank 0 has not answered") && why.contains("the last checkpoint is"), "{why}");
    }
}

#[test]
fn a_full_disk_ends_all_ranks_with_what_the_system_says_and_the_last_checkpoint() {
    for parallel in ["data", "shard", "parameters", "pipeline"] {
        let scratch = Scratch::new("rank-disk");
        let out = scratch.path("run");
        let words = format!(
            "train mlp --data digits --width 256 --batch 30 --take 60 --threads 1 --json --epochs 2 --parallel {parallel} --out {out}"
        );
        let first = run(ranks(2, &words));
        assert_eq!(wrong(&first), "");
        // As a disk that is full: files beyond a size are refused, of the first rank, which writes.
        let mut commands = ranks(2, &format!("train --resume --json --epochs 9 --out {out}"));
        let limited = {
            let own = &commands[0];
            let mut command = Command::new("sh");
            command.args(["-c", "trap '' XFSZ; ulimit -f 256; exec \"$0\" \"$@\""]);
            command.arg(own.get_program()).args(own.get_args());
            command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command
        };
        commands[0] = limited;
        let mut children = start(&scratch, commands);
        let second = children.pop().unwrap().ended();
        let (_, why, is_well) = children.pop().unwrap().ended();
        assert!(!is_well && !second.2, "{why}");
        assert!(why.contains("File too large"), "{parallel}: {why}");
        assert!(why.contains("the last checkpoint is") && why.contains("step-00000004"), "{parallel}: {why}");
        // What was there is whole, and goes on.
        let again = run(ranks(2, &format!("train --resume --json --epochs 3 --out {out}")));
        assert_eq!(wrong(&again), "");
        assert!(again[0].as_ref().is_ok_and(|said| epochs(&said.lines).len() == 1));
    }
}

#[test]
fn another_program_and_other_data_are_refused_by_name() {
    let scratch = Scratch::new("rank-other");
    let settings = format!("train {SMALL} --epochs 1 --out {}", scratch.path("run"));
    let mut commands = ranks(2, &settings);
    // The same code in a file that is one byte longer.
    let program = Path::new(commands[1].get_program()).to_path_buf();
    let other = scratch.path("plimsoll");
    let mut bytes = std::fs::read(&program).unwrap();
    bytes.push(0);
    std::fs::write(&other, bytes).unwrap();
    let permissions = program.metadata().unwrap().permissions();
    std::fs::set_permissions(&other, permissions).unwrap();
    commands[1] = changed(&commands[1], Path::new(&other), &commands[1]);
    let said: Vec<String> = run(commands).into_iter().filter_map(Result::err).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    let all = said.join(" ");
    assert!(all.contains("ranks were not started alike: the program is '"), "{all}");
    // As many samples of the same shape, of another folder.
    let table = |name: &str, shift: usize| {
        let rows: String = (0..40).map(|i| format!("{},{},{}\n", i + shift, i * 2, i % 2)).collect();
        let path = scratch.path(name);
        std::fs::write(&path, format!("a,b,label\n{rows}")).unwrap();
        path
    };
    let (one, two) = (table("one.csv", 0), table("two.csv", 1));
    let with = |data: &str, out: &str| {
        let words = "train mlp --width 4 --batch 8 --epochs 1 --threads 1 --json";
        let two = |data: &str| ranks(2, &format!("{words} --data {data} --out {}", scratch.path(out)));
        let mut commands = two(&one);
        commands[1] = changed(&commands[1], &program, &two(data)[1]);
        run(commands)
    };
    let said: Vec<String> = with(&two, "two").into_iter().filter_map(Result::err).collect();
    let all = said.join(" ");
    assert_eq!(said.len(), 2, "{all}");
    assert!(all.contains("the digest of the data's samples is '"), "{all}");
    // The same samples elsewhere are the same.
    assert_eq!(wrong(&with(&table("three.csv", 0), "three")), "");
}
