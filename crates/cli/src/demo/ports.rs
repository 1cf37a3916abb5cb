//! Ports at which people call the nodes of a demo: one for each node, one after the other.

use anyhow::{Context, bail, ensure};
use meridian_core::NodeId;
use meridian_terminal::note;
use std::net::TcpListener;

/// Further demos have theirs so much higher, up to an end below the ports of nodes.
const STEP: usize = 100;
const END: u16 = 10_000;

/// What calls a node there.
#[derive(Debug)]
pub struct Ports {
    /// The first node's, unless somebody else listens there.
    usual: u16,
    /// The option that names another.
    option: &'static str,
    /// Who calls.
    who: &'static str,
}

/// For clients of keys.
pub const KEYS: Ports = Ports { usual: 7400, option: "--keys-port", who: "clients of keys" };
/// For who watches.
pub const WATCH: Ports = Ports { usual: 7450, option: "--watch-port", who: "browsers" };

impl Ports {
    /// The first node's port: `wanted`, or one from which on enough are free. None if that is 0.
    ///
    /// # Errors
    /// If a port that is wanted cannot be used, or none is free.
    pub fn choose(&self, wanted: Option<u16>, nodes: usize) -> anyhow::Result<Option<u16>> {
        let Ports { usual, option, who } = self;
        let taken = |first: u16| {
            let mut ports = (first..=u16::MAX).take(nodes);
            ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_err())
        };
        if let Some(first) = wanted {
            if first == 0 {
                return Ok(None);
            }
            ensure!(usize::from(u16::MAX - first) >= nodes, "{option} {first} leaves no room");
            return match taken(first) {
                Some(port) => bail!("port {port} cannot be used: name other ports by {option}"),
                None => Ok(Some(first)),
            };
        }
        let mut firsts = (*usual..END).step_by(nodes.max(STEP));
        let first = firsts.find(|first| taken(*first).is_none());
        let none = || format!("no free ports for {who}: name some by {option}, or {option} 0");
        let first = first.with_context(none)?;
        if first != *usual {
            note!("ports from {usual} on are in use: {who} call at {first} and above");
        }
        Ok(Some(first))
    }
}

/// Where a node is called if the first is called at that port.
pub fn address(first: Option<u16>, node: NodeId) -> Option<String> {
    Some(format!("127.0.0.1:{}", first?.saturating_add(node.0)))
}
