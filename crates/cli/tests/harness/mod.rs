//! Starts and stops demos of the built binary.

#![allow(clippy::unwrap_used)] // Part of tests.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The binary under test.
pub const MERIDIAN: &str = env!("CARGO_BIN_EXE_meridian");
/// How long anything may take before the test fails; generous, because all share two cores.
pub const PATIENCE: Duration = Duration::from_secs(240);
/// How often a condition is looked at that nobody announces.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// One demo at a time: ten processes are enough for a small machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A folder for one test: data, mount points, and what the demo remembers for other commands.
pub struct Room {
    dir: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// A demo, or another command that runs until it is told to stop.
pub struct Running {
    child: Child,
    mount: PathBuf,
}

impl Room {
    /// A new one. Fails, and does not skip, where nothing can be mounted.
    pub fn new() -> Room {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
        if let Err(error) = fuse {
            panic!(
                "these tests mount a file system and need /dev/fuse, which cannot be opened: {error}"
            );
        }
        let dir = tempfile::Builder::new().prefix("meridian-test-").tempdir().unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        Room { dir, _alone: alone }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn mount(&self) -> PathBuf {
        self.path("mnt")
    }

    pub fn cluster(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path("data/cluster.json")).unwrap()).unwrap()
    }

    /// `meridian` with these arguments. A demo has keys and dashboards only where a test names a
    /// port, so that tests do not fight for the usual ones.
    pub fn meridian(&self, args: &[&str]) -> Command {
        let mut command = Command::new(MERIDIAN);
        let lacks = |port| args.first() == Some(&"demo") && !args.contains(&port);
        let watched = lacks("--watch-port").then_some(["--watch-port", "0"]);
        command
            .args(args)
            .args(lacks("--keys-port").then_some("--no-keys"))
            .args(watched.iter().flatten())
            .current_dir(self.dir.path())
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env_remove("MERIDIAN_LOG")
            .env_remove("MERIDIAN_CLUSTER")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .stdin(Stdio::null());
        command
    }

    /// Runs `meridian` to its end.
    pub fn run(&self, args: &[&str]) -> Ended {
        finish(self.meridian(args))
    }

    /// Runs a script in the mount of a new demo.
    pub fn exec(&self, script: &str) -> Ended {
        let ended = self.run(&["demo", "--mount", "mnt", "--data", "data", "--exec", script]);
        self.assert_clean();
        ended
    }

    /// Starts a demo with `--data data` and waits until it is mounted.
    pub fn demo(&self) -> Running {
        let args = ["demo", "--mount", "mnt", "--data", "data"];
        Running::start(self.meridian(&args), self.mount())
    }

    /// A small demo with these regions, and another mount of it.
    #[allow(dead_code)] // Not every test needs two.
    pub fn two_mounts(&self, regions: &str) -> (Running, Running) {
        let small = ["demo", "--mount", "mnt", "--data", "data", "--regions", regions];
        let small = self.meridian(&[&small[..], &["--nodes-per-region", "1"]].concat());
        let demo = Running::start(small, self.mount());
        let cluster = self.path("data/cluster.json");
        let args = ["mount", "--cluster", cluster.to_str().unwrap(), "--region", "us", "eu"];
        let second = Running::start(self.meridian(&args), self.path("eu"));
        (demo, second)
    }

    /// The answer of `meridian status --json`, which works also while nodes are down.
    pub fn status(&self) -> Value {
        let ended = self.run(&["status", "--json"]);
        serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    }

    /// What `status` says of a group.
    pub fn group(&self, name: &str) -> Value {
        let status = self.status();
        let groups = status["groups"].as_array().unwrap().iter();
        groups.clone().find(|group| group["group"] == name).unwrap().clone()
    }

    /// The process of a node, as `status` finds it.
    pub fn pid_of(&self, node: &str) -> i32 {
        let status = self.status();
        let mut nodes = status["nodes"].as_array().unwrap().iter();
        let node = nodes.find(|entry| entry["node"] == node).unwrap();
        i32::try_from(node["pid"].as_i64().unwrap_or_else(|| panic!("{node}"))).unwrap()
    }

    /// Nothing is mounted in this room and none of its servers runs.
    pub fn assert_clean(&self) {
        let here = self.dir.path().display().to_string();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&here), "still mounted: {mounts}");
        let left = processes_naming(&here);
        assert!(left.is_empty(), "still running: {left:?}");
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // After a failed test: leave nothing behind that outlives it.
        for (pid, _) in processes_naming(&self.dir.path().display().to_string()) {
            kill(pid, libc::SIGKILL);
        }
        for name in ["mnt", "eu", "lab", "failing", "waiting"] {
            let path = self.path(name);
            if fs::read_to_string("/proc/self/mountinfo")
                .is_ok_and(|table| table.contains(&path.display().to_string()))
            {
                let _ = Command::new("umount").arg("-l").arg(path).status();
            }
        }
    }
}

impl Running {
    /// Starts `command` and waits until it says that it has mounted.
    pub fn start(mut command: Command, mount: PathBuf) -> Running {
        command.stderr(Stdio::inherit());
        Running::start_quietly(command, mount)
    }

    /// The same, with its messages where they are.
    pub fn start_quietly(mut command: Command, mount: PathBuf) -> Running {
        let mut child = command.stdout(Stdio::piped()).process_group(0).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mounted = lines.any(|line| line.unwrap().starts_with("mounted at"));
        // What it says later must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let mut running = Running { child, mount };
        if !mounted {
            panic!("it ended before it had mounted: {}", running.wait());
        }
        running
    }

    pub fn mount(&self) -> &Path {
        &self.mount
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    /// Ctrl-C, and all must go well.
    pub fn stop(mut self) {
        kill(self.pid(), libc::SIGINT);
        let status = self.wait();
        assert!(status.success(), "{status}");
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        kill(self.pid(), libc::SIGKILL);
        self.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs a command to its end, or fails after [`PATIENCE`].
pub fn finish(mut command: Command) -> Ended {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let read = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(Box::new(child.stdout.take().unwrap()));
    let stderr = read(Box::new(child.stderr.take().unwrap()));
    let status = wait(&mut child);
    Ended { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

fn wait(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            kill(i32::try_from(child.id()).unwrap(), libc::SIGKILL);
            panic!("no end after {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Waits until `holds`, which nobody announces.
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    eventually_within(PATIENCE, what, holds);
}

/// The same, for what must not take longer.
pub fn eventually_within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < end, "not within {} s: {what}", limit.as_secs());
        std::thread::sleep(LOOK_AGAIN);
    }
}

pub fn kill(pid: i32, signal: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
    let _ = rustix::process::kill_process(pid, signal); // It may have gone.
}

/// The first of so many ports in a row that nobody uses now; those of nodes are higher.
#[allow(dead_code)] // Not every test needs ports.
pub fn ports_in_a_row(count: u16) -> u16 {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut firsts = (10_000..20_000).step_by(usize::from(count));
    firsts.find(|first| (*first..*first + count).all(free)).unwrap()
}

/// Processes whose command line names `text`.
fn processes_naming(text: &str) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(text) {
            found.push((pid, line));
        }
    }
    found
}
