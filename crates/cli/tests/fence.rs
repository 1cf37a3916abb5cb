//! A region that is lost for good, of nine nodes on one machine: all goes on without it.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;

use harness::{Room, Running, eventually, finish, kill};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The answer of `meridian region` as JSON.
fn ask(room: &Room, args: &[&str]) -> Value {
    let ended = room.run(&[&["region"], args, &["--json"]].concat());
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

fn refused(room: &Room, args: &[&str], why: &str) {
    let ended = room.run(&[&["region"], args].concat());
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains(why), "{ended:?}");
}

/// All files of a node's directory with their contents, but for those that say who holds it, and
/// what its server says.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut left) = (BTreeMap::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                left.push(path);
            } else if !["lock", "server.pid", "server.log"].contains(&&*name) {
                found.insert(path.clone(), fs::read(path).unwrap());
            }
        }
    }
    found
}

/// Bytes that are in several blocks.
fn long() -> Vec<u8> {
    (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// The nodes of the lost region have what was written there, and reading it changes nothing.
fn salvages(room: &Room, primary: &str) {
    let dirs = ["ap-1", "ap-2", "ap-3"].map(|node| room.path(&format!("data/{node}")));
    let before = dirs.each_ref().map(|dir| contents(dir));
    let path = |of: &Path| of.to_str().unwrap().to_string();
    let run = |args: &[&str], code: i32| {
        let all = dirs.iter().flat_map(|dir| ["--blocks".to_string(), path(dir)]);
        let own = path(&room.path(&format!("data/{primary}")));
        let others: Vec<String> = all.collect();
        let others = others.chunks(2).filter(|of| of[1] != own).flatten().map(String::as_str);
        let words: Vec<&str> = ["salvage", own.as_str()]
            .into_iter()
            .chain(others)
            .chain(args.iter().copied())
            .collect();
        let ended = room.run(&words);
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        ended
    };
    let listed: Value = serde_json::from_str(&run(&["--json"], 0).stdout).unwrap();
    let items = listed["items"].as_array().unwrap();
    let find = |path: &str| items.iter().find(|item| item["path"] == path);
    let inside = find("/ap/inside").unwrap_or_else(|| panic!("{listed:#}"));
    assert_eq!((&inside["size"], &inside["missing"]), (&json!(7), &json!([])), "{listed:#}");
    assert!(find("/us/moved").is_none(), "its name is in us, which was elsewhere");
    let numbered = |item: &&Value| {
        item["path"].as_str().unwrap().starts_with("/by-number/") && item["size"] == 7
    };
    assert_eq!(items.iter().filter(numbered).count(), 1, "{listed:#}");
    let astray: Vec<_> = listed["astray"].as_array().unwrap().iter().collect();
    assert!(astray.iter().any(|name| name["path"] == "/us"), "{listed:#}");
    assert_eq!(listed["lost_since_ms"].as_u64().map(|ms| ms > 0), Some(true), "{listed:#}");

    let out = room.path("rescued");
    let copied = run(&["--to", out.to_str().unwrap(), "--only", "/ap"], 0);
    assert!(copied.stdout.contains("no bytes are missing"), "{copied:?}");
    assert_eq!(fs::read(out.join("ap/inside")).unwrap(), b"written");
    assert!(fs::read(out.join("ap/long")).unwrap() == long(), "other bytes");
    assert!(!out.join("by-number").exists() && !out.join("us").exists());
    let again = run(&["--to", out.to_str().unwrap()], 1);
    assert!(again.stderr.contains("is not empty"), "{again:?}");
    let newer = run(&["--only", "/ap", "--against", out.to_str().unwrap(), "--json"], 0);
    let newer: Value = serde_json::from_str(&newer.stdout).unwrap();
    assert_eq!(newer["items"], json!([]), "all is there");
    let after = dirs.each_ref().map(|dir| contents(dir));
    assert!(after == before, "reading has changed something");
}

/// A small file is there, or none: a mount may ask, and wait, meanwhile.
fn write_read(at: &Path) {
    fs::write(at, b"written").unwrap();
    assert_eq!(fs::read(at).unwrap(), b"written");
}

#[test]
fn all_goes_on_without_a_region_that_is_lost_for_good() {
    let room = Room::new();
    let demo = room.demo();
    let (us, eu, ap) = (demo.mount().join("us"), demo.mount().join("eu"), demo.mount().join("ap"));
    write_read(&ap.join("inside"));
    write_read(&ap.join("moved"));
    fs::rename(ap.join("moved"), us.join("moved")).unwrap();
    write_read(&us.join("kept"));
    fs::write(ap.join("long"), long()).unwrap();
    assert!(fs::read(ap.join("long")).unwrap() == long());
    let primary = room.group("ap")["primary"].as_str().unwrap().to_string();
    let used = room.run(&["salvage", room.path("data/ap-1").to_str().unwrap()]);
    assert!(used.status.code() == Some(1) && used.stderr.contains("is in use"), "{used:?}");
    refused(&room, &["fence", "sa"], "no region sa");
    refused(&room, &["fence", "ap"], "of region ap answers");
    refused(&room, &["fence", "ap", "--yes"], "of region ap answers");
    refused(&room, &["lost", "ap"], "was not declared lost");
    let [first, second, stopped] = ["ap-1", "ap-2", "ap-3"].map(|node| room.pid_of(node));
    kill(stopped, libc::SIGSTOP);
    [first, second].into_iter().for_each(|pid| kill(pid, libc::SIGKILL));

    let plan = ask(&room, &["fence", "ap"]);
    assert_eq!(plan["nodes"], json!(["ap-1", "ap-2", "ap-3"]), "{plan}");
    assert_eq!(plan["heirs"].as_array().unwrap().len(), 3, "{plan}");
    assert_eq!(plan["reporters"].as_array().unwrap().len(), 6, "{plan}");
    assert_eq!(plan["names"], json!([{"path": "/us/moved", "kind": "file"}]), "{plan}");
    let before = contents(&room.path("data/ap-1"));
    let fenced = ask(&room, &["fence", "ap", "--yes"]);
    assert_eq!((&fenced["stands"], &fenced["heirs"]), (&json!(true), &plan["heirs"]));
    assert!(fenced["seconds"].as_f64().unwrap() < 60.0, "{fenced}");
    assert_eq!(ask(&room, &["fence", "ap"])["stands"], true, "said again");

    write_read(&us.join("new"));
    fs::rename(us.join("new"), eu.join("renamed")).unwrap();
    write_read(&demo.mount().join("in-all-regions"));
    assert_eq!(fs::read(us.join("kept")).unwrap(), b"written");
    assert_eq!(fs::read(eu.join("renamed")).unwrap(), b"written");
    eventually("the directory of the region is gone", || !ap.exists());
    let lost = ask(&room, &["lost", "ap"]);
    assert_eq!(lost["names"], json!([{"path": "/us/moved", "kind": "file"}]), "{lost}");
    let mode = || fs::symlink_metadata(us.join("moved")).map(|is| is.permissions().mode() & 0o7777);
    eventually("what is lost is shown with no rights", || matches!(mode(), Ok(0)));
    assert!(fs::read(us.join("moved")).is_err());
    fs::remove_file(us.join("moved")).unwrap();
    assert_eq!(ask(&room, &["lost", "ap"])["names"], json!([]));

    let dir = room.path("data/ap-1");
    let again = finish(room.meridian(&["server", "--dir", dir.to_str().unwrap()]));
    assert_eq!(again.status.code(), Some(4), "{again:?}");
    assert!(again.stderr.contains("region ap was declared lost at"), "{again:?}");
    assert!(contents(&dir) == before, "its directory stays as it is");
    kill(stopped, libc::SIGCONT);
    eventually("one that was only cut off learns of it, and ends", || {
        !Path::new(&format!("/proc/{stopped}")).exists()
    });
    let status = room.run(&["status"]);
    assert!(status.status.success(), "nothing is wrong: {status:?}");
    salvages(&room, &primary);
    demo.stop();
    // It starts without the region's nodes.
    let again = room.demo();
    write_read(&again.mount().join("us/again"));
    again.stop();
    room.assert_clean();
}

/// What is tried first: three regions of one node each, which all keep the configuration.
#[test]
fn two_nodes_of_three_go_on_and_the_next_that_comes_takes_the_seat_of_the_lost_one() {
    let room = Room::new();
    let small = ["demo", "--mount", "mnt", "--data", "data", "--nodes-per-region", "1"];
    let demo = Running::start(room.meridian(&small), room.mount());
    let (us, eu, ap) = (demo.mount().join("us"), demo.mount().join("eu"), demo.mount().join("ap"));
    write_read(&us.join("kept"));
    write_read(&ap.join("lost"));
    kill(room.pid_of("ap-1"), libc::SIGKILL);
    let plan = ask(&room, &["fence", "ap"]);
    assert_eq!((&plan["seats_empty"], &plan["seats"]), (&json!(["ap-1"]), &json!(3)), "{plan}");
    let fenced = ask(&room, &["fence", "ap", "--yes"]);
    assert_eq!(fenced["stands"], true, "{fenced}");
    assert_eq!(fs::read(us.join("kept")).unwrap(), b"written");
    write_read(&us.join("new"));
    fs::rename(us.join("new"), eu.join("renamed")).unwrap();
    write_read(&demo.mount().join("in-all-regions"));
    let status = room.run(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status:?}");
    assert!(status.stdout.contains("the configuration is kept by 2 nodes of 3"), "{status:?}");

    let added = room.run(&["cluster", "add-node", "--region", "us"]);
    assert!(added.status.success(), "{added:?}");
    eventually("us-2 keeps the configuration instead of the node that is lost", || {
        let shown = room.run(&["cluster", "show", "--json"]);
        let shown: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
        let keepers = shown["keepers"].as_array().into_iter().flatten();
        let up = keepers.filter(|of| of["up"] == true).map(|of| of["node"].as_str());
        up.eq(["eu-1", "us-1", "us-2"].map(Some))
    });
    let status = room.run(&["status"]);
    assert!(status.status.success(), "nothing is missing: {status:?}");
    assert_eq!(fs::read(eu.join("renamed")).unwrap(), b"written");
    demo.stop();
    room.assert_clean();
}
