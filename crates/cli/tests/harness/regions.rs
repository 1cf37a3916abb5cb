//! Demos of several regions with keys of all of them.

#![allow(clippy::unwrap_used)] // Part of tests.

use crate::clients::Connection;
use crate::harness::{PATIENCE, Room, Running, eventually, ports_in_a_row};
use meridian_keys::resp::answer::Answered;
use std::time::Instant;

/// So many nodes: two in each of three regions, or three in each of two.
pub const NODES: u16 = 6;
/// So many may be added.
const MORE: u16 = 2;

/// A demo of some regions, from `a` on.
pub struct Regions {
    pub nodes: u16,
    pub room: Room,
    pub demo: Running,
    pub first: u16,
}

impl Regions {
    /// With so many nodes in each region.
    pub fn start(nodes: u16, more: &[&str]) -> Regions {
        let (room, first) = (Room::new(), ports_in_a_row(NODES + MORE));
        let (port, count) = (first.to_string(), nodes.to_string());
        let regions = if nodes == 2 { "a,b,c" } else { "a,b" };
        let args = ["demo", "--mount", "mnt", "--data", "data", "--regions", regions];
        let args = [&args[..], &["--nodes-per-region", &count, "--keys-port", &port], more];
        let demo = Running::start(room.meridian(&args.concat()), room.mount());
        Regions { nodes, room, demo, first }
    }

    /// A session with a node of a region.
    pub fn session(&self, region: u16, node: u16) -> Session {
        self.session_at(region * self.nodes + node)
    }

    /// A session with the node that has this number in the cluster.
    pub fn session_at(&self, number: u16) -> Session {
        let port = self.first + number;
        let mut connection = None;
        eventually("a node listens", || {
            connection = Connection::new(port, PATIENCE).ok();
            connection.is_some()
        });
        Session(connection.unwrap())
    }

    pub fn pids(&self, region: &str) -> [i32; 2] {
        [1, 2].map(|number| self.room.pid_of(&format!("{region}-{number}")))
    }

    pub fn stop(self) {
        self.demo.stop();
        self.room.assert_clean();
    }
}

/// A connection to a node.
pub struct Session(pub Connection);

impl Session {
    /// The answer, once the node serves.
    pub fn ask(&mut self, words: &[&str]) -> Answered {
        let end = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < end, "it does not serve: {words:?}");
            match self.0.ask(words).unwrap() {
                Answered::Error(why) if why.starts_with("CLUSTERDOWN") => {}
                answer => return answer,
            }
        }
    }

    pub fn get(&mut self, key: &str) -> Option<String> {
        match self.ask(&["GET", key]) {
            Answered::Bulk(value) => Some(String::from_utf8(value.to_vec()).unwrap()),
            Answered::Null => None,
            other => panic!("{other:?}"),
        }
    }

    pub fn set(&mut self, key: &str, value: &str) {
        assert_eq!(self.ask(&["SET", key, value]), Answered::Line("OK".into()));
    }

    /// Goes on from a token.
    pub fn take(&mut self, token: &str) {
        assert_eq!(self.ask(&["MERIDIAN.SESSION", token]), Answered::Line("OK".into()));
    }

    pub fn token(&mut self) -> String {
        let Answered::Bulk(token) = self.ask(&["MERIDIAN.SESSION"]) else { panic!("no token") };
        String::from_utf8(token.to_vec()).unwrap()
    }
}
