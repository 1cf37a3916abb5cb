//! A cluster whose regions can be cut off and whose disks can be filled and emptied.
//!
//! Each region is a network of its own, joined to the others by a cable that can be pulled out.
//! Each node has a small disk of its own. The test stands outside: it runs commands in the network
//! that joins the regions, as an operator does, and sees the files through one mount in each
//! region.

#![allow(clippy::unwrap_used)] // Part of tests.

use crate::harness::{MERIDIAN, Room, eventually, kill};
use crate::shell::{Begun, Shell};
use meridian_cluster::Topology;
use rustix::fs::FallocateFlags;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

pub const REGIONS: [&str; 3] = ["us", "eu", "ap"];
/// Nodes of a region at first.
const NODES: usize = 3;
/// What the mount of each region does with calls that need a region which is cut off. None fails at
/// once: on a busy machine an election may take longer than a silence that counts as a cut.
const ON_CUT: [&str; 3] = ["wait:30s", "wait:10s", "wait:15s"];
/// The operator's address; regions have those from 1 on.
const OUTSIDE: &str = "10.0.0.100/24";
/// The first node's port in each region.
const PORT: usize = 7001;
/// What a disk holds: what is kept free for the log, and some files.
const DISK_MIB: usize = 640;
/// How far behind a node may be that counts as one that is there.
const LAG_MAX: u64 = 100;
/// How long an operator waits for a node that comes or goes.
const OPERATOR: Duration = Duration::from_secs(150);
/// How long is waited for how the nodes are, after a failure.
const LAST_LOOK: Duration = Duration::from_secs(20);

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub region: &'static str,
}

pub struct Lab {
    /// Those of the regions, then the operator's, which cleans up. Before the room, which they use.
    shells: Vec<Shell>,
    pub nodes: Vec<Node>,
    /// How many nodes each region has ever had.
    made: [usize; 3],
    began: Instant,
    room: Room,
}

impl Lab {
    /// Starts all nodes, and mounts in each region.
    pub fn new() -> Lab {
        let room = Room::new();
        for name in ["data", "logs", "said", "mounts"] {
            fs::create_dir(room.path(name)).unwrap();
        }
        let said = room.path("said");
        let unmount = format!(
            "for at in $(cut -d\" \" -f5 /proc/self/mountinfo | grep ^{}/ | sort -r); \
             do umount -l \"$at\"; done",
            room.path("").display()
        )
        .replace("//", "/");
        let regions = REGIONS.map(|region| Shell::new(region, &said, ":"));
        let mut shells: Vec<_> = regions.into_iter().collect();
        shells.push(Shell::new("outside", &said, &unmount));
        let (nodes, made) = (Vec::new(), [NODES; 3]);
        let mut lab = Lab { shells, nodes, made, began: Instant::now(), room };
        lab.connect();
        lab.write_cluster_files();
        for node in &lab.nodes {
            lab.insert_disk(&node.name);
            lab.prepare(&node.name);
        }
        lab.start_all();
        lab
    }

    fn connect(&self) {
        let bridge = "ip link add regions type bridge && ip link set regions up";
        self.outside().run(bridge).assert_well();
        let address = format!("ip addr add {OUTSIDE} dev regions");
        self.outside().run(&address).assert_well();
        for (number, (region, shell)) in REGIONS.iter().zip(&self.shells).enumerate() {
            let pid = shell.pid();
            let cable = format!(
                "ip link add {region} type veth peer name out netns {pid} && \
                 ip link set {region} master regions up"
            );
            self.outside().run(&cable).assert_well();
            let address = 1 + number;
            let end = format!("ip addr add 10.0.0.{address}/24 dev out && ip link set out up");
            shell.run(&end).assert_well();
        }
    }

    /// One for each region, so that nobody learns of a configuration from a file that others write.
    fn write_cluster_files(&mut self) {
        let mut nodes = Vec::new();
        for (number, region) in REGIONS.into_iter().enumerate() {
            for index in 0..NODES {
                let name = format!("{region}-{}", index + 1);
                let address = format!("10.0.0.{}:{}", 1 + number, PORT + index);
                nodes.push(json!({
                    "name": name, "region": region, "address": address,
                    "groups": ["global", region],
                }));
                self.nodes.push(Node { name, region });
            }
        }
        let file = json!({
            "format": meridian_cluster::topology::CLUSTER_FORMAT,
            "cluster": std::process::id(),
            "insecure_plain_text": true,
            "nodes": nodes,
            "configuration": {
                "version": 1, "replicas": ["us-1", "us-2", "eu-1", "eu-2", "ap-1"],
            },
        });
        let text = serde_json::to_string_pretty(&file).unwrap();
        Topology::parse(&text).unwrap();
        for name in REGIONS.iter().chain(&["cluster"]) {
            fs::write(self.cluster_file(name), &text).unwrap();
        }
    }

    /// That of a region, or of the operator.
    fn cluster_file(&self, name: &str) -> PathBuf {
        self.room.path(&format!("data/{name}.json"))
    }

    pub fn dir(&self, node: &str) -> PathBuf {
        self.room.path("data").join(node)
    }

    fn shell(&self, region: &str) -> &Shell {
        &self.shells[number_of(region)]
    }

    fn outside(&self) -> &Shell {
        &self.shells[REGIONS.len()]
    }

    pub fn region_of(&self, node: &str) -> &'static str {
        REGIONS.into_iter().find(|region| node.split('-').next() == Some(region)).unwrap()
    }

    pub fn nodes_of(&self, region: &str) -> Vec<String> {
        let nodes = self.nodes.iter().filter(|node| node.region == region);
        nodes.map(|node| node.name.clone()).collect()
    }

    /// Tells what happens, with the time.
    pub fn tell(&self, what: &str) {
        let line = format!("{:7.1} s  {what}", self.began.elapsed().as_secs_f64());
        let events = File::options().append(true).create(true).open(self.log("events"));
        writeln!(events.unwrap(), "{line}").unwrap();
        eprintln!("{line}");
    }

    // Disks.

    /// Gives a node an empty disk.
    pub fn insert_disk(&self, node: &str) {
        let dir = self.dir(node);
        let (at, size) = (dir.display(), format!("size={DISK_MIB}m,mode=700"));
        let mount = format!("mkdir -p '{at}' && mount -t tmpfs -o {size} {node} '{at}'");
        self.outside().run(&mount).assert_well();
    }

    /// Takes a node's disk away, with all that is on it. Its server must be down.
    pub fn remove_disk(&self, node: &str) {
        self.outside().run(&format!("umount '{}'", self.dir(node).display())).assert_well();
    }

    /// Makes it the directory of that node, as an operator may who knows no better.
    pub fn prepare(&self, node: &str) {
        meridian_node::prepare(&self.dir(node), u64::from(std::process::id()), node).unwrap();
    }

    /// Leaves so many bytes on a node's disk.
    pub fn fill_disk(&self, node: &str, left: u64) {
        let filler = File::create(self.dir(node).join("filler")).unwrap();
        let mut len = 0;
        for step in [16 << 20, 1 << 20, 1 << 16, 1 << 12] {
            loop {
                match rustix::fs::fallocate(&filler, FallocateFlags::empty(), len, step) {
                    Ok(()) => len += step,
                    Err(rustix::io::Errno::NOSPC) => break,
                    Err(error) => panic!("{}: {error}", self.dir(node).display()),
                }
            }
        }
        filler.set_len(len.saturating_sub(left)).unwrap();
    }

    pub fn relieve_disk(&self, node: &str) {
        fs::remove_file(self.dir(node).join("filler")).unwrap();
    }

    // Servers.

    pub fn log(&self, name: &str) -> PathBuf {
        self.room.path("logs").join(name)
    }

    fn run_until_ended(&self, region: &str, name: &str, args: &str) {
        let (log, pid) = (self.log(name), self.log(&format!("{name}.pid")));
        let _ = fs::remove_file(self.log(&format!("{name}.ended")));
        let _ = fs::remove_file(&pid);
        let line = format!(
            "sh -c 'echo $$ > {pid}.new; mv {pid}.new {pid}; exec {MERIDIAN} {args}' \
             >> {log} 2>&1; echo $? > {ended}.new; mv {ended}.new {ended}",
            pid = pid.display(),
            log = log.display(),
            ended = self.log(&format!("{name}.ended")).display(),
        );
        drop(self.shell(region).begin(&line));
    }

    /// Starts a node's server.
    pub fn start(&self, node: &str) {
        let region = self.region_of(node);
        let (dir, cluster) = (self.dir(node), self.cluster_file(region));
        let args = format!("server --dir {} --cluster {}", dir.display(), cluster.display());
        self.run_until_ended(region, node, &args);
    }

    fn pid(&self, name: &str) -> i32 {
        let mut pid = None;
        eventually("the process has begun", || {
            let read = fs::read_to_string(self.log(&format!("{name}.pid"))).unwrap_or_default();
            pid = read.trim().parse().ok();
            pid.is_some()
        });
        pid.unwrap()
    }

    pub fn signal(&self, name: &str, signal: i32) {
        kill(self.pid(name), signal);
    }

    /// What a server or mount has ended with; waits for that.
    pub fn ended(&self, name: &str) -> i32 {
        let mut code = None;
        eventually(&format!("{name} has ended"), || {
            let read = fs::read_to_string(self.log(&format!("{name}.ended"))).unwrap_or_default();
            code = read.trim().parse().ok();
            code.is_some()
        });
        code.unwrap()
    }

    /// Kills servers, as a loss of power does.
    pub fn kill(&self, names: &[String]) {
        names.iter().for_each(|name| self.signal(name, libc::SIGKILL));
        names.iter().for_each(|name| assert_eq!(self.ended(name), 128 + libc::SIGKILL, "{name}"));
    }

    // Networks.

    pub fn cut(&self, region: &str) {
        self.outside().run(&format!("ip link set {region} down")).assert_well();
    }

    pub fn heal(&self, region: &str) {
        self.outside().run(&format!("ip link set {region} up")).assert_well();
    }

    // Mounts.

    fn mount_all(&self) {
        for (region, on_cut) in REGIONS.iter().zip(ON_CUT) {
            let (cluster, at) = (self.cluster_file(region), self.mount(region));
            let (cluster, at) = (cluster.display(), at.display());
            let of = format!("--cluster {cluster} --region {region} --on-cut {on_cut} {at}");
            let _ = fs::remove_file(self.log(&format!("mount-{region}")));
            self.run_until_ended(region, &format!("mount-{region}"), &format!("mount {of}"));
        }
        for region in REGIONS {
            let log = self.log(&format!("mount-{region}"));
            eventually("it is mounted", || {
                fs::read_to_string(&log).is_ok_and(|said| said.contains("mounted at"))
            });
        }
    }

    pub fn mount(&self, region: &str) -> PathBuf {
        self.room.path("mounts").join(region)
    }

    pub fn mounts(&self) -> [PathBuf; 3] {
        REGIONS.map(|region| self.mount(region))
    }

    /// Kills all nodes and mounts, as a loss of power does.
    pub fn kill_all(&self) {
        let mounts = REGIONS.iter().map(|region| format!("mount-{region}"));
        let nodes = self.nodes.iter().map(|node| node.name.clone());
        self.kill(&nodes.chain(mounts).collect::<Vec<_>>());
    }

    /// Starts all nodes, and mounts in each region.
    pub fn start_all(&self) {
        self.nodes.iter().for_each(|node| self.start(&node.name));
        eventually("all nodes are there", || self.all_are_there());
        self.mount_all();
    }

    // What an operator asks.

    /// Begins a command of an operator.
    pub fn begin(&self, words: &str) -> Begun {
        let cluster = self.cluster_file("cluster");
        self.outside().begin(&format!("{MERIDIAN} {words} --cluster {}", cluster.display()))
    }

    /// An operator removes a node.
    pub fn remove_node(&mut self, node: &str) {
        self.begin(&format!("cluster remove-node {node}")).wait_within(OPERATOR).assert_well();
        self.nodes.retain(|other| other.name != *node);
    }

    /// An operator adds a node to a region, with a disk of its own, and starts it.
    pub fn add_node(&mut self, region: &'static str) -> String {
        self.made[number_of(region)] += 1;
        let (number, at) = (self.made[number_of(region)], 1 + number_of(region));
        let name = format!("{region}-{number}");
        self.insert_disk(&name);
        let address = format!("10.0.0.{at}:{}", PORT + number - 1);
        let words = format!("cluster add-node --region {region} --name {name} --address {address}");
        let adding = self.begin(&words);
        let prepared = self.dir(&name).join("node.json");
        eventually("the command has made the node's directory", || {
            let ended = adding.ended();
            assert!(ended.is_none(), "{ended:?}");
            prepared.exists()
        });
        let copy = self.cluster_file("copy");
        fs::copy(self.cluster_file("cluster"), &copy).unwrap();
        fs::rename(&copy, self.cluster_file(region)).unwrap();
        self.start(&name);
        adding.wait_within(OPERATOR).assert_well();
        self.nodes.push(Node { name: name.clone(), region });
        name
    }

    /// The answer of `meridian status --json`, which works also while nodes are down.
    pub fn status(&self) -> Value {
        let ended = self.begin("status --json").wait();
        serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    }

    pub fn all_are_there(&self) -> bool {
        self.each_replica(|replica, _| replica["lag"].as_u64().is_some_and(|lag| lag <= LAG_MAX))
    }

    /// Whether all replicas of each group have applied the same and are in the same state, and all
    /// nodes hold the blocks that they should.
    pub fn all_are_equal(&self) -> bool {
        self.each_replica(|replica, first| {
            ["applied", "state_hash"].iter().all(|key| replica[key] == first[key])
                && ["lag", "pending"].iter().all(|key| replica[key] == 0)
        })
    }

    /// Whether something holds of each replica and the first of its group, and all can be reached.
    fn each_replica(&self, holds: impl Fn(&Value, &Value) -> bool) -> bool {
        let status = self.status();
        let groups = status["groups"].as_array().unwrap();
        assert!(!groups.is_empty(), "{status}");
        let role =
            |replica: &Value| ["primary", "follower"].iter().any(|role| replica["role"] == *role);
        let nodes = status["nodes"].as_array().unwrap();
        groups.iter().all(|group| {
            let replicas = group["replicas"].as_array().unwrap();
            let leads = replicas.iter().any(|replica| replica["role"] == "primary");
            leads && replicas.iter().all(|replica| role(replica) && holds(replica, &replicas[0]))
        }) && nodes.len() == self.nodes.len()
            && nodes.iter().all(|node| node["reachable"] == true)
    }

    /// Stops all in order: mounts, then servers. Nothing is left.
    pub fn end(mut self) {
        let mounts = REGIONS.map(|region| format!("mount-{region}")).to_vec();
        let nodes = self.nodes.iter().map(|node| node.name.clone()).collect();
        for names in [mounts, nodes] {
            names.iter().for_each(|name| self.signal(name, libc::SIGTERM));
            names.iter().for_each(|name| assert_eq!(self.ended(name), 0, "{name}"));
        }
        self.shells.clear();
        self.room.assert_clean();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() || self.shells.is_empty() {
            return;
        }
        self.tell("failed");
        let kept = std::env::temp_dir().join(format!("meridian-chaos-{}", std::process::id()));
        let (logs, to) = (self.room.path("logs"), kept.display());
        let status = self.begin("status");
        let limit = Instant::now() + LAST_LOOK;
        while status.ended().is_none() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(50));
        }
        let said = status.ended().map(|ended| ended.stdout + &ended.stderr);
        let _ = fs::write(logs.join("status"), said.unwrap_or_else(|| "no answer".into()));
        let copied = Command::new("cp").arg("-r").args([&logs, &kept]).status();
        eprintln!("what nodes and mounts said is kept in {to}: {copied:?}");
    }
}

fn number_of(region: &str) -> usize {
    REGIONS.iter().position(|name| *name == region).unwrap()
}
