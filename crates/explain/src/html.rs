//! Turns an explanation into one self-contained page: no script, no fonts, light and dark, readable on a phone.

use std::fmt::Write;

use crate::bytes::{Size, percent};
use crate::explanation::{Explanation, PoolSummary};
use crate::text::sentence;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b2430;--soft:#5a6675;--paper:#fff;--line:#d5dbe3;--used:#2563a8;--free:#e4e9f0;--mark:#b3480b}\
@media(prefers-color-scheme:dark){:root{--ink:#e6ebf2;--soft:#a0acbb;--paper:#12171e;--line:#333d4a;--used:#6ea8e8;--free:#27303c;--mark:#f0a06a}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:60rem;padding:1rem;font:1rem/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}\
h1{font-size:1.4rem;line-height:1.25}h2{font-size:1.1rem;margin-top:2rem}.verdict{color:var(--mark);font-weight:600}\
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}li{margin:.4rem 0}.saves{color:var(--soft);white-space:nowrap}\
svg{width:100%;height:5rem;display:block;border:1px solid var(--line)}figure{margin:0}figcaption{color:var(--soft);font-size:.9rem}body{overflow-wrap:anywhere}";

impl Explanation {
    /// The explanation as a page of HTML.
    pub fn to_html(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        write(self, &mut page).ok();
        page
    }
}

fn write(told: &Explanation, page: &mut String) -> std::fmt::Result {
    let title = escape(&sentence(&told.asked()));
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>Out of memory, explained</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{}: {title}</h1>\n<p class=\"verdict\">{}</p>\n<ul>\n",
        told.source.name(),
        escape(&sentence(told.verdict.words()))
    )?;
    for reason in &told.because {
        writeln!(page, "<li>{}</li>", escape(&sentence(reason)))?;
    }
    page.push_str("</ul>\n");
    figures(told, page)?;
    if let Some(pool) = &told.pool {
        picture(pool, page)?;
    }
    if !told.advice.is_empty() {
        page.push_str("<h2>What to change, most effective first</h2>\n<ol>\n");
        for advice in &told.advice {
            let saves = advice
                .saves_bytes
                .map_or(String::new(), |bytes| format!(" <span class=\"saves\">{}</span>", Size(bytes)));
            writeln!(page, "<li>{}{saves}</li>", escape(&sentence(&advice.what)))?;
        }
        page.push_str("</ol>\n");
    }
    if !told.cannot_tell.is_empty() {
        page.push_str("<h2>I cannot tell</h2>\n<ul>\n");
        for what in &told.cannot_tell {
            writeln!(page, "<li>{}</li>", escape(&sentence(what)))?;
        }
        page.push_str("</ul>\n");
    }
    page.push_str("</main>\n</body>\n</html>\n");
    Ok(())
}

fn figures(told: &Explanation, page: &mut String) -> std::fmt::Result {
    let names = ["Asked for", "Limit", "In use", "Free", "Largest free piece", "Would have fitted"];
    page.push_str("<h2>Figures</h2>\n<table>\n");
    for (name, bytes) in names.into_iter().zip(told.table()) {
        match bytes {
            Some(bytes) => writeln!(
                page,
                "<tr><th>{name}</th><td class=\"n\">{}</td><td class=\"n\">{bytes} B</td></tr>",
                Size(bytes)
            )?,
            None => writeln!(page, "<tr><th>{name}</th><td class=\"n\">cannot tell</td><td></td></tr>")?,
        }
    }
    page.push_str("</table>\n");
    Ok(())
}

/// The pool by address, its free chunks by size, and what is held.
fn picture(pool: &PoolSummary, page: &mut String) -> std::fmt::Result {
    if !pool.columns.is_empty() {
        let used: u64 = pool.columns.iter().fold(0, |sum, column| sum.saturating_add(column.in_use_bytes));
        let free: u64 = pool.columns.iter().fold(0, |sum, column| sum.saturating_add(column.free_bytes));
        let text = format!(
            "The pool by address: {} in use, {} free, in {} chunks and {} regions",
            Size(used),
            Size(free),
            pool.counts.chunks,
            pool.counts.regions_total
        );
        let width = pool.columns.len() * 10;
        write!(
            page,
            "<h2>The pool</h2>\n<figure>\n<svg viewBox=\"0 0 {width} 80\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{0}\">\n\
             <title>{0}</title>\n<rect width=\"{width}\" height=\"80\" fill=\"var(--free)\"/>\n<path fill=\"var(--used)\" d=\"",
            escape(&text)
        )?;
        for (i, column) in pool.columns.iter().enumerate() {
            let share = percent(column.in_use_bytes, column.in_use_bytes.saturating_add(column.free_bytes));
            // What is in use stands on the ground, so that a half-filled column reads as half.
            let height = (share * 80).div_ceil(100).min(80);
            if height > 0 {
                write!(page, "M{} {}h10v{height}h-10z", i * 10, 80 - height)?;
            }
        }
        write!(
            page,
            "\"/>\n</svg>\n<figcaption>{}. The filled part is in use; the lowest address is left.</figcaption>\n</figure>\n",
            escape(&text)
        )?;
    }
    if !pool.free_sizes.is_empty() {
        page.push_str("<h2>Free chunks by size</h2>\n<table>\n<tr><th>From</th><th class=\"n\">Chunks</th><th class=\"n\">Together</th></tr>\n");
        for class in pool.free_sizes.iter().rev() {
            writeln!(
                page,
                "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
                Size(class.at_least_bytes),
                class.chunks,
                Size(class.bytes)
            )?;
        }
        page.push_str("</table>\n");
    }
    if !pool.held.is_empty() {
        page.push_str("<h2>Held, heaviest first</h2>\n<table>\n<tr><th class=\"n\">Bytes</th><th class=\"n\">Chunks</th><th>By</th></tr>\n");
        for held in &pool.held {
            writeln!(
                page,
                "<tr><td class=\"n\">{}</td><td class=\"n\">{} × {}</td><td>{}</td></tr>",
                Size(held.bytes),
                held.chunks,
                Size(held.chunk_bytes),
                escape(held.by.as_deref().unwrap_or("not recorded"))
            )?;
        }
        page.push_str("</table>\n");
    }
    Ok(())
}

/// Text that may stand anywhere in a page. Names come from foreign files.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_a_log_cannot_become_markup() {
        assert_eq!(escape("<b a=\"x\" c='y'>&\u{7}"), "&lt;b a=&quot;x&quot; c=&#39;y&#39;&gt;&amp; ");
    }
}
