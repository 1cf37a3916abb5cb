//! Rules of size and words: functions, lines, links, citations, decisions.

use super::{read, root, rust_files};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// No function is longer, tests included: it fits on a screen.
const FUNCTION_LINES_MAX: usize = 70;
/// No line of code, comment or document is wider, in characters.
const COLUMNS_MAX: usize = 100;

/// The documents of the repository.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in ["", "docs", "docs/decisions", "packaging"] {
        for entry in fs::read_dir(root().join(dir)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// All files of Rust code.
fn code() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let mut found: Vec<_> = crates.flat_map(|entry| rust_files(&entry.unwrap().path())).collect();
    found.sort();
    found
}

fn at(path: &Path, line: usize) -> String {
    format!("{}:{}", path.strip_prefix(root()).unwrap_or(path).display(), line + 1)
}

/// The functions of formatted code: the line that each begins with, its name, how many lines it
/// has.
fn functions(text: &str) -> Vec<(usize, String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let Some((before, after)) = code.split_once("fn ") else { continue };
        let words = ["pub", "const", "async", "unsafe", "extern", "\"C\"", "default"];
        let is_function =
            before.split_whitespace().all(|word| words.contains(&word) || word.starts_with("pub("));
        if !is_function || line.ends_with(';') || line.ends_with('}') {
            continue;
        }
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let ends = [format!("{indent}}}"), format!("{indent});")];
        let rest = lines[first..].iter();
        if let Some(len) = rest.clone().position(|line| ends.iter().any(|end| line == end)) {
            found.push((first, name, len + 1));
        }
    }
    found
}

#[test]
fn functions_fit_on_a_screen() {
    let mut wrong = Vec::new();
    for path in code() {
        for (first, function, len) in functions(&read(&path)) {
            if len > FUNCTION_LINES_MAX {
                wrong.push(format!("{}: {function} has {len} lines", at(&path, first)));
            }
        }
    }
    assert!(wrong.is_empty(), "at most {FUNCTION_LINES_MAX}:\n{}", wrong.join("\n"));
}

/// Whether a line of Rust is too wide. A string cannot always be broken.
fn is_wide_code(line: &str) -> bool {
    let is_comment = line.trim_start().starts_with("//");
    let is_row = line.trim_start().trim_start_matches(['/', '!']).trim_start().starts_with('|');
    line.chars().count() > COLUMNS_MAX
        && !(line.contains("://") || (is_comment && is_row))
        && (is_comment || !line.contains('"'))
}

/// The lines of a document that are too wide. Tables, commands and the targets of links may be.
fn wide_prose(text: &str) -> Vec<usize> {
    let (mut wide, mut is_command) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        is_command ^= line.trim_start().starts_with("```");
        if is_command || line.trim_start().starts_with('|') || line.contains("://") {
            continue;
        }
        let targets = line.split("](").skip(1);
        let hidden: usize =
            targets.map(|target| target.split(')').next().unwrap_or("").chars().count()).sum();
        if line.chars().count() - hidden > COLUMNS_MAX {
            wide.push(number);
        }
    }
    wide
}

#[test]
fn lines_are_not_wide() {
    let mut wrong = Vec::new();
    for path in documents() {
        wrong.extend(wide_prose(&read(&path)).into_iter().map(|line| at(&path, line)));
    }
    for path in code() {
        let text = read(&path);
        let wide = text.lines().enumerate().filter(|(_, line)| is_wide_code(line));
        wrong.extend(wide.map(|(number, _)| at(&path, number)));
    }
    assert!(wrong.is_empty(), "more than {COLUMNS_MAX} columns:\n{}", wrong.join("\n"));
}

/// What the headings of a document are called in links: in small letters, with hyphens for spaces
/// and without other signs.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_command = false;
    let headings = text.lines().filter(|line| {
        is_command ^= line.trim_start().starts_with("```");
        line.starts_with('#') && !is_command
    });
    let name = |line: &str| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(name).collect()
}

/// The links of a document that lead nowhere: to no file, or to no heading of one.
fn dead_links(path: &Path, text: &str) -> Vec<String> {
    let dir = path.parent().unwrap();
    let mut dead = Vec::new();
    for part in text.split("](").skip(1) {
        let link = part.split([')', ' ']).next().unwrap_or_default();
        if link.contains("://") {
            continue;
        }
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let file = if file.is_empty() { path.to_path_buf() } else { dir.join(file) };
        let is_page = file.extension().is_some_and(|extension| extension == "md");
        let has_anchor = |text: String| anchor.is_empty() || anchors(&text).contains(anchor);
        if !file.exists() || (is_page && !has_anchor(read(&file))) {
            dead.push(link.to_string());
        }
    }
    dead
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    for path in documents() {
        let dead = dead_links(&path, &read(&path));
        wrong.extend(dead.iter().map(|link| format!("{}: {link}", path.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_decision_is_on_the_map_and_each_page_in_the_index() {
    let (map, index) =
        (read(&root().join("ARCHITECTURE.md")), read(&root().join("docs/README.md")));
    for path in documents() {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.parent() == Some(&root().join("docs/decisions")) {
            let link = format!("](docs/decisions/{name})");
            assert!(map.contains(&link), "ARCHITECTURE.md does not link {name}");
        } else if path.parent() == Some(&root().join("docs")) && name != "README.md" {
            assert!(index.contains(&format!("]({name})")), "docs/README.md does not link {name}");
        }
    }
}

/// The short names of the bibliography.
fn papers() -> BTreeSet<String> {
    let text = read(&root().join("docs/bibliography.md"));
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.contains("---"));
    let names = rows.filter_map(|row| row.split('|').nth(1));
    names.map(|name| name.trim().to_string()).filter(|name| name != "short name").collect()
}

/// What a comment cites that is not in the repository.
fn unknown_citation(comment: &str, papers: &BTreeSet<String>, decisions: usize) -> Option<String> {
    for phrase in ["the design's", "of the design", "(design", "notes, point", "(notes"] {
        if comment.contains(phrase) {
            return Some(phrase.to_string());
        }
    }
    // "(thesis, section 4.2)": what stands before the place in a paper is a short name.
    for place in [", section ", ", sections ", ", chapter "] {
        for (end, _) in comment.match_indices(place) {
            let before = &comment[..end];
            let start = before.rfind(['(', ';', ':', '/']).map_or(0, |at| at + 1);
            let cited = before[start..].trim().trim_start_matches("the ");
            let last = cited.rsplit(' ').next().unwrap_or_default();
            let is_known =
                |name: &&str| papers.iter().any(|paper| paper.eq_ignore_ascii_case(name));
            if ![cited, last].iter().any(is_known) && !cited.is_empty() {
                return Some(format!("{cited}{place}.."));
            }
        }
    }
    for part in comment.split("decision ").skip(1) {
        let number: String = part.chars().take_while(char::is_ascii_digit).collect();
        if number.parse::<usize>().is_ok_and(|number| number > decisions) {
            return Some(format!("decision {number}"));
        }
    }
    for word in comment.split([' ', '`', '(', ')', '[', ']', ',', ';']) {
        let path = word.trim_end_matches(['.', ':']);
        let is_path = path.starts_with("docs/") || path.starts_with("crates/");
        let is_pattern = path.contains(['*', '<', '{']) || path.contains("NNNN");
        if is_path && !is_pattern && !root().join(path).exists() {
            return Some(path.to_string());
        }
    }
    None
}

#[test]
fn comments_cite_what_is_in_the_repository() {
    let papers = papers();
    let numbers = documents()
        .into_iter()
        .filter_map(|path| path.file_name()?.to_str()?.split('-').next()?.parse::<usize>().ok());
    let decisions = numbers.max().unwrap_or(0);
    let mut wrong = Vec::new();
    for path in code() {
        // This file names what must not be cited.
        if path.ends_with("tests/tidy/prose.rs") {
            continue;
        }
        for (number, line) in read(&path).lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else { continue };
            if let Some(cited) = unknown_citation(comment, &papers, decisions) {
                wrong.push(format!("{}: {cited}", at(&path, number)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_rules_of_prose_object_to_planted_faults() {
    let body = "    x;\n".repeat(FUNCTION_LINES_MAX - 1);
    let long = format!("impl A {{\n    pub(crate) fn a() {{\n{body}    }}\n}}\nfn b();\n");
    let found: Vec<_> = functions(&long);
    assert_eq!(found, [(1, "a".to_string(), FUNCTION_LINES_MAX + 1)]);
    assert!(functions("    // the fn of\n    x: fn (u8),\n").is_empty());
    let wide = format!("// {}", "word ".repeat(20));
    assert!(is_wide_code(&wide) && !is_wide_code(&wide[..COLUMNS_MAX]));
    assert!(!is_wide_code(&format!("let x = \"{}\";", "y".repeat(COLUMNS_MAX))));
    let row = "| word ".repeat(20);
    let link = format!("[text](docs/{}.md)", "long".repeat(30));
    let text = format!("{wide}\n{row}\n{link}\n```\n{wide}\n```\n{wide}\n");
    assert_eq!(wide_prose(&text), [0, 6]);
    let names = ["1-at-once-a_b", "two"].map(String::from);
    assert_eq!(anchors("# 1. At once: `a_b`\n## Two\n```\n# x\n```\n"), BTreeSet::from(names));
    let links = "[a](#two) [b](#three) [c](none.md) [d](docs/README.md#none) [e](https://x/#y)\n";
    let dead = dead_links(&root().join("README.md"), &format!("{links}[f](docs/README.md)"));
    assert_eq!(dead, ["#two", "#three", "none.md", "docs/README.md#none"]);
    let papers = BTreeSet::from(["thesis".to_string(), "report".to_string()]);
    let cites = |comment: &str| unknown_citation(comment, &papers, 24);
    assert_eq!(cites(" PrimCast (thesis, section 4.2; Algorithm 1), decision 24"), None);
    assert_eq!(cites(" After JPaxos (the report, sections 3 to 8)"), None);
    assert!(cites(" as in (handbook, section 4.2)").is_some());
    assert!(cites(" by design").is_none() && cites(" the groups of the design").is_some());
    assert!(cites(" before its epoch stands (notes, point 4)").is_some());
    assert!(cites(" see decision 99").is_some() && cites(" see docs/none.md").is_some());
    assert!(papers.len() < self::papers().len());
}
