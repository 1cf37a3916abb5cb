//! Keys of a demo: the command, and a node that is killed.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Not every test needs all of it.
mod harness;

use harness::{Ended, Room, Running, kill};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

/// The first of so many ports in a row that nobody uses now.
fn ports_in_a_row(count: u16) -> u16 {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut firsts = (20_000..30_000).step_by(usize::from(count));
    firsts.find(|first| (*first..*first + count).all(free)).unwrap()
}

#[test]
fn keys_are_written_and_read_at_any_node_and_outlive_one() {
    let room = Room::new();
    let first = ports_in_a_row(3);
    let port = first.to_string();
    let args =
        ["demo", "--mount", "mnt", "--data", "data", "--regions", "us", "--keys-port", &port];
    let demo = Running::start(room.meridian(&args), room.mount());
    let kv = |node: u16, words: &[&str]| -> Ended {
        let at = format!("127.0.0.1:{}", first + node);
        room.run(&[&["kv"], words, &["--at", &at]].concat())
    };
    // A node that starts may not be sure of its membership at once.
    harness::eventually("keys are served", || kv(0, &["set", "color", "blue"]).status.success());
    harness::eventually("another node serves", || kv(1, &["get", "color"]).status.success());
    assert_eq!(kv(1, &["get", "color"]).stdout, "blue\n");
    let status = room.run(&["status"]).stdout;
    assert_eq!(status.matches("us-1, us-2, us-3").count(), 3, "all are members: {status}");
    assert_eq!(kv(2, &["get", "nothing"]).status.code(), Some(1));
    assert!(kv(0, &["cas", "color", "blue", "green"]).status.success());
    assert_eq!(kv(0, &["cas", "color", "blue", "red"]).status.code(), Some(1));
    kill(room.pid_of("us-3"), libc::SIGKILL);
    let mut watch = room.meridian(&["kv", "watch", "sh*", "--at", &format!("127.0.0.1:{first}")]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    assert!(kv(0, &["set", "shape", "round"]).status.success());
    let mut line = String::new();
    BufReader::new(watch.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    watch.kill().and_then(|()| watch.wait()).unwrap();
    assert_eq!(line, "set shape round\n");
    assert_eq!(kv(1, &["scan"]).stdout, "color\nshape\n");
    assert_eq!(kv(1, &["del", "color", "nothing"]).stdout, "1\n");
    let either = format!("127.0.0.1:{},127.0.0.1:{first}", first + 2);
    assert_eq!(room.run(&["kv", "get", "shape", "--at", &either]).stdout, "round\n");
    let nobody = kv(2, &["get", "shape"]);
    assert!(nobody.stderr.contains("no node answers at"), "{nobody:?}");
    let again = room.run(&["demo", "--mount", "other", "--keys-port", &port]);
    assert!(again.stderr.contains("name other ports by --keys-port"), "{again:?}");
    let neither = room.run(&["demo", "--mount", "other", "--keys-port", "1", "--no-keys"]);
    assert_eq!(neither.status.code(), Some(2), "{neither:?}");
    demo.stop();
    room.assert_clean();
    // The keys have gone with the servers that had them in memory.
    let demo = Running::start(room.meridian(&args), room.mount());
    harness::eventually("keys are served again", || kv(2, &["get", "shape"]).stderr.is_empty());
    assert!(kv(0, &["set", "shape", "square"]).status.success());
    demo.stop();
    room.assert_clean();
}
