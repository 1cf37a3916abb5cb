//! An update as it is multicast: what a client sends to the groups, and what their replicas read of
//! it.

use crate::api::Refusal;
use crate::sessions;
use meridian_core::{ClientId, GroupId, MessageId};
use meridian_fs::{Operation, Place, Timestamp, Update, Vector, quota_keys};
use meridian_multicast::{self as multicast, Start, Touches};
use serde::{Deserialize, Serialize};

/// The longest payload of an update, in bytes. A write of a file that was changed in very many
/// places is the largest that a client makes: each place takes some 30 bytes. Half of a frame.
const PAYLOAD_MAX: usize = 2 << 20;

/// An update changes what is used of one quota in each partition, and no update has more.
const QUOTAS_MAX: usize = 16;

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
}

impl Change {
    /// Does `update`, which counts against no quota as far as is known.
    pub fn new(time: Timestamp, update: Update) -> Change {
        Change { time, quotas: Vec::new(), update }
    }
}

impl Payload {
    /// A payload that does `update` and cancels nothing.
    pub fn new(vector: Vector, time: Timestamp, update: Update) -> Payload {
        Payload { vector, cancels: Vec::new(), change: Some(Change::new(time, update)) }
    }

    /// The message `id` to `dest`, which says that its client waits for nothing below `low`.
    ///
    /// # Panics
    /// If an update cannot be encoded: none of its values can fail to.
    pub fn into_start(self, id: MessageId, low: u64, dest: &[GroupId]) -> Start {
        let touches = touches(id, self.change.as_ref());
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
        let update = change.map(|change| &change.update);
        let dest = start.dest.iter().copied();
        if update.is_some_and(|update| !update.partitions().into_iter().eq(dest))
            || touches(start.id, change) != start.touches
        {
            return Err("it was sent where it does not belong".into());
        }
        Ok(payload)
    }

    /// Whether a node may have the message ordered, whose disk is full or not.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(start: &Start, is_full: bool) -> Result<(), Refusal> {
        let payload = Payload::read(start).map_err(Refusal::Bad)?;
        match payload.change {
            Some(change) if is_full && change.update.needs_room() => Err(Refusal::Full), // F3
            _ => Ok(()),
        }
    }

    /// The operation that it asks for, if any.
    pub fn into_operation(self) -> Option<Operation> {
        let Change { time, quotas, update } = self.change?;
        Some(Operation { vector: self.vector, time, quotas, update })
    }
}

/// What a message must be ordered with: the others of its session's shard, and those that touch the
/// same inodes.
fn touches(id: MessageId, change: Option<&Change>) -> Touches {
    let update = change.map(|change| &change.update);
    let keys = update.map(|update| update.keys(id)).unwrap_or_default();
    let quotas = quota_keys(change.map_or(&[], |change| &change.quotas));
    // Its order with all updates that name blocks is the same at all replicas: each of those has
    // the key of a session of this one partition.
    let sessions = match update {
        Some(Update::RaiseHorizon { partition, .. }) => sessions::keys_to(&[*partition]).collect(),
        _ => vec![sessions::key(id.client)],
    };
    Touches::keys(keys.into_iter().chain(quotas).chain(sessions))
}

/// The name of the session in which a group itself ends the lease of `client`: no client draws it
/// but by chance.
pub(crate) fn expiry_session(client: ClientId, group: GroupId) -> ClientId {
    sessions::name(!client.0, &[group])
}
