//! Turns Rust sources into the paths that they name: `use` trees and paths in code, without comments, strings and tests.

use std::ops::Deref;
use std::path::Path;

/// A path, and where it stands.
pub struct Named {
    pub segments: Vec<String>,
    pub line: usize,
}

impl Deref for Named {
    type Target = [String];
    fn deref(&self) -> &[String] {
        &self.segments
    }
}

/// One file.
pub struct Source {
    /// Its path below the folder of the sources.
    pub name: String,
    /// All paths of at least two segments that it names.
    pub paths: Vec<Named>,
    /// Modules that it declares.
    pub modules: Vec<String>,
}

/// All sources below a folder but tests, in the order of their names.
pub fn sources(folder: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    let mut tests = Vec::new();
    walk(folder, folder, &mut found, &mut tests);
    found.retain(|source| !tests.iter().any(|test| is_below(&source.name, test)));
    assert!(!found.is_empty(), "{} has no sources", folder.display());
    found
}

/// Whether a file is that of a module, or of one below it.
fn is_below(name: &str, module: &str) -> bool {
    let own = name.trim_end_matches(".rs").trim_end_matches("/mod");
    own == module || own.starts_with(&format!("{module}/"))
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<Source>, tests: &mut Vec<String>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut entries: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            walk(root, &path, found, tests);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
            let text = std::fs::read_to_string(&path).unwrap();
            // Modules that are files of their own and for tests only.
            let parent = match name.trim_end_matches(".rs") {
                "lib" | "main" => String::new(),
                own => {
                    format!("{}/", own.trim_end_matches("/mod").trim_end_matches("mod").trim_end_matches('/'))
                }
            };
            let parent = parent.trim_start_matches('/').to_string();
            tests.extend(test_modules(&text).into_iter().map(|module| format!("{parent}{module}")));
            found.push(Source::parse(&name, &text));
        }
    }
}

/// The names behind `#[cfg(test)] mod`, where they are files.
fn test_modules(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let words: Vec<&str> = tokens.iter().map(|token| token.text.as_str()).collect();
    let mark = ["#", "[", "cfg", "(", "test", ")", "]", "mod"];
    let at = |i: usize| words[i..].starts_with(&mark) && words.get(i + 9) == Some(&";");
    (0..words.len()).filter(|&i| at(i)).map(|i| words[i + 8].to_string()).collect()
}

struct Token {
    text: String,
    line: usize,
}

/// Words and signs; `::` is one. Comments, strings and characters are left out.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut tokens, mut i, mut line) = (Vec::new(), 0, 1);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    while i < chars.len() {
        let c = chars[i];
        let next = chars.get(i + 1).copied();
        if c == '\n' {
            line += 1;
            i += 1;
        } else if c == '/' && next == Some('/') {
            while i < chars.len() && chars[i] != '\n' {
                i += 1;
            }
        } else if c == '/' && next == Some('*') {
            let mut depth = 0;
            while i < chars.len() {
                match (chars[i], chars.get(i + 1)) {
                    ('/', Some('*')) => (depth, i) = (depth + 1, i + 1),
                    ('*', Some('/')) => (depth, i) = (depth - 1, i + 1),
                    ('\n', _) => line += 1,
                    _ => {}
                }
                i += 1;
                if depth == 0 {
                    break;
                }
            }
        } else if let Some(hashes) = raw_string(&chars[i..]) {
            let end: String = format!("\"{}", "#".repeat(hashes));
            let rest: String = chars[i + hashes + 2..].iter().collect();
            let length = rest.find(&end).map_or(rest.chars().count(), |at| rest[..at].chars().count());
            line += chars[i..i + hashes + 2 + length].iter().filter(|c| **c == '\n').count();
            i = (i + hashes + 2 + length + end.len()).min(chars.len());
        } else if c == '"' {
            i += 1;
            while i < chars.len() && chars[i] != '"' {
                line += usize::from(chars[i] == '\n');
                if chars[i] == '\\' {
                    i += 1;
                    line += usize::from(chars.get(i) == Some(&'\n'));
                }
                i += 1;
            }
            i += 1;
        } else if c == '\'' && (next == Some('\\') || chars.get(i + 2) == Some(&'\'')) {
            i += if next == Some('\\') { 3 } else { 2 };
            while i < chars.len() && chars[i] != '\'' {
                i += 1;
            }
            i += 1;
        } else if is_word(c) {
            let start = i;
            while i < chars.len() && is_word(chars[i]) {
                i += 1;
            }
            tokens.push(Token { text: chars[start..i].iter().collect(), line });
        } else if c == ':' && next == Some(':') {
            tokens.push(Token { text: "::".into(), line });
            i += 2;
        } else {
            if !c.is_whitespace() {
                tokens.push(Token { text: c.into(), line });
            }
            i += 1;
        }
    }
    tokens
}

/// How many hashes a raw string begins with, if one begins here.
fn raw_string(chars: &[char]) -> Option<usize> {
    let rest = chars.strip_prefix(&['r'])?;
    let hashes = rest.iter().take_while(|c| **c == '#').count();
    (rest.get(hashes) == Some(&'"')).then_some(hashes)
}

impl Source {
    /// Reads a file.
    pub fn parse(name: &str, text: &str) -> Source {
        let tokens = without_tests(tokens(text));
        let mut source = Source { name: name.into(), paths: Vec::new(), modules: Vec::new() };
        let word = |i: usize| tokens.get(i).map_or("", |token| token.text.as_str());
        let mut i = 0;
        while i < tokens.len() {
            match word(i) {
                "mod" if word(i + 2) == ";" || word(i + 2) == "{" => {
                    source.modules.push(word(i + 1).into());
                    i += 2;
                }
                // `use<'a>` in a bound is no import.
                "use" if word(i + 1) != "<" => i = tree(&tokens, i + 1, &mut Vec::new(), &mut source.paths),
                text if text.starts_with(|c: char| c.is_alphabetic() || c == '_') && word(i + 1) == "::" => {
                    let mut segments = vec![text.to_string()];
                    let line = tokens[i].line;
                    i += 1;
                    while word(i) == "::" && word(i + 1).starts_with(|c: char| c.is_alphabetic() || c == '_')
                    {
                        segments.push(word(i + 1).into());
                        i += 2;
                    }
                    source.paths.push(Named { segments, line });
                    i += usize::from(word(i) == "::");
                }
                _ => i += 1,
            }
        }
        source
    }
}

/// Reads a `use` tree from a token on; returns where it ends.
fn tree(tokens: &[Token], mut i: usize, before: &mut Vec<String>, paths: &mut Vec<Named>) -> usize {
    let depth = before.len();
    let mut fresh = false;
    let line = tokens.get(i).map_or(0, |token| token.line);
    while let Some(token) = tokens.get(i) {
        match token.text.as_str() {
            "::" => i += 1,
            "{" => {
                i += 1;
                while tokens.get(i).is_some_and(|token| token.text != "}" && token.text != ";") {
                    i = tree(tokens, i, before, paths);
                    i += usize::from(tokens.get(i).is_some_and(|token| token.text == ","));
                }
                i += 1;
                fresh = false;
                break;
            }
            "as" => i += 2,
            "," | "}" | ";" => break,
            text => {
                before.push(text.into());
                fresh = true;
                i += 1;
            }
        }
    }
    if fresh {
        paths.push(Named { segments: before.clone(), line });
    }
    before.truncate(depth);
    i
}

/// Leaves out items that are for tests only.
fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let mark = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::with_capacity(tokens.len());
    let mut i = 0;
    while i < tokens.len() {
        if !tokens[i..].iter().zip(mark).all(|(token, mark)| token.text == mark)
            || tokens.len() - i < mark.len()
        {
            i += 1;
            kept.push(i - 1);
            continue;
        }
        i += mark.len();
        // The item ends with its first semicolon, or the brace that closes its first one.
        let mut depth = 0;
        while i < tokens.len() {
            let text = tokens[i].text.as_str();
            i += 1;
            match text {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => {
                    depth -= 1;
                    if depth == 0 && text == "}" {
                        break;
                    }
                }
                ";" if depth == 0 => break,
                _ => {}
            }
        }
    }
    let mut keep = vec![false; tokens.len()];
    kept.into_iter().for_each(|i| keep[i] = true);
    tokens.into_iter().zip(keep).filter(|(_, keep)| *keep).map(|(token, _)| token).collect()
}
