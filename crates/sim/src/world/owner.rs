//! What sits on top of the processes: a workload, the application, and who watches them.

use super::log::DiskFailure;
use meridian_core::{Process, Time};
use meridian_storage::SimDisk;
use std::time::Duration;

/// What an owner wants to happen.
#[derive(Clone, Debug)]
pub enum Stimulus<P: Process> {
    /// Give a process a command; lost if the process is down when it arrives.
    Command {
        /// Which process.
        to: P::Peer,
        /// What it is asked.
        command: P::Command,
        /// How long the command travels.
        after: Duration,
    },
    /// The disk of a process has failed its owner: it stops, and starts again.
    Stop(P::Peer),
    /// Call [`Owner::wake`].
    Wake {
        /// To be given back.
        token: u64,
        /// When.
        after: Duration,
    },
}

/// The owner of all processes of a [`crate::World`]. Times are the world's, not those of a process.
pub trait Owner<P: Process> {
    /// What is to happen first; called once, when the world is made.
    fn begin(&mut self) -> Vec<Stimulus<P>> {
        Vec::new()
    }

    /// A process said this, and all that it persisted before is durable.
    fn output(&mut self, at: P::Peer, output: P::Output, now: Time) -> Vec<Stimulus<P>>;

    /// The time of a [`Stimulus::Wake`] has come.
    fn wake(&mut self, _token: u64, _now: Time) -> Vec<Stimulus<P>> {
        Vec::new()
    }

    /// A command has reached a live process, which will step with it.
    fn commanded(&mut self, _at: P::Peer, _command: &P::Command, _now: Time) {}

    /// A process lost all that was not durable.
    fn crashed(&mut self, _at: P::Peer, _now: Time) {}

    /// A process runs, for the first time or again, its records replayed.
    fn started(&mut self, _at: P::Peer, _process: &P, _now: Time) {}

    /// A process is about to start on this disk, on which its log was read: what the owner has on
    /// it is to be opened. `altered` says whether the disk was damaged, or exchanged for another,
    /// since the process ran last. Called where logs are on disks, before [`Owner::started`]; if it
    /// fails, or the disk does right after, again.
    ///
    /// # Errors
    /// If the disk refuses, or is damaged.
    fn mount(&mut self, _at: P::Peer, _disk: &SimDisk, _altered: bool) -> Result<(), DiskFailure> {
        Ok(())
    }

    /// A process must not come back: its disk has lost something, as others know, or is damaged.
    fn refused(&mut self, _at: P::Peer, _now: Time) -> Vec<Stimulus<P>> {
        Vec::new()
    }

    /// A process has sent this to a peer, or received it from one; not called for what it sends
    /// to itself.
    fn traffic(&mut self, _at: P::Peer, _message: &P::Message) {}

    /// Whether the process leads others: faults are aimed at it.
    fn leads(&self, _process: &P) -> bool {
        false
    }

    /// Whether the process has again all that it had before it crashed, where that is not on a
    /// disk.
    fn is_whole(&self, _process: &P) -> bool {
        true
    }

    /// Whether `at` may crash now, with these processes up: not if more would then be lost than
    /// what is promised to survive.
    fn may_crash(&self, _at: P::Peer, _processes: &[(P::Peer, &P)]) -> bool {
        true
    }

    /// Whether the disk of a process may be lost, now that all is as it is.
    fn may_lose_disk(&self) -> bool {
        true
    }

    /// Called after each event with the process that stepped; `durable` tells whether all that it
    /// has persisted is, so that no crash can undo its state.
    ///
    /// # Errors
    /// Says which invariant is broken.
    fn check(&mut self, _at: P::Peer, _process: &P, _durable: bool) -> Result<(), String> {
        Ok(())
    }
}
