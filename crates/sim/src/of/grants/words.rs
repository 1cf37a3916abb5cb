//! What clients ask and nodes answer, in words; between nodes those of Hermes.

use super::node::{Command, Following, Message, Node, Output, Record, Timer, Within};
use crate::of::hermes::words::{self as hermes, Replicas};
use crate::trace::Teller;
use crate::words::of_node;
use crate::world::{Happened, Way, What};
use meridian_core::NodeId;
use meridian_keys::slots::Shard;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Words {
    /// Those of each shard, in order.
    replicas: [Replicas; super::node::SHARDS as usize],
}

impl Teller<Node> for Words {
    fn name(&self, peer: NodeId) -> String {
        of_node(peer)
    }

    fn message(&self, way: Way<NodeId>, message: &Message) -> String {
        match message {
            Message::Steward(message) => hermes::of_membership(message),
            Message::Replica(shard, message) => {
                let words = self.replicas[usize::from(shard.0)].of_message(way, message);
                format!("shard {}: {words}", shard.0)
            }
            Message::Within(Within::Follow(following)) => of_following(following),
            Message::Within(within) => format!("{within:?}"),
        }
    }

    fn command(&self, command: &Command) -> String {
        match command {
            Command::Ask { shard, client, name, bytes } => {
                let lines = String::from_utf8_lossy(bytes);
                let lines = lines.lines().collect::<Vec<_>>().join("; ");
                format!("{name} on c{client}, thread {}: {lines}", shard.0)
            }
            Command::Leave { client, .. } => format!("c{client} is closed"),
            Command::Follow(following) => of_following(following),
        }
    }

    fn record(&self, record: &Record) -> String {
        match record {
            Record::Steward(record) => hermes::of_kept(record),
            Record::Replica(Shard(shard), record) => {
                format!("shard {shard}: {}", hermes::of_record(record))
            }
            Record::Follows(following) => of_following(following),
        }
    }

    fn output(&self, output: &Output) -> String {
        match output {
            Output::Wrote { client, reply } => format!("c{client} is told {reply:?}"),
            Output::Ended(client) => format!("c{client} has ended"),
            Output::InForce(version) => format!("version {version} is in force"),
        }
    }

    fn timer(&self, timer: Timer) -> String {
        match timer {
            Timer::Steward(timer) => hermes::of_timer(timer),
            timer @ (Timer::Replica(..) | Timer::Desk(_) | Timer::Hears(_)) => format!("{timer:?}"),
        }
    }

    fn about(&mut self, event: &Happened<'_, Node>) -> Vec<String> {
        if let Some((_, way, Message::Replica(shard, message))) = event.said() {
            let replicas = &mut self.replicas[usize::from(shard.0)];
            replicas.learn(way, message);
            return replicas.said(way, message);
        }
        match (event.asked(), event.what) {
            (Some(Command::Ask { client, .. } | Command::Leave { client, .. }), _)
            | (_, What::Output(Output::Wrote { client, .. } | Output::Ended(client))) => {
                vec![format!("c{client}")]
            }
            (_, What::Record(Record::Replica(_, record))) => hermes::recorded(record),
            _ => Vec::new(),
        }
    }
}

fn of_following(following: &Following) -> String {
    format!("follows version {}: {:?}", following.configured.version, following.grants)
}
