//! Turns the sources of a crate into who imports from whom among its modules.

use std::collections::BTreeMap;
use std::path::Path;

use crate::source::{Source, sources};

/// The modules that one imports from, each with the places where.
pub type Imports = BTreeMap<String, Vec<String>>;

/// For each module at the top of a crate, the other ones that it imports from.
pub fn imports_of(folder: &Path) -> BTreeMap<String, Imports> {
    let sources = sources(folder);
    let top = sources.iter().find(|source| source.name == "lib.rs").expect("a library");
    let exported = exported(top);
    let mut all: BTreeMap<String, Imports> =
        top.modules.iter().map(|module| (module.clone(), Imports::new())).collect();
    for source in sources.iter().filter(|source| source.name != "lib.rs") {
        let place = module_path(&source.name);
        for path in &source.paths {
            let Some(first) = from_the_top(path, &place) else { continue };
            // What the top exports again belongs to the module that it is from.
            let module =
                if all.contains_key(first) { Some(first) } else { exported.get(first).map(String::as_str) };
            if let Some(module) = module.filter(|module| *module != place[0]) {
                let imports =
                    all.get_mut(&place[0]).unwrap_or_else(|| panic!("{} is no module", source.name));
                let place = format!("{}:{}", source.name, path.line);
                imports.entry(module.into()).or_default().push(place);
            }
        }
    }
    all
}

/// The path of the module that a file is.
fn module_path(name: &str) -> Vec<String> {
    name.trim_end_matches(".rs").trim_end_matches("/mod").split('/').map(String::from).collect()
}

/// The first segment below the top of the crate that a path names; none for what is outside or inside the same module.
fn from_the_top<'a>(path: &'a [String], place: &[String]) -> Option<&'a str> {
    if path[0] == "crate" {
        return path.get(1).map(String::as_str);
    }
    let up = path.iter().take_while(|segment| *segment == "super").count();
    // From inside a module of a file, fewer; that is inside the same one then.
    (up > 0 && up == place.len()).then(|| path.get(up).map(String::as_str)).flatten()
}

/// What the top of the crate names of its modules, and of which.
fn exported(top: &Source) -> BTreeMap<String, String> {
    let of_module = top.paths.iter().filter(|path| path.len() > 1 && top.modules.contains(&path[0]));
    of_module.map(|path| (path[path.len() - 1].clone(), path[0].clone())).collect()
}
