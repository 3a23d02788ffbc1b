//! Every link and every included piece of code in the guide and the other pages is there, so that no tool is needed to know it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// How the guide links to files of the repository that are not part of the book.
const REPOSITORY: &str = "https://github.com/plimsoll/plimsoll/blob/main/";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All pages: those in the repository's root, and those under `docs`.
fn pages() -> Vec<PathBuf> {
    let mut folders = vec![root().join("docs")];
    let in_root = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = in_root.filter(|path| is_page(path)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if is_page(&path) {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// A page without its blocks of code and its code in lines, in which a link would be none.
fn prose(text: &str) -> String {
    let mut prose = String::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            line.split('`').step_by(2).for_each(|part| prose.push_str(part));
            prose.push('\n');
        }
    }
    prose
}

/// The targets of a page's links and pictures.
fn links(text: &str) -> Vec<String> {
    let rest = prose(text);
    let targets = rest.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_string()).collect()
}

/// The name that a heading has in an address: lower case, letters, digits and hyphens.
fn address(heading: &str) -> String {
    let kept = heading.trim().to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

fn headings(text: &str) -> BTreeSet<String> {
    let mut in_block = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block && line.starts_with('#') {
            found.insert(address(line.trim_start_matches('#')));
        }
    }
    found
}

#[test]
fn every_link_leads_to_a_file_and_to_a_heading_in_it() {
    let (mut wrong, mut n) = (Vec::new(), 0);
    for page in pages() {
        let text = read(&page);
        for link in links(&text) {
            let own = link.strip_prefix(REPOSITORY);
            if own.is_none() && (link.starts_with("http") || link.starts_with("mailto:")) {
                continue;
            }
            n += 1;
            let path = own.unwrap_or(&link);
            let (file, heading) = path.split_once('#').unwrap_or((path, ""));
            let target = match own {
                Some(_) => root().join(file),
                None if file.is_empty() => page.clone(),
                None => page.with_file_name(file),
            };
            // A page of the book has no neighbours outside of it.
            let leaves =
                own.is_none() && page.starts_with(root().join("docs/guide")) && file.starts_with("..");
            let has_heading = || heading.is_empty() || headings(&read(&target)).contains(heading);
            let is_there = !leaves && target.exists() && has_heading();
            if !is_there {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
    assert!(n > 10, "only {n} links were found");
}

#[test]
fn every_included_piece_of_code_is_there() {
    let (mut wrong, mut n) = (Vec::new(), 0);
    for page in pages() {
        for include in read(&page).split("{{#include ").skip(1).filter_map(|rest| rest.split_once("}}")) {
            n += 1;
            let (file, anchor) = include.0.split_once(':').unwrap_or((include.0, ""));
            let Ok(text) = std::fs::read_to_string(page.with_file_name(file.trim())) else {
                wrong.push(format!("{}: there is no {file}", page.display()));
                continue;
            };
            let has =
                |mark: &str| text.lines().any(|line| line.trim().ends_with(&format!("{mark}: {anchor}")));
            let is_marked = has("ANCHOR") && has("ANCHOR_END");
            if !anchor.is_empty() && !is_marked {
                wrong.push(format!("{}: {file} has no anchor {anchor}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "includes that lead nowhere:\n{}", wrong.join("\n"));
    assert!(n > 10, "only {n} includes were found");
}

#[test]
fn the_guides_table_of_contents_lists_every_chapter_once() {
    let source = root().join("docs/guide/src");
    let listed = links(&read(&source.join("SUMMARY.md")));
    let names: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(listed.len(), names.len(), "{listed:?}");
    let files = std::fs::read_dir(&source).unwrap().map(|file| file.unwrap().file_name());
    let chapters: BTreeSet<String> =
        files.map(|name| name.to_string_lossy().into_owned()).filter(|name| name != "SUMMARY.md").collect();
    assert_eq!(names, chapters);
}
