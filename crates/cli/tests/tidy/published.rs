//! What a registry wants of each crate.

use super::{read, root, table};
use std::collections::BTreeSet;

/// The categories that the registry knows, of those that fit.
const CATEGORIES: [&str; 10] = [
    "algorithms",
    "asynchronous",
    "command-line-utilities",
    "concurrency",
    "data-structures",
    "database-implementations",
    "development-tools::testing",
    "filesystem",
    "network-programming",
    "simulation",
];
/// What each crate has from the workspace.
const INHERITED: [&str; 5] = ["version", "edition", "rust-version", "license", "repository"];

/// The value of a field of `[package]`, as it is written.
fn field<'a>(manifest: &'a str, name: &str) -> Option<&'a str> {
    let package = manifest.split("\n[").next()?;
    let line = package.lines().find(|line| line.split([' ', '=']).next() == Some(name))?;
    Some(line.split_once('=')?.1.trim())
}

/// The texts in a list.
fn texts(list: &str) -> Vec<&str> {
    list.split('"').skip(1).step_by(2).collect()
}

/// What is wrong with a manifest, for a registry.
fn objections(manifest: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let inherited = |name: &&&str| field(manifest, &format!("{name}.workspace")) != Some("true");
    wrong.extend(INHERITED.iter().filter(inherited).map(|name| format!("no {name}.workspace")));
    if field(manifest, "readme") != Some("\"README.md\"") {
        wrong.push("no readme".into());
    }
    let about = texts(field(manifest, "description").unwrap_or_default()).concat();
    if about.len() < 20 || about.trim() != about || !about.ends_with('.') {
        wrong.push(format!("the description {about:?} is no sentence"));
    }
    let keywords = texts(field(manifest, "keywords").unwrap_or_default());
    let is_keyword = |word: &&str| {
        let part = |c: char| c.is_ascii_alphanumeric() || "_-+".contains(c);
        word.len() <= 20 && word.chars().all(part) && word.starts_with(char::is_alphabetic)
    };
    if keywords.is_empty() || keywords.len() > 5 || !keywords.iter().all(is_keyword) {
        wrong.push(format!("the keywords {keywords:?}: one to five, of up to 20 letters"));
    }
    let categories = texts(field(manifest, "categories").unwrap_or_default());
    if categories.is_empty() || !categories.iter().all(|one| CATEGORIES.contains(one)) {
        wrong.push(format!("the categories {categories:?}: one or more of {CATEGORIES:?}"));
    }
    wrong
}

#[test]
fn each_crate_can_be_published() {
    let (workspace, mut wrong) = (read(&root().join("Cargo.toml")), Vec::new());
    let version = workspace.lines().find_map(|line| line.strip_prefix("version = ")).unwrap();
    for (name, _) in table() {
        let dir = root().join("crates").join(&name);
        let manifest = read(&dir.join("Cargo.toml"));
        let of_crate = objections(&manifest);
        wrong.extend(of_crate.into_iter().map(|what| format!("{name}: {what}")));
        let readme = dir.join("README.md");
        let begins = format!("# {}\n", texts(field(&manifest, "name").unwrap()).concat());
        if !readme.exists() || !read(&readme).starts_with(&begins) {
            wrong.push(format!("{name}: no README.md that begins with {begins:?}"));
        }
        // A registry takes no dependency without a version.
        let row = format!("meridian-{name} = {{ path = \"crates/{name}\", version = {version} }}");
        if name != "cli" && !workspace.lines().any(|line| line == row) {
            wrong.push(format!("Cargo.toml has no line: {row}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_rules_of_manifests_object_to_planted_faults() {
    let inherited: Vec<_> =
        INHERITED.iter().map(|name| format!("{name}.workspace = true")).collect();
    let good = format!(
        "[package]\nname = \"a\"\ndescription = \"Does something of use.\"\nkeywords = [\"one\"]\n\
         categories = [\"simulation\"]\nreadme = \"README.md\"\n{}\n\n[lints]\n",
        inherited.join("\n")
    );
    assert_eq!(objections(&good), Vec::<String>::new());
    let faults = [
        ("readme = \"README.md\"\n", ""),
        ("something of use.", "something."),
        ("of use.\"", "of use\""),
        ("\"one\"", "\"one\", \"2\", \"three\""),
        ("[\"one\"]", "[]"),
        ("simulation", "simulations"),
        ("license.workspace = true\n", ""),
        ("readme = \"README.md\"\n", "[lints]\nreadme = \"README.md\"\n"),
    ];
    for (what, instead) in faults {
        let bad = good.replacen(what, instead, 1);
        assert!(bad != good && !objections(&bad).is_empty(), "{what:?} is {instead:?}");
    }
    let names: BTreeSet<_> = table().into_iter().map(|(name, _)| name).collect();
    assert!(names.contains("replication") && names.contains("cli"));
}
