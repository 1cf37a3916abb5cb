//! `meridian bench`, with short measurements: what it writes, not how fast it is.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use serde_json::Value;
use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_meridian"))
        .args(["bench", "multicast"])
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn one_diagram_is_drawn_with_its_raw_results() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let output =
        bench(&["figures", "--quick", "--only", "4.2", "--protocols", "primcast", "--out", out]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("3 of 3"), "{stderr}");
    let mut written: Vec<_> =
        std::fs::read_dir(out).unwrap().map(|file| file.unwrap().file_name()).collect();
    written.sort();
    let wanted = ["README.md", "figure-4.2.jsonl", "figure-4.2.pdf", "figure-4.2.svg"];
    assert_eq!(written, wanted);
    let drawn = std::fs::read_to_string(dir.path().join("figure-4.2.svg")).unwrap();
    assert!(drawn.contains("Figure 4.2") && drawn.contains("PrimCast"), "{drawn}");
    let results = std::fs::read_to_string(dir.path().join("figure-4.2.jsonl")).unwrap();
    let results: Vec<Value> =
        results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(results.len(), 3);
    for result in results {
        assert!(result["parts"][0]["messages_per_second"].as_f64() > Some(0.0), "{result}");
    }
}

#[test]
fn a_diagram_that_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("figures");
    let output = bench(&["figures", "--only", "4.6", "--out", out.to_str().unwrap()]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && stderr.contains("possible values: 4.2"), "{stderr}");
    assert!(!out.exists());
}

/// A demo of its own, and what each operation costs all its processes.
#[test]
fn a_create_has_its_cpu_time_told_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        ["bench", "fs", "--only", "create", "--threads", "1,2", "--seconds", "0.5", "--json"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    let output = command.args(args).env("TMPDIR", dir.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let operations = report["operations"].as_array().unwrap();
    assert_eq!(operations.len(), 2);
    for one in operations {
        assert!(one["count"].as_u64() > Some(0) && one["errors"] == 0, "{one}");
        let used = |who: &str| one["cost"][who]["cpu_us"].as_f64().unwrap();
        assert!(used("servers") > 0.0 && used("mount") > 0.0, "{one}");
        assert!(used("all") > used("servers") + used("mount"), "{one}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn writes_go_on_after_a_primary_was_killed_and_the_figure_is_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("figures");
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.args(["bench", "fs", "failover", "--rounds", "1", "--rate", "20", "--seconds", "10"]);
    let output = command.arg("--json").arg("--out").arg(&out).env("TMPDIR", dir.path()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["median_pause_seconds"].as_f64() > Some(0.0), "{report}");
    let drawn = std::fs::read_to_string(out.join("failover.svg")).unwrap();
    assert!(drawn.contains("kill -9") && drawn.contains("latency (ms)"));
    assert!(out.join("failover.json").exists());
}
