//! What replicas of the report say and keep, in words: its names for messages, numbers for
//! instances, and for requests their clients and the clients' numbers.

use crate::lossy::{Lossy, Timer};
use crate::trace::Teller;
use crate::words::{list, of_bytes, of_node, of_nodes, of_request};
use crate::world::{Happened, Way, What};
use meridian_core::ProcessId;
use meridian_paxos::message::{
    CatchUpQuery, CatchUpResponse, CatchUpSnapshot, Missing, PrepareOk, RecoveryAnswer, Vote,
};
use meridian_paxos::{
    Answer, Batch, Command, Consistency, Instance, Kind, Message, Output, Paxos, Record, Request,
    Service,
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words;

impl<S: Service> Teller<Lossy<Paxos<S>>> for Words {
    fn name(&self, peer: ProcessId) -> String {
        of_node(peer.node)
    }

    fn message(&self, _way: Way<ProcessId>, message: &Message) -> String {
        of_message(message)
    }

    fn command(&self, command: &Command) -> String {
        of_command(command)
    }

    fn record(&self, record: &Record) -> String {
        of_record(record)
    }

    fn output(&self, output: &Output) -> String {
        of_output(output)
    }

    fn timer(&self, timer: Timer<meridian_paxos::Timer>) -> String {
        timer.words()
    }

    fn about(&mut self, event: &Happened<'_, Lossy<Paxos<S>>>) -> Vec<String> {
        if let Some((_, _, message)) = event.said() {
            return said(message);
        }
        match event.what {
            What::Record(record) => recorded(record),
            What::Output(output) => told(output),
            _ => event.asked().map(asked).unwrap_or_default(),
        }
    }
}

/// The instances and requests that a message names.
pub fn said(message: &Message) -> Vec<String> {
    match message {
        Message::Prepare(prepare) => vec![of_instance(prepare.from)],
        Message::PrepareOk(told) => told.votes.iter().flat_map(voted).collect(),
        Message::Propose(propose) => named(propose.instance, &propose.batch),
        Message::Accept(accept) => vec![of_instance(accept.instance)],
        Message::CatchUpQuery(query) if query.snapshot.is_some() => Vec::new(),
        Message::CatchUpQuery(query) => missing(&query.missing),
        Message::CatchUpResponse(response) => {
            response.decided.iter().flat_map(|(instance, batch)| named(*instance, batch)).collect()
        }
        Message::RecoveryAnswer(answer) => {
            let votes = answer.told.leader.iter().flat_map(|(_, votes)| votes);
            votes.flat_map(voted).collect()
        }
        Message::Forward(requests) => requests.iter().map(name_of).collect(),
        Message::ReadIndexOk { index, .. } => vec![of_instance(*index)],
        Message::Alive(_)
        | Message::AliveOk(_)
        | Message::Higher { .. }
        | Message::PreVote(_)
        | Message::PreVoteOk { .. }
        | Message::CatchUpSnapshot(_)
        | Message::Recovery(_)
        | Message::ReadIndex { .. }
        | Message::Gone => Vec::new(),
    }
}

/// Those that a command names.
pub fn asked(command: &Command) -> Vec<String> {
    match command {
        Command::Request(request) => vec![name_of(request)],
        Command::Connect { .. } | Command::Read { .. } | Command::Disconnected(_) => Vec::new(),
    }
}

/// Those that a record names.
pub fn recorded(record: &Record) -> Vec<String> {
    match record {
        Record::Accepted(vote) => voted(vote),
        Record::Decided(instance) => vec![of_instance(*instance)],
        Record::Started { .. }
        | Record::Epoch(_)
        | Record::View(_)
        | Record::Snapshot(_)
        | Record::Clients(_) => Vec::new(),
    }
}

/// Those that an output names.
pub fn told(output: &Output) -> Vec<String> {
    match output {
        Output::Reply { client, sequence, .. } => vec![of_request(*client, *sequence)],
        Output::Connected { .. }
        | Output::Read { .. }
        | Output::Members(_)
        | Output::View { .. }
        | Output::Recovered
        | Output::Stopped(_) => Vec::new(),
    }
}

fn name_of(request: &Request) -> String {
    of_request(request.client, request.sequence)
}

fn named(instance: Instance, batch: &Batch) -> Vec<String> {
    let requests = batch.requests().map(|request| name_of(&request));
    [of_instance(instance)].into_iter().chain(requests).collect()
}

fn voted(vote: &Vote) -> Vec<String> {
    named(vote.instance, &vote.batch)
}

fn of_instance(instance: Instance) -> String {
    instance.0.to_string()
}

/// Instances that are asked for; of a run its ends.
fn missing(missing: &Missing) -> Vec<String> {
    let ranges = missing.ranges.iter().flat_map(|(first, last)| [*first, *last]);
    let after = [missing.after];
    ranges.chain(missing.singles.iter().copied()).chain(after).map(of_instance).collect()
}

/// The requests of a batch, in order.
pub fn of_batch(batch: &Batch) -> String {
    list(batch.requests().map(|request| match request.kind {
        Kind::Execute => name_of(&request),
        Kind::Reconfigure => format!("{} (changes members)", name_of(&request)),
    }))
}

fn of_vote(vote: &Vote) -> String {
    let Vote { instance, view, batch, decided } = vote;
    let how = if *decided { ", decided" } else { "" };
    format!("{} in {view}{how}: {}", instance.0, of_batch(batch))
}

/// What one replica says to another.
pub fn of_message(message: &Message) -> String {
    match message {
        Message::Prepare(prepare) => {
            format!("Prepare {}, from instance {} on", prepare.view, prepare.from.0)
        }
        Message::PrepareOk(PrepareOk { view, decided, votes, .. }) => {
            let votes = list(votes.iter().map(of_vote));
            format!("PrepareOk {view}, decided below {}; accepted {votes}", decided.0)
        }
        Message::Propose(propose) => {
            let (view, batch) = (propose.view, of_batch(&propose.batch));
            let (instance, decided) = (propose.instance.0, propose.beat.decided.0);
            format!("Propose {instance} in {view}, decided below {decided}: {batch}")
        }
        Message::Accept(accept) => format!("Accept {} in {}", accept.instance.0, accept.view),
        Message::Alive(alive) => {
            let (highest, decided) = (alive.highest.0, alive.beat.decided.0);
            format!(
                "Alive in {}, decided below {decided}, none begun from {highest} on",
                alive.view
            )
        }
        Message::AliveOk(alive) => format!("AliveOk in {}", alive.view),
        Message::Higher { view } => format!("Higher: it is in {view}"),
        Message::PreVote(vote) => format!("PreVote after {}, round {}", vote.view, vote.round),
        Message::PreVoteOk { round } => format!("PreVoteOk, round {round}"),
        Message::CatchUpQuery(query) => of_query(query),
        Message::CatchUpResponse(response) => of_response(response),
        Message::CatchUpSnapshot(CatchUpSnapshot { part, total, bytes }) => {
            let (position, from, len) = (part.position.0, part.offset, bytes.len());
            format!("CatchUpSnapshot after {position} requests, byte {from}, {len} of {total}")
        }
        Message::Recovery(query) => {
            format!("Recovery of epoch {}, {} is on disk", query.epoch, query.view)
        }
        Message::RecoveryAnswer(answer) => of_recovery(answer),
        Message::Forward(requests) => format!("Forward {}", list(requests.iter().map(name_of))),
        Message::ReadIndex { id } => format!("ReadIndex, question {id}"),
        Message::ReadIndexOk { id, index } => {
            format!("ReadIndexOk, question {id}: below {}", index.0)
        }
        Message::Gone => "Gone: it is no member any more".into(),
    }
}

fn of_query(query: &CatchUpQuery) -> String {
    if let Some(part) = &query.snapshot {
        let (position, from) = (part.position.0, part.offset);
        return format!("CatchUpQuery, snapshot after {position} requests, from byte {from} on");
    }
    let Missing { ranges, singles, after } = &query.missing;
    let ranges = ranges.iter().map(|(first, last)| format!("{} to {}", first.0, last.0));
    let singles = singles.iter().map(|single| single.0.to_string());
    let sure = if query.periodic { " to be sure" } else { "" };
    format!("CatchUpQuery{sure}: {}; all from {} on", list(ranges.chain(singles)), after.0)
}

fn of_response(response: &CatchUpResponse) -> String {
    let CatchUpResponse { decided, periodic, snapshot_only } = response;
    let sure = if *periodic { " to be sure" } else { "" };
    if *snapshot_only {
        return format!("CatchUpResponse{sure}: ask for the snapshot");
    }
    let of =
        |(instance, batch): &(Instance, Batch)| format!("{} is {}", instance.0, of_batch(batch));
    format!("CatchUpResponse{sure}: {}", list(decided.iter().map(of)))
}

fn of_recovery(answer: &RecoveryAnswer) -> String {
    let view = answer.told.view;
    match &answer.told.leader {
        None => format!("RecoveryAnswer, in {view}"),
        Some((decided, votes)) => {
            let votes = list(votes.iter().map(of_vote));
            format!("RecoveryAnswer, leads {view}, decided below {}; accepted {votes}", decided.0)
        }
    }
}

/// What a replica is asked.
pub fn of_command(command: &Command) -> String {
    match command {
        Command::Connect { token } => format!("is to name a client, token {token}"),
        Command::Request(request) => {
            let name = name_of(request);
            match request.kind {
                Kind::Execute => {
                    format!("is to execute {name}, {}", of_bytes(request.payload.len()))
                }
                Kind::Reconfigure => format!("is to execute {name}, which changes members"),
            }
        }
        Command::Read { token, consistency, .. } => {
            let how = match consistency {
                Consistency::Linearizable => "linearizably",
                Consistency::Stale => "what it has",
            };
            format!("is to read {how}, token {token}")
        }
        Command::Disconnected(client) => format!("hears that client {:x} is gone", client.0),
    }
}

/// What a replica writes to its log.
pub fn of_record(record: &Record) -> String {
    match record {
        Record::Started { node, recovery } => {
            format!("{} runs with {}", of_node(*node), recovery.name())
        }
        Record::Epoch(epoch) => format!("epoch {epoch}"),
        Record::View(view) => format!("view {view}"),
        Record::Accepted(vote) => format!("accepted {}", of_vote(vote)),
        Record::Decided(instance) => format!("all below {} are decided", instance.0),
        Record::Snapshot(bytes) => format!("a snapshot of {}", of_bytes(bytes.len())),
        Record::Clients(below) => format!("clients below {below:x} may be named"),
    }
}

fn of_answer(answer: &Answer) -> String {
    match answer {
        Answer::Done(reply) => format!("done, {}", of_bytes(reply.len())),
        Answer::Redirect(None) => "ask another".into(),
        Answer::Redirect(Some(node)) => format!("ask {}", of_node(*node)),
        Answer::Forgotten => "the client was forgotten".into(),
        Answer::TooLong(most) => format!("longer than {}", of_bytes(*most)),
        Answer::Busy => "busy".into(),
    }
}

/// What a replica tells its owner.
pub fn of_output(output: &Output) -> String {
    match output {
        Output::Connected { token, client } => {
            format!("names a client {:x}, token {token}", client.0)
        }
        Output::Reply { client, sequence, answer } => {
            format!("answers {}: {}", of_request(*client, *sequence), of_answer(answer))
        }
        Output::Read { token, answer } => format!("answers token {token}: {}", of_answer(answer)),
        Output::Members(members) => format!("speaks with {}", of_nodes(members.keys())),
        Output::View { view, leading } => {
            format!("is in {view}{}", if *leading { ", which it leads" } else { "" })
        }
        Output::Recovered => "takes part".into(),
        Output::Stopped(stopped) => format!("stops: {stopped}"),
    }
}
