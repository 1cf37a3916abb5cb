//! Faults of real processes: nodes that are killed, stopped and started again.

#![allow(clippy::unwrap_used)] // Part of tests.

use crate::fsx::Random;
use crate::harness::{MERIDIAN, Room, eventually, kill};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// Of each of them at most one node is down at a time, so that three of nine at most are.
const REGIONS: [&str; 3] = ["us", "eu", "ap"];
/// How far behind a node may be that counts as one that is there.
const LAG_MAX: u64 = 100;

/// What was done to nodes.
#[derive(Debug)]
pub struct Faults {
    pub killed: u32,
    pub stopped: u32,
    pub blackouts: u32,
    /// Starts servers. Not this process: one that it makes begins with copies of all its files, and
    /// closes them before it runs a program, which waits for the very nodes that are to be started.
    shell: Child,
    commands: ChildStdin,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
}

impl Faults {
    /// None yet. To be made while this process has no file of a mount open.
    pub fn new(room: &Room) -> Faults {
        let mut shell = Command::new("sh");
        shell.env("XDG_RUNTIME_DIR", room.path("run")).stdin(Stdio::piped()).process_group(0);
        let mut shell = shell.stdout(Stdio::null()).spawn().unwrap();
        let commands = shell.stdin.take().unwrap();
        Faults { killed: 0, stopped: 0, blackouts: 0, shell, commands }
    }

    /// Takes one to three nodes down, one a region, each for a while, and until `go_on` returns;
    /// then brings them back and waits until they are there again.
    pub fn round(&mut self, room: &Room, random: &mut Random, go_on: impl FnOnce()) {
        let first = random.below(REGIONS.len());
        let count = 1 + random.below(REGIONS.len());
        let mut down = Vec::new();
        for region in (first..first + count).map(|at| REGIONS[at % REGIONS.len()]) {
            let node = format!("{region}-{}", 1 + random.below(3));
            let fault = random.pick(&[Fault::Kill, Fault::Stop]);
            match fault {
                Fault::Kill => {
                    let pid = pid_of(room, &node);
                    kill(pid, libc::SIGKILL);
                    await_end(pid);
                    self.killed += 1;
                }
                Fault::Stop => {
                    kill(pid_of(room, &node), libc::SIGSTOP);
                    self.stopped += 1;
                }
            }
            down.push((node, fault));
        }
        eprintln!("down: {down:?}");
        let begun = Instant::now();
        let least = Duration::from_millis(200 + random.below(1500) as u64);
        go_on();
        std::thread::sleep(least.saturating_sub(begun.elapsed()));
        for (node, fault) in down {
            match fault {
                Fault::Kill => self.start(room, &node),
                Fault::Stop => kill(pid_of(room, &node), libc::SIGCONT),
            }
        }
        eventually("all nodes are there again", || all_are_there(room));
    }

    /// Kills all nodes, as a loss of power does.
    pub fn kill_all(&mut self, room: &Room) {
        let pids: Vec<i32> = nodes(room).iter().map(|node| pid_of(room, node)).collect();
        pids.iter().for_each(|pid| kill(*pid, libc::SIGKILL));
        pids.into_iter().for_each(await_end);
        self.blackouts += 1;
    }

    /// Starts all nodes, and waits until they are there.
    pub fn start_all(&mut self, room: &Room) {
        for node in nodes(room) {
            self.start(room, &node);
        }
        eventually("all nodes are there after a blackout", || all_are_there(room));
    }

    fn start(&mut self, room: &Room, node: &str) {
        let dir = room.path("data").join(node);
        let dir = dir.to_str().unwrap();
        writeln!(self.commands, "'{MERIDIAN}' server --dir '{dir}' 2>> '{dir}/server.log' &")
            .unwrap();
    }

    /// Lets go of the servers that were started: their demo stops them.
    pub fn end(mut self) {
        drop(self.commands);
        self.shell.wait().unwrap();
    }
}

fn nodes(room: &Room) -> Vec<String> {
    let cluster = room.cluster();
    let nodes = cluster["nodes"].as_array().unwrap().iter();
    nodes.map(|node| node["name"].as_str().unwrap().to_string()).collect()
}

/// The process of a node, by its file. Waits for one that has just been started.
fn pid_of(room: &Room, node: &str) -> i32 {
    let dir = room.path("data").join(node);
    let mut found = None;
    eventually("the node runs", || {
        let pid = fs::read_to_string(dir.join("server.pid")).unwrap_or_default();
        let line = fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
        // The number may by now be that of a process which is none of ours.
        let ours =
            line.split(|byte| *byte == 0).any(|arg| arg == dir.as_os_str().as_encoded_bytes());
        found = pid.trim().parse().ok().filter(|_| ours);
        found.is_some()
    });
    found.unwrap()
}

/// Waits until a process that was killed has ended: until then it holds its node's lock.
fn await_end(pid: i32) {
    // One that has ended, but nobody has waited for, has no command line.
    let line = || fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    eventually("a process that was killed has ended", || line().is_empty());
}

fn all_are_there(room: &Room) -> bool {
    each_replica(room, |replica, _| replica["lag"].as_u64().is_some_and(|lag| lag <= LAG_MAX))
}

/// Whether all replicas of each group have applied the same and are in the same state.
pub fn all_are_equal(room: &Room) -> bool {
    each_replica(room, |replica, first| {
        ["applied", "state_hash"].iter().all(|key| replica[key] == first[key])
            && ["lag", "pending"].iter().all(|key| replica[key] == 0)
    })
}

/// Whether something holds of each replica (and the first of its group), and all can be reached.
fn each_replica(
    room: &Room,
    holds: impl Fn(&serde_json::Value, &serde_json::Value) -> bool,
) -> bool {
    let status = room.status();
    let groups = status["groups"].as_array().unwrap();
    assert!(!groups.is_empty(), "{status}");
    groups.iter().all(|group| {
        let replicas = group["replicas"].as_array().unwrap();
        let leads = replicas.iter().any(|replica| replica["role"] == "primary");
        let role = |replica: &serde_json::Value| {
            ["primary", "follower"].iter().any(|role| replica["role"] == *role)
        };
        leads && replicas.iter().all(|replica| role(replica) && holds(replica, &replicas[0]))
    }) && status["nodes"].as_array().unwrap().iter().all(|node| node["reachable"] == true)
}
