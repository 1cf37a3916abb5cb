//! Hybrid clocks in the linearizable order: who is shown them, and how long.

use super::*;

fn options(clock: ClockSource, dissemination: Dissemination) -> Options {
    Options { order: Order::Linearizable, clock, dissemination, ..Options::default() }
}

impl One {
    /// Its next time to show its clock; what others are told then.
    fn shows(&mut self) -> Vec<Did> {
        self.now = self.now + SHOW_DELAY;
        let mut did = self.step(Event::Timer(Timer::Clock));
        did.extend(self.idle());
        did
    }
}

/// The clocks that members of group 1 are shown by these.
fn shown(did: &[Did]) -> Vec<(ProcessId, u64)> {
    let sends = sent(did).into_iter().filter(|(to, _)| to.group == GroupId(1));
    let clock = |(to, message): (ProcessId, &Message)| match message {
        Message::Remote(RemoteMessage::RemoteAck(RemoteAck { clock, .. })) => Some((to, clock.0)),
        Message::Order(OrderMessage::Horizons(Horizons { shown, .. })) => {
            Some((to, shown.first()?.stable.0))
        }
        _ => None,
    };
    sends.filter_map(clock).collect()
}

#[test]
fn who_shares_a_message_is_shown_the_time() {
    for me in [process(0, 0), process(0, 1)] {
        let hybrid = options(ClockSource::Hybrid, Dissemination::AllToAll);
        let mut one = Net::one_with(&[3, 3, 3], hybrid, me);
        assert_eq!(one.shows(), [], "nobody is there who waits for it");
        match one.process.role() {
            Role::Primary => drop(one.asked(start(1, &[0, 1]))),
            _ => {
                let entries = vec![entry(e1(0), 1, start(1, &[0, 1]))];
                drop(one.hears(process(0, 0), append(e1(0), 0, entries, 1)));
            }
        }
        one.idle();
        for _ in 0..3 {
            let did = one.shows();
            let time = one.now.0 / 1000;
            for n in 0..3 {
                assert!(shown(&did).contains(&(process(1, n), time)), "{me}: {did:?}");
            }
            assert!(sent(&did).iter().all(|(to, _)| to.group != GroupId(2)), "no part of it");
        }
    }
}

/// Each message moves the clock; word of that to all groups each time is what costs.
#[test]
fn a_clock_is_shown_between_only_if_it_is_past_the_time() {
    let hybrid = options(ClockSource::Hybrid, Dissemination::AllToAll);
    let mut one = Net::one_with(&[3, 3, 3], hybrid, process(0, 0));
    one.asked(start(1, &[0, 1]));
    one.idle();
    one.shows();
    one.now = one.now + SHOW_DELAY / 2;
    one.asked(start(2, &[0, 2]));
    let did = one.idle();
    assert_eq!(one.process.clock().0, one.now.0 / 1000);
    assert_eq!(shown(&did), []);
    // That was raised by another group, whose message may wait for it.
    let ahead = one.now.0 / 1000 + 5000;
    one.hears(process(2, 0), remote_append(3, e1(2), ahead));
    let did = one.idle();
    assert!((0..3).all(|n| shown(&did).contains(&(process(1, n), ahead))), "{did:?}");
}

#[test]
fn logical_clocks_are_shown_when_they_move() {
    let mut one = Net::one_with(
        &[3, 3],
        options(ClockSource::Logical, Dissemination::AllToAll),
        process(0, 0),
    );
    one.asked(start(1, &[0, 1]));
    one.idle();
    one.shows();
    assert_eq!(one.shows(), []);
}

/// Where nothing is shared any more nothing is said after a while.
#[test]
fn partners_part() {
    for dissemination in [Dissemination::AllToAll, Dissemination::ViaLeader] {
        let mut net = Net::settled_with(&[1, 1], options(ClockSource::Hybrid, dissemination));
        net.multicast(start(1, &[0, 1]), &[process(0, 0), process(1, 0)]);
        assert_eq!(net.delivered(1), [process(0, 0), process(1, 0)]);
        let one = net.all.get_mut(&process(0, 0)).unwrap();
        let shows = one.shows();
        assert!(shown(&shows).contains(&(process(1, 0), one.now.0 / 1000)), "{shows:?}");
        let until = one.now + PARTNERS_FOR;
        while one.now < until {
            assert_eq!(one.process.clock.partners.groups().count(), 1);
            one.shows();
        }
        assert_eq!(one.process.clock.partners.groups().count(), 0);
        let did = one.shows();
        assert_eq!(shown(&did), [], "{dissemination:?}");
    }
}

/// So the primary may say of each time that a quorum has reached it, and ask nobody.
#[test]
fn followers_are_ahead_until_the_clock_is_shown_again() {
    let hybrid = options(ClockSource::Hybrid, Dissemination::ViaLeader);
    let mut follower = Net::one_with(&[3, 3], hybrid, process(0, 1));
    let entries = vec![entry(e1(0), 1, start(1, &[0, 1]))];
    follower.hears(process(0, 0), append(e1(0), 0, entries, 5));
    follower.idle();
    assert!(follower.process.clock().0 >= 5 + 2 * SHOW_DELAY.as_micros() as u64);
}
