//! `--allocator` from outside: the same training under every one, within the memory limit.

use serde_json::Value;

use crate::common::{bytes, lines};
use plimsoll_testing::Scratch;

#[test]
fn every_allocator_trains_the_same_within_the_memory_limit() {
    let scratch = Scratch::new("allocators");
    let words = "mlp --width 256 --data digits --take 512 --batch 64 --threads 1";
    let plan = |kind: &str| -> Value {
        let words = words.split(' ').chain(["--allocator", kind, "--no-frontier", "--json"]);
        lines(&["plan"].into_iter().chain(words).collect::<Vec<_>>()).unwrap().pop().unwrap()
    };
    let mut losses = Vec::new();
    for kind in ["best-fit", "system", "pages", "pool"] {
        let planned = plan(kind);
        assert_eq!(planned["allocator"], kind, "{planned}");
        let (limit, out) = (bytes(&planned, "floor_bytes"), scratch.path(kind));
        let limited = limit.to_string();
        let more = ["--allocator", kind, "--memory", &limited, "--epochs", "2", "--json", "--out", &out];
        let words = ["train"].into_iter().chain(words.split(' ')).chain(more);
        let said = lines(&words.collect::<Vec<_>>()).unwrap_or_else(|why| panic!("{kind}: {why}"));
        let epoch = said.iter().rfind(|line| line["event"] == "epoch").unwrap();
        let peak = bytes(epoch, "resident_peak_bytes");
        println!("{kind}: {peak} of {limit}");
        assert!(peak <= limit, "{kind}: {peak} of {limit}");
        losses.push(epoch["loss"].as_f64().unwrap());
        let kept = std::fs::read_to_string(format!("{out}/plan.json")).unwrap();
        assert!(
            kept.contains(&format!("\"allocator\": \"{kind}\""))
                || kept.contains(&format!("\"allocator\":\"{kind}\"")),
            "{kept}"
        );
    }
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
}

#[test]
fn an_allocator_that_is_none_or_not_of_the_device_is_refused_by_name() {
    let ask = |words: &str| lines(&words.split(' ').collect::<Vec<_>>()).unwrap_err();
    let why = ask("plan mlp --allocator bfc");
    assert!(why.contains("there is no allocator 'bfc'; use best-fit, system, pages or pool"), "{why}");
    let why = ask("plan mlp --allocator pool --device h200");
    assert!(why.contains("--allocator pool: the record of a card is planned in its pages"), "{why}");
    let devices = lines(&["devices", "--json"]).unwrap().pop().unwrap();
    let cpu = &devices["devices"][0];
    assert!(
        cpu["allocator"] == "best-fit"
            && cpu["other_allocators"].as_array().is_some_and(|all| all.len() == 3),
        "{cpu}"
    );
}
