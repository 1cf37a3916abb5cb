//! A cluster on machines of its own, by the steps of `docs/setup.md` and no others: nine networks,
//! joined by one cable each, with a folder each in the place of its `/var/lib` and `/etc`.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Other tests use the rest of it.
mod harness;
#[path = "harness/shell.rs"]
mod shell;

use harness::{MERIDIAN, Room, eventually, kill};
use shell::{Begun, Shell};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// The names of the nodes in the page, and where they listen.
const NODES: [&str; 9] = ["us-1", "us-2", "us-3", "eu-1", "eu-2", "eu-3", "ap-1", "ap-2", "ap-3"];
/// The node that the page speaks of.
const NODE: &str = "us-1";

/// The blocks of the page that a reader is to use, by the word behind their language.
fn steps() -> BTreeMap<String, String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/setup.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("\n```").skip(1).step_by(2);
    let steps = blocks.filter_map(|block| {
        let (head, text) = block.split_once('\n')?;
        Some((head.split_once(' ')?.1.to_string(), text.to_string()))
    });
    steps.collect()
}

/// A machine for each node, and one that joins them.
struct Machines {
    steps: BTreeMap<String, String>,
    machines: BTreeMap<&'static str, Shell>,
    managers: BTreeMap<&'static str, UnixDatagram>,
    outside: Shell,
    room: Room,
}

impl Machines {
    fn new() -> Machines {
        let room = Room::new();
        fs::create_dir(room.path("said")).unwrap();
        let said = room.path("said");
        let unmount = format!("umount -l {} 2> /dev/null", room.path("mnt").display());
        let outside = Shell::new("outside", &said, &unmount);
        outside.run("ip link add cables type bridge && ip link set cables up").assert_well();
        let (mut machines, mut managers) = (BTreeMap::new(), BTreeMap::new());
        for (at, node) in NODES.into_iter().enumerate() {
            let shell = Shell::new(node, &said, ":");
            let (pid, region, number) = (shell.pid(), at / 3 + 1, at % 3 + 1);
            let cable = format!(
                "ip link add {node} type veth peer name out netns {pid} && \
                 ip link set {node} master cables up"
            );
            outside.run(&cable).assert_well();
            let address = format!("ip addr add 10.0.{region}.{number}/16 dev out");
            shell.run(&format!("{address} && ip link set out up")).assert_well();
            fs::create_dir_all(room.path(node).join("var/lib")).unwrap();
            machines.insert(node, shell);
            let manager = UnixDatagram::bind(room.path(node).join("manager")).unwrap();
            manager.set_nonblocking(true).unwrap();
            managers.insert(node, manager);
        }
        Machines { steps: steps(), machines, managers, outside, room }
    }

    fn home(&self, node: &str) -> PathBuf {
        self.room.path(node)
    }

    /// A block of the page as a reader on that machine takes it: with the machine's own node, and
    /// the machine's own folders.
    fn step(&self, name: &str, node: &str) -> String {
        let text = self.steps.get(name).unwrap_or_else(|| panic!("the page has no step {name}"));
        let lib = self.home(node).join("var/lib/meridian");
        text.replace(NODE, node)
            .replace("/var/lib/meridian", &lib.display().to_string())
            .replace("/srv/meridian", &self.room.path("mnt").display().to_string())
    }

    /// Begins a step of the page in the home of a machine.
    fn begin(&self, name: &str, node: &str) -> Begun {
        let (home, bin) = (self.home(node), Path::new(MERIDIAN).parent().unwrap());
        let (home, bin, line) = (home.display(), bin.display(), self.step(name, node));
        let socket = self.manager_of(node);
        let manager = format!("export PATH={bin}:$PATH NOTIFY_SOCKET={}", socket.display());
        self.machines[node].begin(&format!("cd {home} && {manager} && {}", line.trim()))
    }

    /// Where the test listens in the place of a machine's service manager.
    fn manager_of(&self, node: &str) -> PathBuf {
        self.home(node).join("manager")
    }

    fn run(&self, name: &str, node: &str) -> harness::Ended {
        let ended = self.begin(name, node).wait();
        ended.assert_well();
        ended
    }

    fn pid(&self, node: &str) -> i32 {
        let lock = self.home(node).join("var/lib/meridian").join(node).join("server.pid");
        fs::read_to_string(lock).unwrap().trim().parse().unwrap()
    }

    /// What a machine's service manager was told since this was asked last.
    fn told(&self, node: &str) -> Vec<String> {
        let manager = &self.managers[node];
        let next = || {
            let mut bytes = [0; 1024];
            let len = manager.recv(&mut bytes).ok()?;
            Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
        };
        std::iter::from_fn(next).collect()
    }

    /// `status` says by its exit that all is well.
    fn all_is_well(&self) -> bool {
        self.begin("status", NODE).wait().status.success()
    }
}

/// Describes the cluster, and makes each node's folder and its file of options.
fn prepare(all: &Machines) {
    fs::write(all.home(NODE).join("answers.toml"), &all.steps["answers"]).unwrap();
    let said = all.run("init", NODE).stdout;
    assert!(NODES.iter().all(|node| said.contains(node)), "{said}");
    let cluster = fs::read(all.home(NODE).join("cluster.json")).unwrap();
    for node in NODES {
        fs::write(all.home(node).join("cluster.json"), &cluster).unwrap();
        bring_certificate(all, node);
        all.run("prepare", node);
        fs::write(all.home(node).join("server.toml"), all.step("server-file", node)).unwrap();
    }
}

/// Brings to a machine what the page says of the certificates.
fn bring_certificate(all: &Machines, node: &str) {
    let (from, to) = (all.home(NODE).join("tls"), all.home(node).join("tls"));
    fs::create_dir_all(&to).unwrap();
    for file in ["ca.pem".to_string(), format!("{node}.pem"), format!("{node}.key")] {
        if node != NODE {
            fs::copy(from.join(&file), to.join(&file)).unwrap();
        }
    }
}

/// Starts the servers, the first of them alone.
fn start(all: &Machines) -> BTreeMap<&'static str, Begun> {
    let mut servers = BTreeMap::from([(NODE, all.begin("server", NODE))]);
    let waits = |said: &String| said.starts_with("STATUS=does not serve yet");
    let mut told = Vec::new();
    eventually("the first node says that it waits for others", || {
        told.extend(all.told(NODE));
        told.iter().any(waits)
    });
    assert!(!told.iter().any(|said| said.contains("READY=1")), "alone it serves nobody: {told:?}");
    assert!(!all.begin("health", NODE).wait().status.success());
    servers.extend(NODES[1..].iter().map(|node| (*node, all.begin("server", node))));
    for node in NODES {
        eventually("the service manager is told that the node serves", || {
            all.told(node).iter().any(|said| said.starts_with("READY=1\nSTATUS=serves: "))
        });
    }
    servers
}

/// All that tells how the cluster is says that it is well.
fn look(all: &Machines) {
    eventually("status says that all is well", || all.all_is_well());
    let said = all.run("status", NODE).stdout;
    assert!(said.starts_with("All is well: 9 nodes answer"), "{said}");
    assert!(all.run("health", NODE).stdout.starts_with("serves: "));
    let metrics = all.step("health", NODE).replace("healthz", "metrics");
    let metrics = || all.machines[NODE].run(metrics.trim()).stdout;
    assert!(metrics().contains("meridian_node_info{node=\"us-1\",region=\"us\""));
    eventually("the node has a connection to each of the eight others", || {
        let told = metrics();
        let peers = told.lines().filter(|line| line.starts_with("meridian_peer_connected{"));
        peers.filter(|line| line.ends_with(" 1.0")).count() == 8
    });
}

/// Prometheus and a browser are let in by what the page gives them, and nobody without.
fn watch(all: &Machines) {
    let home = all.home(NODE);
    let tls = home.join("tls").display().to_string();
    let scrape = all.steps["prometheus"].replace("/etc/prometheus/meridian", &tls);
    let said = |key: &str| {
        let line = scrape.lines().find_map(|line| line.trim().strip_prefix(key));
        line.unwrap_or_else(|| panic!("no {key} in {scrape}")).trim().to_string()
    };
    let targets: Vec<_> = scrape.split('"').skip(1).step_by(2).collect();
    assert_eq!(targets.len(), NODES.len(), "{scrape}");
    let (scheme, host) = (said("scheme:"), said("server_name:"));
    for target in targets {
        let url = format!("--connect-to ::{target} {scheme}://{host}/metrics");
        let ca = format!("curl -sSf --cacert {}", said("ca_file:"));
        let shown = format!("--cert {} --key {}", said("cert_file:"), said("key_file:"));
        let told = all.machines[NODE].run(&format!("{ca} {shown} {url}"));
        assert!(told.stdout.contains("meridian_serving 1.0"), "{target}: {told:?}");
        let told = all.machines[NODE].run(&format!("{ca} {url}"));
        assert!(!told.status.success() && told.stdout.is_empty(), "{target}: {told:?}");
    }
    all.run("browser", NODE);
    let browser = format!(
        "cd {} && curl -sSf --cacert tls/ca.pem --cert-type P12 --cert watcher.p12:once \
         https://localhost:9464/",
        home.display()
    );
    let page = all.machines[NODE].run(&browser).stdout;
    assert!(page.contains("<title>Meridian</title>"), "{page}");
}

#[test]
fn the_steps_of_the_page_lead_to_a_cluster_that_survives_a_node() {
    let all = Machines::new();
    prepare(&all);
    let mut servers = start(&all);
    look(&all);
    watch(&all);
    let (mount, at) = (all.begin("mount", NODE), all.room.path("mnt"));
    eventually("the service manager is told that it is mounted", || {
        all.told(NODE).iter().any(|said| said.starts_with("READY=1\nSTATUS=mounted at"))
    });
    let hello = at.join("us/hello");
    all.run("files", NODE);
    let hello = hello.display();
    let read = || all.outside.run(&format!("cat {hello}")).stdout;
    assert_eq!(read(), "hello\n");

    kill(all.pid("us-2"), libc::SIGKILL);
    assert!(!servers.remove("us-2").unwrap().wait().status.success());
    let mut sentence = String::new();
    eventually("the region goes on with two, and status says which is away", || {
        let status = all.begin("status", NODE).wait();
        sentence = status.stdout.lines().next().unwrap_or_default().into();
        status.status.code() == Some(1)
    });
    assert!(sentence.starts_with("Something is wrong, and all can be"), "{sentence}");
    assert!(sentence.contains("us-2 does not answer"), "{sentence}");
    let again = format!("echo again >> {hello} && sync {hello}");
    all.outside.run(&again).assert_well();
    assert_eq!(read(), "hello\nagain\n");
    servers.insert("us-2", all.begin("server", "us-2"));
    eventually("status says that all is well again", || all.all_is_well());

    all.outside.run(&format!("umount {}", at.display())).assert_well();
    mount.wait().assert_well();
    for node in NODES {
        kill(all.pid(node), libc::SIGTERM);
        servers.remove(node).unwrap().wait().assert_well();
    }
    let Machines { machines, outside, room, .. } = all;
    drop((machines, outside));
    room.assert_clean();
}
