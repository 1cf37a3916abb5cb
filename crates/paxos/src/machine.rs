//! The replicated state: the service, the replies to its clients, the members, and snapshots of all
//! of it (report, sections 5.1 and 5.4). Equal at all replicas that have executed equally far.
//!
//! Each request has a *position*: a snapshot may lie between two requests of one instance, and
//! tells how many requests of it it contains.
//!
//! # Exactly once
//! The last reply to each client is kept and is part of snapshots; a request that is not newer is
//! not executed. Of too many clients those that were heard of longest ago are forgotten, and for
//! each replica that gives identities the greatest that was forgotten is kept: identities only
//! grow, so a client below that without a reply kept may be one of them and is refused.

use crate::batch::{Batch, Kind, Request};
use crate::configuration::{Change, Configurations};
use crate::log::ENTRY_LEN;
use crate::message::{Answer, Digest, Stopped};
use crate::mutation::Mutation;
use crate::options::Options;
use crate::service::{Hint, Service};
use crate::view::Instance;
use bytes::Bytes;
use meridian_core::{ClientId, NodeId, Position};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// So many digests are kept: the leader's last may be of some time ago, or come early.
const DIGESTS: usize = 16;

/// The last reply to a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Cached {
    sequence: u64,
    reply: Bytes,
    /// That of the request.
    position: Position,
}

/// What is replicated beside the service's own state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct State {
    /// The instance that is executed next.
    instance: Instance,
    /// So many of its requests are executed already.
    skip: u64,
    position: Position,
    /// Of all replies.
    chain: u64,
    replies: BTreeMap<ClientId, Cached>,
    /// By the replica that gave the identities, the greatest that was forgotten.
    forgotten: BTreeMap<NodeId, ClientId>,
    configurations: Configurations,
}

/// A snapshot as it is kept and travels.
#[derive(Serialize, Deserialize)]
struct Image {
    state: State,
    service: Bytes,
}

/// A snapshot that others may be given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Snapshot {
    /// Which instance is to be executed next after it.
    pub instance: Instance,
    pub position: Position,
    pub bytes: Bytes,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Machine<S> {
    service: S,
    state: State,
    digests: VecDeque<Digest>,
    /// The last snapshots, at most two: who is being given the older one can finish.
    pub snapshots: VecDeque<Snapshot>,
    /// Bytes of log executed since the last one.
    bytes_since: usize,
    /// Whether the members changed since this was last asked.
    members_changed: bool,
    /// Of a replica that comes later or has lost its memory, before it has a snapshot: it does not
    /// know who the first members were, so it must not execute from the beginning.
    blank: bool,
}

/// The replica that gave a client its identity.
pub(crate) fn granted_by(client: ClientId) -> NodeId {
    NodeId(client.0 as u16)
}

impl<S: Service> Machine<S> {
    pub fn new(service: S, configurations: Configurations, blank: bool) -> Machine<S> {
        let state = State {
            instance: Instance(0),
            skip: 0,
            position: Position(0),
            chain: 0,
            replies: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            configurations,
        };
        Machine {
            service,
            state,
            digests: VecDeque::new(),
            snapshots: VecDeque::new(),
            bytes_since: 0,
            members_changed: true,
            blank,
        }
    }

    /// The same with another service in the place of its own.
    pub fn with_service(self, other: impl FnOnce(S) -> S) -> Machine<S> {
        Machine { service: other(self.service), ..self }
    }

    /// It has nothing, and needs a snapshot.
    pub fn begin_with_snapshot(&mut self) {
        self.blank = true;
    }

    /// Whether it has no state before it gets a snapshot.
    pub fn is_blank(&self) -> bool {
        self.blank
    }

    pub fn service(&self) -> &S {
        &self.service
    }

    pub fn position(&self) -> Position {
        self.state.position
    }

    /// The first instance that is not executed.
    pub fn next(&self) -> Instance {
        self.state.instance
    }

    pub fn configurations(&self) -> &Configurations {
        &self.state.configurations
    }

    /// Whether the members changed since this was last asked.
    pub fn take_members_changed(&mut self) -> bool {
        std::mem::take(&mut self.members_changed)
    }

    /// The digest of all replies so far.
    pub fn chain(&self) -> u64 {
        self.state.chain
    }

    /// What a request need not be ordered for.
    pub fn known(&self, client: ClientId, sequence: u64) -> Option<Known> {
        match self.state.replies.get(&client) {
            Some(cached) if cached.sequence == sequence => Some(Known::Reply(cached.reply.clone())),
            Some(cached) if cached.sequence > sequence => Some(Known::Old),
            Some(_) => None,
            None => {
                let last = self.state.forgotten.get(&granted_by(client));
                last.is_some_and(|last| client <= *last).then_some(Known::Forgotten)
            }
        }
    }

    /// The greatest identity given by `node` that has a reply here or was forgotten.
    pub fn last_client_of(&self, node: NodeId) -> Option<ClientId> {
        let kept = self.state.replies.keys().filter(|client| granted_by(**client) == node);
        kept.chain(self.state.forgotten.get(&node)).max().copied()
    }

    /// Executes the decision of the next instance; `told` hears what comes of each request.
    pub fn execute(
        &mut self,
        batch: &Batch,
        options: &Options,
        mutation: Mutation,
        told: &mut impl FnMut(ClientId, u64, Answer),
    ) {
        for (at, request) in (0u64..).zip(batch.requests()) {
            if at < self.state.skip && !mutation.is(Mutation::ForgetsSkip) {
                continue;
            }
            self.execute_one(&request, options, mutation, told);
            self.state.skip = at + 1;
            self.ask_for_snapshot(options, mutation, false);
        }
        self.state.instance = self.state.instance.next();
        self.state.skip = 0;
        self.bytes_since += ENTRY_LEN + batch.len();
        // Who was a member of no later instance is one no more.
        self.members_changed |= self.state.configurations.forget_before(self.state.instance);
        if self.state.instance.0.is_multiple_of(options.digest_every) {
            self.note_digest();
        }
    }

    fn execute_one(
        &mut self,
        request: &Request,
        options: &Options,
        mutation: Mutation,
        told: &mut impl FnMut(ClientId, u64, Answer),
    ) {
        let Request { client, sequence, kind, payload } = request;
        let known = self.known(*client, *sequence);
        self.state.position.0 += 1;
        match known {
            Some(Known::Reply(reply)) if !mutation.is(Mutation::ExecutesDuplicates) => {
                return told(*client, *sequence, Answer::Done(reply));
            }
            Some(Known::Old) if !mutation.is(Mutation::ExecutesDuplicates) => return,
            Some(Known::Forgotten) => return told(*client, *sequence, Answer::Forgotten),
            _ => {}
        }
        let reply = match kind {
            Kind::Execute => self.service.execute(payload),
            Kind::Reconfigure => self.reconfigure(payload),
        };
        self.chain_with(*client, *sequence, &reply);
        let position = self.state.position;
        let cached = Cached { sequence: *sequence, reply: reply.clone(), position };
        self.state.replies.insert(*client, cached);
        if self.state.replies.len() > options.clients_max {
            self.forget_clients(options.clients_max);
        }
        told(*client, *sequence, Answer::Done(reply));
    }

    fn reconfigure(&mut self, payload: &[u8]) -> Bytes {
        let changed = match postcard::from_bytes::<Change>(payload) {
            Ok(change) => self.state.configurations.change(self.state.instance, &change),
            Err(error) => crate::Changed::Refused(format!("no change of the members: {error}")),
        };
        self.members_changed = true;
        postcard::to_stdvec(&changed).expect("writing to memory").into()
    }

    fn chain_with(&mut self, client: ClientId, sequence: u64, reply: &[u8]) {
        let mut chain = mix(mix(self.state.chain, client.0), sequence);
        let (words, rest) = reply.as_chunks::<8>();
        for word in words {
            chain = mix(chain, u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.state.chain = mix(mix(chain, u64::from_le_bytes(last)), reply.len() as u64);
    }

    /// Forgets the half of the clients that were heard of longest ago: seldom, so cheap for each
    /// request.
    fn forget_clients(&mut self, max: usize) {
        let mut positions: Vec<_> =
            self.state.replies.values().map(|cached| cached.position).collect();
        let (_, middle, _) = positions.select_nth_unstable(max / 2);
        let middle = *middle;
        let forgotten = &mut self.state.forgotten;
        self.state.replies.retain(|client, cached| {
            if cached.position > middle {
                return true;
            }
            let last = forgotten.entry(granted_by(*client)).or_insert(*client);
            *last = (*last).max(*client);
            false
        });
    }

    fn hint(&self, options: &Options) -> Hint {
        let last = self.snapshots.back().map_or(0, |last| last.bytes.len());
        let estimate = last.max(options.snapshot_bytes_min) as u64;
        match self.bytes_since as u64 * 100 {
            0 => Hint::Fine,
            log if log >= estimate * options.force_percent => Hint::Force,
            log if log >= estimate * options.ask_percent => Hint::Ask,
            _ => Hint::Fine,
        }
    }

    /// Asks the service whether it wants a snapshot of this moment; urgently if the log is `full`.
    pub fn ask_for_snapshot(&mut self, options: &Options, mutation: Mutation, full: bool) {
        let hint = if full && self.bytes_since > 0 { Hint::Force } else { self.hint(options) };
        if self.service.wants_snapshot(hint) {
            self.bytes_since = 0;
            self.keep(self.image(mutation));
        }
    }

    fn image(&self, mutation: Mutation) -> Bytes {
        let mut state = self.state.clone();
        if mutation.is(Mutation::SnapshotsWithoutReplies) {
            state.replies.clear();
        }
        let image = Image { state, service: self.service.snapshot() };
        postcard::to_stdvec(&image).expect("writing to memory").into()
    }

    /// Makes a snapshot if there is none: somebody cannot begin without.
    pub fn keep_one(&mut self) {
        if self.snapshots.is_empty() && !self.blank {
            self.keep(self.checkpoint());
        }
    }

    fn keep(&mut self, bytes: Bytes) {
        let (instance, position) = (self.state.instance, self.state.position);
        if self.snapshots.len() == 2 {
            self.snapshots.pop_front();
        }
        self.snapshots.push_back(Snapshot { instance, position, bytes });
    }

    /// A snapshot of this moment, to stand for all that is executed.
    pub fn checkpoint(&self) -> Bytes {
        self.image(Mutation::Correct)
    }

    /// Takes a snapshot over if it is newer; tells whether it was.
    pub fn install(&mut self, bytes: &Bytes) -> Result<bool, Stopped> {
        let no = |error: String| Stopped::Snapshot(error);
        let image: Image = postcard::from_bytes(bytes).map_err(|error| no(error.to_string()))?;
        let reached = |state: &State| (state.instance, state.skip);
        let begun = !self.blank && reached(&self.state) > (Instance(0), 0);
        if begun && reached(&image.state) <= reached(&self.state) {
            return Ok(false);
        }
        self.service.restore(&image.service).map_err(no)?;
        self.state = image.state;
        self.blank = false;
        self.members_changed = true;
        self.bytes_since = 0;
        self.digests.clear();
        self.snapshots.clear();
        self.keep(bytes.clone());
        Ok(true)
    }

    fn note_digest(&mut self) {
        let State { instance, position, chain, .. } = self.state;
        let value = mix(chain, self.service.digest());
        if self.digests.len() == DIGESTS {
            self.digests.pop_front();
        }
        self.digests.push_back(Digest { instance, position, value });
    }

    /// The last digest; of instance 0 if there is none yet.
    pub fn digest(&self) -> Digest {
        self.digests.back().copied().unwrap_or_default()
    }

    /// Compares the leader's digest with what was here then.
    pub fn compare(&self, theirs: &Digest) -> Result<(), Stopped> {
        let ours = self.digests.iter().find(|ours| ours.instance == theirs.instance);
        match ours {
            Some(ours) if ours != theirs => Err(Stopped::Diverged {
                position: ours.position,
                instance: ours.instance,
                ours: ours.value,
                leaders: theirs.value,
            }),
            _ => Ok(()),
        }
    }
}

/// What is known of a request without ordering it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It was executed, and this was the reply.
    Reply(Bytes),
    /// A later one of the same client was executed.
    Old,
    /// Its client was forgotten.
    Forgotten,
}

fn mix(state: u64, word: u64) -> u64 {
    (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}
