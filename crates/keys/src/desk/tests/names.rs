//! Requests with names, which are asked again.

use super::*;

fn removed(epoch: u64, live: &[u16]) -> Membership {
    let live = live.iter().copied().map(NodeId).collect();
    Membership { epoch: Epoch(epoch), live, ..Membership::default() }
}

#[test]
fn a_change_that_is_asked_again_is_made_once() {
    let mut net = Net::new();
    assert!(net.ask(0, "meridian.once 1 incr k\n").starts_with("-ERR this connection has no name"));
    assert_eq!(net.ask(0, "meridian.client 99\n"), "*2\r\n:0\r\n:1\r\n");
    assert_eq!(net.ask(0, "meridian.once 1 incr k\n"), ":1\r\n");
    assert_eq!(net.ask(0, "meridian.once 1 incr k\n"), ":1\r\n", "its answer is known");
    assert_eq!(net.ask(0, "meridian.once 2 incr k\nmeridian.once 3 set k 9\n"), ":2\r\n+OK\r\n");
    assert!(net.ask(0, "meridian.once 2 incr k\n").starts_with("-BUSY"), "the client has gone on");
    assert!(net.ask(0, "meridian.once 4 get k\n").starts_with("-ERR"), "a read needs no name");
    assert!(net.ask(0, "meridian.once 4 mset a 1\n").starts_with("-ERR"));
    assert_eq!(net.ask(1, "get k\n"), "$1\r\n9\r\n");
}

/// Connections of one name, to the threads of one node: each is answered, with the one execution.
#[test]
fn a_change_that_several_connections_ask_for_at_once_is_made_once() {
    let changes = [
        ("incr k", ":1\r\n"),
        ("set k 1", "+OK\r\n"),
        ("set k 1 nx", "+OK\r\n"),
        ("append k 1", ":1\r\n"),
    ];
    let seeds = (0..20).flat_map(|seed| [(seed, 1), (seed, 2)]);
    for ((seed, shards), (change, answer)) in
        seeds.flat_map(|seed| changes.map(|change| (seed, change)))
    {
        let mut net = Net::of(shards);
        net.draws = Some(seed);
        net.desks[0].connect(8);
        let connections = [(0, 7), (0, 8), (shards - 1, 7)];
        let connections = &connections[..shards + 1];
        for (place, client) in connections {
            net.feed_of(*place, *client, b"meridian.client 99\n");
            net.answered_of(*place, *client);
        }
        for (place, client) in connections {
            let once = format!("meridian.once 1 {change}\n");
            net.feed_of(*place, *client, once.as_bytes());
        }
        net.run();
        for (place, client) in connections {
            assert_eq!(net.answered_of(*place, *client), answer, "{change}, seed {seed}");
        }
        assert!(net.desks.iter().all(|desk| desk.tasks.is_empty()), "nothing is left of it");
        assert_eq!(net.ask(1, "get k\n"), "$1\r\n1\r\n", "{change}");
    }
}

/// The connection breaks when the replica has the request; it is asked elsewhere once the first is
/// known to be gone, and has counted once.
#[test]
fn a_change_that_a_replica_began_before_it_went_is_made_once() {
    for others_know in [false, true] {
        let mut net = Net::new();
        net.ask(0, "meridian.client 99\n");
        net.say(0, "meridian.once 1 incr k\n");
        let asked = net.papers[0].asked.pop().expect("an RMW");
        if others_know {
            // Its INVs go out, and nothing more.
            net.step(0, Event::Command(asked));
            let to_first = |(_, to, _): &(usize, usize, Coming)| *to == 0;
            net.coming.retain(|coming| !to_first(coming));
            net.collect();
            for _ in 0..2 {
                let (place, coming) = net.next().expect("an INV");
                let Coming::Event(event) = coming else { panic!("no event") };
                net.step(place, event);
            }
            net.coming.clear();
        }
        assert_eq!(net.say(1, "meridian.client 99\n"), "*2\r\n:1\r\n:1\r\n");
        assert_eq!(net.say(1, "meridian.settled 0 1 k\n"), ":0\r\n", "it may go on");
        for node in [1, 2] {
            net.install(node, removed(2, &[1, 2]));
        }
        net.run();
        assert_eq!(net.say(1, "meridian.settled 0 1 k\n"), ":1\r\n");
        assert_eq!(net.say(1, "meridian.settled 0 3 k\n"), ":0\r\n", "not known here yet");
        assert_eq!(net.ask(1, "meridian.once 1 incr k\nget k\n"), ":1\r\n$1\r\n1\r\n");
    }
}

#[test]
fn who_is_no_member_any_more_ends_connections_that_have_names() {
    let mut net = Net::new();
    net.ask(0, "meridian.client 99\n");
    net.install(0, removed(2, &[1, 2]));
    net.say(0, "meridian.once 1 incr k\n");
    net.run();
    assert!(net.look_again(0, Time(0)).contains("-CLUSTERDOWN"));
    assert_eq!(net.papers[0].ended, [7]);
    assert!(net.desks[0].tasks.is_empty(), "nothing of it waits for a lease (N1)");
    assert!(net.say(0, "meridian.once 2 incr k\n").is_empty());
}
