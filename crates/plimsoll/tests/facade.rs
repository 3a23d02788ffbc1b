//! The facade stays small enough to hold in mind.

use std::path::Path;

fn source(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names that the `pub use` lines of a file bring, those without a name left out.
fn names(text: &str) -> Vec<&str> {
    let uses = text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let listed = uses.flat_map(|path| {
        let inside = path.split_once('{').map_or(path, |(_, list)| list.trim_end_matches('}'));
        inside.split(',').map(str::trim).filter(|name| !name.is_empty() && !name.ends_with(" as _"))
    });
    listed.map(|name| name.rsplit("::").next().unwrap_or(name)).collect()
}

#[test]
fn the_prelude_has_at_most_thirty_names_and_the_first_is_a_trainer_with_a_memory_limit() {
    let prelude = source("prelude.rs");
    let names = names(&prelude);
    assert!((20..=30).contains(&names.len()), "{} names: {names:?}", names.len());
    assert!(names.contains(&"Trainer") && names.contains(&"Tape"), "{names:?}");
    let page = source("lib.rs");
    let first = page.split("```").nth(1).unwrap();
    assert!(first.contains("Trainer::new") && first.contains(".memory_limit("), "{first}");
}

#[test]
fn every_module_of_the_facade_begins_with_a_sentence_for_its_readers() {
    let page = source("lib.rs");
    let modules = page.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let modules: Vec<&str> = modules.collect();
    assert!(modules.len() >= 8, "{modules:?}");
    for module in modules {
        assert!(source(&format!("{module}.rs")).starts_with("//! "), "{module} has no first sentence");
    }
}
