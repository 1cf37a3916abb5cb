use super::*;
use crate::calls::Command;
use crate::session::tests::{Client, LIMIT, MS, US};
use meridian_core::Event;
use meridian_host::api::{Refusal, Request};

const BLOCK: BlockId = BlockId(77);
const FULL: ReplyBody = ReplyBody::Refused(Refusal::Disk(String::new()));
const NONE: ReplyBody = ReplyBody::Refused(Refusal::NoBlock(BLOCK));
const DAMAGED: ReplyBody = ReplyBody::Refused(Refusal::Damaged(BLOCK));
/// The block ends in the middle of what is wanted.
const SHORT: ReplyBody = ReplyBody::Block(Bytes::from_static(b"yt"));
const PART: Part = Part { block: BLOCK, start: 1, len: 3 };

fn stored(missing: &[u16]) -> Option<Vec<RegionId>> {
    Some(missing.iter().copied().map(RegionId).collect())
}

impl Client {
    fn store(&mut self, partition: GroupId) -> CallId {
        self.calls += 1;
        let (call, deadline) = (CallId(self.calls), self.now + LIMIT);
        let block = Block { name: BLOCK, data: Bytes::from_static(b"bytes") };
        self.step(Event::Command(Command::Store { call, partition, block, deadline }));
        call
    }

    fn fetch(&mut self, partition: GroupId) -> CallId {
        self.calls += 1;
        let (call, deadline) = (CallId(self.calls), self.now + LIMIT);
        self.step(Event::Command(Command::Fetch { call, partition, part: PART, deadline }));
        call
    }

    /// All that are asked answer the same.
    fn all_answer(&mut self, asked: &[(NodeId, Request)], body: &ReplyBody) {
        asked.iter().for_each(|request| self.reply(request, body.clone()));
    }

    /// The regions that lack the block, if it counts as stored.
    fn missing(&mut self) -> Option<Vec<RegionId>> {
        match self.outputs.pop()? {
            Output::Stored { missing, .. } => Some(missing),
            other => panic!("{other:?}"),
        }
    }

    fn failure(&mut self) -> Option<Failure> {
        match self.outputs.pop()? {
            Output::GaveUp { failure, .. } => Some(failure),
            other => panic!("{other:?}"),
        }
    }
}

fn nodes(asked: &[(NodeId, Request)]) -> BTreeSet<u16> {
    asked.iter().map(|(node, _)| node.0).collect()
}

#[test]
fn a_block_of_all_regions_is_stored_when_all_have_it_twice() {
    let mut client = Client::new();
    client.store(GroupId::GLOBAL);
    let asked = client.sent();
    assert_eq!(nodes(&asked), [0, 1, 2, 3].into(), "all regions at once");
    client.all_answer(&asked[..3], &ReplyBody::Stored);
    assert_eq!(client.missing(), None, "B5");
    client.reply(&asked[3], ReplyBody::Stored);
    assert_eq!(client.missing(), stored(&[]));
    client.pass(LIMIT);
    assert!(client.sent().is_empty() && client.outputs.is_empty());
}

/// Of two regions one is no majority: nothing is acknowledged that one region alone has.
#[test]
fn half_of_the_regions_are_not_most_of_them() {
    let mut client = Client::new();
    client.store(GroupId::GLOBAL);
    let asked = client.sent();
    let near = |asked: &&(NodeId, Request)| asked.0.0 < 2;
    let us: Vec<_> = asked.iter().filter(near).cloned().collect();
    client.all_answer(&us, &ReplyBody::Stored);
    client.pass(LIMIT);
    let region = RegionId(1);
    assert_eq!(client.failure(), Some(Failure::TooFewNodes { region }));
}

#[test]
fn a_node_that_is_slow_is_asked_again_and_its_late_answer_counts() {
    let mut client = Client::new();
    client.store(US);
    let asked = client.sent();
    client.reply(&asked[0], ReplyBody::Stored);
    client.pass(NODE_LIMIT + PAUSE);
    let again = client.sent_one();
    assert_eq!(again.0, asked[1].0, "there is no other node");
    client.reply(&asked[1], ReplyBody::Stored);
    assert_eq!(client.missing(), stored(&[]));
    client.reply(&again, ReplyBody::Stored);
    assert!(client.outputs.is_empty(), "a call has one output");
}

#[test]
fn a_region_without_room_says_so_at_once() {
    let mut client = Client::new();
    client.store(US);
    let asked = client.sent();
    client.reply(&asked[0], FULL);
    assert_eq!(client.failure(), Some(Failure::NoSpace));
}

#[test]
fn a_block_that_is_not_wanted_any_more_is_forgotten() {
    let mut client = Client::new();
    let call = client.store(US);
    let asked = client.sent();
    client.step(Event::Command(Command::Release(call)));
    client.all_answer(&asked, &ReplyBody::Stored);
    client.pass(LIMIT);
    assert!(client.outputs.is_empty() && client.sent().is_empty());
}

#[test]
fn a_damaged_or_missing_block_is_read_from_the_next_holder() {
    for bad in [NONE, DAMAGED, SHORT] {
        let mut client = Client::new();
        client.fetch(US);
        let first = client.sent_one();
        client.reply(&first, bad);
        let second = client.sent_one();
        assert_ne!(first.0, second.0);
        client.reply(&second, ReplyBody::Block("yte".into()));
        assert!(matches!(client.output(), Output::Fetched { data, .. } if data == "yte"));
    }
}

#[test]
fn a_block_is_lost_only_when_all_say_so() {
    let mut client = Client::new();
    client.fetch(US);
    let first = client.sent_one();
    client.step(Event::Restarted(first.0)); // It may have it.
    let second = client.sent_one();
    client.reply(&second, NONE);
    assert_eq!(client.failure(), None, "B6");
    client.pass(PAUSE);
    let again = client.sent_one();
    assert_eq!(again.0, second.0, "who failed comes last");
    client.reply(&again, NONE);
    let last = client.sent_one();
    client.reply(&last, NONE);
    assert_eq!(client.failure(), Some(Failure::Lost { block: BLOCK }));
}

/// A file may say that a block is longer than it is, as who writes a file is believed.
#[test]
fn who_reads_beyond_a_block_is_told_so_when_all_that_have_it_have_answered() {
    let (beyond, lost) = (Failure::Beyond { part: PART }, Failure::Lost { block: BLOCK });
    for (answers, failure) in [
        ([SHORT, SHORT], &beyond),
        ([NONE, SHORT], &beyond),
        ([SHORT, NONE], &beyond),
        ([ReplyBody::Block(Bytes::new()), SHORT], &beyond),
        ([SHORT, DAMAGED], &lost), // What is damaged may have been long enough.
        ([DAMAGED, SHORT], &lost),
    ] {
        let mut client = Client::new();
        client.fetch(US);
        for answer in answers.clone() {
            assert_eq!(client.failure(), None, "B6: {answers:?}");
            let asked = client.sent_one();
            client.reply(&asked, answer);
        }
        assert_eq!(client.failure().as_ref(), Some(failure), "{answers:?}");
    }
}

/// A short copy of one node makes no copy unread of a node that cannot be asked now, nor does an
/// answer that is longer than what was wanted.
#[test]
fn a_short_copy_is_not_the_last_word_while_another_may_have_the_block() {
    for other in [None, Some(FULL), Some(ReplyBody::Block("bytes".into()))] {
        let mut client = Client::new();
        client.fetch(US);
        let first = client.sent_one();
        client.reply(&first, SHORT);
        let second = client.sent_one();
        match other {
            Some(body) => client.reply(&second, body),
            None => client.step(Event::Restarted(second.0)),
        }
        assert_eq!(client.failure(), None, "B6");
        client.pass(PAUSE);
        let again = client.sent_one();
        client.reply(&again, SHORT);
        let last = client.sent_one();
        assert_eq!((again.0, last.0), (first.0, second.0), "who failed comes last");
        client.reply(&last, ReplyBody::Block("yte".into()));
        assert!(matches!(client.output(), Output::Fetched { data, .. } if data == "yte"));
    }
}

/// What a disk cannot read now it may read later, or the node that comes back.
#[test]
fn a_disk_that_refuses_loses_no_block() {
    let mut client = Client::new();
    client.fetch(US);
    for _ in 0..2 {
        let asked = client.sent_one();
        client.reply(&asked, FULL);
    }
    assert_eq!(client.failure(), None, "B6");
    client.pass(LIMIT);
    assert_eq!(client.failure(), Some(Failure::Timeout { group: US }));
}

#[test]
fn who_is_slow_to_give_a_block_may_still_do_so() {
    let mut client = Client::new();
    client.fetch(US);
    let first = client.sent_one();
    client.pass(NODE_LIMIT);
    let second = client.sent_one();
    assert_ne!(first.0, second.0);
    client.reply(&first, ReplyBody::Block("yte".into()));
    assert!(matches!(client.output(), Output::Fetched { data, .. } if data == "yte"));
}

#[test]
fn a_reading_without_an_answer_ends_at_its_deadline() {
    let mut client = Client::new();
    client.fetch(US);
    client.pass(LIMIT);
    assert_eq!(client.failure(), Some(Failure::Timeout { group: US }));
    client.sent();
    client.pass(LIMIT);
    assert!(client.sent().is_empty());
}

/// Of three regions one is out of reach; after a while nobody waits for it.
#[test]
fn a_region_out_of_reach_is_given_up_after_a_while() {
    let mut client = Client::of(&["us-1", "us-2", "eu-1", "eu-2", "ap-1", "ap-2"]);
    client.store(GroupId::GLOBAL);
    for (node, request) in client.sent() {
        if node.0 < 4 {
            client.reply(&(node, request), ReplyBody::Stored);
        }
    }
    client.pass(4999 * MS);
    assert_eq!(client.missing(), None);
    client.pass(MS);
    assert_eq!(client.missing(), stored(&[2]));
}

/// A program that writes on does not wait so long for each block, and the region is used again as
/// soon as one of those that wait a little has an answer of it.
#[test]
fn a_region_that_was_given_up_is_not_waited_for_again_at_once() {
    let mut client = Client::of(&["us-1", "us-2", "eu-1", "eu-2", "ap-1", "ap-2"]);
    let store = |client: &mut Client, reached: u16| {
        client.store(GroupId::GLOBAL);
        for (node, request) in client.sent() {
            if node.0 < reached {
                client.reply(&(node, request), ReplyBody::Stored);
            }
        }
    };
    store(&mut client, 4);
    client.pass(5000 * MS);
    assert_eq!(client.missing(), stored(&[2]));
    store(&mut client, 4);
    assert_eq!(client.missing(), stored(&[2]), "at once");
    client.pass(5000 * MS);
    store(&mut client, 4);
    client.pass(799 * MS);
    assert_eq!(client.missing(), None);
    client.pass(MS);
    assert_eq!(client.missing(), stored(&[2]));
    client.pass(5000 * MS);
    store(&mut client, 6);
    assert_eq!(client.missing(), stored(&[]));
    store(&mut client, 4);
    client.pass(4999 * MS);
    assert_eq!(client.missing(), None, "it could be reached, and is waited for");
    client.pass(MS);
    assert_eq!(client.missing(), stored(&[2]));
}
