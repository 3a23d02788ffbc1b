//! A folder that is a program already: the model with the Rust and C that run it.

use std::path::Path;

use crate::Failure;

const RUST: &str = include_str!("app/main.rs.txt");
const C: &str = include_str!("app/main.c.txt");
const README: &str = include_str!("app/readme.txt");

/// Writes everything but the model itself, which is there.
pub fn write(folder: &Path, name: &str, file: usize, arena: usize) -> Result<(), Failure> {
    let filled = |text: &str| {
        text.replace("@ARENA@", &arena.to_string())
            .replace("@FILE@", &file.to_string())
            .replace("@NAME@", name)
    };
    let version = env!("CARGO_PKG_VERSION");
    let manifest = format!(
        "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\nplimsoll-lite = \"{version}\"\n\n[workspace]\n"
    );
    let files = [
        ("Cargo.toml", manifest),
        ("src/main.rs", filled(RUST)),
        ("main.c", filled(C)),
        ("plimsoll_lite.h", plimsoll::lite::C_HEADER.to_string()),
        ("README.md", filled(README)),
    ];
    for (path, text) in files {
        let path = folder.join(path);
        let failed = |error| Failure(format!("{}: {error}", path.display()));
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
        std::fs::write(&path, text).map_err(failed)?;
    }
    Ok(())
}
