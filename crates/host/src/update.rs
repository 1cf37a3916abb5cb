//! An update as it is multicast: what a client sends to the groups, and what their replicas read of
//! it.

use crate::api::Refusal;
use crate::sessions;
use meridian_core::{ClientId, GroupId, MessageId, mix};
use meridian_fs::{
    Operation, Place, Rights, Subject, Timestamp, Under, Update, Vector, quota_keys,
};
use meridian_multicast::{self as multicast, Start, Touches};
use serde::{Deserialize, Serialize};

/// The longest payload of an update, in bytes. A write of a file that was changed in very many
/// places is the largest that a client makes: each place takes some 30 bytes. Half of a frame.
const PAYLOAD_MAX: usize = 2 << 20;

/// An update changes what is used of one quota in each partition, and no update has more.
const QUOTAS_MAX: usize = 16;

/// In the names of sessions in which groups end capabilities.
const LAPSES: u64 = 0x6361_7073_0000_0000;

/// The payload of a message that a client multicasts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Payload {
    /// What the client had seen when it named the message: whoever sees the update must see that,
    /// too.
    pub vector: Vector,
    /// Earlier messages of the same shard that the client has given up: those that are not
    /// delivered yet have no effect.
    pub cancels: Vec<MessageId>,
    /// What to do; a message may do nothing but cancel others.
    pub change: Option<Change>,
    /// Under which name the client holds capabilities: its own stay.
    pub by: ClientId,
    /// Whether it wants to hold what it makes.
    pub keeps: bool,
    /// What its client may do; none if that is all. The node that hears the client says so
    /// ([`Payload::restrict`]).
    pub rights: Option<Rights>,
}

/// See [`Payload::change`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Change {
    /// The client's wall clock, for the times that `stat` shows.
    pub time: Timestamp,
    /// The quotas that it may count against: see [`Operation::quotas`].
    pub quotas: Vec<Place>,
    /// What to do.
    pub update: Update,
    /// Under which locks what it changes was written: see [`Operation::under`].
    pub under: Option<Under>,
}

impl Change {
    /// Does `update`, which counts against no quota as far as is known.
    pub fn new(time: Timestamp, update: Update) -> Change {
        Change { time, quotas: Vec::new(), update, under: None }
    }
}

impl Payload {
    /// A payload that does `update` and cancels nothing.
    pub fn new(vector: Vector, time: Timestamp, update: Update) -> Payload {
        Payload::of(vector, Change::new(time, update))
    }

    /// A payload that does that and cancels nothing.
    pub fn of(vector: Vector, change: Change) -> Payload {
        let (cancels, change) = (Vec::new(), Some(change));
        Payload { vector, cancels, change, by: NOBODY, keeps: false, rights: None }
    }

    /// The message `id` to `dest`, which says that its client waits for nothing below `low`.
    ///
    /// # Panics
    /// If an update cannot be encoded: none of its values can fail to.
    pub fn into_start(self, id: MessageId, low: u64, dest: &[GroupId]) -> Start {
        let touches = self.touches(id);
        let payload = postcard::to_stdvec(&self).expect("plain values can be encoded");
        Start { low, touches, ..Start::new(id, dest, payload) }
    }

    /// What the message carries, if it is one that a client may send.
    ///
    /// # Errors
    /// What is wrong with it. That is the same at all replicas: it depends on nothing but the
    /// message.
    pub fn read(start: &Start) -> Result<Payload, String> {
        if start.payload.len() > PAYLOAD_MAX {
            let len = start.payload.len();
            return Err(format!("{len} bytes, at most {PAYLOAD_MAX} are allowed"));
        }
        if start.config.is_some() {
            return Err("a change of members".into());
        }
        if start.after != multicast::Timestamp(0) {
            // A client needs none; with one it could carry the group's clock to the end of all
            // numbers.
            return Err("a lower bound of the timestamp".into());
        }
        let payload: Payload =
            postcard::from_bytes(&start.payload).map_err(|error| error.to_string())?;
        let MessageId { client, sequence } = start.id;
        if !sessions::goes_to(client, &start.dest) {
            return Err("a session of other groups".into());
        }
        if start.low > sequence || sequence - start.low >= sessions::WINDOW {
            return Err(format!("number {sequence} is too far from {}", start.low));
        }
        let strange = |id: &&MessageId| sessions::shard(id.client) != sessions::shard(client);
        if payload.cancels.len() > sessions::CANCELS_MAX
            || payload.cancels.iter().any(|id| id.client == client)
            || payload.cancels.iter().any(|id| strange(&id))
        {
            return Err("it cancels what it must not".into());
        }
        let change = payload.change.as_ref();
        if change.is_some_and(|change| change.quotas.len() > QUOTAS_MAX) {
            return Err("it names too many quotas".into());
        }
        let update = payload.update();
        let dest = start.dest.iter().copied();
        if update.is_some_and(|update| !update.partitions().into_iter().eq(dest))
            || payload.touches(start.id) != start.touches
        {
            return Err("it was sent where it does not belong".into());
        }
        Ok(payload)
    }

    /// The same message, whose client may do no more than that, whatever it says itself.
    ///
    /// # Errors
    /// As [`Payload::read`].
    pub fn restrict(start: Start, rights: Rights) -> Result<Start, String> {
        let payload = Payload { rights: Some(rights), ..Payload::read(&start)? };
        let payload = postcard::to_stdvec(&payload).expect("plain values can be encoded");
        Ok(Start { payload: payload.into(), ..start })
    }

    /// Whether a node may have a client's message ordered, whose disk is full or not.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(start: &Start, is_full: bool) -> Result<Payload, Refusal> {
        let payload = Payload::read(start).map_err(Refusal::Bad)?;
        match payload.update() {
            Some(update) if update.is_of_nodes() => Err(Refusal::Bad("only nodes say that".into())),
            Some(update) if is_full && update.needs_room() => Err(Refusal::Full), // F3
            _ => Ok(payload),
        }
    }

    /// The update, if any.
    pub fn update(&self) -> Option<&Update> {
        self.change.as_ref().map(|change| &change.update)
    }

    /// What it changes in `group` of what others may keep.
    pub fn subject(&self, group: GroupId) -> Option<Subject> {
        self.update().map(|update| Subject::of(update, self.by, group))
    }

    /// The operation that it asks for, if any.
    pub fn into_operation(self) -> Option<Operation> {
        let Payload { vector, change, by, keeps, rights, .. } = self;
        let Change { time, quotas, update, under } = change?;
        Some(Operation { vector, time, quotas, update, by, keeps, under, rights })
    }

    /// What the message must be ordered with: the others of its session's shard, and those that
    /// touch the same.
    fn touches(&self, id: MessageId) -> Touches {
        let update = self.update();
        let keys = update.map(|update| update.keys(id)).unwrap_or_default();
        let quotas = self.change.iter().flat_map(|change| quota_keys(&change.quotas));
        let keeping = update.filter(|_| self.keeps).into_iter();
        let holding = keeping.flat_map(|update| update.holding_keys(self.by, id));
        let session = sessions::key(id.client);
        Touches::keys(keys.into_iter().chain(quotas).chain([session]).chain(holding))
    }
}

/// Who holds no capabilities: no client draws it but by chance, and none would be harmed.
pub const NOBODY: ClientId = ClientId(0);

/// The name of the session in which a group itself ends the lease of `client`, by a message of that
/// number: no client draws it but by chance. Another is taken now and then, so that it comes to
/// another shard than what waits for a region that is cut off.
pub(crate) fn expiry_session(client: ClientId, number: u64, group: GroupId) -> ClientId {
    sessions::name(mix(!client.0 ^ (number >> DETOUR_BITS)), &[group])
}

/// The name of the session in which a group itself ends the capabilities of `client`.
pub(crate) fn lapse_session(client: ClientId, number: u64, group: GroupId) -> ClientId {
    sessions::name(mix(!client.0 ^ LAPSES ^ (number >> DETOUR_BITS)), &[group])
}

/// A group takes another session after so many timestamps, as a power of two.
const DETOUR_BITS: u32 = 6;
