//! What a process tells who watches it: values and health, over HTTPS.
//!
//! | module | what |
//! | --- | --- |
//! | [`table`] | which values a server tells, and where each comes from |
//! | [`mount`] | which values a mount tells |
//! | [`text`] | the values in the text format of OpenMetrics, which Prometheus reads |
//! | [`dashboard`] | the page for people |
//! | [`http`] | the listener: whom it lets in; bounded in connections, bytes and time |
//!
//! The values are those that a node tells any client of it (`meridian status`): nothing is counted
//! twice, and nothing on the way of an operation. Deliberately absent: a registry that the rest of
//! the code writes to.
#![forbid(unsafe_code)]

pub mod dashboard;
pub mod http;
pub mod mount;
pub mod table;
pub mod text;

use meridian_cluster::Topology;
use meridian_host::api::NodeStatus;
use meridian_transport::Ends;

/// A node as it is now, by what it says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// The cluster that it is in.
    pub topology: &'a Topology,
    /// How it is.
    pub status: &'a NodeStatus,
    /// Until when its certificates count.
    pub ends: Ends,
}

impl Told<'_> {
    /// Whether it serves: each of its groups has a primary, and it is that, or follows it.
    pub fn serves(&self) -> bool {
        let status = self.status;
        let led = |replica: &meridian_host::api::ReplicaStatus| match replica.role.as_str() {
            "primary" => true,
            "follower" => status.connected.contains(&replica.primary),
            _ => false,
        };
        !status.replicas.is_empty() && status.replicas.iter().all(led)
    }

    /// What it does, for people: which groups it leads, which it follows, and which not yet.
    pub fn sentence(&self) -> String {
        let of = |role: &[&str]| {
            let replicas = self.status.replicas.iter();
            let named = replicas.filter(|replica| role.contains(&replica.role.as_str()));
            named.map(|replica| self.topology.group_name(replica.group)).collect::<Vec<_>>()
        };
        let parts = [
            ("leads", of(&["primary"])),
            ("follows", of(&["follower"])),
            ("waits for", of(&["promised", "candidate", "recovering"])),
        ];
        let parts = parts.iter().filter(|(_, groups)| !groups.is_empty());
        let parts: Vec<_> = parts.map(|(does, of)| format!("{does} {}", of.join(", "))).collect();
        let begin = if self.serves() { "serves" } else { "does not serve yet" };
        format!("{begin}: {}; {} peers", parts.join("; "), self.status.connected.len())
    }
}
