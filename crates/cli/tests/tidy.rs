//! Rules of the workspace that the compiler does not know.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[path = "tidy/alarms.rs"]
mod alarms;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/published.rs"]
mod published;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Crates without IO, threads, async, clocks and randomness.
const PURE: [&str; 12] = [
    "core",
    "paxos",
    "hermes",
    "eunomia",
    "multicast",
    "baselines",
    "cluster",
    "keys",
    "fs",
    "host",
    "session",
    "sim",
];
/// What must not stand in them, outside tests. The clippy configuration forbids more; this also
/// sees what is only imported.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::thread",
    "std::env",
    "tokio",
    "Instant",
    "HashMap",
    "print!",
    "println!",
    "eprint!",
    "eprintln!",
    "dbg!",
];
/// The simulator's face to who runs a test: seeds come from the environment, a failure is printed.
const SPEAKS: &str = "sim/src/harness.rs";
/// It shares trials out among processors, and is in none.
const SHARES: &str = "sim/src/processors.rs";
/// No file of code may be longer: who reads it has it on a few screens.
const LINES_MAX: usize = 600;
/// Files that hold only tests may: nobody must read them as a whole.
const TEST_LINES_MAX: usize = 1000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of Rust code below `dir`, by path.
fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The table of crates in ARCHITECTURE.md, in its order: name and what it imports.
fn table() -> Vec<(String, BTreeSet<String>)> {
    let text = read(&root().join("ARCHITECTURE.md"));
    let rows = text.lines().skip_while(|line| !line.starts_with("| crate | imports |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cell = |cell: &str| cell.split('`').skip(1).step_by(2).map(String::from).collect();
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let names: Vec<String> = cell(cells[1]);
        (names[0].clone(), cell(cells[2]).into_iter().collect::<BTreeSet<_>>())
    })
    .collect()
}

/// The crates of this workspace that a manifest names in the section `[section]`.
fn imports(manifest: &str, section: &str) -> BTreeSet<String> {
    let lines = manifest.lines().skip_while(|line| line.trim() != format!("[{section}]")).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let names =
        lines.filter_map(|line| line.split(['.', ' ', '=']).next()?.strip_prefix("meridian-"));
    names.map(String::from).collect()
}

#[test]
fn crates_import_what_the_map_says_and_only_rows_above() {
    let table = table();
    let mut above = BTreeSet::new();
    for (name, imported) in &table {
        let manifest = read(&root().join("crates").join(name).join("Cargo.toml"));
        assert_eq!(
            imports(&manifest, "dependencies"),
            *imported,
            "{name}: ARCHITECTURE.md differs"
        );
        let wrong: Vec<_> = imported.difference(&above).collect();
        assert!(wrong.is_empty(), "{name} imports {wrong:?}, which do not stand above it");
        let for_tests = imports(&manifest, "dev-dependencies");
        // A crate may name itself there, with more features.
        let wrong: Vec<_> = for_tests.difference(&above).filter(|other| *other != name).collect();
        assert!(wrong.is_empty(), "{name}'s tests import {wrong:?}, which do not stand above it");
        assert!(manifest.contains("[lints]\nworkspace = true"), "{name} does not take the lints");
        above.insert(name.clone());
    }
    let folders = fs::read_dir(root().join("crates")).unwrap();
    let folders: BTreeSet<_> =
        folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(folders, above, "the crates and the table of ARCHITECTURE.md");
}

#[test]
fn pure_crates_stay_pure() {
    let mut wrong = Vec::new();
    for name in PURE {
        let dir = root().join("crates").join(name);
        assert!(dir.join("clippy.toml").exists(), "{name} has no link to .config/pure-clippy.toml");
        for path in rust_files(&dir.join("src")) {
            if is_of_tests(&path) {
                continue;
            }
            let text = read(&path);
            let mut lines = text.lines().enumerate().peekable();
            while let Some((number, line)) = lines.next() {
                let next = lines.peek().map_or("", |(_, next)| *next);
                if line.starts_with("#[cfg(test)]") && next.ends_with('{') {
                    break; // Tests in the file itself are the last thing in it.
                }
                let code = line.split("//").next().unwrap_or_default();
                // The one place that gives it a fixed hasher, and hides its order.
                let tamed = path.ends_with("core/src/table.rs");
                let speaks = path.ends_with(SPEAKS);
                let shares = path.ends_with(SHARES);
                let allowed = |word: &str| match word {
                    "HashMap" => tamed,
                    "std::thread" => shares,
                    "std::env" | "println!" | "eprintln!" => speaks,
                    _ => false,
                };
                let wanted = |word: &&&str| has_word(code, word) && !allowed(word);
                for word in IMPURE.iter().filter(wanted) {
                    wrong.push(format!("{}:{}: {word}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn is_of_tests(path: &Path) -> bool {
    path.components().any(|part| {
        let part = part.as_os_str().to_string_lossy();
        part == "tests" || part.ends_with("tests.rs")
    })
}

/// Whether the code names `word`. Asking whether this thread panics, and how the test is called
/// that runs on it, starts no thread.
fn has_word(code: &str, word: &str) -> bool {
    let asks = ["::panicking()", "::current()"];
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let rest = &code[at + word.len()..];
        let only_asks = word == "std::thread" && asks.iter().any(|ask| rest.starts_with(ask));
        !code[..at].ends_with(part) && !rest.starts_with(part) && !only_asks
    })
}

#[test]
fn nothing_is_left_for_later_and_files_are_short() {
    // In two halves, so that this file does not accuse itself.
    let unfinished = [["to", "do!"], ["unimplem", "ented!"], ["#[ig", "nore"]].map(|w| w.concat());
    let mut wrong = Vec::new();
    for path in rust_files(&root().join("crates")) {
        let text = read(&path);
        let lines = text.lines().count();
        let max = if is_of_tests(&path) { TEST_LINES_MAX } else { LINES_MAX };
        if lines > max {
            wrong.push(format!("{}: {lines} lines, at most {max}", path.display()));
        }
        for (number, line) in text.lines().enumerate() {
            for word in unfinished.iter().filter(|word| line.contains(word.as_str())) {
                wrong.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_checks_object_to_planted_faults() {
    assert!(has_word("use std::fs::File;", "std::fs"));
    assert!(has_word("let x: HashMap<u8, u8>;", "HashMap"));
    assert!(has_word("std::thread::spawn(f)", "std::thread"));
    assert!(!has_word("if std::thread::panicking() {", "std::thread"));
    assert!(!has_word("let instant = Instantiate;", "Instant"));
    assert!(!has_word("type MyHashMap = u8;", "HashMap"));
    let manifest = "[dependencies]\nmeridian-core.workspace = true\nserde = \"1\"\n[dev-dependencies]\nmeridian-sim = { path = \"x\" }\n";
    assert_eq!(imports(manifest, "dependencies"), BTreeSet::from(["core".to_string()]));
    assert_eq!(imports(manifest, "dev-dependencies"), BTreeSet::from(["sim".to_string()]));
    let rows: BTreeMap<_, _> = table().into_iter().collect();
    assert!(rows["core"].is_empty() && rows["host"].contains("multicast"));
}
