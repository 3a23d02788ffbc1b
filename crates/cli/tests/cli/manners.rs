//! Small commands given wrong things: one sentence, exit status 1, and nothing written over.

use std::path::Path;

use crate::common::{Scratch, plimsoll};

/// What a command says that fails with status 1.
fn refused(arguments: &[&str]) -> String {
    let out = plimsoll().args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{arguments:?}: {said}");
    assert!(
        said.starts_with("plimsoll: ") && !said.contains("internal error") && out.stdout.is_empty(),
        "{said}"
    );
    said
}

#[test]
fn folders_junk_and_nothing_are_refused_by_every_reader() {
    let scratch = Scratch::new("manners-files");
    let (folder, junk, empty) = (scratch.path("folder"), scratch.path("junk"), scratch.path("empty"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(&junk, [0xff, 0xfe, 0, 1, 2, 200, 10, 13]).unwrap();
    std::fs::write(&empty, "").unwrap();
    let missing = scratch.path("missing");
    for command in ["explain", "inspect", "pack", "report"] {
        for file in [&folder, &junk, &empty, &missing] {
            let said = refused(&[command, file]);
            assert!(said.contains(file.as_str()), "{command} {file}: {said}");
        }
    }
    for command in ["explain", "inspect", "pack"] {
        assert!(refused(&[command, &folder]).contains("is a folder; name "), "{command}");
    }
}

#[test]
fn a_plan_that_cannot_be_written_is_no_error_of_the_engine() {
    let scratch = Scratch::new("manners-plan");
    let folder = scratch.path("folder");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(format!("{folder}/precious"), "1").unwrap();
    let nowhere = scratch.path("no/folder/plan.json");
    for out in [&folder, &nowhere] {
        let said = refused(&["plan", "mlp", "--batch", "2", "--no-frontier", "--out", out]);
        assert!(said.contains("cannot be written") && said.contains("--out"), "{said}");
    }
    assert_eq!(std::fs::read_to_string(format!("{folder}/precious")).unwrap(), "1");
}

#[test]
fn what_is_read_is_never_written_over() {
    let scratch = Scratch::new("manners-over");
    let (table, log) = (scratch.path("table.csv"), scratch.path("log"));
    let text = "id,lower,upper,size\n1,0,3,10\n";
    std::fs::write(&table, text).unwrap();
    assert!(refused(&["pack", &table, "--out", &table]).contains("is what is read"));
    assert_eq!(std::fs::read_to_string(&table).unwrap(), text);
    assert!(refused(&["pack", &table, "--seconds", "nan"]).contains("--seconds"));
    assert!(refused(&["pack", &table, "--seconds", "-1"]).contains("--seconds"));
    let said = plimsoll().args(["pack", &table]).output().unwrap();
    assert!(String::from_utf8_lossy(&said.stdout).starts_with("1 buffer in 10 bytes"), "{said:?}");
    let oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 7.79 GiB \
               of which 10.00 MiB is free. Of the allocated memory 7.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved \
               by PyTorch but unallocated.";
    std::fs::write(&log, oom).unwrap();
    assert!(refused(&["explain", &log, "--html", "--out", &log]).contains("is what is read"));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), oom);
}

#[test]
fn the_guides_page_of_commands_is_what_the_program_says() {
    let said = plimsoll().arg("reference").output().unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/src/commands.md");
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(
        String::from_utf8_lossy(&said.stdout) == written,
        "docs/guide/src/commands.md is not up to date; write it anew: plimsoll reference > docs/guide/src/commands.md"
    );
    for command in ["train", "plan", "bench", "inspect"] {
        assert!(written.contains(&format!("## plimsoll {command}\n")), "{command} is missing");
    }
}
