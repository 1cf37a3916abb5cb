//! What people see of a cluster: the dashboard in a real browser, and what a command has a mount
//! ask.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[path = "harness/clients.rs"]
#[allow(dead_code)] // Not every test needs all of it.
mod clients;
#[allow(dead_code)] // Not every test needs all of it.
mod harness;
#[path = "harness/regions.rs"]
#[allow(dead_code)] // Not every test needs all of it.
mod regions;

use harness::{Running, eventually, finish, kill, ports_in_a_row};
use regions::{NODES, Regions};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

/// How far the regions are from each other, there and back, in milliseconds.
const RTT: f64 = 60.0;

/// What a browser has made of the page that this port serves, after some seconds of its time.
fn page(regions: &Regions, port: u16) -> String {
    let mut browser = Command::new("chromium");
    let profile = regions.room.path("browser");
    browser
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--virtual-time-budget=4000", "--dump-dom"])
        .arg(format!("http://127.0.0.1:{port}/"));
    let ended = finish(browser);
    assert!(ended.status.success(), "{ended:?}");
    ended.stdout
}

fn asked(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What stands in the cells of the row of a table that begins with this.
fn row<'a>(page: &'a str, first: &str) -> Vec<&'a str> {
    let rows = page.split("<tr>").map(|row| row.split("</tr>").next().unwrap());
    let begin = format!("<td>{first}</td>");
    let row = rows.into_iter().find(|row| row.starts_with(&begin));
    let cells = row.unwrap_or_else(|| panic!("no row {first}: {page}")).split("<td").skip(1);
    cells.map(|cell| cell.split_once('>').unwrap().1.split("</td>").next().unwrap()).collect()
}

#[test]
fn a_browser_shows_how_all_nodes_are() {
    // Each node's keys, then each node's dashboard.
    let watch = ports_in_a_row(2 * NODES) + NODES;
    let (rtt, port) = (RTT.to_string(), watch.to_string());
    let regions = Regions::start(3, &["--rtt", &rtt, "--watch-port", &port]);
    let at = |number: u16| watch + number;
    eventually("all regions have measured how far the others are", || {
        let answer = asked(at(0), "/status.json");
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let told: Value = serde_json::from_str(body).unwrap();
        let links = told["links"].as_array().unwrap();
        assert_eq!(links.len(), 4);
        links
            .iter()
            .all(|link| link["round_trip_us"].is_u64() && link["pairs"] == link["connected"])
    });

    let well = page(&regions, at(0));
    assert!(well.contains("All is well: 6 nodes answer"), "{well}");
    assert!(well.contains(r#"id="verdict" role="status" class="well""#), "{well}");
    let label = well.split(r#"class="label">"#).nth(1).expect("a line between the regions");
    let far: f64 = label.split(" ms<").next().unwrap().parse().unwrap();
    assert!((RTT..2.0 * RTT).contains(&far), "{far}");
    let global = row(&well, "global");
    assert_eq!(global[3], "6 of 6", "{global:?}");
    assert!(global[1].starts_with("a-") || global[1].starts_with("b-"), "{global:?}");
    assert_eq!(row(&well, "b-3")[3], "yes");
    let all = row(&well, "all");
    assert!(all[1].parse::<u64>().unwrap() >= 3, "the root and the tops of two regions: {all:?}");
    assert_eq!(
        (all[3], all[6]),
        ("2", "0"),
        "the tops are placed elsewhere, nobody waits: {all:?}"
    );
    let trees = well.split(r#"id="trees""#).nth(1).expect("what is placed where");
    assert!(row(trees, "global")[8].starts_with("all "), "nothing holds it back: {trees}");
    let answer = asked(at(5), "/");
    assert!(answer.contains("content-security-policy: default-src 'none'"), "{answer}");

    kill(regions.room.pid_of("b-3"), libc::SIGKILL);
    let mut wrong = String::new();
    eventually("another node's page tells that b-3 is gone", || {
        wrong = page(&regions, at(1));
        wrong.contains(r#"class="degraded""#)
    });
    assert!(row(&wrong, "b-3")[3].starts_with("NO: "), "{wrong}");
    assert_eq!(row(&wrong, "b")[3], "2 of 3");
    regions.stop();
}

/// The slowest updates of a trace have their paths: each ends when the call does, in the order of
/// causes, with a step of each that took part.
fn check_timelines(regions: &Regions, told: &Value) {
    let updates = told["updates"].as_array().unwrap();
    let named = |what: &str| updates.iter().find(|update| update["what"] == what);
    let rename = named("rename").unwrap_or_else(|| panic!("no rename: {told}"));
    let timeline = &rename["timeline"];
    let steps = timeline["steps"].as_array().unwrap();
    let count = |by: &str, what: &str| {
        steps.iter().filter(|step| step["by"] == by && step["what"] == what).count()
    };
    let at = |step: &Value| step["at_us"].as_u64().unwrap();
    assert!(steps.is_sorted_by_key(at), "{timeline}");
    assert_eq!((at(&steps[0]), count("client", "asked")), (0, 2), "{timeline}");
    assert!(count("client", "answered") >= 1, "{timeline}");
    let took = rename["took_us"].as_u64().unwrap();
    let answer = steps.iter().find(|step| step["what"] == "answered").map(at).unwrap();
    assert!(answer <= took && took as f64 > RTT * 1e3, "{answer} of {took}: {timeline}");
    for what in ["requested", "proposed", "acknowledged", "ack_heard", "replied"] {
        assert!(steps.iter().any(|step| step["what"] == what), "{what}: {timeline}");
    }
    assert_eq!(timeline["silent"], serde_json::json!([]), "{timeline}");

    let name = rename["message"].as_str().unwrap();
    let room = &regions.room;
    eventually("each replica tells once that it has applied the rename", || {
        let told = room.run(&["timeline", name, "--mount", "mnt", "--json"]);
        let told: Value = serde_json::from_str(&told.stdout).unwrap();
        let applied = |by: &str| {
            let is = |step: &&Value| step["by"] == by && step["what"] == "applied";
            told["steps"].as_array().unwrap().iter().filter(is).count()
        };
        // Those of `a` replicate `global`, too.
        ["a-1", "a-2", "a-3"].iter().all(|node| applied(node) == 2)
            && ["b-1", "b-2", "b-3"].iter().all(|node| applied(node) == 1)
    });
    let again = room.run(&["timeline", name, "--mount", "mnt"]);
    assert!(again.status.success() && again.stdout.contains("replies to the client"), "{again:?}");
    let cluster = room.path("data/cluster.json");
    let cluster = cluster.to_str().unwrap();
    let of_nodes = room.run(&["timeline", name, "--cluster", cluster, "--json"]);
    let of_nodes: Value = serde_json::from_str(&of_nodes.stdout).unwrap();
    let of_nodes = of_nodes["steps"].as_array().unwrap();
    assert!(of_nodes.iter().any(|step| step["what"] == "delivered"), "{of_nodes:?}");
    assert!(of_nodes.iter().all(|step| step["by"] != "client"), "{of_nodes:?}");
    let none = room.run(&["timeline", "1.1", "--mount", "mnt"]);
    assert!(!none.status.success() && none.stderr.contains("nobody remembers 1.1"), "{none:?}");
}

#[test]
fn a_mount_tells_what_it_asks_and_a_command_what_it_had_it_ask() {
    let regions = Regions::start(3, &["--rtt", &RTT.to_string()]);
    let room = &regions.room;
    let (port, cluster) = (ports_in_a_row(1), room.path("data/cluster.json"));
    let watch = format!("127.0.0.1:{port}");
    let args = ["mount", "--region", "b", "--metrics-address", &watch, "--cluster"];
    let args = [&args[..], &[cluster.to_str().unwrap(), "other"]].concat();
    let other = Running::start_quietly(room.meridian(&args), room.path("other"));
    fs::create_dir(other.mount().join("made")).unwrap();
    let told = asked(port, "/metrics");
    let made = r#"meridian_mount_asked_seconds_count{what="create",group="global"} 1"#;
    assert!(told.contains(made) && told.ends_with("# EOF\n"), "{told}");
    assert!(told.contains(r#"meridian_mount_info{region="b",at=""#), "{told}");
    let health = asked(port, "/healthz");
    assert!(health.starts_with("HTTP/1.1 200") && health.contains("b-1 serves"), "{health}");
    other.stop();

    let command =
        "mkdir mnt/a/x mnt/y && touch mnt/a/x/1 mnt/a/x/2 && mv mnt/a/x/1 mnt/y && exit 3";
    let traced = room.run(&["trace", "--mount", "mnt", "--json", "--", "sh", "-c", command]);
    assert_eq!(traced.status.code(), Some(3), "{traced:?}");
    let told: Value = serde_json::from_str(&traced.stderr).unwrap();
    let rows = told["rows"].as_array().unwrap();
    let of = |what: &str, groups: &[&str]| {
        let wanted =
            |row: &&Value| row["what"] == what && row["groups"] == serde_json::json!(groups);
        let row =
            rows.iter().find(wanted).unwrap_or_else(|| panic!("{what} by {groups:?}: {told}"));
        (row["count"].as_u64().unwrap(), row["p50_ms"].as_f64().unwrap())
    };
    let (near, far) = (of("create", &["a"]), of("create", &["global"]));
    assert_eq!((near.0, far.0), (3, 1), "{told}");
    assert!(far.1 > RTT && near.1 < RTT, "{told}");
    assert_eq!(of("rename", &["global", "a"]).0, 1);
    let slowest = told["slowest"].as_array().unwrap();
    let slow = |call: &str, path: &str| {
        let is = |slow: &Value| slow["call"] == call && slow["path"] == path;
        let slow = slowest.iter().find(|slow| is(slow)).unwrap_or_else(|| panic!("{path}: {told}"));
        slow["took_us"].as_f64().unwrap() > RTT * 1e3
    };
    assert!(slow("mkdir", "/y") && slow("rename", "/a/x/1"), "{told}");
    check_timelines(&regions, &told);
    let hints = told["hints"].to_string();
    assert!(hints.contains("several placements") && hints.contains("fs place"), "{hints}");

    let failed = room.run(&["trace", "--", "true"]);
    assert!(failed.stderr.contains("in no Meridian mount"), "{failed:?}");
    let failed = room.run(&["trace", "--mount", "mnt", "--", "./none"]);
    assert!(!failed.status.success() && failed.stderr.contains("cannot run ./none"), "{failed:?}");
    regions.stop();
}
