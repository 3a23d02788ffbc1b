//! Other systems' reports, explained from the command line.

use std::io::Write;
use std::process::Stdio;

use crate::common::{lines, plimsoll};

const HOLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../explain/tests/fixtures/tf_holes.log");
const HOSTILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../explain/tests/fixtures/hostile.p4.pickle");

#[test]
fn a_log_is_explained_as_text_json_and_a_page() {
    let text = plimsoll().args(["explain", HOLES]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("Verdict: fragmentation") && text.contains("cuda_malloc_async"), "{text}");
    let told = lines(&["explain", HOLES, "--json"]).unwrap();
    assert_eq!((told.len(), told[0]["verdict"].as_str()), (1, Some("fragmentation")));
    let page = plimsoll().args(["explain", HOLES, "--html", "-o", "-"]).output().unwrap();
    assert!(String::from_utf8(page.stdout).unwrap().contains("role=\"img\""));
}

#[test]
fn a_message_on_standard_input_is_explained() {
    let mut child = plimsoll()
        .args(["explain", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let message = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free.";
    child.stdin.take().unwrap().write_all(message.as_bytes()).unwrap();
    let told: serde_json::Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!((told["source"].as_str(), told["asked_bytes"].as_u64()), (Some("pytorch"), Some(2 << 30)));
}

#[test]
fn what_cannot_be_explained_is_one_sentence_and_an_exit_code() {
    for (file, part) in
        [(HOSTILE, "nothing was run"), ("/nowhere/oom.log", "/nowhere/oom.log"), ("/dev/null", "is empty")]
    {
        let out = plimsoll().args(["explain", file]).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(!out.status.success() && said.contains(part) && said.lines().count() == 1, "{said}");
    }
}
