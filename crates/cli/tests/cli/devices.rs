//! `plimsoll devices` from outside.

use crate::common::{bytes, lines, plimsoll};

#[test]
fn devices_are_listed_with_their_memory_and_a_missing_card_with_its_reason() {
    let survey = lines(&["devices", "--json"]).unwrap().pop().unwrap();
    let devices = survey["devices"].as_array().unwrap();
    let cpu = &devices[0];
    assert_eq!(cpu["name"], "cpu");
    assert!(bytes(cpu, "memory_free_bytes") <= bytes(cpu, "memory_total_bytes"), "{cpu}");
    assert!(bytes(cpu, "allowed_cores") >= 1 && bytes(cpu, "cores") >= bytes(cpu, "allowed_cores"), "{cpu}");
    assert!(cpu["kernels"].as_str().is_some_and(|set| !set.is_empty()), "{cpu}");
    // Either there are cards with all that is known of them, or a reason why there are none.
    match survey["no_card"].as_str() {
        Some(why) => {
            assert!(devices.len() == 1 && why.starts_with("no CUDA device"), "{survey}");
            assert!(["libcuda.so.1", "driver"].iter().any(|what| why.contains(what)), "{why}");
        }
        None => {
            let card = &devices[1];
            assert!(card["name"] == "cuda:0" && card["driver"].is_string(), "{card}");
            assert!(
                card["compute_capability"].is_string() && bytes(card, "memory_total_bytes") > 0,
                "{card}"
            );
            assert_eq!(card["libraries"].as_array().map(Vec::len), Some(4), "{card}");
        }
    }
    let said = plimsoll().arg("devices").output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(text.starts_with("cpu: ") && text.contains("memory") && text.contains("kernels use"), "{text}");
}
