//! Messages that are delivered in another order than they came in, where that must not matter.

use super::{Rng, World, top};
use meridian_core::{ClientId, GroupId, MessageId, Stamp};
use meridian_fs::types::Rank;
use meridian_fs::{Effect, Kind, Operation, Partition, Place, Update};

const US: GroupId = GroupId(1);

/// Of what a message may be about.
pub struct Here {
    pub directory: Place,
    /// Of the leases that there are.
    pub ranks: Vec<Rank>,
    /// The name of the message before.
    pub last: MessageId,
}

type Message = (MessageId, Operation);

fn deliver(partition: &mut Partition, (id, operation): &Message) -> Vec<Effect> {
    let mut out = Vec::new();
    partition.deliver(*id, Stamp(id.sequence), operation.clone(), &mut out);
    out.retain(|effect| matches!(effect, Effect::Done { .. }));
    partition.check_invariants();
    out
}

/// Two messages without a common key lead to the same, whichever is delivered first. Draws whose
/// messages they are, whether these keep what they make, and the updates; answers how many were
/// swapped, and how many ended with what is wanted.
pub fn swap(
    seed: u64,
    wanted: &str,
    draw: impl Fn(&mut Rng, &Here) -> (ClientId, bool, Update),
    keys: impl Fn(&Operation, MessageId) -> Vec<u64>,
) -> (usize, usize) {
    let (mut rng, mut world) = (Rng(seed), World::new(1));
    let directory = world.create(top(1), "d", Kind::Directory).unwrap();
    let mut here = world.partitions[&US].clone();
    let (mut swapped, mut found, mut before) = (0, 0, None::<(Partition, Message)>);
    let mut last = world.next_id();
    for _ in 0..60 {
        let ranks = here.holders().filter_map(|(_, lease)| lease).collect();
        let (by, keeps, update) = draw(&mut rng, &Here { directory, ranks, last });
        let id = world.next_id();
        let message = (id, Operation { by, keeps, ..world.operation(update) });
        let earlier = here.clone();
        let done = deliver(&mut here, &message);
        found += usize::from(format!("{done:?}").contains(wanted));
        let own = keys(&message.1, id);
        if let Some((mut other, first)) = before
            && !keys(&first.1, first.0).iter().any(|key| own.contains(key))
        {
            assert_eq!(deliver(&mut other, &message), done, "{message:?} before {first:?}");
            deliver(&mut other, &first);
            assert!(other == here, "{message:?} before {first:?}");
            swapped += 1;
        }
        (before, last) = (Some((earlier, message)), id);
    }
    (swapped, found)
}
