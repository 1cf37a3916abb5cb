//! Nodes that come and go in a demo, while programs go on.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;

use harness::{Room, Running, eventually, kill};
use meridian_cluster::Topology;
use meridian_cluster::configuration::Request;
use meridian_node::Keepers;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Some files are short enough to lie in the inode, some have blocks.
fn content(number: u64) -> String {
    format!("{number} ").repeat(if number.is_multiple_of(3) { 20_000 } else { 100 })
}

/// Writes numbered files, each synced, until `stop`, and moves each tenth to another partition: how
/// many it has written it tells.
fn write_files(dir: &Path, other: &Path, stop: &AtomicBool, written: &Sender<u64>) {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let path = dir.join(done.to_string());
        let mut file = File::create_new(&path).unwrap();
        file.write_all(content(done).as_bytes()).unwrap();
        file.sync_all().unwrap();
        if done % 10 == 7 {
            fs::rename(&path, other.join(done.to_string())).unwrap();
        }
        done += 1;
        written.send(done).unwrap();
    }
}

fn assert_written(dir: &Path, other: &Path, count: u64) {
    for number in 0..count {
        let place = if number % 10 == 7 { other } else { dir };
        let found = fs::read_to_string(place.join(number.to_string()))
            .unwrap_or_else(|error| panic!("file {number} of {count}: {error}"));
        assert!(found == content(number), "file {number} of {count} is changed");
    }
}

/// Waits until some more files are written; how many there are.
fn more(written: &Receiver<u64>) -> u64 {
    let seen = written.try_iter().last().unwrap_or(0);
    loop {
        let now = written.recv_timeout(harness::PATIENCE).expect("writing goes on");
        if now >= seen + 20 {
            return now;
        }
    }
}

fn ask(room: &Room, args: &[&str]) -> Value {
    let ended = room.run(&[&["cluster"], args, &["--json"]].concat());
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

fn node(shown: &Value, name: &str) -> Value {
    let mut nodes = shown["nodes"].as_array().unwrap().iter();
    nodes.find(|node| node["node"] == name).unwrap().clone()
}

fn group(shown: &Value, name: &str) -> Value {
    let mut groups = shown["groups"].as_array().unwrap().iter();
    groups.find(|group| group["group"] == name).unwrap().clone()
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Of the three nodes of a region none is left in the end; one that has come carries the region
/// with another that has. Two mounts follow.
#[test]
fn nodes_come_and_go_while_files_are_written() {
    let room = Room::new();
    let demo = room.demo();
    let cluster = room.path("data/cluster.json");
    let args = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", "eu", "eu"];
    let second = Running::start(room.meridian(&args), room.path("eu"));
    let (dir, other) = (demo.mount().join("us/files"), demo.mount().join("files"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&other).unwrap();
    let stop = AtomicBool::new(false);
    let (tell, written) = channel();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_files(&dir, &other, &stop, &tell));
        let stop = StopAtEnd(&stop);
        more(&written);
        let added = ask(&room, &["add-node", "--region", "us"]);
        assert_eq!(added["node"], "us-4");
        assert_eq!(added["id"], 9, "the next after nine");
        assert_eq!(added["groups"], json!(["global", "us"]));
        more(&written);

        kill(room.pid_of("us-1"), libc::SIGKILL);
        more(&written);
        let removed = ask(&room, &["remove-node", "us-1"]);
        assert_eq!(removed["state"], "removed", "also one that is down");
        more(&written);
        let added = ask(&room, &["add-node", "--region", "us", "--name", "us-extra"]);
        assert_eq!((&added["node"], &added["id"]), (&json!("us-extra"), &json!(10)));
        let pid = room.pid_of("us-2");
        ask(&room, &["remove-node", "us-2"]);
        eventually("the server of a node that was removed ends by itself", || {
            !Path::new(&format!("/proc/{pid}")).exists()
        });
        more(&written);
        ask(&room, &["remove-node", "us-3"]);
        let count = more(&written);

        let shown = ask(&room, &["show"]);
        assert_eq!(group(&shown, "us")["members"], json!(["us-4", "us-extra"]));
        assert_eq!(group(&shown, "us")["number"], 5, "two came, three went");
        assert_eq!(group(&shown, "global")["members"].as_array().unwrap().len(), 8);
        let primary = group(&shown, "us")["primary"].as_str().unwrap().to_string();
        assert!(primary == "us-4" || primary == "us-extra", "{primary}");
        let keepers = shown["keepers"].as_array().unwrap();
        assert_eq!(
            keepers.len(),
            5,
            "others keep the configuration in the place of those: {keepers:?}"
        );
        for keeper in keepers {
            assert!(!["us-1", "us-2", "us-3"].contains(&keeper["node"].as_str().unwrap()));
        }
        drop(stop);
        writer.join().unwrap();
        let (there, there_other) = (second.mount().join("us/files"), second.mount().join("files"));
        assert_written(&there, &there_other, count);
    });
    second.stop();
    demo.kill();

    assert_kept_after_a_restart(&room, &dir, &other);
}

/// All files are there, and what was removed stays so.
fn assert_kept_after_a_restart(room: &Room, dir: &Path, other: &Path) {
    let demo = room.demo();
    let count = fs::read_dir(dir).unwrap().count() + fs::read_dir(other).unwrap().count();
    assert_written(dir, other, count as u64);
    let shown = ask(room, &["show"]);
    assert_eq!(node(&shown, "us-1")["state"], "removed", "what was removed stays so");
    assert_eq!(node(&shown, "us-4")["state"], "member");
    let dir = room.path("data/us-1");
    let server = room.run(&["server", "--dir", dir.to_str().unwrap()]);
    assert_eq!(server.status.code(), Some(4), "{server:?}");
    assert!(server.stderr.contains("us-1 was removed"), "{server:?}");
    demo.stop();
    room.assert_clean();
}

/// Asks for the node to be removed, as a command does that is gone right after.
fn ask_to_remove(room: &Room, name: &str) {
    let text = fs::read_to_string(room.path("data/cluster.json")).unwrap();
    let (topology, file) = Topology::parse(&text).unwrap();
    let up = topology.nodes.iter().map(|node| node.name.clone()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut configuration = Keepers::new(&file, Default::default(), harness::PATIENCE);
        let (name, keeper, reason) = (name.to_string(), None, None);
        let request = Request::RemoveNode { name, up, keeper, reason };
        configuration.change(&request).await.unwrap();
    });
}

/// Blocks that a node holds, if it runs.
fn blocks(room: &Room, name: &str) -> Option<u64> {
    let status = room.status();
    let mut nodes = status["nodes"].as_array().unwrap().iter();
    nodes.find(|node| node["node"] == name).unwrap()["blocks"].as_u64()
}

/// Nobody waits for it, and the node that goes is killed before it has copied anything: it does so
/// when it starts again, and all blocks are on the two nodes that are left.
#[test]
fn a_node_is_drained_though_nobody_waits_and_it_is_killed() {
    let room = Room::new();
    let demo = room.demo();
    let (dir, other) = (demo.mount().join("us/files"), demo.mount().join("us/other"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&other).unwrap();
    let (tell, written) = channel();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| write_files(&dir, &other, &stop, &tell));
        let _stop = StopAtEnd(&stop);
        let seen = more(&written) + 60;
        while written.recv().unwrap() < seen {}
    });
    let count = fs::read_dir(&dir).unwrap().count() + fs::read_dir(&other).unwrap().count();
    let held = ["us-1", "us-2", "us-3"].map(|name| blocks(&room, name).unwrap());
    let all = held.iter().sum::<u64>() / 2;
    assert!(held[2] > 0 && held[0] < all, "two nodes hold each block: {held:?}");

    let pid = room.pid_of("us-3");
    kill(pid, libc::SIGSTOP);
    ask_to_remove(&room, "us-3");
    assert_eq!(node(&ask(&room, &["show"]), "us-3")["state"], "draining");
    assert_eq!(ask(&room, &["keep-node", "us-3"])["state"], "member", "it is taken back");
    ask_to_remove(&room, "us-3");
    assert_eq!(node(&ask(&room, &["show"]), "us-3")["state"], "draining");
    kill(pid, libc::SIGKILL);
    eventually("the server has ended", || blocks(&room, "us-3").is_none());
    let server = room.path("data/us-3");
    let mut server = room.meridian(&["server", "--dir", server.to_str().unwrap()]).spawn().unwrap();
    let ended = server.wait().unwrap();
    assert_eq!(ended.code(), Some(4), "it ends when it is removed");
    eventually("it is removed", || node(&ask(&room, &["show"]), "us-3")["state"] == "removed");
    for name in ["us-1", "us-2"] {
        assert_eq!(blocks(&room, name), Some(all), "{name} of a region of two holds each block");
    }
    assert_written(&dir, &other, count as u64);
    demo.stop();
    room.assert_clean();
}

/// It is kept by one of two nodes alone: it goes on until the other does.
#[test]
fn the_only_node_that_keeps_the_configuration_goes() {
    let room = Room::new();
    let small = ["demo", "--mount", "mnt", "--data", "data", "--regions", "us"];
    let small = room.meridian(&[&small[..], &["--nodes-per-region", "2"]].concat());
    let demo = Running::start(small, room.mount());
    fs::write(demo.mount().join("us/file"), content(3)).unwrap();
    let keepers = |shown: &Value| {
        let keepers = shown["keepers"].as_array().unwrap().iter();
        keepers.map(|keeper| keeper["node"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    eventually("one leads those who keep the configuration", || {
        let shown = ask(&room, &["show"]);
        keepers(&shown) == ["us-1"] && shown["keepers"][0]["leads"] == true
    });
    let alone = room.run(&["cluster", "remove-node", "us-1"]);
    assert!(alone.stderr.contains("region us has 1 of the 2 nodes that it needs"), "{alone:?}");
    let forced = ["remove-node", "us-1", "--force", "--reason", "it is to be the only one"];
    let removed = ask(&room, &forced);
    assert_eq!(removed["state"], "removed");
    let shown = ask(&room, &["show"]);
    assert_eq!((keepers(&shown), &shown["keepers"][0]["up"]), (vec!["us-2".into()], &json!(true)));
    let on_record = &shown["nodes"][0]["forced"];
    assert_eq!(on_record, "it is to be the only one", "the configuration says why");
    let added = ask(&room, &["add-node", "--region", "us"]);
    assert_eq!(added["node"], "us-3", "the configuration can be changed");
    assert_eq!(fs::read_to_string(demo.mount().join("us/file")).unwrap(), content(3));
    demo.stop();
    room.assert_clean();
}

#[test]
fn the_configuration_is_shown_and_what_is_not_possible_is_refused_with_the_reason() {
    let room = Room::new();
    let demo = room.demo();
    eventually("one leads those who keep the configuration", || {
        let shown = ask(&room, &["show"]);
        shown["keepers"].as_array().unwrap().iter().any(|keeper| keeper["leads"] == true)
    });
    let shown = room.run(&["cluster", "show"]);
    assert!(shown.status.success(), "{shown:?}");
    for word in ["us-1", "global", "member", "leads", "version 1", "keeps the configuration"] {
        assert!(shown.stdout.contains(word), "{word}: {}", shown.stdout);
    }
    let json = ask(&room, &["show"]);
    assert_eq!((&json["version"], &json["from_file"]), (&json!(1), &json!(false)));
    let keepers = json["keepers"].as_array().unwrap();
    assert_eq!(keepers.iter().filter(|keeper| keeper["leads"] == true).count(), 1, "{keepers:?}");
    assert!(keepers.len() == 5 && keepers.iter().all(|keeper| keeper["up"] == true), "{keepers:?}");

    let refused = |args: &[&str], why: &str| {
        let ended = room.run(&[&["cluster"], args].concat());
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.stderr.contains(why), "{why}: {ended:?}");
        assert_eq!(ended.stderr.trim().lines().count(), 1, "{ended:?}");
    };
    refused(&["add-node", "--region", "mars"], "no region mars: there are us, eu, ap");
    refused(&["add-node", "--region", "us", "--name", "eu-1"], "a name is never given again");
    for (name, why) in [("a/b", "letters a to z"), ("watcher", "another certificate")] {
        let ended = room.run(&["cluster", "add-node", "--region", "us", "--name", name]);
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        assert!(ended.stderr.contains(why), "{ended:?}");
    }
    let taken = node(&json, "ap-2")["address"].as_str().unwrap().to_string();
    refused(&["add-node", "--region", "us", "--address", &taken], "ap-2 listens at");
    refused(&["remove-node", "us-7"], "no node us-7");
    refused(&["keep-node", "us-7"], "no node us-7");
    refused(&["show", "--cluster", "none.json"], "none.json");
    kill(room.pid_of("ap-2"), libc::SIGKILL);
    kill(room.pid_of("ap-3"), libc::SIGKILL);
    refused(&["remove-node", "ap-3"], "a majority must be up");
    assert_eq!(ask(&room, &["show"])["version"], 1, "nothing has changed");
    demo.stop();
    room.assert_clean();
    refused(&["show"], "no demo is running");
}

/// The file does while too few of those that keep the configuration are up, and it is said so.
#[test]
fn without_a_majority_of_those_that_keep_the_configuration_the_cluster_goes_on() {
    let room = Room::new();
    let demo = room.demo();
    for name in ["us-1", "eu-1", "ap-1"] {
        kill(room.pid_of(name), libc::SIGKILL);
    }
    let shown = room.run(&["cluster", "show"]);
    assert_eq!(shown.status.code(), Some(1), "{shown:?}");
    assert!(shown.stderr.contains("do not answer"), "{shown:?}");
    assert!(shown.stdout.contains("version 1 of the cluster file, which may be old"), "{shown:?}");
    let refused = room.run(&["cluster", "add-node", "--region", "us"]);
    assert!(refused.stderr.contains("nothing is changed"), "{refused:?}");
    let file = demo.mount().join("us/file");
    fs::write(&file, "goes on").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "goes on");
    let args = ["mount", "--region", "eu", "eu"];
    let second = Running::start(room.meridian(&args), room.path("eu"));
    assert_eq!(fs::read_to_string(second.mount().join("us/file")).unwrap(), "goes on");
    second.stop();
    demo.stop();
    room.assert_clean();
}

/// What `mount -t meridian` and `mount -a` run, with the words that they give.
#[test]
fn the_helper_of_mount_mounts_changes_and_refuses() {
    let room = Room::new();
    let demo = room.demo();
    let (cluster, eu) = (room.path("data/cluster.json"), room.path("eu"));
    let mount = |words: &str| {
        let mut command = room.meridian(&[]);
        command.arg0("/sbin/mount.meridian");
        command.arg(&cluster).arg(&eu).args(["-o", words]);
        harness::finish(command)
    };
    let refused = mount("rw,noatime");
    assert_eq!(refused.status.code(), Some(32), "{refused:?}");
    assert!(refused.stderr.contains("region=eu"), "{refused:?}");
    let refused = mount("region=mars");
    assert_eq!(refused.status.code(), Some(32), "{refused:?}");
    assert!(refused.stderr.contains("mars"), "{refused:?}");
    let mounted = mount("rw,noatime,region=eu");
    assert!(mounted.status.success(), "{mounted:?}");
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let line = format!("{} {} fuse.meridian rw,", cluster.display(), eu.display());
    assert!(table.contains(&line), "{line}: {table}");
    fs::write(eu.join("us/file"), "written").unwrap();
    assert_eq!(fs::read_to_string(demo.mount().join("us/file")).unwrap(), "written");
    let twice = mount("region=eu");
    assert_eq!(twice.status.code(), Some(32), "{twice:?}");
    assert!(twice.stderr.contains("already"), "{twice:?}");
    let changed = mount("remount,ro,default_permissions,max_read=1048576");
    assert!(changed.status.success(), "{changed:?}");
    let error = fs::write(eu.join("us/file"), "again").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read_to_string(eu.join("us/file")).unwrap(), "written");
    assert!(Command::new("umount").arg(&eu).status().unwrap().success());
    eventually("its process ends, and takes the directory along", || !eu.exists());
    demo.stop();
    room.assert_clean();
}

/// It is used, cannot go while something is left in it, and leaves nothing but its group.
#[test]
fn a_region_comes_and_goes_while_files_are_written() {
    let room = Room::new();
    let args = ["demo", "--mount", "mnt", "--data", "data", "--nodes-per-region", "1"];
    let demo = Running::start(room.meridian(&args), room.mount());
    let (dir, other) = (demo.mount().join("us/files"), demo.mount().join("files"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&other).unwrap();
    let stop = AtomicBool::new(false);
    let (tell, written) = channel();
    let count = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_files(&dir, &other, &stop, &tell));
        let stop = StopAtEnd(&stop);
        more(&written);
        let refused = |args: &[&str], why: &str| {
            let ended = room.run(&[&["cluster"], args].concat());
            assert!(!ended.status.success() && ended.stderr.contains(why), "{ended:?}");
        };
        refused(&["add-region", "files"], "rename it first");
        refused(&["add-region", "eu"], "there is a region eu");
        refused(&["add-region", "Sa"], "lower-case");
        refused(&["remove-region", "sa"], "no region sa");
        let added = ask(&room, &["add-region", "sa"]);
        assert_eq!((&added["node"], &added["region"]), (&json!("sa-1"), &json!("sa")));
        let sa = demo.mount().join("sa");
        fs::write(sa.join("there"), content(3)).unwrap();
        fs::rename(dir.join("0"), sa.join("moved")).unwrap();
        ask(&room, &["add-node", "--region", "sa"]);
        let near = room.path("near");
        let cluster = room.path("data/cluster.json");
        let args = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", "sa", "near"];
        let second = Running::start(room.meridian(&args), near.clone());
        assert_eq!(fs::read_to_string(near.join("sa/there")).unwrap(), content(3));
        fs::write(near.join("sa/here"), content(4)).unwrap();
        second.stop();
        let group = group(&ask(&room, &["show"]), "sa");
        assert_eq!(group["members"], json!(["sa-1", "sa-2"]));
        more(&written);

        refused(&["remove-region", "sa"], "not empty");
        fs::rename(sa.join("moved"), dir.join("0")).unwrap();
        fs::remove_file(sa.join("there")).unwrap();
        fs::remove_file(sa.join("here")).unwrap();
        let removed = ask(&room, &["remove-region", "sa"]);
        assert_eq!(removed["region"], "sa");
        let count = more(&written);
        stop.0.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        written.try_iter().last().unwrap_or(count)
    });
    assert_written(&dir, &other, count);
    assert!(!demo.mount().join("sa").exists());
    let shown = ask(&room, &["show"]);
    assert_eq!(node(&shown, "sa-1")["state"], "removed");
    assert_eq!(group(&shown, "sa")["members"].as_array().unwrap().len(), 1, "of another region");
    let ended = room.run(&["status"]);
    assert!(ended.status.success(), "nothing is wrong: {ended:?}");
    demo.stop();
    room.assert_clean();
}
