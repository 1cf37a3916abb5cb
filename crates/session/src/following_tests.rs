use super::*;
use crate::calls::Command;
use crate::session::tests::{Client, LIMIT, MS, US};
use meridian_core::{Event, NodeId};
use meridian_fs::{Answer, Done, FsError, Partition, Place, Timestamp};
use meridian_host::api::{ReplyBody, Request};

const EU: GroupId = GroupId(2);

/// What was asked of a node.
type Asked = (NodeId, Request);

fn seen(stamps: &[(GroupId, u64)]) -> Vector {
    Vector(stamps.iter().map(|(group, ts)| (*group, Stamp(*ts))).collect())
}

fn follow(client: &mut Client, stamps: &[(GroupId, u64)]) -> CallId {
    client.calls += 1;
    let (call, deadline) = (CallId(client.calls), client.now + LIMIT);
    client.step(Event::Command(Command::Follow { call, seen: seen(stamps), deadline }));
    call
}

/// A replica that has applied all up to there answers.
fn answer(client: &mut Client, asked: &Asked, ts: u64, result: Result<Answer, FsError>) {
    let RequestBody::Read { query, .. } = &asked.1.body else { panic!("{asked:?}") };
    let (vector, recalled) = (seen(&[(query.partition(), ts)]), Vec::new());
    client.reply(asked, ReplyBody::Answer { vector, recalled, whole: true, result });
}

fn totals() -> Result<Answer, FsError> {
    Ok(Answer::Totals { inodes: 1, bytes: 1 })
}

#[test]
fn a_token_is_taken_once_each_partition_has_answered_for_it() {
    let mut client = Client::new();
    let call = follow(&mut client, &[(US, 9), (EU, 7)]);
    let asked = client.sent();
    for ((_, request), (group, ts)) in asked.iter().zip([(US, 9), (EU, 7)]) {
        let RequestBody::Read { vector, query, .. } = &request.body else { panic!("{request:?}") };
        assert_eq!((query.partition(), vector.get(group)), (group, Stamp(ts)));
        assert!(query.keys().is_empty(), "it waits for nothing else");
    }
    answer(&mut client, &asked[0], 12, totals());
    assert!(client.outputs.is_empty());
    answer(&mut client, &asked[1], 3, totals());
    assert!(matches!(client.output(), Output::Followed { call: of } if of == call));
    assert_eq!(*client.session.vector(), seen(&[(US, 12), (EU, 7)]), "T1");
    follow(&mut client, &[]);
    assert!(matches!(client.output(), Output::Followed { .. }), "of who has seen nothing");
}

#[test]
fn what_nobody_answers_for_does_not_count_as_seen() {
    let mut client = Client::new();
    follow(&mut client, &[(US, 9), (EU, 7), (GroupId(77), 1)]);
    let asked = client.sent();
    assert_eq!(asked.len(), 2, "there is no such group");
    answer(&mut client, &asked[0], 9, totals());
    client.pass(LIMIT);
    let lacks = Failure::Behind { groups: vec![EU] };
    assert!(matches!(client.output(), Output::GaveUp { failure, .. } if failure == lacks));
    assert_eq!(*client.session.vector(), seen(&[(US, 9)]), "T3");
    client.sent();
    client.pass(LIMIT);
    assert!(client.sent().is_empty(), "nobody asks any more");
}

#[test]
fn who_waits_for_a_token_may_leave() {
    let mut client = Client::new();
    let call = follow(&mut client, &[(US, 9)]);
    let asked = client.sent_one();
    client.step(Event::Command(Command::Release(call)));
    answer(&mut client, &asked, 9, totals());
    client.pass(LIMIT);
    assert!(client.outputs.is_empty() && *client.session.vector() == Vector::default());
}

fn look(client: &mut Client) -> CallId {
    client.calls += 1;
    let (call, deadline) = (CallId(client.calls), client.now + LIMIT);
    let inode = Place { ino: Ino::top(US), partition: US };
    let query = Query::Attributes { inode };
    client.step(Event::Command(Command::Read { call, query, deadline }));
    call
}

fn attributes() -> Result<Answer, FsError> {
    let inode = Place { ino: Ino::top(US), partition: US };
    Partition::new(US, [], Timestamp::default()).read(&Query::Attributes { inode })
}

/// The client holds the top of `us`, and keeps its attributes.
fn holding() -> Client {
    let mut client = Client::new();
    client.step(Event::Command(Command::Keep));
    for _ in 0..3 {
        look(&mut client);
        let asked = client.sent();
        answer(&mut client, &asked[0], 1, attributes());
        client.outputs.clear();
        // With enough looks it begins a lease.
        asked[1..].iter().for_each(|renewal| client.decide(renewal, 2, Ok(Done::Nothing)));
    }
    let (grant, early) = (client.sent_one(), client.session.moment());
    client.decide(&grant, 3, Ok(Done::Granted(vec![Ino::top(US)])));
    look(&mut client);
    for asked in client.sent() {
        if matches!(asked.1.body, RequestBody::Read { .. }) {
            answer(&mut client, &asked, 4, attributes());
        }
    }
    client.outputs.clear();
    let rest = client.session.rest(client.now, early, &[Ino::top(US)]);
    assert!(rest.is_zero(), "who asked before it was held may have an older answer");
    let hits = client.session.hits();
    look(&mut client);
    assert_eq!(client.session.hits(), hits + 1, "it answers itself");
    client.outputs.clear();
    client
}

/// Of what others have changed the token's giver may know before its owner knows it as done.
#[test]
fn what_was_kept_is_dropped_by_all_before_a_token_is_taken() {
    let mut client = holding();
    let (before, top) = (client.session.moment(), [Ino::top(US)]);
    assert!(!client.session.rest(client.now, before, &top).is_zero());
    let call = follow(&mut client, &[(US, 9)]);
    let asked = client.sent_one();
    answer(&mut client, &asked, 9, totals());
    let Output::Recalled { gone } = client.output() else { panic!("T2") };
    assert_eq!(gone, [(US, Ino::top(US))]);
    let rest = client.session.rest(client.now, before, &top);
    assert!(rest.is_zero(), "what was asked before is kept by nobody");
    client.pass(MS);
    assert!(client.outputs.is_empty(), "T2: the owner has not dropped it");
    client.step(Event::Command(Command::LetGo(gone)));
    assert!(matches!(client.output(), Output::Followed { call: of } if of == call));
    let hits = client.session.hits();
    look(&mut client);
    assert!(client.session.hits() == hits && client.outputs.is_empty(), "a replica is asked");
}
