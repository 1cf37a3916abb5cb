//! The pages of the documentation, as a site: all are in it, and what a cluster says is explained.

use super::{is_of_tests, read, root, rust_files};
use std::fs;

/// Crates whose log an operator or a user of a library reads.
const LOGS: [&str; 12] = [
    "blocks",
    "cli",
    "client",
    "fuse",
    "host",
    "keys",
    "metrics",
    "mount",
    "node",
    "runtime",
    "storage",
    "transport",
];
/// A message of which less is fixed is found by no search.
const FIXED_MIN: usize = 6;

/// The texts between quotes in Rust code, without what is filled in.
fn texts(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(begin) = rest.find('"') {
        let after = &rest[begin + 1..];
        let mut escaped = false;
        let end = after.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let Some(end) = end else { break };
        found.push(after[..end].to_string());
        rest = &after[end + 1..];
    }
    found
}

/// The first part of a message that is always the same.
fn fixed(message: &str) -> Option<String> {
    let line = message.split('\\').next().unwrap_or_default();
    let filled = line.split('{').enumerate().flat_map(|(at, part)| {
        // Before a brace that closes stands what is filled in.
        let kept = if at == 0 { part } else { part.split_once('}').map_or("", |(_, after)| after) };
        kept.split([':', '(', ')', ';'])
    });
    let trimmed = filled.map(|part| part.trim_matches([' ', ',', '#']));
    trimmed.into_iter().find(|part| part.len() >= FIXED_MIN).map(String::from)
}

/// What a file of code warns of.
fn warnings(code: &str) -> Vec<String> {
    let code = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut found = Vec::new();
    for call in ["tracing::warn!(", "tracing::error!("] {
        for part in code.split(call).skip(1) {
            let mut depth = 1;
            let end = part.find(|c: char| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                depth == 0
            });
            let said = texts(&part[..end.unwrap_or(part.len())]);
            found.extend(said.iter().filter_map(|text| fixed(text)).next());
        }
    }
    found
}

/// What `meridian status` finds.
fn findings() -> Vec<String> {
    let code = read(&root().join("crates/cli/src/status/verdict.rs"));
    let begin = code.find("fn of_group").expect("it judges groups");
    let end = code.find("fn time_for_people").expect("what follows the judgements");
    texts(&code[begin..end]).iter().filter_map(|text| fixed(text)).collect()
}

/// The first cells of the rows under a heading.
pub(super) fn first_cells(page: &str, heading: &str) -> Vec<String> {
    let below = page.split(&format!("## {heading}\n")).nth(1).unwrap_or_default();
    let below = below.split("\n## ").next().unwrap_or_default();
    let rows = below.lines().filter(|line| line.starts_with("| `"));
    rows.filter_map(|row| row.split('`').nth(1).map(String::from)).collect()
}

/// Those of `wanted` that the page does not name.
fn missing(page: &str, wanted: &[String]) -> Vec<String> {
    wanted.iter().filter(|text| !page.contains(text.as_str())).cloned().collect()
}

#[test]
fn day_two_explains_each_finding_alarm_and_warning() {
    let page = read(&root().join("docs/day-two.md"));
    let mut wanted = findings();
    assert!(wanted.len() > 6, "{wanted:?}");
    let alarms = first_cells(&read(&root().join("docs/metrics.md")), "What to be woken by");
    assert!(alarms.len() > 6, "{alarms:?}");
    wanted.extend(alarms);
    for name in LOGS {
        for path in rust_files(&root().join("crates").join(name).join("src")) {
            if !is_of_tests(&path) {
                wanted.extend(warnings(&read(&path)));
            }
        }
    }
    assert!(wanted.len() > 50, "{}", wanted.len());
    let missing = missing(&page, &wanted);
    assert!(missing.is_empty(), "docs/day-two.md does not name:\n{}", missing.join("\n"));
}

/// The pages that the contents of the site name: `- Day two: day-two.md`.
fn contents(site: &str) -> Vec<&str> {
    let nav = site.split_once("\nnav:\n").map_or("", |(_, nav)| nav);
    nav.lines().filter_map(|line| line.split_once(": ")).map(|(_, page)| page.trim()).collect()
}

#[test]
fn the_site_has_each_page_and_no_other() {
    let site = read(&root().join("mkdocs.yml"));
    let mut named: Vec<String> = contents(&site).into_iter().map(String::from).collect();
    let pages_in = |dir: &'static str| {
        let names = fs::read_dir(root().join("docs").join(dir)).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".md")).map(move |name| format!("{dir}{name}"))
    };
    let mut pages: Vec<String> = ["", "figures/"].into_iter().flat_map(pages_in).collect();
    named.sort();
    pages.sort();
    assert_eq!(named, pages, "what mkdocs.yml names, and what lies in docs/");
}

#[test]
fn the_rules_of_pages_object_to_planted_faults() {
    let code = "fn a() {\n    tracing::warn!(%who, \"somebody (at {who}) has gone away: {why}\");\n    \
                tracing::error!(\"it\");\n}\n#[cfg(test)]\nmod tests { tracing::warn!(\"x\") }";
    assert_eq!(warnings(code), ["somebody"]);
    assert_eq!(texts("a(\"b\\\"c\", \"d\")"), ["b\\\"c", "d"]);
    assert_eq!(
        missing("all has gone away", &["has gone away".into(), "has come".into()]),
        ["has come"]
    );
    let page = "# A\n\n## B\n\n| `one` | x |\n| two | y |\n\n## C\n\n| `three` | z |\n";
    assert_eq!(first_cells(page, "B"), ["one"]);
    let site = "a: b.md\nnav:\n  - One: one.md\n  - Use it:\n      - Two words: two.md\n";
    assert_eq!(contents(site), ["one.md", "two.md"]);
    assert_eq!(fixed("{}: {}"), None);
    assert_eq!(fixed("{name} is cut off: no node"), Some("is cut off".into()));
}
