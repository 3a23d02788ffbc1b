//! Wrong invocations: each ends with the right code and one message that helps, and leaves everything as it was.

use std::fs;

use crate::common::{Scratch, plimsoll};
use crate::evening::contents;

const TABLE: &str = include_str!("wrong.txt");

/// Files and folders that invocations name.
fn make(scratch: &Scratch) {
    let write = |name: &str, text: &str| fs::write(scratch.path(name), text).unwrap();
    for folder in [
        "folder",
        "damaged",
        "unfinished",
        "out",
        "pictures/cat",
        "pictures/dog",
        "folder.toml",
        "folder.keras",
        "folder.pt2",
    ] {
        fs::create_dir_all(scratch.path(folder)).unwrap();
    }
    write("file.txt", "a file");
    write("file.bin", "bytes");
    write("file.times", "plimsoll kernel times 1\n");
    write("junk.keras", "no archive");
    write("empty.keras", "");
    write("junk.h5", "no HDF5");
    write("junk.npz", "no archive");
    write("empty.npz", "");
    write("junk.tfrecord", "no record");
    write("empty.tfrecord", "");
    write("empty.tar", "");
    write("none.tar", &"\0".repeat(10240));
    write("text.txt", &"the line holds, and so ".repeat(100));
    write("short.txt", "abc");
    write("empty.txt", "");
    write("empty.csv", "");
    write("header.csv", "a,b,label\n");
    write("one.csv", "label\n1\n0\n");
    write("ragged.csv", "a,b,label\n1,2,0\n1,1\n");
    write("words.csv", "a,b,label\n1,two,0\n1,2,1\n");
    write("nan.csv", "a,b,label\n1,2,0\n1,nan,1\n1,2,1\n");
    write("huge.csv", "a,b,label\n1,2,0\n1,2,1000000000000\n");
    write("many.csv", "a,b,label\n1,2,0\n1,2,7\n");
    write("negative.csv", "a,b,label\n1,2,0\n1,2,-1\n");
    write("numbers.csv", "a,b,label\n1,2,0.5\n1,2,1.25\n");
    let rows: String = (0..40).map(|i| format!("{},{},{}\n", i % 7, i % 5, i % 2)).collect();
    write("table.csv", &format!("a,b,label\n{rows}"));
    write("same.csv", "a,b,label\n1,2,0\n3,4,0\n");
    write("table.csv.gz", "packed");
    write("pictures/cat/1.png", "no image");
    write("pictures/dog/1.png", "no image");
    write("damaged/config.toml", "model = ");
    write("unfinished/config.toml", "model = \"cnn\"\ndata = \"digits\"\n");
    fs::write(scratch.path("bytes.toml"), [0xff, 0xfe, 0x00]).unwrap();
    write("empty.toml", "# nothing\n");
    write("bad.toml", "model = \"cnn\"\nbatch = = 3\n");
    write("unknown.toml", "model = \"cnn\"\nbacth = 3\n");
    write("type.toml", "model = \"cnn\"\nbatch = \"three\"\n");
    write("zero.toml", "model = \"cnn\"\nbatch = 0\n");
}

#[test]
fn wrong_invocations_say_what_was_wrong_and_change_nothing() {
    let scratch = Scratch::new("wrong");
    make(&scratch);
    let here = scratch.path("here");
    fs::create_dir_all(&here).unwrap();
    let run = scratch.path("run");
    let words = format!("train cnn --width 2 --take 32 --batch 16 --epochs 1 --threads 1 -q --out {run}");
    assert!(plimsoll().args(words.split(' ')).status().unwrap().success());
    let before = contents(&scratch.path(""));
    let (mut n, mut wrong) = (0, Vec::new());
    for row in TABLE.lines().filter(|row| !row.is_empty() && !row.starts_with('#')) {
        let mut parts = row.splitn(3, '|').map(str::trim);
        let (Some(code), Some(words), Some(expected)) = (parts.next(), parts.next(), parts.next()) else {
            panic!("not a row: {row}");
        };
        let named = |word: &str| match word.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some((name, rest)) => scratch.path(name) + rest,
            None => word.to_string(),
        };
        let words: Vec<String> = words.split_whitespace().map(named).collect();
        let ended = plimsoll().args(&words).current_dir(&here).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        let mut complain =
            |what: &str| wrong.push(format!("{row}\n    {what}: {:?} {said}", ended.status.code()));
        if ended.status.code() != code.parse().ok() {
            complain("another exit code");
        }
        for part in expected.split(';').map(str::trim).filter(|part| !said.contains(*part)) {
            complain(&format!("no '{part}'"));
        }
        for bad in ["panicked", "nternal error", "/rustc/", "RUST_BACKTRACE", "src/"] {
            if said.contains(bad) {
                complain(&format!("'{bad}'"));
            }
        }
        if !(said.starts_with("plimsoll: ") || said.starts_with("error: ") || code == "2") {
            complain("no message of ours");
        }
        n += 1;
    }
    assert!(wrong.is_empty(), "{} of {n}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n >= 200, "{n}");
    assert!(contents(&scratch.path("")) == before, "something was changed");
    assert!(fs::read_dir(&here).unwrap().next().is_none(), "something was left behind");
}
