//! What a process must be for a server to run it.

use meridian_cluster::Topology;
use meridian_core::{NodeId, Process, Time};
use meridian_host::api::{KeeperStatus, Refusal, ReplicaStatus, Request, RequestBody};
use meridian_host::drain::keep::Options;
use meridian_host::drain::{self, Drain};
use meridian_host::{Command, ConnectionId, Node, Output, space};
use meridian_paxos as paxos;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// A process that talks with clients, of which a server runs one.
pub trait Service:
    Process<
        Peer = NodeId,
        Message: Serialize + DeserializeOwned,
        Record: Serialize + DeserializeOwned + Send,
    > + Send
    + 'static
{
    /// The process of node `me`, before its records are replayed.
    fn new(topology: Arc<Topology>, me: NodeId) -> Self;

    /// The command that hands it a client's request, which is of the kinds that are not the
    /// shell's own to answer. Each should be answered once:
    /// what is not answered counts as under way, for some minutes.
    fn request(connection: ConnectionId, request: Request) -> Self::Command;

    /// The command that tells it what the client of a connection is called in its certificate.
    fn known(connection: ConnectionId, client: String) -> Self::Command;

    /// Whether a client that is called so in its certificate may ask that, of the kinds that are
    /// the shell's own to answer.
    ///
    /// # Errors
    /// Why not.
    fn admits(&self, client: Option<&str>, body: &RequestBody) -> Result<(), Refusal>;

    /// The command that tells it that the connection is gone.
    fn closed(connection: ConnectionId) -> Self::Command;

    /// The command that tells it how the cluster is configured now.
    fn configured(topology: Arc<Topology>) -> Self::Command;

    /// What an output is.
    fn told(output: Self::Output) -> Output;

    /// How its replicas are.
    fn status(&self, now: Time) -> Vec<ReplicaStatus>;

    /// The command that tells it of the blocks that are here; see [`drain`].
    fn blocks(command: drain::Command) -> Self::Command;

    /// What copies blocks to others and from them.
    fn drain(&self) -> &Drain;

    /// The same, which looks after copies that fast.
    fn with_copies(self, options: Options) -> Self;

    /// The command that names the blocks that are here; see [`space`].
    fn space(command: space::Command) -> Self::Command;

    /// How full the disk is, and how many blocks are to be freed.
    fn space_report(&self) -> space::Report;

    /// The command that hands it what a client asks of the configuration.
    fn configuration(command: paxos::Command) -> Self::Command;

    /// How its replica of the configuration is, if it keeps that.
    fn keeper(&self) -> Option<KeeperStatus>;
}

impl Service for Node {
    fn new(topology: Arc<Topology>, me: NodeId) -> Node {
        Node::new(topology, me)
    }

    fn request(connection: ConnectionId, request: Request) -> Command {
        Command::Request { connection, request }
    }

    fn known(connection: ConnectionId, client: String) -> Command {
        Command::Known { connection, client }
    }

    fn admits(&self, client: Option<&str>, body: &RequestBody) -> Result<(), Refusal> {
        Node::admits(self, client, body)
    }

    fn closed(connection: ConnectionId) -> Command {
        Command::Closed(connection)
    }

    fn configured(topology: Arc<Topology>) -> Command {
        Command::Configured(topology)
    }

    fn told(output: Output) -> Output {
        output
    }

    fn status(&self, now: Time) -> Vec<ReplicaStatus> {
        Node::status(self, now)
    }

    fn blocks(command: drain::Command) -> Command {
        Command::Drain(command)
    }

    fn drain(&self) -> &Drain {
        Node::drain(self)
    }

    fn with_copies(self, options: Options) -> Node {
        self.with_copy_options(options)
    }

    fn space(command: space::Command) -> Command {
        Command::Space(command)
    }

    fn space_report(&self) -> space::Report {
        Node::space(self).report()
    }

    fn configuration(command: paxos::Command) -> Command {
        Command::Configuration(command)
    }

    fn keeper(&self) -> Option<KeeperStatus> {
        Node::configuration(self).status()
    }
}
