use super::*;
use crate::cuts;
use meridian_cluster::topology::{CLUSTER_FORMAT, ClusterFile, NodeEntry};
use meridian_core::{Effect, GroupId, MessageId};
use meridian_fs::operation::Changes;
use meridian_fs::{CapStep, Ino, Place, Timestamp, Update};
use meridian_host::api::{Refusal, Request};
use meridian_host::sessions;
use meridian_host::update::{Change, Payload};
use meridian_multicast::Start;
use std::time::Duration;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const US: GroupId = GroupId(1);
const EU: GroupId = GroupId(2);
/// The deadline of all calls, counted from when they are made.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Of two regions with two nodes: us has the nodes 0 and 1, eu 2 and 3.
pub(crate) const TWO: [&str; 4] = ["us-1", "us-2", "eu-1", "eu-2"];

/// Nodes whose names begin with their region's.
pub(crate) fn topology(names: &[&str]) -> Arc<Topology> {
    let node = |name: &str| NodeEntry {
        name: name.into(),
        region: name[..2].into(),
        pid: None,
        draining: None,
        address: "127.0.0.1:1".into(),
        groups: vec!["global".into(), name[..2].into()],
    };
    let file = ClusterFile {
        insecure_plain_text: true,
        format: CLUSTER_FORMAT,
        created_ms: 0,
        cluster: 1,
        nodes: names.iter().copied().map(node).collect(),
        rtt_ms: BTreeMap::new(),
        order: Default::default(),
        configuration: Default::default(),
    };
    Arc::new(Topology::new(&file).unwrap())
}

/// A session, and all around it in virtual time.
pub(crate) struct Client {
    pub session: Session,
    pub now: Time,
    pub calls: u64,
    /// What was sent and not yet looked at.
    sent: Vec<(NodeId, Request)>,
    pub outputs: Vec<Output>,
    timers: BTreeSet<Time>,
}

impl Client {
    pub fn new() -> Client {
        Client::of(&TWO)
    }

    pub fn of(names: &[&str]) -> Client {
        let session = Session::new(topology(names), RegionId(0), 7);
        let (sent, outputs, timers) = (Vec::new(), Vec::new(), BTreeSet::new());
        Client { session, now: Time(1), calls: 0, sent, outputs, timers }
    }

    pub fn step(&mut self, event: Event<Session>) {
        let mut out = Outbox::new();
        self.session.step(self.now, event, &mut out);
        self.session.check_invariants();
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message: Message::Request(request) } => {
                    self.sent.push((to, request));
                }
                Effect::Output(output) => self.outputs.push(output),
                Effect::Timer { at, timer: Due } => drop(self.timers.insert(at)),
                other => panic!("a session does not {other:?}"),
            }
        }
    }

    /// Lets time pass, with the timers that are due.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.timers.first().copied().filter(|at| *at <= end) {
            self.timers.remove(&at);
            self.now = self.now.max(at);
            self.step(Event::Timer(Due));
        }
        self.now = end;
    }

    fn update(&mut self, update: Update) -> CallId {
        self.calls += 1;
        let (call, deadline) = (CallId(self.calls), self.now + LIMIT);
        let change = Change::new(Timestamp::default(), update);
        self.step(Event::Command(Command::Update { call, change, deadline }));
        call
    }

    pub fn read(&mut self, inode: Place) -> CallId {
        self.calls += 1;
        let (call, deadline) = (CallId(self.calls), self.now + LIMIT);
        let query = Query::Attributes { inode };
        self.step(Event::Command(Command::Read { call, query, deadline }));
        call
    }

    /// What was sent since it was last asked for.
    pub fn sent(&mut self) -> Vec<(NodeId, Request)> {
        std::mem::take(&mut self.sent)
    }

    /// The one request that was sent since.
    pub fn sent_one(&mut self) -> (NodeId, Request) {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.into_iter().next().unwrap()
    }

    pub fn reply(&mut self, (from, request): &(NodeId, Request), body: ReplyBody) {
        let message = Message::Reply(Reply { id: request.id, body });
        self.step(Event::Message { from: *from, message });
    }

    /// The node answers an update at `ts`.
    pub fn decide(&mut self, asked: &(NodeId, Request), ts: u64, result: Result<Done, FsError>) {
        let ts = Stamp(ts);
        let mut vector = Vector::default();
        vector.raise(group_of(&asked.1), ts);
        let (id, recalled, and) = (start_of(&asked.1).id, Vec::new(), Vec::new());
        let body = ReplyBody::Updated { id, ts, vector, recalled, and, result };
        self.reply(asked, body);
    }

    /// The one output since.
    pub fn output(&mut self) -> Output {
        assert_eq!(self.outputs.len(), 1, "{:?}", self.outputs);
        self.outputs.pop().unwrap()
    }
}

fn start_of(request: &Request) -> &Start {
    match &request.body {
        RequestBody::Update { start, .. } => start,
        other => panic!("{other:?} is no update"),
    }
}

fn group_of(request: &Request) -> GroupId {
    match &request.body {
        RequestBody::Update { group, .. } => *group,
        other => panic!("{other:?} is no update"),
    }
}

fn payload_of(request: &Request) -> Payload {
    Payload::read(start_of(request)).unwrap()
}

fn cancels(request: &Request) -> Vec<MessageId> {
    payload_of(request).cancels
}

fn top(partition: GroupId) -> Place {
    Place { ino: Ino::top(partition), partition }
}

fn touch(partition: GroupId) -> Update {
    Update::SetAttributes { inode: top(partition), changes: Changes::default() }
}

/// An update of two groups that touches the top of each.
fn link(from: GroupId, to: GroupId) -> Update {
    Update::Link { target: top(from), parent: top(to), name: "name".into() }
}

const DONE: Result<Done, FsError> = Ok(Done::Nothing);

#[test]
fn a_slow_node_may_still_answer_while_another_is_asked() {
    let mut client = Client::new();
    let call = client.update(touch(US));
    let first = client.sent_one();
    client.pass(999 * MS);
    assert!(client.sent().is_empty());
    client.pass(MS);
    let second = client.sent_one();
    assert_eq!((first.0, second.0), (NodeId(0), NodeId(1)));
    assert_eq!(start_of(&first.1), start_of(&second.1), "V2");
    client.decide(&first, 5, DONE);
    assert!(
        matches!(client.output(), Output::Updated { call: of, ts: Stamp(5), .. } if of == call)
    );
    client.decide(&second, 5, DONE);
    assert!(client.outputs.is_empty(), "a call has one output");
    assert_eq!(client.session.vector().get(US), Stamp(5));
    client.pass(LIMIT);
    assert!(client.sent().is_empty() && client.outputs.is_empty());
}

#[test]
fn a_lost_connection_sends_a_read_to_the_next_node_at_once() {
    let mut client = Client::new();
    client.read(top(US));
    assert_eq!(client.sent_one().0, NodeId(0));
    client.step(Event::Restarted(NodeId(0)));
    assert_eq!(client.sent_one().0, NodeId(1));
    client.step(Event::Restarted(NodeId(1)));
    assert!(client.sent().is_empty(), "it pauses after a round");
    client.pass(50 * MS);
    assert_eq!(client.sent_one().0, NodeId(0));
    client.step(Event::Restarted(NodeId(0)));
    client.step(Event::Restarted(NodeId(1)));
    while client.outputs.is_empty() {
        client.pass(10 * MS);
        client.step(Event::Restarted(NodeId(0)));
        client.step(Event::Restarted(NodeId(1)));
    }
    let silent = Failure::Unreachable { group: US };
    assert!(matches!(client.output(), Output::GaveUp { failure, .. } if failure == silent));
    assert!(client.now.since(Time(1)) < LIMIT + 20 * MS, "it gives up in time");
}

#[test]
fn patience_grows_while_nobody_answers() {
    let mut client = Client::new();
    client.read(top(US));
    client.pass(LIMIT);
    // After 1, 1.5, (a pause,) 2.25 and 3.375 seconds.
    let asked: Vec<_> = client.sent().into_iter().map(|(node, _)| node.0).collect();
    assert_eq!(asked, [0, 1, 0, 1, 0]);
    let failure = Failure::Timeout { group: US };
    assert!(matches!(client.output(), Output::GaveUp { failure: of, .. } if of == failure));
}

/// Known fault 1.
#[test]
fn what_is_given_up_is_cancelled_by_the_next_update_of_the_same() {
    let mut client = Client::new();
    let given_up = client.update(touch(US));
    client.pass(LIMIT);
    let first = start_of(&client.sent()[0].1).id;
    assert!(matches!(client.output(), Output::GaveUp { .. }));
    client.step(Event::Command(Command::Release(given_up)));
    client.pass(LIMIT);
    assert!(client.sent().is_empty(), "nobody sends it again");
    client.update(touch(US));
    let second = client.sent_one();
    assert_eq!(cancels(&second.1), [first], "V3");
    client.decide(&second, 9, DONE);
    assert_eq!(client.session.given_up(), 0);
}

#[test]
fn an_update_to_other_groups_waits_until_all_have_cancelled() {
    let mut client = Client::new();
    let given_up = client.update(link(US, EU));
    let first = start_of(&client.sent()[0].1).id;
    client.step(Event::Command(Command::Release(given_up)));
    client.update(touch(US));
    let cancelling = client.sent();
    let groups: Vec<_> = cancelling.iter().map(|(_, request)| group_of(request)).collect();
    assert_eq!(groups, [US, EU]);
    for (_, request) in &cancelling {
        assert_eq!(cancels(request), [first]);
        assert_eq!(payload_of(request).change, None);
    }
    client.decide(&cancelling[0], 3, Err(FsError::Invalid));
    assert!(client.sent().is_empty(), "eu has not answered");
    client.decide(&cancelling[1], 4, Err(FsError::Invalid));
    let sent = client.sent_one();
    assert!(payload_of(&sent.1).change.is_some());
    client.decide(&sent, 5, DONE);
    assert!(matches!(client.output(), Output::Updated { .. }));
}

/// Known fault 3.
#[test]
fn what_was_given_up_in_one_region_stops_no_update_to_another() {
    let mut client = Client::new();
    for _ in 0..2000 {
        let call = client.update(touch(EU));
        let asked = client.sent();
        client.step(Event::Command(Command::Release(call)));
        // A node of eu would answer the messages that cancel.
        assert!(!asked.is_empty());
    }
    client.update(touch(US));
    let sent = client.sent_one();
    assert!(payload_of(&sent.1).change.is_some());
    client.decide(&sent, 1, DONE);
    assert!(matches!(client.output(), Output::Updated { .. }));
}

#[test]
fn an_update_that_is_sent_again_keeps_its_name() {
    let mut client = Client::new();
    let call = client.update(touch(US));
    client.pass(LIMIT);
    let first = client.sent();
    assert!(matches!(client.output(), Output::GaveUp { .. }));
    client.decide(&first[0], 2, DONE);
    assert!(client.outputs.is_empty(), "nobody asks for it now");
    let deadline = client.now + LIMIT;
    client.step(Event::Command(Command::Again { call, deadline }));
    let again = client.sent_one();
    assert_eq!(start_of(&again.1), start_of(&first[0].1), "V2");
    client.decide(&again, 2, DONE);
    assert!(matches!(client.output(), Output::Updated { call: of, .. } if of == call));
    client.step(Event::Command(Command::Release(call)));
    assert_eq!(client.session.given_up(), 0, "it was decided");
}

#[test]
fn who_learns_of_the_horizon_names_the_update_anew() {
    let mut client = Client::new();
    client.update(touch(US));
    let first = client.sent_one();
    client.decide(&first, 100, Err(FsError::Expired));
    assert!(client.outputs.is_empty());
    let second = client.sent_one();
    let (old, new) = (start_of(&first.1).id.client, start_of(&second.1).id.client);
    assert!(old != new && sessions::shard(old) == sessions::shard(new));
    assert_eq!(payload_of(&first.1).vector.get(US), Stamp(0));
    assert_eq!(payload_of(&second.1).vector.get(US), Stamp(100));
    client.decide(&second, 101, DONE);
    assert!(matches!(client.output(), Output::Updated { result: Ok(_), .. }));
}

/// One of two copies may have taken effect before the refusal.
#[test]
fn an_update_of_which_there_are_two_copies_is_not_named_anew() {
    let mut client = Client::new();
    client.update(touch(US));
    client.pass(1000 * MS);
    let sent = client.sent();
    assert_eq!(sent.len(), 2);
    client.decide(&sent[1], 100, Err(FsError::Expired));
    let expired = Err(FsError::Expired);
    assert!(matches!(client.output(), Output::Updated { result, .. } if result == expired));
}

#[test]
fn a_group_that_hears_that_another_is_out_of_reach_ends_the_call() {
    let mut client = Client::new();
    client.update(link(US, EU));
    let sent = client.sent();
    client.reply(&sent[0], ReplyBody::Refused(Refusal::OutOfReach(EU)));
    let failure = Failure::OutOfReach { group: EU };
    assert!(matches!(client.output(), Output::GaveUp { failure: of, .. } if of == failure));
}

/// The nodes of us that are asked for an update answer that eu is out of reach.
fn refuse_in_us(client: &mut Client) {
    for asked in client.sent() {
        if matches!(asked.1.body, RequestBody::Update { group: US, .. }) {
            client.reply(&asked, ReplyBody::Refused(Refusal::OutOfReach(EU)));
        }
    }
}

/// It is asked again, and ends when the cut has lasted as long as its owner wants.
#[test]
fn an_update_waits_for_a_group_that_another_cannot_reach() {
    let mut client = Client::new();
    client.step(Event::Command(Command::OnCut(5000 * MS)));
    let begun = client.now;
    client.update(link(US, EU));
    let gave_up = loop {
        refuse_in_us(&mut client);
        if let Some(output) = client.outputs.pop().filter(|output| output.call().is_some()) {
            break output; // Not that a group is cut off.
        }
        assert!(client.now.since(begun) < LIMIT, "it ends before its own deadline");
        client.pass(100 * MS);
    };
    let failure = Failure::OutOfReach { group: EU };
    assert!(matches!(gave_up, Output::GaveUp { failure: of, .. } if of == failure));
    let took = client.now.since(begun);
    assert!(took >= 5000 * MS && took < 5200 * MS, "{took:?}");
}

#[test]
fn an_update_that_waits_for_a_group_is_decided_under_its_name() {
    let mut client = Client::new();
    client.step(Event::Command(Command::OnCut(5000 * MS)));
    let call = client.update(link(US, EU));
    let first = client.sent();
    let asked = first.iter().find(|(_, asked)| group_of(asked) == US).unwrap();
    client.reply(asked, ReplyBody::Refused(Refusal::OutOfReach(EU)));
    client.pass(cuts::LOOK);
    let again = client.sent();
    let again = again.iter().find(|(_, asked)| group_of(asked) == US).unwrap();
    assert_eq!(start_of(&again.1), start_of(&asked.1), "V2");
    client.decide(again, 6, DONE);
    assert!(matches!(client.output(), Output::Updated { call: of, .. } if of == call));
}

#[test]
fn an_update_that_must_not_wait_ends_when_a_group_is_out_of_reach() {
    let mut client = Client::new();
    client.step(Event::Command(Command::OnCut(Duration::ZERO)));
    client.update(link(US, EU));
    let sent = client.sent();
    client.reply(&sent[0], ReplyBody::Refused(Refusal::OutOfReach(EU)));
    let failure = Failure::OutOfReach { group: EU };
    assert!(matches!(client.output(), Output::GaveUp { failure: of, .. } if of == failure));
}

/// How often us is asked for updates in ten seconds, which it refuses as eu is out of reach. They
/// are to have a holder let go what a read needs, and before cancel what was given up in both.
fn asked_in_vain(bug: Mutation) -> usize {
    let mut client = Client::new();
    client.session = client.session.with_mutation(bug);
    let given_up = client.update(link(US, EU));
    client.step(Event::Command(Command::Release(given_up)));
    client.sent();
    client.read(top(US));
    let mut asked_for = 0;
    for _ in 0..LIMIT.as_millis() / 10 {
        for asked in client.sent() {
            let body = match &asked.1.body {
                RequestBody::Read { .. } => {
                    let (vector, recalled) = (Vector::default(), Vec::new());
                    let result = Err(FsError::Held);
                    ReplyBody::Answer { vector, recalled, whole: true, result }
                }
                RequestBody::Update { group: US, .. } => {
                    asked_for += 1;
                    ReplyBody::Refused(Refusal::OutOfReach(EU))
                }
                _ => continue,
            };
            client.reply(&asked, body);
        }
        client.pass(10 * MS);
    }
    asked_for
}

#[test]
fn what_a_session_needs_itself_of_groups_out_of_reach_is_asked_for_with_pauses() {
    let asked = asked_in_vain(Mutation::Correct);
    assert!((5..=20).contains(&asked), "{asked}");
    let asked = asked_in_vain(Mutation::RepeatsAtOnce);
    assert!(asked > 100, "the planted bug is not found: {asked}");
}

/// What the top of a group is may wait for another group, behind a link to there.
#[test]
fn whether_a_group_answers_is_asked_with_what_waits_for_nothing() {
    let mut client = Client::new();
    client.step(Event::Command(Command::OnCut(5000 * MS)));
    client.read(top(EU));
    client.pass(cuts::SUSPECT);
    let mut queries = client.sent().into_iter().filter_map(|(_, request)| match request.body {
        RequestBody::Read { query, .. } => Some(query),
        _ => None,
    });
    let asked = Query::Attributes { inode: top(EU) };
    assert!(queries.any(|query| query != asked && query.keys().is_empty()));
}

/// It needs a group that is cut off, though what must be cancelled before is elsewhere.
#[test]
fn an_update_that_cancels_first_waits_no_longer_for_a_group_that_is_cut_off() {
    let mut client = Client::new();
    client.step(Event::Command(Command::OnCut(Duration::ZERO)));
    client.read(top(EU));
    client.pass(cuts::SILENCE);
    assert!(client.session.cut_since(EU).is_some());
    let given_up = client.update(touch(US));
    client.step(Event::Command(Command::Release(given_up)));
    client.outputs.clear();
    client.sent();
    let begun = client.now;
    let call = client.update(link(US, EU));
    assert!(client.sent().iter().all(|(_, request)| group_of(request) == US), "it cancels first");
    client.pass(cuts::TRY);
    let output = client.outputs.iter().find(|output| output.call() == Some(call));
    assert!(matches!(output, Some(Output::GaveUp { .. })), "{:?}", client.now.since(begun));
}

/// A node whose disk is full may have others beside it that are no quorum.
#[test]
fn a_group_that_has_no_quorum_without_full_disks_ends_the_call() {
    let mut client = Client::new();
    client.update(touch(GroupId::GLOBAL));
    let first = client.sent_one();
    client.reply(&first, ReplyBody::Refused(Refusal::Full));
    let second = client.sent_one();
    assert!(second.0 != first.0 && client.outputs.is_empty());
    client.reply(&second, ReplyBody::Refused(Refusal::Full));
    let failure = Failure::Refused(Refusal::Full);
    assert!(matches!(client.output(), Output::GaveUp { failure: of, .. } if of == failure));
}

#[test]
fn one_group_that_answers_is_enough() {
    let mut client = Client::new();
    client.update(link(US, EU));
    let sent = client.sent();
    client.reply(&sent[0], ReplyBody::Refused(Refusal::Bad("why".into())));
    assert!(client.outputs.is_empty());
    client.decide(&sent[1], 6, DONE);
    assert!(matches!(client.output(), Output::Updated { .. }));
}

#[test]
fn a_released_call_has_no_output() {
    let mut client = Client::new();
    let (update, read) = (client.update(touch(US)), client.read(top(EU)));
    let sent = client.sent();
    client.step(Event::Command(Command::Release(update)));
    client.step(Event::Command(Command::Release(read)));
    client.decide(&sent[0], 6, DONE);
    client.pass(LIMIT);
    assert!(client.outputs.is_empty() && client.sent().is_empty());
    assert_eq!(client.session.given_up(), 1);
}

/// The steps of capabilities that were sent, each with its request.
fn steps(sent: &[(NodeId, Request)]) -> Vec<CapStep> {
    let step = |(_, request): &(NodeId, Request)| match payload_of(request).update() {
        Some(Update::Caps { step, .. }) => step.clone(),
        other => panic!("{other:?}"),
    };
    sent.iter().map(step).collect()
}

#[test]
fn a_look_waits_until_an_exclusive_holder_has_let_go() {
    let mut client = Client::new();
    client.read(top(US));
    let asked = client.sent_one();
    let vector = Vector::default();
    let held = ReplyBody::Answer {
        vector: vector.clone(),
        recalled: Vec::new(),
        whole: true,
        result: Err(FsError::Held),
    };
    client.reply(&asked, held);
    let recall = client.sent();
    assert_eq!(steps(&recall), [CapStep::Recall(vec![top(US).ino])]);
    assert!(client.outputs.is_empty());
    client.decide(&recall[0], 6, DONE);
    let again = client.sent_one();
    assert!(matches!(again.1.body, RequestBody::Read { .. }), "{again:?}");
    let result = Err(FsError::NotFound);
    let answer = ReplyBody::Answer { vector, recalled: Vec::new(), whole: true, result };
    client.reply(&again, answer);
    assert!(matches!(client.output(), Output::Answered { result: Err(FsError::NotFound), .. }));
}

#[test]
fn an_update_is_named_anew_when_exclusive_holders_have_let_go() {
    let mut client = Client::new();
    client.update(link(US, EU));
    let first = client.sent();
    client.decide(&first[0], 5, Err(FsError::Held));
    let recalls = client.sent();
    assert_eq!(recalls.len(), 2, "each of its groups may have one: {recalls:?}");
    client.decide(&recalls[0], 6, DONE);
    assert!(client.sent().is_empty());
    client.decide(&recalls[1], 7, DONE);
    let again = client.sent();
    assert_eq!(again.len(), 2, "{again:?}");
    assert_ne!(start_of(&again[0].1).id, start_of(&first[0].1).id);
    client.decide(&again[0], 8, DONE);
    assert!(matches!(client.output(), Output::Updated { result: Ok(_), .. }));
}

#[test]
fn what_waits_for_a_holder_ends_in_time_or_is_released() {
    let mut client = Client::new();
    let update = client.update(touch(US));
    let first = client.sent_one();
    client.decide(&first, 5, Err(FsError::Held));
    client.pass(LIMIT);
    client.sent();
    assert!(matches!(client.output(), Output::GaveUp { .. }));
    let deadline = client.now + LIMIT;
    client.step(Event::Command(Command::Again { call: update, deadline }));
    client.pass(LIMIT);
    client.sent();
    assert!(matches!(client.output(), Output::GaveUp { .. }), "it was waited for again");
    client.step(Event::Command(Command::Release(update)));
    client.pass(LIMIT * 2);
    assert!(client.outputs.is_empty());
}
