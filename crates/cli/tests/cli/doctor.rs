//! `plimsoll doctor` from outside.

use crate::common::{Scratch, lines, plimsoll};

#[test]
fn a_machine_on_which_tests_run_is_well_and_says_of_what() {
    let scratch = Scratch::new("doctor");
    let found = lines(&["doctor", "--json", "--runs", &scratch.path("runs")]).unwrap().pop().unwrap();
    assert_eq!((&found["healthy"], &found["broken"]), (&true.into(), &0.into()), "{found}");
    let checks = found["checks"].as_array().unwrap();
    for name in [
        "training on cpu",
        "memory",
        "processor",
        "open files",
        "runs folder",
        "cache folder",
        "/dev/shm",
        "clock",
    ] {
        assert!(checks.iter().any(|check| check["name"] == name), "{name} is not in {found}");
    }
    let trained = &checks[0]["found"];
    assert!(trained.as_str().is_some_and(|text| text.contains("the same bits without a limit")), "{trained}");
    assert!(!std::path::Path::new(&scratch.path("runs")).exists(), "looking makes no folder");
}

#[test]
fn what_is_broken_is_named_with_what_to_do_and_the_command_fails() {
    let out = plimsoll().args(["doctor", "--runs", "/proc/nothing"]).output().unwrap();
    let (said, why) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(1), "{said}{why}");
    assert!(said.contains("broken   runs folder") && said.contains("name another folder"), "{said}");
    assert!(why.contains("1 check broken: runs folder"), "{why}");
}
