//! Groups whose primary relays for them.

use super::*;

fn near() -> Options {
    Options { dissemination: Dissemination::ViaLeader, ..Options::default() }
}

fn one_of(sizes: &[u16], me: ProcessId) -> One {
    Net::one_with(sizes, near(), me)
}

fn is_decided(message: &Message) -> bool {
    matches!(message, Message::Remote(RemoteMessage::RemoteDecided(RemoteDecided { len: 1, .. })))
}

/// What a follower hears of a message to both groups: the proposal, the primary's ACK, and, if it
/// is relayed, what the other group decided.
fn proposed(follower: &mut One) {
    follower.hears(process(0, 0), append(e1(0), 0, vec![entry(e1(0), 1, start(1, &[0, 1]))], 1));
    follower.hears(process(0, 0), ack(e1(0), 1, 1));
}

fn relayed(clock: u64, ts: u64) -> Message {
    let local = RelayedLocal { index: 0, id: id(1), group: GroupId(1), ts: Timestamp(ts) };
    let (locals, finals) = ([local].into(), [].into());
    Message::from(Relayed { epoch: e1(0), len: 1, clock: Timestamp(clock), locals, finals })
}

#[test]
fn only_primaries_speak_with_another_group() {
    for order in [Order::Sequential, Order::Linearizable] {
        let mut net = Net::settled_with(&[3, 3], Options { order, ..near() });
        // The first one tells all of the other group who leads this one.
        net.multicast(start(1, &[0, 1]), &[process(0, 0), process(1, 0)]);
        net.spoke.clear();
        net.multicast(start(2, &[0, 1]), &[process(0, 0), process(1, 0)]);
        assert_eq!(net.delivered(2).len(), 6, "{order:?}");
        let between = net.spoke.iter().filter(|(from, to)| from.group != to.group);
        let leads = |process: &ProcessId| e1(process.group.0).leader == process.node;
        assert!(between.clone().all(|(from, to)| leads(from) && leads(to)), "{order:?}");
        assert_eq!(between.count(), 2);
        // Nor do followers with each other.
        assert!(net.spoke.iter().all(|(from, to)| leads(from) || leads(to)));
    }
}

#[test]
fn a_primary_tells_what_a_quorum_holds_and_not_before() {
    let mut primary = one_of(&[3, 1], process(0, 0));
    let mut did = primary.asked(start(1, &[0, 1]));
    did.extend(primary.idle());
    assert!(sent(&did).iter().all(|(_, message)| !is_decided(message)));
    let mut did = primary.hears(process(0, 2), ack(e1(0), 1, 1));
    did.extend(primary.idle());
    let told = sent(&did).into_iter().filter(|(_, message)| is_decided(message));
    assert_eq!(told.map(|(to, _)| to).collect::<Vec<_>>(), [process(1, 0)]);
}

#[test]
fn a_follower_delivers_by_what_its_primary_relays() {
    let mut follower = one_of(&[3, 1], process(0, 1));
    proposed(&mut follower);
    assert_eq!(delivered(&follower.idle()), NONE);
    // The proposal of the other group is greater; the primary's clock has passed it.
    follower.hears(process(0, 0), relayed(7, 7));
    assert_eq!(delivered(&follower.idle()), [1]);
}

/// Lines 28 and 29 hold for followers, too: the clock that is relayed with a timestamp counts only
/// if nothing proposed before it is missing.
#[test]
fn a_relayed_clock_does_not_overtake_proposals() {
    let mut follower = one_of(&[3, 1], process(0, 1));
    proposed(&mut follower);
    let Message::Normal(NormalMessage::Relayed(Relayed { epoch, clock, locals, finals, .. })) =
        relayed(7, 7)
    else {
        panic!()
    };
    follower.hears(process(0, 0), Message::from(Relayed { epoch, len: 2, clock, locals, finals }));
    assert_eq!(delivered(&follower.idle()), NONE);
    let second = vec![entry(e1(0), 2, start(2, &[0]))];
    follower.hears(process(0, 0), append(e1(0), 1, second, 7));
    follower.hears(process(0, 0), ack(e1(0), 2, 7));
    assert_eq!(delivered(&follower.idle()), [2, 1]);
}

/// In the linearizable order it hears only of what was delivered; also before it has the entry.
#[test]
fn a_follower_delivers_what_its_primary_has_delivered() {
    let options = Options { order: Order::Linearizable, ..near() };
    for early in [false, true] {
        let mut follower = Net::one_with(&[3, 1], options, process(0, 1));
        let told = RelayedFinal { index: 0, id: id(1), ts: Timestamp(7), delivered: true };
        let (locals, finals) = ([].into(), [told].into());
        let (epoch, clock) = (e1(0), Timestamp(7));
        let told = Message::from(Relayed { epoch, len: 1, clock, locals, finals });
        if early {
            follower.hears(process(0, 0), told.clone());
        }
        proposed(&mut follower);
        assert_eq!(delivered(&follower.idle()), NONE);
        let last = if early { ack(e1(0), 1, 7) } else { told };
        follower.hears(process(0, 0), last);
        assert_eq!(delivered(&follower.idle()), [1], "early: {early}");
    }
}

/// As a follower it does not look who is heard, and its primary tells it only of changes.
#[test]
fn who_follows_anew_takes_no_group_for_cut_off() {
    let mut deposed = one_of(&[3, 1], process(0, 0));
    deposed.asked(start(1, &[0, 1]));
    deposed.idle();
    deposed.tick(CUT_TIMEOUT * 2);
    assert_eq!(deposed.process.unreachable().collect::<Vec<_>>(), [GroupId(1)]);
    let (b, e2) = (process(0, 1), epoch(2, process(0, 1)));
    deposed.hears(b, Message::from(NewEpoch { epoch: e2 }));
    deposed.hears(b, new_state(e2, 6, 0, vec![entry(e2, 6, start(1, &[0, 1]))]));
    deposed.hears(b, Message::from(Accept { epoch: e2, clock: Timestamp(6) }));
    assert_eq!(deposed.process.unreachable().count(), 0);
}

/// A follower hears nobody of other groups, and takes them for cut off only if its primary says so.
#[test]
fn a_follower_is_told_which_groups_are_cut_off() {
    let mut follower = one_of(&[3, 3], process(0, 1));
    proposed(&mut follower);
    follower.tick(Duration::from_secs(10));
    assert_eq!(follower.process.unreachable().count(), 0);
    follower.hears(
        process(0, 2),
        Message::from(NormalMessage::Unreachable([GroupId(1)].into_iter().collect())),
    );
    assert_eq!(follower.process.unreachable().count(), 0, "that is no primary");
    follower.hears(
        process(0, 0),
        Message::from(NormalMessage::Unreachable([GroupId(1)].into_iter().collect())),
    );
    assert_eq!(follower.process.unreachable().collect::<Vec<_>>(), [GroupId(1)]);
    // The primary looks for itself, and says so once.
    let mut primary = one_of(&[3, 3], process(0, 0));
    primary.asked(start(1, &[0, 1]));
    primary.idle();
    let told = |did: &[Did]| {
        let cut = |message: &Message| match message {
            Message::Normal(NormalMessage::Unreachable(groups)) => groups.len() == 1,
            _ => false,
        };
        sent(did).into_iter().filter(|(_, message)| cut(message)).count()
    };
    assert_eq!(told(&primary.tick(Duration::from_secs(10))), 2);
    assert_eq!(told(&primary.tick(Duration::from_secs(2))), 0);
}

/// So the primary finds a quorum past timestamps of other groups without asking for one.
#[test]
fn followers_are_ahead_of_their_primary() {
    let mut follower = one_of(&[3], process(0, 1));
    follower.hears(process(0, 0), append(e1(0), 0, vec![entry(e1(0), 5, start(1, &[0]))], 5));
    let did = follower.idle();
    assert_eq!(sent(&did), [(process(0, 0), &ack(e1(0), 1, 5 + AHEAD))]);
    // One that is far ahead is followed at once.
    follower.hears(process(0, 0), ack(e1(0), 1, 9000));
    let did = follower.idle();
    assert_eq!(sent(&did), [(process(0, 0), &ack(e1(0), 1, 9000 + AHEAD))]);
}

#[test]
fn who_is_not_asked_to_be_prompt_acknowledges_soon() {
    let mut follower = one_of(&[3], process(0, 2));
    let entries = vec![entry(e1(0), 1, start(1, &[0]))].into();
    let clock = Timestamp(1);
    let lazy = Message::from(Append { epoch: e1(0), from: 0, entries, clock, prompt: false });
    follower.hears(process(0, 0), lazy);
    assert_eq!(sent(&follower.idle()), []);
    assert_eq!(follower.process.log.len(), 1);
    follower.now = follower.now + ACK_DELAY;
    follower.step(Event::Timer(Timer::Acknowledge));
    let did = follower.idle();
    assert_eq!(sent(&did), [(process(0, 0), &ack(e1(0), 1, 1 + AHEAD))]);
}

/// The one that was asked has died, or is slow: the next is asked to be prompt.
#[test]
fn a_primary_asks_the_one_that_answers() {
    let mut primary = one_of(&[3], process(0, 0));
    let asked = |primary: &mut One, sequence: u64| -> Vec<ProcessId> {
        primary.asked(start(sequence, &[0]));
        let did = primary.idle();
        let prompt = |(to, message): (ProcessId, &Message)| {
            matches!(message, Message::Normal(NormalMessage::Append(Append { prompt: true, .. })))
                .then_some(to)
        };
        sent(&did).into_iter().filter_map(prompt).collect()
    };
    assert_eq!(asked(&mut primary, 1), [process(0, 1)]);
    primary.hears(process(0, 2), ack(e1(0), 1, 1));
    assert_eq!(asked(&mut primary, 2), [process(0, 2)]);
    primary.hears(process(0, 1), ack(e1(0), 1, 1));
    assert_eq!(asked(&mut primary, 3), [process(0, 2)], "it has not fallen behind");
}

/// Seed 2519: a follower may hold an entry that a later epoch has proposed anew, with another
/// timestamp. That one was told the follower as decided, before NEW-STATE came.
#[test]
fn the_own_timestamp_is_not_relayed() {
    let mut net = Net::settled_with(&[3, 1], near());
    net.away.insert(process(1, 0)); // It stays undecided.
    net.multicast(start(1, &[0, 1]), &[process(0, 0)]);
    let primary = net.all.get_mut(&process(0, 0)).unwrap();
    assert_eq!(primary.process.log.get(0).unwrap().locals.len(), 1, "its own");
    primary.hears(process(0, 1), Message::from(Resend { epoch: e1(0), from: 0 }));
    let did = primary.idle();
    let relayed = |message: &Message| match message {
        Message::Normal(NormalMessage::Relayed(relayed)) => !relayed.locals.is_empty(),
        _ => false,
    };
    assert!(sent(&did).iter().all(|(_, message)| !relayed(message)));
}

/// What a primary has heard dies with it.
#[test]
fn the_next_primary_hears_what_the_last_one_did_not_relay() {
    let mut net = Net::settled_with(&[3, 3], near());
    net.multicast(start(1, &[0, 1]), &[process(0, 0), process(1, 0)]);
    let dies = process(0, 0);
    // It proposes, and is gone before it hears of the other group.
    net.step(dies, Event::Command(Command::Start(start(2, &[0, 1]))));
    net.step(process(1, 0), Event::Command(Command::Start(start(2, &[0, 1]))));
    net.step(dies, Event::Idle);
    net.away.insert(dies);
    net.run();
    assert!(net.delivered(2).is_empty());
    net.run_for(Duration::from_secs(4));
    assert_eq!(net.delivered(2).len(), 5);
    net.spoke.clear();
    net.multicast(start(3, &[0, 1]), &[process(0, 1), process(1, 0)]);
    assert_eq!(net.delivered(3).len(), 5);
    net.back(dies);
    net.run_for(Duration::from_secs(2));
    assert_eq!((net.delivered(2).len(), net.delivered(3).len()), (6, 6));
}

/// What is stable goes by way of the primaries, and all logs become empty.
#[test]
fn what_is_delivered_everywhere_is_dropped_everywhere() {
    let mut net = Net::settled_with(&[3, 3], near());
    for n in 1..=3 {
        net.multicast(start(n, &[0, 1]), &[process(0, 0), process(1, 0)]);
    }
    net.spoke.clear();
    net.run_for(Duration::from_secs(3));
    assert!(net.all.values().all(|one| one.process.log_entries() == (0, 0)));
    let between = net.spoke.iter().filter(|(from, to)| from.group != to.group);
    assert_eq!(between.count(), 2);
}

/// Whom a primary shows which length of `T` and which clock.
fn shown(did: &[Did]) -> Vec<(ProcessId, u64, Timestamp)> {
    let of = |(to, message): (ProcessId, &Message)| match message {
        Message::Normal(NormalMessage::Ack(Ack { len, clock, .. })) => Some((to, *len, *clock)),
        _ => None,
    };
    sent(did).into_iter().filter_map(of).collect()
}

fn with_next() -> Options {
    Options { notice: Notice::WithNext, ..near() }
}

#[test]
fn followers_hear_with_what_is_sent_next_or_soon() {
    let mut primary = Net::one_with(&[3], with_next(), process(0, 0));
    let followers = [process(0, 1), process(0, 2)];
    let propose = |primary: &mut One, sequence: u64| {
        let mut did = primary.asked(start(sequence, &[0]));
        did.extend(primary.idle());
        did
    };
    assert_eq!(shown(&propose(&mut primary, 1)), []);
    let first = primary.process.log.get(0).unwrap().entry.ts;
    // What they are shown does not go beyond what they hold then.
    let did = propose(&mut primary, 2);
    assert_eq!(shown(&did), followers.map(|follower| (follower, 1, first)));
    let is_ack = |did: &Did| matches!(did, Did::Sent(_, Message::Normal(NormalMessage::Ack(_))));
    let appends =
        |did: &Did| matches!(did, Did::Sent(_, Message::Normal(NormalMessage::Append(_))));
    assert!(place(&did, is_ack) < place(&did, appends));
    assert_eq!(shown(&primary.idle()), []);
    // The timer was set for the first.
    primary.now = primary.now + ACK_DELAY;
    primary.step(Event::Timer(Timer::Acknowledge));
    let second = primary.process.log.get(1).unwrap().entry.ts;
    assert_eq!(shown(&primary.idle()), followers.map(|follower| (follower, 2, second)));
    assert_eq!(shown(&primary.idle()), []);
}

/// The timer is set once for all that is put off until it comes.
#[test]
fn what_is_put_off_after_the_timer_was_set_waits_as_long() {
    let mut primary = Net::one_with(&[3], with_next(), process(0, 0));
    primary.asked(start(1, &[0]));
    primary.idle();
    primary.now = primary.now + ACK_DELAY / 2;
    primary.asked(start(2, &[0]));
    primary.idle();
    for shows in [0, 2] {
        primary.now = primary.now + ACK_DELAY / 2;
        primary.step(Event::Timer(Timer::Acknowledge));
        assert_eq!(shown(&primary.idle()).len(), shows);
    }
}

#[test]
fn a_follower_that_was_asked_and_other_groups_hear_at_once() {
    let passed_on = Message::from(Arc::new(start(1, &[0])));
    let mut primary = Net::one_with(&[3, 1], with_next(), process(0, 0));
    let mut did = primary.hears(process(0, 1), passed_on);
    did.extend(primary.idle());
    assert_eq!(shown(&did).len(), 2, "a client waits for what a follower delivers");
    primary.asked(start(2, &[0]));
    assert_eq!(shown(&primary.idle()), []);
    let mut did = primary.asked(start(3, &[0, 1]));
    did.extend(primary.idle());
    assert_eq!(shown(&did).len(), 4, "what was put off, and what concerns two groups");
}

/// What a primary sends a follower that need not be prompt.
fn lazy(from: u64, start: Start) -> Message {
    let (ts, epoch) = (from + 1, e1(0));
    let entries = vec![entry(epoch, ts, start)].into();
    Message::from(Append { epoch, from, entries, clock: Timestamp(ts), prompt: false })
}

fn is_mark(did: &Did) -> bool {
    *did == Did::Persisted(Record::Mark)
}

fn is_sent(did: &Did) -> bool {
    matches!(did, Did::Sent(..))
}

#[test]
fn who_need_not_be_prompt_notes_and_does_not_vote_yet() {
    let mut follower = Net::one_with(&[3], with_next(), process(0, 2));
    let did = follower.hears(process(0, 0), lazy(0, start(1, &[0])));
    assert!(did.iter().any(|did| matches!(did, Did::Noted(Record::Append { .. }))));
    // Only the primary holds it for sure.
    follower.hears(process(0, 0), ack(e1(0), 1, 1));
    let did = follower.idle();
    assert_eq!((delivered(&did), sent(&did)), (NONE.to_vec(), vec![]));
    follower.now = follower.now + ACK_DELAY;
    follower.step(Event::Timer(Timer::Acknowledge));
    let did = follower.idle();
    assert_eq!(delivered(&did), [1]);
    let told = |did: &Did| matches!(did, Did::Told(_));
    assert!(place(&did, is_mark) < place(&did, is_sent).min(place(&did, told)));
    assert_eq!(shown(&did), [(process(0, 0), 1, Timestamp(1 + AHEAD))]);
}

/// Whatever is sent may tell how long `T` is.
#[test]
fn what_was_noted_is_durable_before_anything_is_sent() {
    let mut follower = Net::one_with(&[3], with_next(), process(0, 2));
    follower.hears(process(0, 0), lazy(0, start(1, &[0])));
    let mut did = follower.asked(start(2, &[0])); // It passes that on.
    did.extend(follower.idle());
    assert!(place(&did, is_mark) < place(&did, is_sent));
    // A promise makes it durable by itself.
    follower.hears(process(0, 0), lazy(1, start(2, &[0])));
    let epoch = epoch(2, process(0, 1));
    let did = follower.hears(process(0, 1), Message::from(NewEpoch { epoch }));
    let promise = place(&did, |did| *did == Did::Persisted(Record::Promised(epoch)));
    assert!(promise < place(&did, is_sent) && !did.iter().any(is_mark));
}

#[test]
fn what_concerns_two_groups_is_persisted_at_once() {
    let mut follower = Net::one_with(&[3, 1], with_next(), process(0, 2));
    let did = follower.hears(process(0, 0), lazy(0, start(1, &[0, 1])));
    assert!(did.iter().any(|did| matches!(did, Did::Persisted(Record::Append { .. }))));
}
