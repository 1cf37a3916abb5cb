//! Shells that run commands for a test, in networks of their own.
//!
//! A test whose files lie in mounts cannot run commands itself: a process that it makes begins with
//! copies of all its files, and closes them before it runs a program, which waits for the very
//! nodes that are to be started or are cut off. So the shells are made first.

#![allow(clippy::unwrap_used)] // Part of tests.

use crate::harness::{Ended, PATIENCE, eventually_within};
use std::fs;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A shell in a network of its own. When it is dropped, or the test ends in any way, it says its
/// last words and kills all that it has started and that still runs; the network goes with it.
pub struct Shell {
    child: Child,
    lines: Option<Mutex<ChildStdin>>,
    /// For what commands say.
    dir: PathBuf,
    name: String,
    count: AtomicU64,
}

/// A command that was begun: where it says how it ended.
#[derive(Debug)]
pub struct Begun {
    at: PathBuf,
    line: String,
}

impl Shell {
    /// The commands that it runs leave files of that name in `dir`; it ends with `last_words`.
    pub fn new(name: &str, dir: &Path, last_words: &str) -> Shell {
        let mut child = Command::new("unshare")
            .args(["--net", "sh"])
            .env("XDG_RUNTIME_DIR", dir)
            .env_remove("MERIDIAN_CLUSTER")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let lines = Some(Mutex::new(child.stdin.take().unwrap()));
        let (dir, name, count) = (dir.to_path_buf(), name.into(), AtomicU64::new(0));
        let shell = Shell { child, lines, dir, name, count };
        shell.say(&format!("trap '{last_words}; kill -9 0' EXIT"));
        // Until it has been in its network, there is none to be connected.
        shell.run("ip link set lo up").assert_well();
        shell
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn say(&self, line: &str) {
        let mut lines = self.lines.as_ref().unwrap().lock().unwrap();
        writeln!(lines, "{line}").unwrap();
    }

    /// Runs a command beside others.
    pub fn begin(&self, line: &str) -> Begun {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let at = self.dir.join(format!("{}-{number}", self.name));
        let to = at.display();
        self.say(&format!(
            "( ( {line} ) > '{to}.out' 2> '{to}.err'; echo $? > '{to}.new'; \
             mv '{to}.new' '{to}.status' ) < /dev/null &"
        ));
        Begun { at, line: line.into() }
    }

    /// Runs a command to its end.
    pub fn run(&self, line: &str) -> Ended {
        self.begin(line).wait()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.lines.take());
        self.child.wait().unwrap();
    }
}

impl Begun {
    fn file(&self, extension: &str) -> PathBuf {
        PathBuf::from(format!("{}.{extension}", self.at.display()))
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        let code: i32 = fs::read_to_string(self.file("status")).ok()?.trim().parse().unwrap();
        let read = |extension| fs::read(self.file(extension)).unwrap_or_default();
        let text = |extension| String::from_utf8_lossy(&read(extension)).into_owned();
        let status = ExitStatus::from_raw(code << 8);
        Some(Ended { status, stdout: text("out"), stderr: text("err") })
    }

    pub fn wait(self) -> Ended {
        self.wait_within(PATIENCE)
    }

    /// The same, for one that may take so long.
    pub fn wait_within(self, limit: Duration) -> Ended {
        let mut ended = None;
        let what = format!("{} ends", self.line);
        eventually_within(limit, &what, || {
            ended = self.ended();
            ended.is_some()
        });
        for extension in ["status", "out", "err"] {
            let _ = fs::remove_file(self.file(extension));
        }
        ended.unwrap()
    }
}

impl Ended {
    #[track_caller]
    pub fn assert_well(&self) {
        assert!(self.status.success(), "{self:?}");
    }
}
