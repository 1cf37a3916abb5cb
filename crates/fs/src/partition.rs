//! One partition of the tree: executes the messages that its group delivers.
//!
//! After GlobalFS (thesis, sections 3.3 and 3.4), with one difference: only the partitions that an
//! update concerns take part in it, and each goes on with what does not touch its inodes.
//!
//! - An update of one partition is decided when it is first in its queues ([`crate::pending`]).
//! - An update of several is decided when, moreover, all of them have voted ([`crate::vote`]).
//!
//! Messages that conflict are delivered in the order of their ranks, others in any order (thesis,
//! section 4.4.3; [`crate::keys`] says which are which). So nothing of the state may depend on how
//! many messages came before: what names a message's place is its timestamp.
//!
//! Invariants:
//! - P1: the same messages, delivered, give equal states, in whichever order those came that do not
//!   conflict, and whenever the votes come.
//! - P2: each message that was delivered is decided or waits.
//! - P3: whoever sees an update here, and of each partition that this one's vector names all
//!   messages up to its timestamp there that touch what is asked for, sees the update elsewhere,
//!   too.

mod inherited;
mod refusals;

use crate::FsError;
use crate::access::{Rights, drop_set_id};
use crate::apply::{Moment, apply};
use crate::batch;
use crate::caps::{Subject, check_alone};
use crate::execute::execute;
use crate::hash::hash_of;
use crate::inode::Inode;
use crate::keys::{Key, keys_in, numbers};
use crate::made::hold_made;
use crate::mutation::Mutation;
use crate::operation::{CapStep, Done, Operation, Update};
use crate::pending::{Pending, Waiting};
use crate::query::{Answer, Query};
use crate::read::read;
use crate::regions;
use crate::tree::Tree;
use crate::types::{Ino, Place, Rank, Timestamp, Vector};
use crate::vote::{Evidence, Vote, conclude, prepare};
use imbl::OrdMap;
use meridian_core::{BlockId, ClientId, GroupId, MessageId, Position, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Something that a [`Partition`] wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send this vote to all replicas of these partitions.
    Vote {
        /// The other partitions that the message concerns.
        to: Vec<GroupId>,
        /// The message.
        id: MessageId,
        /// This partition's vote.
        vote: Vote,
    },
    /// The message is decided and applied here.
    Done {
        /// The message.
        id: MessageId,
        /// Its timestamp.
        ts: Stamp,
        /// What came of it: the same in every partition that it concerns.
        result: Result<Done, FsError>,
        /// What it touches in this partition, as [`Update::keys`] names it.
        touched: Vec<u64>,
        /// The other partitions where holders are to let go what it changes there.
        held: Vec<GroupId>,
    },
    /// These are to let go something that they hold.
    Recalled(Vec<ClientId>),
    /// Capabilities have gone: what was held back may not be any more.
    LetGo,
    /// No file lies in these blocks any more.
    Released(Vec<BlockId>),
}

/// The state of one partition of the tree. Cheap to clone: clones share what they have in common.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Partition {
    pub(crate) tree: Tree,
    pub(crate) pending: Pending,
    /// This partition's votes, kept for those who may have missed them.
    own_votes: OrdMap<MessageId, Vote>,
    delivered: Position,
    applied: Position,
    vector: Vector,
    /// The sum of hashes of the names of the messages that are decided.
    decided: u64,
    /// The sum of hashes of these messages and of what came of them.
    state_hash: u64,
    /// If its group was lost: what is known of its votes. Written apart, as earlier programs have
    /// no such thing.
    #[serde(skip)]
    inherited: Option<OrdMap<MessageId, Vote>>,
}

impl Partition {
    /// The state of `group` before the first message: the top directory of the partition, made at
    /// `time`. That of `global` is the root, which has an entry for each of the `first` regions:
    /// its group and its name.
    pub fn new<'a>(
        group: GroupId,
        first: impl IntoIterator<Item = (GroupId, &'a str)>,
        time: Timestamp,
    ) -> Partition {
        let mut tree = Tree::new(group);
        let mode = if group == GroupId::GLOBAL { 0o755 } else { regions::MODE };
        let top = Ino::top(group);
        tree.insert(top, Inode::directory(Place::ROOT, mode, time));
        if group == GroupId::GLOBAL {
            for (id, name) in first {
                regions::set(&mut tree, (id, name.to_string().into()), time, Stamp(0));
            }
        }
        Partition {
            tree,
            pending: Pending::default(),
            own_votes: OrdMap::new(),
            delivered: Position(0),
            applied: Position(0),
            vector: Vector::default(),
            decided: 0,
            state_hash: 0,
            inherited: None,
        }
    }

    /// Whether the root, if it is here, has an entry for that region.
    pub fn has_region(&self, region: GroupId) -> bool {
        self.tree.tops.get(Ino::top(region)).is_some()
    }

    /// The message `id` was delivered, with the final timestamp `ts`.
    ///
    /// The destinations of the message must be the partitions that the update concerns: with others
    /// it would wait for ever; and it must have been ordered by what the update touches. Whoever
    /// delivers checks that, and else calls [`Partition::skip`].
    ///
    /// # Panics
    /// If a message of that name already waits, or one that conflicts and is later in the order.
    pub fn deliver(
        &mut self,
        id: MessageId,
        ts: Stamp,
        mut operation: Operation,
        out: &mut Vec<Effect>,
    ) {
        if let Some(rights) = &operation.rights {
            rights.squash(&mut operation.update);
        }
        self.delivered = Position(self.delivered.0 + 1);
        let rank = (ts, id);
        let early = self.pending.take_early(id);
        let mut others = operation.update.partitions();
        if !others.remove(&self.tree.group) {
            self.finish(rank, Ending::of(&BTreeSet::new(), Err(FsError::Invalid)), out);
            return;
        }
        let keys = keys_in(&operation, id, self.tree.group);
        // What the lost group has voted on it has admitted.
        let admitted = match self.has_inherited(id) {
            true => Ok(()),
            false => self.tree.named.admit(self.tree.group, id.client, &operation.update),
        };
        if let Err(error) = admitted {
            self.finish(rank, Ending::of(&keys, Err(error)), out);
            return;
        }
        if others.is_empty() && self.pending.is_free(&keys) {
            let subject = self.subject(&operation);
            let result = self.decide_alone(operation, rank, out);
            self.finish(rank, Ending { subject, ..Ending::of(&keys, result) }, out);
            return;
        }
        let votes = early.into_iter().filter(|(from, _)| others.contains(from)).collect();
        self.pending.add(rank, Waiting { operation, keys, others, votes });
        self.advance(rank, out);
    }

    /// The partition `from` voted on the message `id`, which may not be delivered here yet. What
    /// was heard before is ignored. The message must not be decided here already.
    pub fn vote(&mut self, id: MessageId, from: GroupId, vote: Vote, out: &mut Vec<Effect>) {
        if let Some(rank) = self.pending.vote(id, from, vote) {
            self.advance(rank, out);
        }
    }

    /// Messages delivered here that wait for votes, and the partitions whose votes are missing.
    pub fn waiting(&self) -> Vec<(MessageId, Vec<GroupId>)> {
        let all = self.undecided().map(|(id, _, missing)| (id, missing));
        all.filter(|(_, missing)| !missing.is_empty()).collect()
    }

    /// Messages that were delivered here and are not decided, in their order: what each is to do,
    /// and the partitions whose votes are missing for it.
    pub fn undecided(&self) -> impl Iterator<Item = (MessageId, &Operation, Vec<GroupId>)> {
        let all = self.pending.iter();
        all.map(|((_, id), waiting)| (id, &waiting.operation, waiting.missing().collect()))
    }

    /// The partitions whose votes are missing for the message `id`; none if it does not wait here.
    pub fn missing(&self, id: MessageId) -> Vec<GroupId> {
        self.pending.find(id).into_iter().flat_map(Waiting::missing).collect()
    }

    /// Whether the message `id` was delivered and is not decided.
    pub fn is_waiting(&self, id: MessageId) -> bool {
        self.pending.find(id).is_some()
    }

    /// Messages of several partitions that were delivered and are not decided, in their order.
    pub fn waiting_for_others(&self) -> impl Iterator<Item = Rank> {
        self.pending.iter().filter(|(_, waiting)| !waiting.others.is_empty()).map(|(rank, _)| rank)
    }

    /// Whether all messages with timestamps up to `ts` that were delivered and touch `ino` are
    /// decided.
    pub fn is_settled(&self, ino: Ino, ts: Stamp) -> bool {
        self.is_free(Key::Inode(ino), ts)
    }

    /// Whether all messages with timestamps up to `ts` that were delivered and may change the
    /// answer to `query` are decided.
    pub fn can_answer(&self, query: &Query, ts: Stamp) -> bool {
        query.needs().into_iter().all(|key| self.is_free(key, ts))
    }

    /// Whether `query` asks for attributes of a directory which is here, and all such messages are
    /// decided but those that only change its entries, and so its times and counts.
    pub fn can_answer_in_part(&self, query: &Query, ts: Stamp) -> bool {
        let here = query.inode().and_then(|ino| self.tree.get(ino));
        here.is_some_and(|inode| inode.as_directory().is_some())
            && query.needs_at_least().is_some_and(|key| self.is_free(key, ts))
    }

    fn is_free(&self, key: Key, ts: Stamp) -> bool {
        self.pending.first(key).is_none_or(|(first, _)| first > ts)
    }

    /// This partition's vote on a message, from when it was cast until [`Partition::forget_vote`].
    pub fn own_vote(&self, id: MessageId) -> Option<&Vote> {
        self.own_votes.get(&id)
    }

    /// All replicas of the other partitions have this partition's vote on the message.
    pub fn forget_vote(&mut self, id: MessageId) {
        self.own_votes.remove(&id);
    }

    /// Answers a query from what is applied here.
    ///
    /// # Errors
    /// What a program would see; [`FsError::Stale`] if the inode lives in another partition.
    pub fn read(&self, query: &Query) -> Result<Answer, FsError> {
        read(&self.tree, query)
    }

    /// Answers a query of the client that holds capabilities under that name, and may do no more
    /// than these rights say. It tells nothing of directories that another holds exclusively.
    ///
    /// # Errors
    /// As [`Partition::read`]; [`FsError::Denied`] if it may not know; [`FsError::Held`] if another
    /// may have changed that and kept it back.
    pub fn read_as(
        &self,
        query: &Query,
        by: ClientId,
        rights: Option<&Rights>,
    ) -> Result<Answer, FsError> {
        rights.map_or(Ok(()), |rights| rights.check_query(&self.tree, query))?;
        let is_held = |ino| self.tree.caps.is_held_alone(by, ino) && !self.ignores_exclusive();
        if query.shows_entries_of().is_some_and(is_held) {
            return Err(FsError::Held);
        }
        let mut answer = read(&self.tree, query)?;
        answer.hide(|of| is_held(of.place.ino));
        rights.into_iter().for_each(|rights| rights.leave_out(&self.tree, &mut answer));
        Ok(answer)
    }

    fn ignores_exclusive(&self) -> bool {
        self.tree.mutation.is(Mutation::IgnoresExclusive)
    }

    /// How many messages were delivered.
    pub fn delivered(&self) -> Position {
        self.delivered
    }

    /// How many of them are decided and applied.
    pub fn applied(&self) -> Position {
        self.applied
    }

    /// What one must have seen of each partition who has seen this state: of this one the messages
    /// up to the greatest timestamp of those that are decided.
    pub fn vector(&self) -> &Vector {
        &self.vector
    }

    /// The greatest timestamp of the messages that were delivered.
    pub fn latest(&self) -> Stamp {
        let decided = self.vector.get(self.tree.group);
        self.pending.latest().map_or(decided, |waiting| waiting.max(decided))
    }

    /// A name for the set of messages that are decided: equal if the set is.
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// A hash of the messages that are decided and of what came of them: equal at all replicas
    /// where [`Partition::decided`] is equal.
    pub fn state_hash(&self) -> u64 {
        self.state_hash
    }

    /// The clients that hold locks or files without a name here, and for each a rank that grows
    /// with all by which it shows that it lives: what [`Update::Expire`] must name.
    pub fn leases(&self) -> impl Iterator<Item = (ClientId, Rank)> {
        self.tree.leases.iter().map(|(client, lease)| (client, lease.renewed))
    }

    /// The inodes of which a client holds something here.
    pub fn held_by(&self, client: ClientId) -> impl Iterator<Item = Ino> {
        let lease = self.tree.leases.get(client);
        lease.into_iter().flat_map(|lease| lease.inodes.iter().copied())
    }

    /// The files without a name, each with the timestamp of the message that took its last one, as
    /// [`Update::Reap`] names it, and whether a client holds it open.
    pub fn nameless(&self) -> impl Iterator<Item = ((Ino, Stamp), bool)> {
        let is_held = |ino| self.tree.get(ino).is_some_and(|inode| !inode.open_at.is_empty());
        self.tree.nameless().iter().map(move |(ino, ts)| ((*ino, *ts), is_held(*ino)))
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn plant(&mut self, mutation: Mutation) {
        self.tree.mutation = mutation;
    }

    /// The bug that is planted.
    #[doc(hidden)]
    pub fn planted(&self) -> Mutation {
        self.tree.mutation
    }

    /// Which partition it is.
    pub fn group(&self) -> GroupId {
        self.tree.group
    }

    /// All blocks that files here hold bytes in, one that several extents lie in several times.
    /// Walks the whole tree.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.tree.iter().flat_map(|(_, inode)| inode.blocks())
    }

    /// Goes on with the message of that rank, and with all that waited for it.
    fn advance(&mut self, rank: Rank, out: &mut Vec<Effect>) {
        let mut ready = BTreeSet::from([rank]);
        while let Some(rank) = ready.pop_first() {
            let Some(waiting) = self.pending.get(rank) else { continue };
            if !self.pending.is_first(waiting, rank) {
                continue;
            }
            if !waiting.others.is_empty() && !waiting.votes.contains_key(&self.tree.group) {
                self.cast_vote(rank, out);
            }
            if self.pending.get(rank).is_some_and(|waiting| waiting.missing().next().is_none()) {
                let (waiting, next) = self.pending.remove(rank);
                let keys = waiting.keys.clone();
                let subject = self.subject(&waiting.operation);
                let held = waiting.held(self.tree.group);
                let result = match waiting.others.is_empty() {
                    true => self.decide_alone(waiting.operation, rank, out),
                    false => self.decide_together(waiting, rank),
                };
                self.finish(rank, Ending { subject, held, ..Ending::of(&keys, result) }, out);
                ready.extend(next);
            }
        }
    }

    /// Votes on a message that is first in its queues.
    fn cast_vote(&mut self, rank: Rank, out: &mut Vec<Effect>) {
        let waiting = self.pending.get(rank).expect("the caller found it");
        let vote = self.inherited_vote(rank.1, &waiting.operation.update).unwrap_or_else(|| {
            let result = self.look(&waiting.operation, rank);
            // A holder that goes after this has let go; none comes: grants wait behind the message.
            Vote { result, held: self.tree.caps.is_held(&self.subject(&waiting.operation)) }
        });
        let (id, to) = (rank.1, waiting.others.iter().copied().collect());
        self.own_votes.insert(id, vote.clone());
        self.pending.note(rank, self.tree.group, vote.clone());
        out.push(Effect::Vote { to, id, vote });
    }

    /// Whether an update of several inodes is possible here, and its client may do it.
    fn look(&self, operation: &Operation, rank: Rank) -> Result<Evidence, FsError> {
        let Operation { update, time, quotas, rights, .. } = operation;
        let sticky = rights.as_ref().map(|rights| rights.check(&self.tree, update)).transpose()?;
        check_alone(&self.tree, update, operation.by)?;
        self.tree.check_named(update, quotas)?;
        let below = rights.as_ref().and_then(|rights| rights.below);
        let mut evidence = prepare(&self.tree, update, below, Moment { rank, time: *time })?;
        evidence.sticky = sticky.unwrap_or_default();
        Ok(evidence)
    }

    /// Executes an update that concerns this partition only.
    fn execute_alone(
        &mut self,
        operation: Operation,
        rank: Rank,
        out: &mut Vec<Effect>,
    ) -> Result<Done, FsError> {
        let holds_made = operation.holds_made();
        let look = names_several(&operation.update).then(|| self.look(&operation, rank));
        let Operation { vector, time, quotas, update, by, under, rights, .. } = operation;
        let moment = Moment { rank, time };
        let lets_go = matches!(
            update,
            Update::Caps {
                step: CapStep::Release(_)
                    | CapStep::Expire { .. }
                    | CapStep::ReleaseExclusive(_)
                    | CapStep::ExpireExclusive { .. },
                ..
            }
        );
        if look.is_none() {
            rights.as_ref().map_or(Ok(()), |of| of.check(&self.tree, &update).map(drop))?;
            check_alone(&self.tree, &update, by)?;
            self.tree.check_named(&update, &quotas)?;
        }
        let drops = rights.as_ref().and_then(|rights| rights.drops_set_id(&update));
        self.tree.check_under(&update, under)?;
        let mut done = if let Some(vote) = look {
            let conclusion = conclude(&update, &BTreeMap::from([(self.tree.group, &vote)]))?;
            apply(&mut self.tree, &update, conclusion, moment)
        } else if let Update::Batch(parts) = update {
            batch::run(&mut self.tree, parts, (by, &quotas), rank)?
        } else if quotas.is_empty() || !update.is_limited() {
            execute(&mut self.tree, update, moment)?
        } else {
            // Taken back as a whole if it is too much.
            let mut tree = self.tree.clone();
            let done = execute(&mut tree, update, moment)?;
            tree.quotas.check_limits(&self.tree.quotas, &quotas)?;
            self.tree = tree;
            done
        };
        if let Some(ino) = drops {
            drop_set_id(&mut self.tree, ino, &mut done);
        }
        out.extend(lets_go.then_some(Effect::LetGo));
        self.merge(&vector);
        Ok(if holds_made { hold_made(&mut self.tree, by, done, rank) } else { done })
    }

    /// Decides an update of several partitions, all of which have voted, and applies its part here.
    fn decide_together(&mut self, waiting: Waiting, rank: Rank) -> Result<Done, FsError> {
        let Waiting { operation, votes, others, .. } = waiting;
        let Operation { vector, time, update, .. } = operation;
        for other in &others {
            // The timestamp is the same there. Also for a refusal: it tells of that state.
            self.vector.raise(*other, rank.0);
        }
        let results: BTreeMap<_, _> =
            votes.iter().map(|(from, vote)| (*from, &vote.result)).collect();
        if results.values().any(|result| matches!(result, Err(FsError::Expired))) {
            return Err(FsError::Expired); // Whoever voted so has refused it already.
        }
        let conclusion = conclude(&update, &results)?;
        let done = match self.inherited {
            Some(_) => inherited::done(&update, conclusion, time),
            None => apply(&mut self.tree, &update, conclusion, Moment { rank, time }),
        };
        self.merge(&vector);
        Ok(done)
    }

    /// Whoever sees this state must see what the client had seen. Of this partition itself it saw
    /// messages with lesser timestamps than that of its own.
    fn merge(&mut self, seen: &Vector) {
        for (partition, ts) in &seen.0 {
            if *partition != self.tree.group {
                self.vector.raise(*partition, *ts);
            }
        }
    }

    fn subject(&self, operation: &Operation) -> Subject {
        Subject::of(&operation.update, operation.by, self.tree.group)
    }

    fn finish(&mut self, rank: Rank, ending: Ending<'_>, out: &mut Vec<Effect>) {
        let Ending { keys, subject, held, result } = ending;
        let (ts, id) = rank;
        // Before anybody is told of the end: the reply waits for those.
        let recalled = match &result {
            Ok(_) => self.tree.caps.recall(&subject),
            Err(_) => Vec::new(),
        };
        // Sums: they do not tell in which order it was.
        self.decided = self.decided.wrapping_add(hash_of(&id));
        let outcome = match self.inherited {
            Some(_) => hash_of(&rank), // I2.
            None => hash_of(&(rank, &result)),
        };
        self.state_hash = self.state_hash.wrapping_add(outcome);
        self.applied = Position(self.applied.0 + 1);
        self.vector.raise(self.tree.group, ts);
        let touched = numbers(keys, self.tree.group);
        out.push(Effect::Done { id, ts, result, touched, held });
        if !recalled.is_empty() {
            out.push(Effect::Recalled(recalled));
        }
        let released = self.tree.named.take_released();
        if !released.is_empty() {
            out.push(Effect::Released(released));
        }
    }

    /// Panics if the state contradicts itself. Walks all of it: for the simulator and tests.
    pub fn check_invariants(&self) {
        crate::invariants::check_partition(self);
        let waiting = self.pending.len() as u64;
        assert_eq!(
            self.applied.0 + waiting,
            self.delivered.0,
            "P2: applied, and waiting {waiting}"
        );
    }
}

/// How a message ends here.
struct Ending<'a> {
    keys: &'a BTreeSet<Key>,
    subject: Subject,
    held: Vec<GroupId>,
    result: Result<Done, FsError>,
}

impl Ending<'_> {
    /// With that result; it changes nothing that others may keep.
    fn of(keys: &BTreeSet<Key>, result: Result<Done, FsError>) -> Ending<'_> {
        Ending { keys, subject: Subject::none(), held: Vec::new(), result }
    }
}

/// Whether an update concerns several inodes, and so perhaps several partitions.
fn names_several(update: &Update) -> bool {
    match update {
        Update::Link { .. }
        | Update::Unlink { .. }
        | Update::Rmdir { .. }
        | Update::Rename { .. }
        | Update::PlaceDirectory { .. }
        | Update::Mark { .. }
        | Update::RemoveRegion { .. }
        | Update::Untangle { .. } => true,
        Update::Create { .. }
        | Update::Make(_)
        | Update::Batch(_)
        | Update::CreateUnnamed { .. }
        | Update::SetAttributes { .. }
        | Update::Write { .. }
        | Update::Settle { .. }
        | Update::Merge { .. }
        | Update::Extend { .. }
        | Update::PunchHole { .. }
        | Update::SetXattr { .. }
        | Update::RemoveXattr { .. }
        | Update::SetDurability { .. }
        | Update::Lock { .. }
        | Update::Leave { .. }
        | Update::Unlock { .. }
        | Update::Hold { .. }
        | Update::Forget { .. }
        | Update::Reap { .. }
        | Update::NoteReads { .. }
        | Update::NoteTop { .. }
        | Update::AddRegion { .. }
        | Update::Renew { .. }
        | Update::RaiseHorizon { .. }
        | Update::SetQuota { .. }
        | Update::Count { .. }
        | Update::Caps { .. }
        | Update::Expire { .. } => false,
    }
}
