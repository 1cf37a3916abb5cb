//! One's own application on simulated members of two groups, while links break and members stand
//! still, in virtual time: replicas of a group must be equal in the end.
//!
//! `cargo run -p meridian-atomic-multicast --features simulator --example simulated`

use meridian_atomic_multicast::simulator::{Faults, Owner, Setup, Stimulus, World, each_seed};
use meridian_atomic_multicast::{
    GroupId, Groups, NodeId, PrimCast, ProcessId,
    protocol::{ClientId, Command, MessageId, Output, Start, Time},
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// So many messages are multicast.
const MESSAGES: u64 = 60;

/// The application at each member: a number that depends on the order of all messages.
struct Members {
    groups: Groups,
    states: BTreeMap<ProcessId, (u64, u64)>,
}

impl Owner<PrimCast> for Members {
    fn begin(&mut self) -> Vec<Stimulus<PrimCast>> {
        // Not before all are there: who is down when it is asked hears nothing.
        let after = |number| Duration::from_millis(100 + 30 * number);
        (0..MESSAGES).map(|number| multicast(number, after(number))).collect()
    }

    fn output(&mut self, at: ProcessId, output: Output, _: Time) -> Vec<Stimulus<PrimCast>> {
        match output {
            Output::Deliver(delivery) => {
                let (count, state) = self.states.entry(at).or_default();
                let said = delivery.start.id.client.0;
                (*count, *state) = (*count + 1, state.wrapping_mul(31).wrapping_add(said));
                Vec::new()
            }
            // A group was cut off, and nothing was sent: it is tried again.
            Output::Refused { id, .. } => {
                vec![multicast(id.client.0 - 1, Duration::from_millis(200))]
            }
            _ => Vec::new(),
        }
    }
}

/// Message `number` is multicast by a member of one of its groups, after so long.
fn multicast(number: u64, after: Duration) -> Stimulus<PrimCast> {
    let dest: &[u16] = [&[0, 1][..], &[0], &[1]][number as usize % 3];
    let dest: Vec<_> = dest.iter().copied().map(GroupId).collect();
    let node = NodeId(10 * dest[0].0 + number as u16 % 3);
    let to = ProcessId { group: dest[0], node };
    let id = MessageId { client: ClientId(1 + number), sequence: 1 };
    let start = Start::new(id, dest, number.to_be_bytes().to_vec());
    Stimulus::Command { to, command: Command::Multicast(start), after }
}

impl Members {
    /// Whether all members of each group have delivered as much as each group is sent.
    fn are_done(&self) -> bool {
        let sent = MESSAGES / 3 * 2;
        let all = self.groups.values().map(Vec::len).sum::<usize>();
        self.states.len() == all && self.states.values().all(|(count, _)| *count == sent)
    }
}

fn main() {
    each_seed(0..10, |seed| {
        let nodes = |group: u16| (0..3).map(|node| NodeId(10 * group + node)).collect();
        let groups: Groups = Arc::new((0..2).map(|at| (GroupId(at), nodes(at))).collect());
        let peers = groups.iter().flat_map(|(group, nodes)| {
            let group = *group;
            nodes.iter().map(move |node| ProcessId { group, node: *node })
        });
        let owner = Members { groups: groups.clone(), states: BTreeMap::new() };
        let peers = peers.collect();
        let make = move |me| PrimCast::new(me, groups.clone());
        let often = Some(Duration::from_millis(200));
        let faults = Faults {
            netsplit: often,
            split: Duration::from_millis(300),
            reset: often,
            pause: often,
            stop: Duration::from_millis(300),
            ..Faults::none()
        };
        let mut world = World::new(seed, Setup { faults, ..Setup::lan(peers, make) }, owner);
        world.run_for(Duration::from_secs(3));
        world.heal();
        let done = world.run_until(|world| world.owner.are_done(), Duration::from_secs(60));
        assert!(done, "seed {seed}: {:?}", world.owner.states);
        for group in [GroupId(0), GroupId(1)] {
            let of = |(at, state): (&ProcessId, &_)| (at.group == group).then_some(*state);
            let mut states: Vec<(u64, u64)> = world.owner.states.iter().filter_map(of).collect();
            states.dedup();
            assert_eq!(states.len(), 1, "seed {seed}: members of {group:?} differ");
        }
        println!("seed {seed}: {} events, members are equal", world.events());
    });
}

#[test]
fn it_runs() {
    main();
}
