//! Types whose `impl` stands in more than two files, held against the header of the file that defines them: it names each of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// In how many files an `impl` may stand without a word.
const FILES: usize = 2;

/// What one file says.
struct Read {
    name: String,
    header: String,
    /// Types that it defines.
    defined: BTreeSet<String>,
    /// Types that it has methods for, traits apart.
    extended: BTreeSet<String>,
}

/// Every file that has methods of a type which is defined elsewhere, spread too far, and is not named there.
pub fn unnamed(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    walk(folder, folder, &mut files);
    wrong(&files)
}

fn wrong(files: &[Read]) -> Vec<String> {
    let mut homes: BTreeMap<&str, Vec<&Read>> = BTreeMap::new();
    for file in files {
        file.defined.iter().for_each(|name| homes.entry(name).or_default().push(file));
    }
    let mut wrong = Vec::new();
    for (name, homes) in homes {
        // Of a name that several modules have for types of their own, nobody can tell whose methods are meant.
        let [home] = homes[..] else { continue };
        let others = files.iter().filter(|file| file.extended.contains(name) && file.name != home.name);
        let others: Vec<&Read> = others.collect();
        if others.len() + usize::from(home.extended.contains(name)) <= FILES {
            continue;
        }
        let named = |file: &&&Read| file.name.split('/').any(|part| is_named(&home.header, part));
        for file in others.iter().filter(|file| !named(file)) {
            wrong.push(format!(
                "{} has methods of {name}, and the header of {} does not say so: name `{}` there with the reason",
                file.name,
                home.name,
                stem(&file.name)
            ));
        }
    }
    wrong
}

fn stem(name: &str) -> &str {
    let own = name.trim_end_matches(".rs").trim_end_matches("/mod");
    own.rsplit('/').next().unwrap_or(own)
}

/// Whether a header names a module or folder.
fn is_named(header: &str, part: &str) -> bool {
    let part = part.trim_end_matches(".rs");
    [format!("`{part}`"), format!("`{part}/`"), format!("/{part}`")].iter().any(|word| header.contains(word))
}

fn walk(root: &Path, folder: &Path, files: &mut Vec<Read>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
            files.push(read(name, &std::fs::read_to_string(&path).unwrap()));
        }
    }
}

fn read(name: String, text: &str) -> Read {
    let header = text.lines().take_while(|line| line.starts_with("//!")).collect::<Vec<_>>().join("\n");
    let (mut defined, mut extended) = (BTreeSet::new(), BTreeSet::new());
    // What is indented is inside of something, a module of tests most of all.
    for line in text.lines().filter(|line| !line.starts_with([' ', '/'])) {
        let words = line
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub(super) ")
            .trim_start_matches("pub ");
        let kind = ["struct ", "enum "].iter().find_map(|kind| words.strip_prefix(kind));
        defined.extend(kind.map(first_word));
        if let Some(behind) = words.strip_prefix("impl").filter(|_| !line.contains(" for ")) {
            extended.insert(first_word(past_generics(behind)));
        }
    }
    Read { name, header, defined, extended }
}

/// What stands behind `<…>`, where that comes first.
fn past_generics(text: &str) -> &str {
    if !text.starts_with('<') {
        return text.trim_start();
    }
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '<') - i32::from(c == '>');
        if depth == 0 {
            return text[at + 1..].trim_start();
        }
    }
    text
}

fn first_word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[test]
fn a_type_that_is_spread_without_a_word_is_found() {
    let home =
        "//! A thing; `b` is a subject of its own.\npub struct Thing<T>;\nimpl<T: Into<U>> Thing<T> {\n}\n";
    let files = |header: &str| {
        let home = home.replace("`b`", header);
        let other = "impl Thing<u8> {\n    fn x() {}\n}\nimpl Clone for Thing<u8> {\n}\n";
        [("a.rs", &home[..]), ("b.rs", other), ("c/mod.rs", other)]
            .map(|(name, text)| read(name.into(), text))
    };
    let found = wrong(&files("`b`"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("c/mod.rs has methods of Thing") && found[0].contains("name `c`"),
        "{found:?}"
    );
    assert!(wrong(&files("`b` and `c/`")).is_empty());
    assert!(wrong(&files("`b`")[..2]).is_empty(), "two files need no reason");
}
