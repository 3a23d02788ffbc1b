//! Turns a record into one HTML page that needs nothing else: no network, no server, no other file.
//!
//! The record travels in the page as it is, so that the numbers people see are those of the JSON document; all drawing is
//! done by the page's own script, curves by uPlot (MIT, `assets/uPlot.LICENSE`).

use plimsoll_record::{Error, Record};

use crate::error::Result;

const TEMPLATE: &str = include_str!("../assets/page.html");
/// What stands in the template for each file.
const PARTS: &[(&str, &str)] = &[
    ("{{uplot.css}}", include_str!("../assets/uPlot.min.css")),
    ("{{page.css}}", include_str!("../assets/page.css")),
    ("{{uplot.js}}", include_str!("../assets/uPlot.iife.min.js")),
    ("{{step.js}}", include_str!("../assets/step.js")),
    ("{{charts.js}}", include_str!("../assets/charts.js")),
    ("{{map.js}}", include_str!("../assets/map.js")),
    ("{{time.js}}", include_str!("../assets/time.js")),
    ("{{ranks.js}}", include_str!("../assets/ranks.js")),
    ("{{page.js}}", include_str!("../assets/page.js")),
];

/// Writes the page of a record.
pub fn page(record: &Record) -> Result<String> {
    let data = serde_json::to_string(record)
        .map_err(|e| Error::Broken { file: "record".into(), why: e.to_string() })?;
    // Inside a script element only `</` and `<!--` can end or change what the browser reads.
    let data = data.replace('<', "\\u003c");
    let title = escaped(if record.plan.model.is_empty() { "a step" } else { &record.plan.model });
    let size = TEMPLATE.len() + data.len() + PARTS.iter().map(|(_, text)| text.len()).sum::<usize>();
    let mut page = String::with_capacity(size + 256);
    let mut rest = TEMPLATE;
    // One pass over the template: what a record says is never looked through for places to fill.
    while let Some(start) = rest.find("{{") {
        let end = rest[start..].find("}}").map_or(rest.len(), |end| start + end + 2);
        page.push_str(&rest[..start]);
        match &rest[start..end] {
            "{{title}}" => page.push_str(&title),
            "{{data}}" => page.push_str(&data),
            name => {
                let known = PARTS.iter().find(|(part, _)| *part == name);
                page.push_str(known.map_or("", |(_, text)| text));
            }
        }
        rest = &rest[end..];
    }
    page.push_str(rest);
    Ok(page)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_cannot_leave_its_element() {
        let mut record = Record::default();
        record.plan.model = "</script><script>alert(1)</script><!-- {{data}}".into();
        let page = page(&record).unwrap();
        assert!(!page.contains("<script>alert"));
        assert_eq!(page.matches("application/json").count(), 1);
        let start = page.find("application/json").map(|at| at + page[at..].find('>').unwrap() + 1).unwrap();
        let end = start + page[start..].find("</script>").unwrap();
        let back: Record = serde_json::from_str(&page[start..end]).unwrap();
        assert_eq!(back, record);
    }

    #[test]
    fn every_part_of_the_template_is_filled_and_nothing_is_fetched() {
        let page = page(&Record::default()).unwrap();
        assert!(PARTS.iter().all(|(name, text)| !page.contains(name) && page.contains(*text)));
        for outside in ["src=\"http", "href=\"http", "url(http", "@import", "fetch(", "XMLHttpRequest"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
