//! `plimsoll train` as several processes: by `--ranks`, by the variables of torchrun, by mpirun; their memory, and what one of them does that fails.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll_testing::child::{self, Said};
use plimsoll_testing::{free_port, launchers};
use serde_json::Value;

use crate::common::{Scratch, bytes, least_of, lines, plimsoll};

pub(super) const SMALL: &str =
    "cnn --data digits --width 4 --batch 30 --take 100 --seed 3 --threads 1 --json";

/// The command of each rank, as torchrun would start it.
pub(super) fn ranks(n: usize, arguments: &str) -> Vec<Command> {
    let port = free_port();
    let rank = |rank: usize| {
        let mut command = plimsoll();
        command.args(arguments.split(' '));
        let number = |n: usize| n.to_string();
        command.envs([("RANK", number(rank)), ("WORLD_SIZE", number(n)), ("MASTER_PORT", port.to_string())]);
        command.env("MASTER_ADDR", "127.0.0.1");
        command
    };
    (0..n).map(rank).collect()
}

/// Runs ranks side by side.
pub(super) fn run(commands: Vec<Command>) -> Vec<Result<Said, String>> {
    let each = commands.into_iter().map(|mut command| std::thread::spawn(move || child::lines(&mut command)));
    let all: Vec<_> = each.collect();
    all.into_iter().map(|rank| rank.join().unwrap()).collect()
}

pub(super) fn epochs(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line["event"] == "epoch").collect()
}

pub(super) fn same_epochs(found: &[Value], expected: &[Value], within: f64, what: &str) {
    let (found, expected) = (epochs(found), epochs(expected));
    assert_eq!(found.len(), expected.len(), "{what}");
    for (a, b) in found.iter().zip(&expected) {
        for field in ["loss", "accuracy", "val_loss", "val_accuracy"] {
            let (x, y) = (a[field].as_f64(), b[field].as_f64());
            let (Some(x), Some(y)) = (x, y) else {
                assert_eq!(x, y, "{what}: {field}");
                continue;
            };
            assert!((x - y).abs() <= within * (1.0 + y.abs()), "{what}: {field} is {x} and {y}");
        }
    }
}

#[test]
fn ranks_of_the_command_train_as_one_and_only_the_first_prints_and_writes() {
    let scratch = Scratch::new("ranks");
    let out = |name: &str| scratch.path(name);
    let settings = format!("train {SMALL} --epochs 2 --precision f64 --validation-split 0.2 --clip-norm 1");
    let one: Vec<String> = format!("{settings} --out {}", out("one")).split(' ').map(String::from).collect();
    let one = lines(&one.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    // Started by the first.
    let two = format!("{settings} --ranks 2 --parallel data --out {}", out("two"));
    let two = lines(&two.split(' ').collect::<Vec<_>>()).unwrap();
    same_epochs(&two, &one, 1e-9, "--ranks 2");
    assert!(two.iter().any(|line| line["event"] == "run" && line["ranks"] == 2), "{two:?}");
    // Started by a launcher.
    let found = run(ranks(3, &format!("{settings} --out {}", out("three"))));
    let found: Vec<Said> = found.into_iter().map(|rank| rank.unwrap()).collect();
    same_epochs(&found[0].lines, &one, 1e-9, "three ranks");
    assert!(found[1..].iter().all(|rank| rank.lines.is_empty()), "only the first prints");
    for file in ["model.safetensors", "metrics.csv", "plan.json", "ledger.txt"] {
        assert!(std::path::Path::new(&out("three")).join(file).is_file(), "{file}");
    }
    let ledger = std::fs::read_to_string(std::path::Path::new(&out("three")).join("ledger.txt")).unwrap();
    assert!(ledger.contains("ranks"), "{ledger}");
    // What each rank came to is on record, in the report too.
    let three = std::fs::read_to_string(std::path::Path::new(&out("three")).join("ranks.json")).unwrap();
    let three: Value = serde_json::from_str(&three).unwrap();
    let rows = three["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &three["by"], &three["parallel"]), (3, &"tcp".into(), &"data".into()));
    for (rank, row) in rows.iter().enumerate() {
        assert!(row["rank"] == rank && bytes(row, "peak_bytes") > 1 << 20, "{row}");
        assert!(bytes(row, "sent_bytes") > 0 && bytes(row, "planned_bytes") > 0, "{row}");
    }
    let report = lines(&["report", &out("three"), "--json"]).unwrap().remove(0);
    assert_eq!(report["run"]["ranks"], three);
    assert!(!std::path::Path::new(&out("one")).join("ranks.json").exists());
}

#[test]
fn shards_of_the_command_train_as_one_and_go_on_on_another_number_of_ranks() {
    let scratch = Scratch::new("shards");
    let settings = |epochs: u64| format!("train {SMALL} --epochs {epochs} --precision f64 --clip-norm 1");
    let said = |words: String| lines(&words.split(' ').collect::<Vec<_>>()).unwrap();
    let one = said(format!("{} --out {}", settings(3), scratch.path("one")));
    let out = scratch.path("shards");
    let two = said(format!("{} --ranks 2 --parallel shard --out {out}", settings(2)));
    assert!(two.iter().any(|line| line["event"] == "run" && line["parallel"] == "shard"), "{two:?}");
    // By a launcher, on three; then it is as if all had been done by one.
    let found = run(ranks(3, &format!("train --resume --out {out} --epochs 3 --json")));
    let last: Vec<Said> = found.into_iter().map(|rank| rank.unwrap()).collect();
    let all: Vec<Value> = two.iter().chain(&last[0].lines).cloned().collect();
    same_epochs(&all, &one, 1e-9, "in shards on two and three ranks");
    // What fits is chosen, and said.
    let auto = said(format!("{} --ranks 2 --parallel auto --out {}", settings(1), scratch.path("auto")));
    assert!(auto.iter().any(|line| line["parallel"] == "data" || line["parallel"] == "shard"), "{auto:?}");
}

#[test]
fn stages_of_the_command_train_as_one_hold_their_own_and_keep_their_limit() {
    let scratch = Scratch::new("stages");
    let settings = format!("{SMALL} --epochs 2 --precision f64 --validation-split 0.2 --clip-norm 1");
    let said = |words: String| lines(&words.split(' ').collect::<Vec<_>>()).unwrap();
    let one = said(format!("train {settings} --out {}", scratch.path("one")));
    let plan = said(format!("plan {settings} --no-frontier --ranks 3 --parallel pipeline")).remove(0);
    let rows = plan["strategies"].as_array().unwrap();
    let stages = rows[5]["pipeline"]["stages"].as_array().unwrap();
    let held: u64 = stages.iter().map(|stage| bytes(stage, "parameter_bytes")).sum();
    assert_eq!((stages.len(), held), (3, bytes(&rows[0], "parameter_bytes")), "{plan}");
    assert_eq!(plan["parallel"], "pipeline");
    assert!(bytes(&plan["strategies"][5]["pipeline"], "parts") == 6, "{plan}");
    for stage in stages {
        assert!(bytes(stage, "optimizer_bytes") < bytes(&rows[0], "optimizer_bytes"), "{plan}");
    }
    // What a plan says of each rank is what it keeps to.
    let most = stages.iter().map(|stage| bytes(stage, "planned_bytes")).max().unwrap();
    let limit = most + (8 << 20);
    let out = scratch.path("three");
    let found = run(ranks(3, &format!("train {settings} --parallel pipeline --memory {limit} --out {out}")));
    let found: Vec<Said> = found.into_iter().map(|rank| rank.unwrap()).collect();
    same_epochs(&found[0].lines, &one, 1e-9, "three stages");
    for (rank, said) in found.iter().enumerate() {
        assert!(
            said.peak_bytes > 0 && said.peak_bytes <= limit,
            "rank {rank}: {} of {limit}",
            said.peak_bytes
        );
    }
    // What was written is one rank's.
    let weights = |run: &str| std::fs::metadata(scratch.path(run) + "/model.safetensors").unwrap().len();
    assert_eq!(weights("three"), weights("one"));
}

#[test]
fn a_thousand_ranks_on_machines_that_are_not_there_are_planned_in_seconds() {
    let gpt = "plan gpt --width 256 --depth 2 --heads 4 --sequence 64 --data random --device h200 --memory 80GiB --no-frontier";
    let said = |more: &str| lines(&format!("{gpt} {more}").split(' ').collect::<Vec<_>>());
    let start = Instant::now();
    let line = said("--batch 2048 --ranks 1024 --nodes 128 --json").unwrap().remove(0);
    // A development build, on whatever else the machine does.
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    let rows = line["strategies"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["parallel"].as_str().unwrap()).collect();
    let alone = ["data", "state", "shard", "parameters", "tensor", "pipeline"];
    // A group a machine.
    assert_eq!(names, [&alone[..], &["data:128+tensor", "data:128+pipeline"]].concat());
    // Of two layers of this width, columns can be cut so often, and heads cannot.
    assert!(bytes(&rows[4], "parameter_bytes") < bytes(&rows[0], "parameter_bytes"), "{}", rows[4]);
    // Two layers have no thousand stages.
    assert!(rows[5]["why"].as_str().is_some_and(|why| why.contains("1024 stages")), "{}", rows[5]);
    let of = |row: usize, field: &str| rows[row][field].as_f64().unwrap();
    let share = of(2, "optimizer_bytes") / of(0, "optimizer_bytes");
    assert!(share < 0.02, "{share} of the state on each of 1024 ranks: {rows:?}");
    assert!(
        of(2, "planned_bytes") < of(1, "planned_bytes") && of(3, "planned_bytes") < of(2, "planned_bytes")
    );
    let parameters = of(0, "parameter_bytes");
    let sent = |row: usize| of(row, "sent_inside_bytes") + of(row, "sent_between_bytes");
    assert!((sent(0) / (2.0 * parameters * 1023.0 / 1024.0) - 1.0).abs() < 1e-3);
    // Shards of short parameters are filled up with zeros; with parameters in shards, vectors stay whole and go twice, all else three times.
    assert!((sent(2) / sent(0) - 1.0).abs() < 0.01, "{} {}", sent(2), sent(0));
    assert!((1.4..1.5).contains(&(sent(3) / sent(0))), "{} {}", sent(3), sent(0));
    assert!(of(0, "exchange_seconds") > 0.0 && of(0, "exchange_seconds") < of(0, "predicted_seconds"));
    // More machines for as many ranks: more goes between machines.
    let near = said("--batch 64 --ranks 16 --nodes 2 --json").unwrap().remove(0);
    let far = said("--batch 64 --ranks 16 --nodes 16 --json").unwrap().remove(0);
    let time = |line: &Value| line["strategies"][0]["exchange_seconds"].as_f64().unwrap();
    assert!(time(&far) > time(&near), "{near} {far}");
    let parameters = |row: usize| near["strategies"][row]["parameter_bytes"].as_f64().unwrap();
    assert!(parameters(4) < 0.1 * parameters(0), "{near}");
    // Two groups of eight: an eighth of the weights, and nothing but its own gradients goes to the other machine.
    let grouped = &near["strategies"][6];
    assert!(grouped["parallel"] == "data:2+tensor" && parameters(6) < 0.3 * parameters(0), "{grouped}");
    let between = |row: usize| near["strategies"][row]["sent_between_bytes"].as_f64().unwrap();
    assert!(between(6) > 0.0 && between(6) < between(4), "{near}");
    for (more, why) in [
        ("--batch 64 --ranks 16 --nodes 1", "has 8 cards"),
        ("--batch 64 --ranks 16 --nodes 3", "do not lie evenly"),
        ("--batch 8 --ranks 16", "a batch has 8 samples for 16 ranks"),
    ] {
        let said = said(more).unwrap_err();
        assert!(said.contains(why), "{more}: {said}");
    }
}

#[test]
fn what_is_wrong_for_all_ranks_is_said_once() {
    let scratch = Scratch::new("ranks-wrong");
    let words = format!(
        "train unet --data random --image 16 --width 4 --depth 2 --classes 3 --take 6 --batch 3 --epochs 1 --parallel tensor --out {}",
        scratch.path("run")
    );
    let said: Vec<String> = run(ranks(3, &words)).into_iter().filter_map(Result::err).collect();
    let wrong: Vec<&String> = said.iter().filter(|why| why.contains("can have parts of")).collect();
    assert_eq!((said.len(), wrong.len()), (3, 1), "{said:?}");
    assert!(!wrong[0].contains("rank 1:") && !wrong[0].contains("rank 2:"), "the first says it: {said:?}");
}

#[test]
fn every_rank_keeps_its_memory_limit_from_the_least_on() {
    let scratch = Scratch::new("ranks-memory");
    let settings = |name: &str, memory: u64| {
        format!("train {SMALL} --epochs 1 --memory {memory} --out {}", scratch.path(name))
    };
    // The rank that needs most says why, and no other.
    let refused: Vec<String> =
        run(ranks(2, &settings("refused", 1 << 20))).into_iter().filter_map(Result::err).collect();
    let said: Vec<&String> = refused.iter().filter(|why| why.contains("cannot be kept")).collect();
    assert_eq!((refused.len(), said.len()), (2, 1), "{refused:?}");
    let least = least_of(said[0]);
    // What the process takes beside its plan is declared for a release build; in others it is measured, and varies by this.
    let grain = if cfg!(debug_assertions) { 2 << 20 } else { 0 };
    let limit = least + grain;
    for (rank, said) in run(ranks(2, &settings("least", limit))).into_iter().enumerate() {
        let said = said.unwrap_or_else(|why| panic!("rank {rank} under {limit}: {why}"));
        assert!(
            said.peak_bytes > 0 && said.peak_bytes <= limit,
            "rank {rank}: {} of {limit}",
            said.peak_bytes
        );
        if rank == 0 {
            let epoch = epochs(&said.lines)[0];
            assert!(bytes(epoch, "resident_peak_bytes") <= limit);
        }
    }
    let below = run(ranks(2, &settings("below", least - 1 - grain)));
    assert!(below.iter().all(Result::is_err), "below the least");
    // What a plan says of ranks that are not there is what they say.
    let planned = |more: &str| {
        let words = format!("plan {SMALL} --epochs 1 --no-frontier{more}");
        lines(&words.split(' ').collect::<Vec<_>>()).unwrap().remove(0)
    };
    let (two, one) = (planned(" --ranks 2"), planned(""));
    assert_eq!((&two["ranks"], &two["rank"]), (&2.into(), &0.into()));
    assert!(bytes(&two, "floor_bytes").abs_diff(least) <= grain, "{} and {least}", two["floor_bytes"]);
    assert!(bytes(&two, "rank_bytes") > 0 && bytes(&one, "rank_bytes") == 0);
    assert!(bytes(&two, "input_bytes") < bytes(&one, "input_bytes"), "half of the batch");
}

#[test]
fn what_is_not_built_and_what_differs_is_refused_by_name() {
    let refused = |words: &str| lines(&words.split(' ').collect::<Vec<_>>()).unwrap_err();
    let why = refused(&format!("train {SMALL} --parallel pipelines"));
    assert!(why.contains("--parallel pipelines is not known") && why.contains("tensor, pipeline"), "{why}");
    assert!(refused(&format!("train {SMALL} --parallel widely")).contains("not known"));
    let why = refused(&format!("train {SMALL} --parallel shard+tensor"));
    assert!(why.contains("data+tensor and data+pipeline are built"), "{why}");
    let why = refused(&format!("plan {SMALL} --ranks 3 --parallel data+tensor"));
    assert!(why.contains("3 ranks are not 2 groups"), "{why}");
    assert!(refused(&format!("train {SMALL} --ranks 0")).contains("--ranks 0"));
    // What another rank than the first has to say carries its number.
    let of_two = ranks(2, "train cnn --data digits --threads 1 --json --memory 100MiB --batch auto");
    let said: Vec<String> = run(of_two).into_iter().map(|rank| rank.err().unwrap_or_default()).collect();
    assert!(said[0].contains("plimsoll: --batch auto looks for"), "{said:?}");
    assert!(said[1].contains("plimsoll: rank 1: ") || said[1].is_empty(), "{said:?}");
    for parallel in ["data", "pipeline"] {
        let scratch = Scratch::new(&format!("ranks-differ-{parallel}"));
        let settings =
            format!("train {SMALL} --epochs 1 --parallel {parallel} --out {}", scratch.path("run"));
        let mut commands = ranks(2, &settings);
        commands[1].args(["--memory", "500MiB"]);
        let said: Vec<String> = run(commands).into_iter().filter_map(|rank| rank.err()).collect();
        let all = said.join(" ");
        assert_eq!(said.len(), 2, "{all}");
        assert!(all.contains("the memory limit is '500 MiB' on rank 1 and 'none' on rank 0"), "{all}");
    }
}

/// A run of two ranks that goes on for long, once its first checkpoint is there.
fn begun(scratch: &Scratch, more: &str) -> Vec<Child> {
    let settings =
        format!("train {SMALL} --epochs 100000 --checkpoint-every 1{more} --out {}", scratch.path("run"));
    let start = |mut command: Command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut children: Vec<Child> = ranks(2, &settings).into_iter().map(start).collect();
    let mut said = BufReader::new(children[0].stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("\"epoch\"")), "an epoch is done");
    // What it says from now on nobody reads.
    std::thread::spawn(move || said.for_each(drop));
    children
}

pub(super) fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// What a process said before it failed, and how long that took.
fn failed(child: Child) -> (String, Duration) {
    let began = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    (String::from_utf8_lossy(&output.stderr).into_owned(), began.elapsed())
}

/// Takes the second of two ranks away, by a signal: the first one names it and the last checkpoint. How long that took.
fn without_the_second(scratch: &Scratch, more: &str, name: &str) -> Duration {
    let mut children = begun(scratch, more);
    signal(&children[1], name);
    let mut second = children.pop().unwrap();
    let (why, took) = failed(children.pop().unwrap());
    second.kill().unwrap();
    second.wait().unwrap();
    assert!(why.contains("rank 1") && why.contains("the last checkpoint is"), "{why}");
    took
}

#[test]
fn a_rank_that_is_killed_ends_the_other_with_its_number_and_the_run_goes_on() {
    let scratch = Scratch::new("ranks-killed");
    let took = without_the_second(&scratch, "", "-KILL");
    assert!(took < Duration::from_secs(10), "{took:?}");
    // By one rank, from the checkpoint, to an end that is near.
    let step = |name: &str| name.rsplit('-').next().and_then(|n| n.parse::<u64>().ok());
    let there = std::fs::read_dir(scratch.path("run/checkpoints")).unwrap();
    let newest = there.filter_map(|entry| step(entry.unwrap().file_name().to_str()?)).max().unwrap();
    let epochs = (newest / 4 + 1).to_string();
    let run = scratch.path("run");
    let words = ["train", "--resume", "--out", &run, "--epochs", &epochs, "--json"];
    let gone_on = lines(&words).unwrap();
    assert!(gone_on.iter().any(|line| line["event"] == "epoch"), "{gone_on:?}");
}

#[test]
fn a_rank_that_hangs_ends_the_other_within_the_rank_timeout() {
    for parallel in ["data", "pipeline"] {
        let scratch = Scratch::new(&format!("ranks-stopped-{parallel}"));
        let more = format!(" --rank-timeout 2 --parallel {parallel}");
        let took = without_the_second(&scratch, &more, "-STOP");
        assert!(took < Duration::from_secs(15), "{parallel}: {took:?}");
    }
}

#[test]
fn a_signal_to_any_rank_ends_all_in_order() {
    let scratch = Scratch::new("ranks-signal");
    let mut children = begun(&scratch, "");
    signal(&children[1], "-TERM");
    let second = children.pop().unwrap().wait_with_output().unwrap();
    let (why, _) = failed(children.pop().unwrap());
    assert!(why.contains("stopped after step") && why.contains("--resume"), "{why}");
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stderr));
}

#[test]
fn mpirun_trains_as_one() {
    let launchers = launchers();
    if launchers.is_empty() {
        return;
    }
    let scratch = Scratch::new("ranks-mpi");
    let settings = |name: &str| {
        format!("train {SMALL} --epochs 2 --precision f64 --memory 150MiB --out {}", scratch.path(name))
    };
    let one = lines(&settings("one").split(' ').collect::<Vec<_>>()).unwrap();
    for launcher in launchers {
        let name = launcher.name;
        for (n, parallel) in [(2, "data"), (3, "data"), (3, "pipeline"), (4, "data+tensor")] {
            let (mut command, _kept) = launcher.command(n);
            let own = plimsoll();
            command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command.arg(own.get_program()).args(settings(&format!("{name}-{n}-{parallel}")).split(' '));
            command.args(["--parallel", parallel]);
            let said = child::lines(&mut command).unwrap_or_else(|why| panic!("{name} -n {n}: {why}"));
            same_epochs(&said.lines, &one, 1e-9, &format!("{name} -n {n}"));
            let epoch = epochs(&said.lines)[1];
            assert!(bytes(epoch, "resident_peak_bytes") <= 150 << 20, "{name}: {epoch}");
        }
    }
}

#[test]
fn a_way_that_nobody_shares_is_said() {
    let scratch = Scratch::new("ranks-one");
    let run = scratch.path("run");
    for words in [
        vec!["train", "mlp", "--data", "digits", "--epochs", "1", "--take", "64", "--out", run.as_str()],
        vec!["plan", "mlp", "--data", "digits", "--no-frontier"],
        vec!["bench", "mlp", "--data", "digits", "--steps", "2"],
    ] {
        let said = |more: &[&str]| {
            let output = plimsoll().args(&words).args(more).output().unwrap();
            assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let text = said(&["--parallel", "tensor"]);
        assert!(text.contains("--parallel tensor changes nothing on one rank"), "{words:?}: {text}");
        if words[0] != "train" {
            assert!(!said(&["--parallel", "auto"]).contains("one rank"), "{words:?}");
        }
    }
}
