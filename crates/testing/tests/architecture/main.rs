//! What `ARCHITECTURE.md` claims of who knows whom, held against `Cargo.toml`s and imports.
//!
//! `table.rs` is the one place where the claims are written down. The maps in `ARCHITECTURE.md` are printed from what is found:
//! `PLIMSOLL_BLESS=1 cargo test -p plimsoll-testing --test architecture` writes them there, `-- --nocapture` shows them.

mod modules;
mod source;
mod subjects;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use modules::{Imports, imports_of};
use source::{Source, sources};
use table::{CRATES, Crate, MODULES};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn package(folder: &str) -> String {
    if folder == "plimsoll" { folder.into() } else { format!("plimsoll-{folder}") }
}

/// The crates of this workspace that a crate depends on, by their folders. What only tests need does not count.
fn dependencies(folder: &str) -> BTreeSet<String> {
    let path = format!("crates/{folder}/Cargo.toml");
    let manifest: toml::Table = read(&path).parse().unwrap_or_else(|e| panic!("{path}: {e}"));
    let names = manifest.get("dependencies").and_then(|d| d.as_table()).into_iter().flat_map(|d| d.keys());
    let own = names.filter(|name| *name == "plimsoll" || name.starts_with("plimsoll-"));
    own.map(|name| name.strip_prefix("plimsoll-").unwrap_or(name).to_string()).collect()
}

fn folders() -> BTreeSet<String> {
    let entries = std::fs::read_dir(root().join("crates")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Whether an imported path begins with a forbidden one.
fn is_of(path: &[String], forbidden: &str) -> bool {
    let forbidden: Vec<&str> = forbidden.split("::").collect();
    path.len() >= forbidden.len() && path.iter().zip(&forbidden).all(|(a, b)| a == b)
}

/// What a crate knows against its row.
fn breaches(row: &Crate, files: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files {
        for path in &file.paths {
            for forbidden in row.never.iter().filter(|forbidden| is_of(path, forbidden)) {
                wrong.push(format!(
                    "{}:{}: imports {}, and its row in table.rs says it knows nothing of {} ({forbidden})",
                    file.name,
                    path.line,
                    path.join("::"),
                    row.knows_nothing_of
                ));
            }
        }
    }
    wrong
}

#[test]
fn a_crate_depends_only_on_what_its_row_names() {
    let known: BTreeSet<String> = CRATES.iter().map(|row| row.folder.to_string()).collect();
    assert_eq!(known, folders(), "table.rs has a row for each crate");
    for (i, row) in CRATES.iter().enumerate() {
        let named: BTreeSet<String> = row.knows.iter().map(|name| name.to_string()).collect();
        let found = dependencies(row.folder);
        let folder = row.folder;
        assert_eq!(
            found, named,
            "crates/{folder}/Cargo.toml has dependencies that its row has not, or not those"
        );
        for name in row.knows {
            let before = CRATES[..i].iter().any(|other| other.folder == *name);
            assert!(
                before,
                "{folder} knows {name}, which stands behind it in table.rs: data moves in one direction"
            );
        }
    }
}

#[test]
fn a_crate_imports_nothing_that_its_row_says_it_knows_nothing_of() {
    let wrong: Vec<String> = CRATES
        .iter()
        .flat_map(|row| breaches(row, &sources(&root().join("crates").join(row.folder).join("src"))))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_rows_of_the_map_say_what_is_held_here() {
    let map = read("ARCHITECTURE.md");
    for row in CRATES {
        let start = format!("| `{}` |", package(row.folder));
        let line = map.lines().find(|line| line.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for {}", package(row.folder)));
        let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
        assert_eq!(last, row.knows_nothing_of, "ARCHITECTURE.md and table.rs on {}", package(row.folder));
    }
}

#[test]
fn modules_import_in_one_direction() {
    for (folder, order) in MODULES {
        let imports = imports_of(&root().join("crates").join(folder).join("src"));
        let found: BTreeSet<&str> = imports.keys().map(String::as_str).collect();
        let named: BTreeSet<&str> = order.iter().copied().collect();
        assert_eq!(found, named, "the modules of {folder} and the list of them in table.rs");
        let mut wrong = Vec::new();
        for (i, module) in order.iter().enumerate() {
            for (of, places) in &imports[*module] {
                if !order[..i].contains(&of.as_str()) {
                    wrong.push(format!(
                        "{module} imports from {of}, which does not stand before it: {}",
                        places.join(", ")
                    ));
                }
            }
        }
        assert!(wrong.is_empty(), "{folder}:\n{}", wrong.join("\n"));
    }
}

#[test]
fn a_type_with_methods_in_more_than_two_files_says_why() {
    let wrong: Vec<String> = CRATES
        .iter()
        .flat_map(|row| {
            let found = subjects::unnamed(&root().join("crates").join(row.folder).join("src"));
            found.into_iter().map(|what| format!("crates/{}/src: {what}", row.folder))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Who knows whom, a line each.
fn crates_as_found() -> String {
    let mut text = String::new();
    for row in CRATES {
        let knows: Vec<String> = dependencies(row.folder).into_iter().collect();
        let knows = if knows.is_empty() { "-".into() } else { knows.join(" ") };
        writeln!(text, "{:<10} {knows}", row.folder).unwrap();
    }
    text
}

fn modules_as_found(order: &[&str], imports: &BTreeMap<String, Imports>) -> String {
    let mut text = String::new();
    for module in order {
        let of: Vec<&str> = order.iter().copied().filter(|of| imports[*module].contains_key(*of)).collect();
        let of = if of.is_empty() { "-".into() } else { of.join(" ") };
        writeln!(text, "{module:<10} {of}").unwrap();
    }
    text
}

/// The text of a block in the map: what stands between the fence behind its mark and the next.
fn block(map: &str, mark: &str) -> std::ops::Range<usize> {
    let at = map.find(mark).unwrap_or_else(|| panic!("ARCHITECTURE.md has no line '{mark}'"));
    let start = at + map[at..].find("```text\n").expect("a block behind the mark") + "```text\n".len();
    start..start + map[start..].find("```").expect("the end of the block")
}

#[test]
fn the_maps_in_architecture_md_are_those_that_are_found() {
    let mut map = read("ARCHITECTURE.md");
    let mut found = vec![("<!-- map of crates -->".to_string(), crates_as_found())];
    for (folder, order) in MODULES {
        let imports = imports_of(&root().join("crates").join(folder).join("src"));
        found.push((format!("<!-- map of {folder} -->"), modules_as_found(order, &imports)));
    }
    for (mark, text) in found {
        println!("{mark}\n{text}");
        let place = block(&map, &mark);
        if std::env::var_os("PLIMSOLL_BLESS").is_some() {
            map.replace_range(place, &text);
            std::fs::write(root().join("ARCHITECTURE.md"), &map).unwrap();
            continue;
        }
        assert_eq!(
            &map[place], text,
            "the block behind '{mark}' in ARCHITECTURE.md; PLIMSOLL_BLESS=1 with this test writes it anew"
        );
    }
}

#[test]
fn a_breach_of_each_kind_is_found() {
    let row = Crate {
        folder: "x",
        knows: &[],
        never: &["std::fs", "plimsoll_graph::gradient"],
        knows_nothing_of: "files",
    };
    let text = "//! use std::fs;\nuse std::{fmt, fs::File};\nfn f() { let _ = plimsoll_graph::gradient::go(\"std::fs::x\"); }\n\
                #[cfg(test)]\nmod tests { use std::fs; }\n";
    let file = Source::parse("x.rs", text);
    let wrong = breaches(&row, &[file]);
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(wrong[0].starts_with("x.rs:2: ") && wrong[1].starts_with("x.rs:3: "), "{wrong:?}");
}
