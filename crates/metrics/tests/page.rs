//! What is served is what `docs/metrics.md` says, and nothing else.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use meridian_cluster::Topology;
use meridian_host::api::NodeStatus;
use meridian_metrics::mount::{self, Asked};
use meridian_metrics::table::{Head, METRICS};
use meridian_metrics::{Told, text};
use meridian_transport::Ends;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Until when certificates count.
const ENDS: Ends = Ends { own: Some(1_800_000_000), authority: Some(2_400_000_000) };

fn topology() -> Topology {
    let node = |name: &str, region: &str, port: u16| {
        json!({"name": name, "region": region, "address": format!("h:{port}"),
            "groups": ["global", region]})
    };
    let nodes = [node("us-1", "us", 1), node("us-2", "us", 2), node("eu-1", "eu", 3)];
    let format = meridian_cluster::topology::CLUSTER_FORMAT;
    let file = json!({"format": format, "cluster": 7, "nodes": nodes});
    Topology::parse(&file.to_string()).unwrap().0
}

/// Of a node that has all there is to tell of.
fn status() -> NodeStatus {
    let replica = |group: u16, role: &str, leader: u16| {
        json!({"group": group, "role": role,
            "epoch": {"config": 0, "number": 4, "leader": leader}, "primary": leader,
            "delivered": 90, "applied": 80, "clock": 0, "pending": 2, "head_age_ms": 1500,
            "state_hash": 7, "held_up": null,
            "holdings": {"inodes": 4, "bytes": 9, "elsewhere": 1, "holders": 2, "held": 3,
                "waiting": 1, "capabilities": 5}})
    };
    serde_json::from_value(json!({"node": 0, "pid": 9, "uptime_ms": 61_000,
        "replicas": [replica(0, "follower", 2), replica(1, "primary", 0)], "blocks": [10, 2000],
        "block_disk_bytes": 3000, "to_free": 4, "full": false,
        "room": {"free": 77, "writable": 0, "total": 100, "device": 1},
        "copies": meridian_host::drain::keep::Report::default(), "bad_frames": 5,
        "unauthorized": 6, "clients": 3, "connected": [2], "round_trips_us": [[2, 80150]], "flush_us": 640, "configured": 6,
        "keeper": null,
        "keys": [{"epoch": 3, "live": [0, 1], "shadows": [2], "voters": [0, 1], "serves_ms": 90,
            "clients": 4, "keys": 5, "bytes": 60, "on_disk": false, "causal": false},
            {"epoch": 3, "live": [0], "shadows": [], "voters": [], "serves_ms": 0,
            "clients": 0, "keys": 1, "bytes": 2, "on_disk": false, "causal": true}],
        "causal": {"stable_ms": 5, "outstanding": 8,
            "from": [{"of": 2, "applied_ms": 3, "lag_ms": 250, "queue": 11}]}}))
    .unwrap()
}

fn row(head: &Head) -> String {
    let Head { name, kind, labels, help } = head;
    let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
    format!("| `{name}` | {} | {} | {help} |", kind.name(), labels.join(" "))
}

#[test]
fn the_page_has_a_row_for_each_metric() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let tables = [
        ("Values\n", METRICS.iter().map(|metric| row(&metric.head)).collect::<Vec<_>>()),
        ("Values of a mount\n", mount::METRICS.iter().map(|metric| row(&metric.head)).collect()),
    ];
    for (title, rows) in tables {
        let values = page.split("\n## ").find(|section| section.starts_with(title)).unwrap();
        let told: Vec<_> = values.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(told, rows, "the table of docs/metrics.md is to be:\n{}", rows.join("\n"));
    }
}

#[test]
fn what_is_served_is_what_is_listed() {
    let (topology, status) = (topology(), status());
    let text = text::text(Some(Told { topology: &topology, status: &status, ends: ENDS }));
    let name = |line: &str| line.split(['{', ' ']).next().unwrap().to_string();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let served: BTreeSet<_> = samples.map(name).collect();
    let listed: BTreeSet<_> = METRICS.iter().map(|metric| metric.head.name.to_string()).collect();
    assert_eq!(served, listed, "{text}");
    assert_eq!(listed.len(), METRICS.len(), "no name stands there twice");
    let lines = [
        "meridian_up 1.0",
        "meridian_serving 1.0",
        "meridian_uptime_seconds 61.0",
        "meridian_group_primary{group=\"us\"} 1.0",
        "meridian_group_primary{group=\"global\"} 0.0",
        "meridian_group_oldest_pending_seconds{group=\"us\"} 1.5",
        "meridian_peer_connected{peer=\"eu-1\",region=\"eu\"} 1.0",
        "meridian_peer_connected{peer=\"us-2\",region=\"us\"} 0.0",
        "meridian_peer_round_trip_seconds{peer=\"eu-1\",region=\"eu\"} 0.08015",
        "meridian_log_flush_seconds 0.00064",
        "meridian_bad_frames_total 5.0",
        "meridian_unauthorized_connections_total 6.0",
        "meridian_certificate_ends_timestamp_seconds{of=\"own\"} 1800000000.0",
        "meridian_certificate_ends_timestamp_seconds{of=\"authority\"} 2400000000.0",
        "meridian_disk_full 1.0",
        "meridian_keys{shard=\"0\"} 5.0",
        "meridian_keys{shard=\"causal\"} 1.0",
        "meridian_causal_lag_seconds{from=\"eu\"} 0.25",
        "# TYPE meridian_bad_frames counter",
    ];
    for line in lines {
        assert!(text.lines().any(|told| told == line), "{line}: {text}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
    for metric in METRICS {
        let Head { name, kind, .. } = metric.head;
        assert_eq!(name.ends_with("_total"), kind.name() == "counter", "{name}");
    }
}

#[test]
fn a_mount_tells_how_long_what_it_asked_took() {
    let ms = Duration::from_millis;
    let asked = |what: &str, group: &str| Asked {
        what: what.into(),
        group: group.into(),
        failed: 2,
        total: ms(1500),
        took: vec![(ms(1), 3), (ms(500), 4), (ms(1000), 0)],
    };
    let asked = [asked("create", "us"), asked("rename", "eu+us")];
    let told = mount::Told { region: "us", at: "/srv", kept: 9, ends: ENDS, asked: &asked };
    let text = text::of_mount(&told);
    let lines = [
        "meridian_mount_looks_kept_total 9.0",
        "meridian_certificate_ends_timestamp_seconds{of=\"own\"} 1800000000.0",
        "# TYPE meridian_mount_asked_seconds histogram",
        "meridian_mount_asked_seconds_sum{what=\"create\",group=\"us\"} 1.5",
        "meridian_mount_asked_seconds_count{what=\"create\",group=\"us\"} 7",
        "meridian_mount_asked_seconds_bucket{le=\"0.001\",what=\"rename\",group=\"eu+us\"} 3",
        "meridian_mount_asked_seconds_bucket{le=\"1.0\",what=\"rename\",group=\"eu+us\"} 7",
        "meridian_mount_asked_seconds_bucket{le=\"+Inf\",what=\"rename\",group=\"eu+us\"} 7",
        "meridian_mount_failed_total{what=\"create\",group=\"us\"} 2.0",
    ];
    for line in lines {
        assert!(text.lines().any(|told| told == line), "{line}: {text}");
    }
    for metric in mount::METRICS {
        assert!(text.contains(metric.head.name.trim_end_matches("_total")), "{text}");
    }
}

#[test]
fn a_node_that_does_not_answer_is_not_up_and_nothing_else() {
    let text = text::text(None);
    let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(samples, ["meridian_up 0.0"]);
}

#[test]
fn a_node_serves_when_it_leads_or_follows_one_that_it_can_reach() {
    let (topology, mut status) = (topology(), status());
    let told = |status: &NodeStatus| {
        let told = Told { topology: &topology, status, ends: Ends::default() };
        (told.serves(), told.sentence())
    };
    let (serves, said) = told(&status);
    assert!(serves);
    assert_eq!(said, "serves: leads us; follows global; 1 peers");
    status.connected.clear();
    assert!(!told(&status).0, "the primary of global is away");
    status.connected.push(meridian_core::NodeId(2));
    status.replicas[1].role = "promised".into();
    let (serves, said) = told(&status);
    assert!(!serves);
    assert_eq!(said, "does not serve yet: follows global; waits for us; 1 peers");
    status.replicas.clear();
    assert!(!told(&status).0);
}
