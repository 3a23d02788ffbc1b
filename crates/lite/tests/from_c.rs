//! The example in C, compiled and run, against the same model run from Rust. Needs a C compiler; counted as the group `c` where there is none.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::fixtures;
use plimsoll_lite::Model;

fn library(folder: &Path) -> PathBuf {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let built = Command::new(cargo)
        .args(["rustc", "--offline", "--features", "capi", "--crate-type", "staticlib", "--target-dir"])
        .arg(folder)
        .arg("--manifest-path")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .output()
        .expect("cargo can be started");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    folder.join("debug/libplimsoll_lite.a")
}

#[test]
fn the_example_in_c_gives_the_same_values() {
    let found = Command::new("cc").arg("--version").output();
    let Some(_) = plimsoll_testing::group("c", found) else { return };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join("run");
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(here.join("include"))
        .arg(here.join("examples/run.c"))
        .arg(library(&folder.join("c")))
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .expect("the compiler can be started");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));

    for name in ["net.f32", "net.int8"] {
        let all = fixtures();
        let fixture = all.iter().find(|fixture| fixture.name == name).unwrap();
        let path = here.join(format!("tests/fixtures/{name}.tflite"));
        let ran = Command::new(&program).arg(&path).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let text = String::from_utf8(ran.stdout).unwrap();

        let model = Model::load(&fixture.model).unwrap();
        let mut arena = vec![0; model.arena_bytes()];
        model.set_input(0, &[0.0; 16 * 16 * 3], &mut arena).unwrap();
        model.run(&mut arena).unwrap();
        let mut values = [0.0; 5];
        model.get_output(0, &arena, &mut values).unwrap();
        let mut expected = format!("arena {}\n", model.arena_bytes());
        values.iter().for_each(|value| expected += &format!("{value:.6}\n"));
        assert_eq!(text, expected, "{name}");
    }

    let damaged = folder.join("damaged.tflite");
    std::fs::write(&damaged, &fixtures()[0].model[..200]).unwrap();
    let ran = Command::new(&program).arg(&damaged).output().unwrap();
    assert!(!ran.status.success());
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(said.starts_with("not a whole .tflite file"), "{said}");
}
