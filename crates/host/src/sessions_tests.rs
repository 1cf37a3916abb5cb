use super::*;

const DONE: Result<Done, FsError> = Ok(Done::Nothing);
const US: [GroupId; 1] = [GroupId(1)];

/// A session of the one shard that these tests use.
fn session(number: u64) -> ClientId {
    name(number << (GROUP_BITS + SPREAD_BITS), &US)
}

fn id(sequence: u64) -> MessageId {
    MessageId { client: session(7), sequence }
}

fn admit(sessions: &mut Sessions, id: MessageId, ts: u64, low: u64) -> Admission {
    let admission = sessions.admit(id, Stamp(ts), low, Stamp(ts - 1), &[]);
    sessions.check_invariants();
    admission
}

fn execute(sessions: &mut Sessions, id: MessageId, ts: u64, low: u64) {
    assert_eq!(admit(sessions, id, ts, low), Admission::Execute);
    sessions.decided(id, (Stamp(ts), DONE));
}

#[test]
fn an_outcome_is_kept_as_long_as_its_client_may_ask() {
    let mut sessions = Sessions::default();
    execute(&mut sessions, id(1), 1, 1);
    assert_eq!(admit(&mut sessions, id(2), 2, 1), Admission::Execute);
    assert!(sessions.is_pending(id(2)) && !sessions.is_decided(id(2)));
    let refused = (Stamp(2), Err(FsError::Exists));
    sessions.decided(id(2), refused.clone());
    assert_eq!(sessions.outcome(id(2)), Some(&refused));
    assert!(!sessions.is_decided(id(3)));
    execute(&mut sessions, id(3), 3, 2);
    assert_eq!(sessions.outcome(id(1)), None);
    assert!(sessions.is_decided(id(1)) && sessions.is_decided(id(2)));
    assert_eq!(admit(&mut sessions, id(1), 4, 1), Admission::Refuse, "it has ended");
    assert_eq!(admit(&mut sessions, id(2), 5, 1), Admission::Repeat);
    assert_eq!(sessions.outcome(id(2)), Some(&refused), "it is what came of it the first time");
}

#[test]
fn what_was_cancelled_before_it_came_is_refused() {
    let mut sessions = Sessions::default();
    execute(&mut sessions, id(1), 1, 1);
    let next = MessageId { client: session(8), sequence: 1 };
    let cancels = [id(1), id(2)];
    assert_eq!(sessions.admit(next, Stamp(2), 1, Stamp(0), &cancels), Admission::Execute);
    assert_eq!(sessions.outcome(id(1)), Some(&(Stamp(1), DONE)), "it came before");
    assert_eq!(admit(&mut sessions, id(2), 3, 1), Admission::Refuse);
    assert_eq!(admit(&mut sessions, id(3), 4, 1), Admission::Execute, "it was not given up");
}

#[test]
fn a_session_that_is_forgotten_repeats_nothing() {
    let mut sessions = Sessions::default();
    execute(&mut sessions, id(1), 1, 1);
    for number in 0..SHARD_MAX {
        let other = MessageId { client: session(100 + number), sequence: 1 };
        execute(&mut sessions, other, 2 + number, 1);
    }
    assert!(sessions.len().0 as u64 <= SHARD_MAX / 2);
    assert_eq!(sessions.outcome(id(1)), None, "it is forgotten");
    let now = 10 + SHARD_MAX;
    // The same message again, named when its client had seen nothing.
    assert_eq!(sessions.admit(id(1), Stamp(now), 1, Stamp(0), &[]), Admission::Refuse);
    assert_eq!(sessions.outcome(id(1)), Some(&(Stamp(now), Err(FsError::Expired))));
    // The client learns of that, and names its next messages after it.
    assert_eq!(sessions.admit(id(2), Stamp(now + 1), 1, Stamp(now), &[]), Admission::Execute);
}

/// Known fault 4: a client that waits for one message for ever, or that gives up all that it sends.
#[test]
fn what_is_remembered_is_bounded() {
    let mut sessions = Sessions::default();
    for number in 0..3 * SHARD_MAX {
        let client = session(number);
        let cancels: Vec<_> =
            (1..50).map(|sequence| MessageId { client: session(number / 2), sequence }).collect();
        let cancels = cancels.iter().copied().filter(|id| id.client != client).collect::<Vec<_>>();
        let ts = Stamp(number + 1);
        sessions.admit(MessageId { client, sequence: 1 }, ts, 1, Stamp(number), &cancels);
        let (heads, outcomes) = sessions.len();
        assert!((heads + outcomes) as u64 <= SHARD_MAX, "{heads} and {outcomes}");
    }
    sessions.check_invariants();
}

/// Votes come at any time: nothing but the outcomes may depend on when.
#[test]
fn what_is_forgotten_does_not_depend_on_when_messages_are_decided() {
    let decide = |late: bool| {
        let mut sessions = Sessions::default();
        let all: Vec<_> = (0..2 * SHARD_MAX)
            .map(|number| MessageId { client: session(number), sequence: 1 })
            .collect();
        for (at, message) in all.iter().enumerate() {
            let ts = at as u64 + 1;
            assert_eq!(
                sessions.admit(*message, Stamp(ts), 1, Stamp(ts - 1), &[]),
                Admission::Execute
            );
            if !late {
                sessions.decided(*message, (Stamp(ts), DONE));
            }
        }
        for (at, message) in all.iter().enumerate().rev().filter(|_| late) {
            sessions.decided(*message, (Stamp(at as u64 + 1), DONE));
        }
        sessions
    };
    assert!(decide(true) == decide(false));
}

#[test]
fn names_tell_where_their_messages_go() {
    let (us, both) = (name(u64::MAX, &US), name(12345, &[GroupId(0), GroupId(1)]));
    assert!(goes_to(us, &US) && !goes_to(us, &[GroupId(0), GroupId(1)]) && !goes_to(both, &US));
    let next = successor(77 << 40, both);
    assert!(next != both && shard(next) == shard(both) && key(next) == key(both));
    assert_ne!(key(us), key(both));
}
