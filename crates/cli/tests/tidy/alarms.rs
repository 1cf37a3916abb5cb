//! What Prometheus is given: its rules ask for values that there are, each alarm of the documents
//! has one, and who sets it up by the page has the same as who takes the file.

use super::pages::first_cells;
use super::{read, root};
use std::collections::BTreeSet;

/// Where the files for Prometheus are.
const FILES: [&str; 2] =
    ["packaging/prometheus/prometheus.yml", "packaging/prometheus/meridian.rules.yml"];

/// What rules ask for: each has an expression, on a line of its own.
fn expressions(rules: &str) -> Vec<&str> {
    rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect()
}

/// The values that an expression names, or a cell of a table.
fn values(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("meridian_")).collect()
}

/// What rules ask for that no server or mount tells.
fn unknown<'a>(rules: &'a str, told: &[String]) -> Vec<&'a str> {
    let named = expressions(rules).into_iter().flat_map(values);
    named.filter(|value| !told.iter().any(|of| of == value)).collect()
}

/// Alarms of which no rule has the expression.
fn unruled<'a>(rules: &str, alarms: &'a [String]) -> Vec<&'a str> {
    let (all, lines) = (expressions(rules), alarms.iter().map(String::as_str));
    lines.filter(|alarm| !all.iter().any(|expression| expression.contains(alarm))).collect()
}

/// The block of YAML in a page that has this word behind its language.
fn block<'a>(page: &'a str, word: &str) -> &'a str {
    let after = page.split(&format!("```yaml {word}\n")).nth(1);
    let block = after.and_then(|after| after.split("```").next());
    block.unwrap_or_else(|| panic!("no block of {word}"))
}

#[test]
fn each_rule_asks_for_what_is_told_and_each_alarm_has_one() {
    let page = read(&root().join("docs/metrics.md"));
    let of = |heading| first_cells(&page, heading);
    let told = [of("Values"), of("Values of a mount")].concat();
    assert!(told.len() > 40, "{told:?}");
    let rules = read(&root().join(FILES[1]));
    let count = rules.matches("- alert: ").count();
    assert_eq!(expressions(&rules).len(), count, "each has an expression, on one line");
    assert!(expressions(&rules).iter().all(|of| !values(of).is_empty()), "{rules}");
    let unknown = unknown(&rules, &told);
    assert!(unknown.is_empty(), "{} asks for what nobody tells: {unknown:?}", FILES[1]);
    let alarms = of("What to be woken by");
    assert!(alarms.len() > 6, "{alarms:?}");
    let unruled = unruled(&rules, &alarms);
    assert!(unruled.is_empty(), "{} has no rule for {unruled:?}", FILES[1]);
}

#[test]
fn prometheus_is_set_up_as_the_page_says_and_the_package_has_it() {
    let scrape = read(&root().join(FILES[0]));
    let page = read(&root().join("docs/setup.md"));
    assert!(scrape.contains(block(&page, "prometheus")), "{} is not as in docs/setup.md", FILES[0]);
    let rules = FILES[1].rsplit('/').next().expect("a name");
    assert!(scrape.contains(&format!("rule_files:\n  - {rules}\n")), "{scrape}");
    let package = read(&root().join("crates/cli/Cargo.toml"));
    for file in FILES {
        assert!(package.contains(&format!("[\"../../{file}\", ")), "the package lacks {file}");
    }
}

#[test]
fn the_rules_of_alarms_object_to_planted_faults() {
    let rules = "- alert: A\n  expr: increase(meridian_a[10m]) > 3\n- alert: B\n  expr: \
                 sum by (x) (meridian_b{job=\"y\"}) == 0 or up == 0\n";
    let told = ["meridian_a".to_string(), "meridian_b_total".to_string()];
    assert_eq!(unknown(rules, &told), ["meridian_b"]);
    let alarms = ["increase(meridian_a[10m]) > 3".to_string(), "meridian_a > 3".to_string()];
    assert_eq!(unruled(rules, &alarms), ["meridian_a > 3"]);
    assert_eq!(block("a\n```yaml one\nb: c\n```\nd", "one"), "b: c\n");
}
