//! What a server logs, in which format, and how much after signals.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Other tests use the rest of it.
mod harness;

use harness::{Room, eventually, finish, kill};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;

/// The lines of a log that are whole. Each must be JSON.
fn lines(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let read = |line: &str| {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    whole.lines().map(read).collect()
}

/// The server of one node of two. Who calls it and says nothing is worth a line at `debug`, which
/// is written before the server ends the connection.
#[test]
fn a_server_logs_json_and_signals_change_how_much() {
    let room = Room::new();
    let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = held.map(|listener| listener.local_addr().unwrap().to_string());
    let region = format!("us={}", addresses.join(","));
    assert!(room.run(&["init", "--region", &region]).status.success());
    let prepared = room.run(&["prepare", "--cluster", "cluster.json", "--dir", "lib/us-1"]);
    assert!(prepared.status.success(), "{prepared:?}");
    let mut server = room.meridian(&["server", "--dir", "lib/us-1", "--log-format", "json"]);
    let log = room.path("log");
    let mut server = server.stderr(File::create(&log).unwrap()).spawn().unwrap();
    let pid = i32::try_from(server.id()).unwrap();
    eventually("the server says that it has started", || {
        lines(&log).iter().any(|line| line["message"] == "started" && !line["node"].is_null())
    });
    let strangers = || lines(&log).iter().filter(|line| line["message"] == "nobody").count();
    let strange = || {
        let mut stream = TcpStream::connect(&addresses[0]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let _ = stream.read_to_end(&mut Vec::new()); // A reset is an end, too.
    };
    let signalled = |signal, logged: &str| {
        let told = || lines(&log).iter().filter(|line| line["logged"] == logged).count();
        let before = told();
        kill(pid, signal);
        eventually(logged, || told() > before);
    };
    strange();
    signalled(libc::SIGUSR1, "debug");
    assert_eq!(strangers(), 0, "what came before");
    strange();
    eventually("the second is logged", || strangers() == 1);
    signalled(libc::SIGUSR1, "trace");
    signalled(libc::SIGUSR1, "trace");
    strange();
    eventually("the third is logged", || strangers() == 2);
    signalled(libc::SIGUSR2, "info");
    strange();
    kill(pid, libc::SIGTERM);
    assert!(server.wait().unwrap().success());
    assert_eq!(strangers(), 2, "the fourth is not");
    room.assert_clean();
}

/// Why a command ends is a line of its log, and so is what is wrong with `MERIDIAN_LOG`.
#[test]
fn errors_are_json_where_the_log_is() {
    let room = Room::new();
    for args in [&["server", "--dir", "none"][..], &["mount", "--region", "us", "mnt"]] {
        let mut command = room.meridian(args);
        command.args(["--log-format", "json"]).env("MERIDIAN_LOG", "verbose");
        let ended = finish(command);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        fs::write(room.path("log"), &ended.stderr).unwrap();
        let lines = lines(&room.path("log"));
        assert_eq!(lines.len(), 2, "{ended:?}");
        assert!(lines.iter().all(|line| line["level"] == "ERROR"), "{ended:?}");
        let message = lines[0]["message"].as_str().unwrap();
        assert!(message.starts_with("MERIDIAN_LOG=verbose: \"verbose\" is none of"), "{ended:?}");
    }
}
