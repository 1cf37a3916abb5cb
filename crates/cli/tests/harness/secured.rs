//! A cluster that speaks TLS, from `meridian init` on.

#![allow(clippy::unwrap_used, dead_code)] // Part of tests, which use different parts.

use crate::harness::{Ended, Room, Running, eventually, kill};
use crate::intruder;
use bytes::BytesMut;
use meridian_core::NodeId;
use meridian_core::hello::{Caller, Hello, ServiceId};
use meridian_transport::{Authority, Issued};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};

pub const NODES: [&str; 3] = ["us-1", "us-2", "us-3"];

/// Where something of a node listens.
#[derive(Clone, Copy)]
pub enum Port {
    Node,
    Keys,
    Metrics,
}

/// Three servers of a region, each with a folder in the place of its machine.
pub struct Secured {
    pub servers: BTreeMap<String, Child>,
    pub ports: Vec<SocketAddr>,
    pub room: Room,
}

impl Secured {
    /// By the steps of the page: init, prepare, server; the cluster speaks TLS.
    pub fn start() -> Secured {
        let room = Room::new();
        let held = [(); 12].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports: Vec<_> = held.iter().map(|held| held.local_addr().unwrap()).collect();
        drop(held);
        let listen: Vec<_> = ports[..3].iter().map(SocketAddr::to_string).collect();
        let region = format!("us={}", listen.join(","));
        well(&room, &["init", "--region", &region]);
        let mut all = Secured { servers: BTreeMap::new(), ports, room };
        for node in NODES {
            let dir = format!("{node}.machine/{node}");
            well(&all.room, &["prepare", "--cluster", "cluster.json", "--dir", &dir]);
            all.serve(node, &dir);
        }
        eventually("status says that all is well", || all.status().status.success());
        all
    }

    /// Where a node listens.
    pub fn port(&self, of: Port, node: &str) -> SocketAddr {
        let number: usize = node.strip_prefix("us-").unwrap().parse().unwrap();
        let row = match of {
            Port::Node => 0,
            Port::Keys => 4,
            Port::Metrics => 8,
        };
        self.ports[row + number - 1]
    }

    /// Starts a node's server.
    pub fn serve(&mut self, node: &str, dir: &str) {
        self.serve_with(node, dir, &[]);
    }

    /// The same, with further options.
    pub fn serve_with(&mut self, node: &str, dir: &str, further: &[&str]) {
        let [keys, metrics] =
            [Port::Keys, Port::Metrics].map(|port| self.port(port, node).to_string());
        let args = ["server", "--dir", dir, "--keys", &keys, "--keys-shards", "1"];
        let args = [&args[..], &["--metrics-address", &metrics], further].concat();
        let log = File::options().append(true).create(true).open(self.log_of(node)).unwrap();
        let server = self.room.meridian(&args).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.servers.insert(node.into(), server);
    }

    pub fn log_of(&self, node: &str) -> PathBuf {
        self.room.path(&format!("{node}.log"))
    }

    pub fn log(&self, node: &str) -> String {
        fs::read_to_string(self.log_of(node)).unwrap()
    }

    pub fn status(&self) -> Ended {
        self.room.run(&["status", "--cluster", "cluster.json"])
    }

    /// What a node tells of itself, of which this is the name.
    pub fn metric(&self, node: &str, name: &str) -> f64 {
        let text = ask(self.port(Port::Metrics, node), Some(&self.issued("watcher")), "/metrics");
        let text = text.unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
    }

    pub fn refused(&self, node: &str) -> f64 {
        self.metric(node, "meridian_unauthorized_connections_total")
    }

    /// The name of the cluster, and what signs its certificates.
    pub fn authority(&self) -> (String, Authority) {
        let text = fs::read_to_string(self.room.path("cluster.json")).unwrap();
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        let cluster = file["cluster"].to_string();
        let key = fs::read_to_string(self.room.path("tls/ca.key")).unwrap();
        let authority = Authority::with_key(&cluster, &key).unwrap();
        (cluster, authority)
    }

    /// The certificate that lies there.
    pub fn issued(&self, name: &str) -> Issued {
        let read = |end| fs::read_to_string(self.room.path(&format!("tls/{name}.{end}"))).unwrap();
        Issued { certificate: read("pem"), key: read("key") }
    }

    /// `meridian cluster` and so on, as the admin.
    pub fn cluster(&self, args: &[&str]) -> Ended {
        self.room.run(&[&["cluster"], args, &["--cluster", "cluster.json"]].concat())
    }

    /// Changes what a client may do, and waits until all nodes know.
    pub fn changed(&self, args: &[&str]) {
        let ended = self.cluster(&[args, &["--json"]].concat());
        assert!(ended.status.success(), "{args:?}: {ended:?}");
        let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        let version = told["version"].as_u64().unwrap();
        eventually("all nodes follow", || {
            let shown: serde_json::Value =
                serde_json::from_str(&self.cluster(&["show", "--json"]).stdout).unwrap();
            let nodes = shown["nodes"].as_array().unwrap().clone();
            nodes.iter().all(|node| node["follows"].as_u64() >= Some(version))
        });
    }

    /// Mounts with the certificate of that name.
    pub fn mount(&self, name: &str, at: &str) -> Running {
        let certificate = format!("tls/{name}.pem");
        let args = ["mount", "--cluster", "cluster.json", "--region", "us", at];
        let args = [&args[..], &["--tls-certificate", &certificate]].concat();
        Running::start(self.room.meridian(&args), self.room.path(at))
    }

    /// What the client of a service says first, in a frame.
    pub fn hello(&self, service: ServiceId) -> Vec<u8> {
        framed(&Hello::<NodeId>::new(&self.authority().0, Caller::Client(service)))
    }

    /// Ends all servers, and all must go well.
    pub fn stop(mut self) {
        for (node, mut server) in std::mem::take(&mut self.servers) {
            kill(i32::try_from(server.id()).unwrap(), libc::SIGTERM);
            assert!(server.wait().unwrap().success(), "{node}: {}", self.log(&node));
        }
        self.room.assert_clean();
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        // After a failed test; else none are left.
        for server in self.servers.values_mut() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// What the port of who watches answers to who shows that certificate.
pub fn ask(at: SocketAddr, shown: Option<&Issued>, path: &str) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let heard = intruder::call(at, shown, request.as_bytes())?;
    Ok(String::from_utf8(heard).unwrap())
}

/// The same to who speaks plain text.
pub fn ask_plainly(at: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(at)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// A message in a frame.
pub fn framed(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    meridian_client::connection::encode(&mut bytes, message).unwrap();
    bytes.to_vec()
}

/// What a command printed that ended well.
pub fn well(room: &Room, args: &[&str]) -> String {
    let ended = room.run(args);
    assert!(ended.status.success(), "{args:?}: {ended:?}");
    ended.stdout
}
