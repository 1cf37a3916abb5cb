//! `meridian bench multicast soak`, with few messages: one replica is killed or frozen and comes
//! back.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use serde_json::Value;
use std::process::{Command, Output};

/// So long, and so many, that the others drop from their logs what the replica that is down lacks:
/// they keep 24 MiB, and what came in the last second.
const LONG: &str = "4096";
const MANY: u64 = 40_000;

fn soak(dir: &tempfile::TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.args(["bench", "multicast", "soak", "--json", "--dir"]).arg(dir.path());
    command.args(args).output().unwrap()
}

fn report(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// All groups have delivered what was multicast to them: each message, and that of the replica that
/// came back.
fn check_delivered(report: &Value, messages: u64) {
    for group in report["delivered"].as_array().unwrap() {
        assert_eq!(group["delivered"], messages + 1, "{group}");
    }
    let samples = report["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 40);
    assert!(samples.iter().any(|sample| sample["away"] == true));
    assert!(report["outage"]["missed"].as_u64().unwrap() > messages / 4);
}

#[test]
fn a_replica_that_was_killed_is_brought_up_by_a_snapshot_and_agrees_with_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let messages = MANY.to_string();
    let output = soak(&dir, &["--messages", &messages, "--payload", LONG, "--outstanding", "100"]);
    let report = report(&output);
    check_delivered(&report, MANY);
    let outage = &report["outage"];
    assert_eq!((&outage["replica"], &outage["how"]), (&"g0/n0".into(), &"killed".into()));
    let position = report["snapshot"]["position"].as_u64();
    assert!(position.is_some_and(|position| position > MANY / 2), "{report}");
    // While it was down it took no memory, but its log was there.
    let samples = report["samples"].as_array().unwrap();
    let usage = |sample: &Value, node: usize| sample["replicas"][node].clone();
    let down = samples.iter().find(|sample| usage(sample, 0)["memory"] == 0).unwrap();
    assert!(usage(down, 0)["disk"].as_u64() > Some(1 << 20), "{down}");
    assert!(usage(down, 1)["memory"].as_u64() > Some(1 << 20), "{down}");
    // So few messages tell nothing of what stays flat.
    assert_eq!(report["flat"], Value::Null);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "its logs are left behind");
}

#[test]
fn replicas_without_disks_agree_when_a_frozen_one_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--messages", "10000", "--in-memory", "--down-node", "2", "--dest", "1"];
    let report = report(&soak(&dir, &args));
    assert_eq!(report["outage"]["how"], "frozen");
    let delivered = report["delivered"].as_array().unwrap().iter();
    let delivered = delivered.map(|group| group["delivered"].as_u64().unwrap());
    assert_eq!(delivered.sum::<u64>(), 10_001);
    let disk = |sample: &Value| sample["replicas"][0]["disk"].as_u64().unwrap();
    assert!(report["samples"].as_array().unwrap().iter().all(|sample| disk(sample) == 0));
}

#[test]
fn a_replica_that_takes_one_message_for_another_is_named_with_the_position() {
    let dir = tempfile::tempdir().unwrap();
    let output = soak(&dir, &["--messages", "4000", "--plant-difference", "--outstanding", "50"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(output.stdout.is_empty());
    assert!(stderr.contains("g0/n1") && stderr.contains("up to position 2000"), "{stderr}");
    assert!(stderr.contains("up to 1900 they were the same"), "{stderr}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "its logs are left behind");
}
