//! The protocols that are compared, each ready to be run in the simulator.

use meridian_baselines::{FastCast, WhiteBox, fast_cast, white_box};
use meridian_core::{GroupId, NodeId, ProcessId};
use meridian_multicast::{
    ClockSource, Dissemination, Groups, Message, Options, Order, PrimCast, Protocol,
};
use meridian_sim::Setup;
use meridian_sim::of::multicast::plain::Subjects;
use std::time::Duration;

/// A protocol.
#[derive(Clone, Copy)]
pub struct Contender<P: Protocol> {
    pub make: fn(ProcessId, Groups) -> P,
    /// Which messages a message of it is about.
    pub subjects: Subjects<P>,
    /// Until it has primaries.
    pub settle: Duration,
    /// How many messages a process knows of that are not delivered.
    pub pending: fn(&P) -> usize,
}

pub fn primcast() -> Contender<PrimCast> {
    let settle = Duration::from_secs(8);
    Contender {
        make: PrimCast::new,
        subjects: Message::subjects,
        settle,
        pending: PrimCast::pending,
    }
}

/// PrimCast in the linearizable order.
pub fn linearizable() -> Contender<PrimCast> {
    let make = |me, groups| {
        let options = Options { order: Order::Linearizable, ..Options::default() };
        PrimCast::new(me, groups).with_options(options)
    };
    Contender { make, ..primcast() }
}

/// PrimCast with timestamps of loosely synchronized clocks (thesis, section 4.4.1).
pub fn hybrid() -> Contender<PrimCast> {
    let make = |me, groups| {
        let options = Options { clock: ClockSource::Hybrid, ..Options::default() };
        PrimCast::new(me, groups).with_options(options)
    };
    Contender { make, ..primcast() }
}

/// The same in the linearizable order.
pub fn linearizable_hybrid() -> Contender<PrimCast> {
    let make = |me, groups| {
        let (order, clock) = (Order::Linearizable, ClockSource::Hybrid);
        let options = Options { order, clock, ..Options::default() };
        PrimCast::new(me, groups).with_options(options)
    };
    Contender { make, ..primcast() }
}

/// PrimCast with groups whose primary speaks for them.
pub fn near() -> Contender<PrimCast> {
    let make = |me, groups| {
        let options = Options { dissemination: Dissemination::ViaLeader, ..Options::default() };
        PrimCast::new(me, groups).with_options(options)
    };
    Contender { make, ..primcast() }
}

pub fn white_box() -> Contender<WhiteBox> {
    Contender {
        make: WhiteBox::new,
        subjects: |batch| batch.0.iter().map(white_box::Item::subject).collect(),
        settle: Duration::ZERO,
        pending: WhiteBox::pending,
    }
}

pub fn fast_cast() -> Contender<FastCast> {
    Contender {
        make: FastCast::new,
        subjects: |batch| batch.0.iter().filter_map(fast_cast::Item::subject).collect(),
        settle: Duration::ZERO,
        pending: FastCast::pending,
    }
}

/// FastCast with as few rounds of consensus as will do.
pub fn lean() -> Contender<FastCast> {
    Contender { make: |me, groups| FastCast::new(me, groups).lean(), ..fast_cast() }
}

/// FastCast without its fast path.
pub fn classic() -> Contender<FastCast> {
    Contender { make: |me, groups| FastCast::new(me, groups).without_fast_path(), ..fast_cast() }
}

/// The process on the node-th node of a group.
pub fn process(group: u16, node: u16) -> ProcessId {
    ProcessId { group: GroupId(group), node: NodeId(group * 100 + node) }
}

/// All processes, in order.
pub fn processes(groups: &Groups) -> Vec<ProcessId> {
    let of = |(group, nodes): (&GroupId, &Vec<NodeId>)| {
        let group = *group;
        nodes.clone().into_iter().map(move |node| ProcessId { group, node })
    };
    groups.iter().flat_map(of).collect()
}

/// What makes a world of `setup` and all processes.
pub fn setup<P: Protocol + 'static>(
    contender: &Contender<P>,
    groups: &Groups,
    exact: Option<Duration>,
) -> Setup<P> {
    let (make, all) = (contender.make, groups.clone());
    let make = move |me| make(me, all.clone());
    match exact {
        Some(unit) => Setup::exact(processes(groups), unit, make),
        None => Setup::lan(processes(groups), make),
    }
}
