//! Every example runs and holds what it asserts.
//!
//! Examples are programs of their own, since what some of them show is the memory of a whole process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Examples that want something that is not everywhere: a data set on disk.
const NOT_RUN: [&str; 1] = ["fashion"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// Runs an example to its end.
fn run(name: &str) {
    let Ok(test) = std::env::current_exe() else { panic!("this test does not know where it is") };
    // .../debug/deps/examples-1234 stands beside .../debug/examples/NAME, which `cargo test` has built.
    let Some(target) = test.parent().and_then(Path::parent) else { panic!("{} is nowhere", test.display()) };
    let program = target.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let source = folder().join(format!("{name}.rs"));
    // `cargo test --test examples` builds no examples.
    if changed(&program) < changed(&source) {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "-p", "plimsoll", "--example", name]);
        if target.file_name().is_some_and(|profile| profile == "release") {
            build.arg("--release");
        }
        assert!(build.status().is_ok_and(|status| status.success()), "{name} does not build");
    }
    let output = Command::new(&program).env("PLIMSOLL_DEVICE", "cpu").output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name}: {text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.is_empty(), "{name} says nothing");
}

macro_rules! examples {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)) })*

        #[test]
        fn every_example_is_run_or_says_why_not() {
            let known = [$(stringify!($name)),*];
            let files = std::fs::read_dir(folder()).unwrap();
            let mut n = 0;
            for file in files {
                let path = file.unwrap().path();
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                assert!(known.contains(&&*name) != NOT_RUN.contains(&&*name), "{name} is in no list, or in both");
                n += 1;
            }
            assert_eq!(n, known.len() + NOT_RUN.len());
        }
    };
}

examples! {
    allocator bucketed_text callback custom_layer custom_loop custom_op data_source eager_memory fine_tune gan gradient_penalty memory_limit
    segmentation text vae
}
