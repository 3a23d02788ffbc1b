//! The memory limit on a card, measured from outside: NVIDIA's own tool is asked again and again while the command runs.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{bytes, plimsoll};
use plimsoll_testing::group;
use serde_json::Value;

/// The bytes of the first card that processes hold, as `nvidia-smi` says; none where there is no card.
fn held() -> Option<u64> {
    let asked = ["--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"];
    let answer = Command::new("nvidia-smi").args(asked).output().ok()?;
    let mib: u64 = String::from_utf8(answer.stdout).ok()?.trim().parse().ok()?;
    Some(mib << 20)
}

/// A card that nobody else uses, with what it holds before the command runs, or a sentence that says that there is none.
fn card() -> Option<u64> {
    group("card", held().ok_or("nvidia-smi does not answer"))
}

/// Runs the command on the card, and returns its last JSON line with the most that the card held meanwhile.
fn run(arguments: &[&str], memory: Option<u64>, before: u64) -> Result<(Value, u64), String> {
    let memory = memory.map(|bytes| bytes.to_string());
    let mut arguments = [arguments, &["--device", "cuda", "--json"]].concat();
    if let Some(memory) = &memory {
        arguments.extend(["--memory", memory]);
    }
    let mut command = plimsoll();
    let child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|e| e.to_string())?;
    let mut most = 0;
    while child.try_wait().map_err(|e| e.to_string())?.is_none() {
        most = most.max(held().unwrap_or(0).saturating_sub(before));
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    let (said, text) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        return Err(said.into_owned());
    }
    let last = text.lines().rev().find(|line| line.starts_with('{')).ok_or("nothing was printed")?;
    Ok((serde_json::from_str(last).map_err(|e| e.to_string())?, most))
}

#[test]
fn a_memory_limit_on_a_card_is_kept_as_the_driver_counts_it_with_the_same_bits() {
    let Some(before) = card() else { return };
    for case in [
        "resnet18 --batch 256",
        "unet --width 64 --depth 5 --image 256 --batch 8 --precision mixed-bf16",
        "gpt2 --classes 50304 --optimizer adamw --lr 3e-4 --batch 4 --precision mixed-bf16",
        "lstm --width 1024 --sequence 256 --classes 10000 --batch 64 --precision mixed-bf16",
    ] {
        let common = "--data random --metrics none --steps 8 --exact bitwise";
        let case: Vec<&str> = ["bench"].into_iter().chain(case.split(' ')).chain(common.split(' ')).collect();
        let (free, _) = run(&case, None, before).unwrap();
        let (least, most) = (bytes(&free, "floor_bytes"), bytes(&free, "planned_bytes"));
        for limit in [least, (2 * least + most) / 3, (least + 2 * most) / 3, most] {
            let (tight, seen) = run(&case, Some(limit), before).unwrap();
            let own = bytes(&tight, "device_bytes");
            println!("{case:?} limit {limit}: {seen} seen, {own} by its own count, {} ms", tight["ms"]);
            assert!(
                seen <= limit && own <= limit,
                "{seen} and {own} bytes under a limit of {limit}: {tight}"
            );
            assert_eq!(tight["losses"], free["losses"], "other bits at {limit}");
        }
        let error = run(&case, Some(least - 1), before).unwrap_err();
        assert!(error.contains("cannot be kept"), "{error}");
    }
}

/// The most that a process ever had resident, as the system says while it runs.
fn peak_resident(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Trains on the card under both limits: the plan it announced, what the card held at most, and what the host did.
fn train_under_both(words: &str, card: u64, host: u64, before: u64) -> (Value, u64, u64) {
    let limits = format!("--memory {card} --host-memory {host} --device cuda --epochs 1 --json");
    let words = words.split(' ').chain(limits.split(' '));
    let mut command = plimsoll();
    command.arg("train").args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut of_card, mut of_host) = (0, 0);
    while child.try_wait().unwrap().is_none() {
        of_card = of_card.max(held().unwrap_or(0).saturating_sub(before));
        // The mark only rises, but for an early one that is still of this process.
        of_host = peak_resident(child.id()).unwrap_or(of_host);
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |event: &str| events.iter().rfind(|line| line["event"] == event).unwrap().clone();
    let own = bytes(&of("epoch"), "resident_peak_bytes");
    (of("plan"), of_card, of_host.max(own))
}

#[test]
fn ten_runs_on_a_card_keep_the_hosts_limit_and_the_cards() {
    let Some(before) = card() else { return };
    let models = [
        "mlp --width 2048 --data digits --batch 128",
        "cnn --width 64 --data digits --batch 128",
        "resnet18 --width 64 --take 512 --batch 64",
        "gpt --take 64 --batch 16 --width 256 --depth 4 --heads 4",
        "lstm --take 64 --batch 16 --width 512 --depth 2",
    ];
    let scratch = plimsoll_testing::Scratch::new("both-limits");
    for (i, (model, spare)) in models.iter().flat_map(|model| [(model, 0), (model, 512 << 20)]).enumerate() {
        let words: Vec<&str> = model.split(' ').collect();
        let plan = [&["plan"], &words[..], &["--no-frontier"]].concat();
        let (free, _) = run(&plan, None, before).unwrap();
        // First the least of both, then some more of the host and some less of the card than the fastest plan takes.
        let floor = bytes(&free, "floor_bytes");
        let card = if spare == 0 { floor } else { floor.midpoint(bytes(&free, "unlimited_bytes")) };
        let host = bytes(&free, "host_planned_bytes") + spare;
        let out = scratch.path(&format!("run-{i}"));
        let (plan, of_card, of_host) = train_under_both(&format!("{model} --out {out}"), card, host, before);
        println!("{model}: card {of_card} of {card}, host {of_host} of {host}");
        assert!(of_card <= card && of_host <= host, "{model}: {of_card} of {card}, {of_host} of {host}");
        assert!(
            bytes(&plan, "host_planned_bytes") <= host && bytes(&plan, "planned_bytes") <= card,
            "{plan}"
        );
    }
}
