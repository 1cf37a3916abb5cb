//! Snapshots taken while clients work: each is the tree at one timestamp, over all groups.
//!
//! Workers do one thing at a time: they make files in the directories of all regions, one after the
//! other; rename a few *tokens* from region to region; and write over the blocks of their own
//! files. A taker takes one snapshot after the other ([`meridian_session::Taking`]), asks something
//! of it, keeps it for some seconds and ends it. Requests and replies are late and lost, and nodes
//! have all kinds of faults, so that many are not taken.
//!
//! Of those that are, as the replicas keep them, is checked: replicas of a group keep the same; it
//! is one tree, with each token at one place; it has what was acknowledged up to its timestamp and
//! nothing after it; all that was acknowledged before it was begun; of each worker, what it made
//! up to some point and nothing later; and while a node keeps it, none of its blocks is freed
//! there.

mod judge;
mod taker;
pub mod trial;

use super::files::net::{Crowd, Habits, Net};
use super::{Named, draw_all, names_of_planted};
use crate::of::files::words::MESSAGES;
use crate::world::Stimulus;
use bytes::Bytes;
use judge::{Acknowledged, Judge};
use meridian_cluster::Topology;
use meridian_core::{BlockId, Event, GroupId, NodeId, Stamp, Time};
use meridian_fs::operation::{NewNode, Piece, RenameMode, WriteAt};
use meridian_fs::types::{Data, Extent, Kind, Name};
use meridian_fs::{Done, FsError, Ino, Place, Timestamp, Update};
use meridian_host::Node;
use meridian_host::api::{Reply, ReplyBody};
use meridian_host::update::Change;
use meridian_session::{CallId, Command as Ask, Mutation, Output as Told, Session};
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use taker::Taker;

/// `meridian sim backups`.
pub const NAMED: Named = Named {
    name: "backups",
    about: "Snapshots of all regions, taken while clients work",
    help: "\
Each seed is a run of nodes in three regions in simulated time: clients make, write and rename files
within and between regions, and one takes a snapshot of all regions after the other, as a backup
does. Requests are late and lost, and nodes have all kinds of faults. Checked is that each snapshot
is the tree at one timestamp: one tree, equal at all replicas, with all that was acknowledged before
it and nothing that came later, nor anything without what its client had seen; and that no block of
it is freed while it is kept.

Examples:
  meridian sim backups --seeds 10000
  meridian sim backups --seed 137 --trace",
    messages: MESSAGES,
    explained: None,
    settings: &[],
    pin: draw_all::<trial::Trial>,
    planted: names_of_planted::<trial::Trial>,
};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// So many files go from region to region.
const TOKENS: usize = 6;

/// A file that goes from region to region.
#[derive(Clone, Debug)]
struct Token {
    file: Place,
    at: (Place, Name),
}

/// What a worker waits for.
#[derive(Clone, Debug)]
struct Doing {
    call: CallId,
    update: Update,
    token: Option<Token>,
}

#[derive(Default)]
struct Worker {
    doing: Option<Doing>,
    /// Its last file.
    own: Option<Place>,
    left: u64,
}

/// The workers, the taker and the judge.
pub struct BackupsWorkload {
    /// The sessions, and what is on its way.
    pub net: Net<Infallible>,
    workers: Vec<Worker>,
    tops: Vec<Place>,
    /// Those that nobody moves just now.
    tokens: Vec<Token>,
    made: usize,
    last: CallId,
    taker: Taker,
    judge: Judge,
}

impl BackupsWorkload {
    /// So many workers, each of which does so many things, and so many snapshots.
    pub fn new(
        seed: u64,
        topology: Arc<Topology>,
        (workers, things, snapshots): (usize, u64, u64),
        mutation: Mutation,
    ) -> Self {
        let top = |partition| Place { ino: Ino::top(partition), partition };
        let tops = topology.group_ids().map(top).collect();
        let worker = |_| Worker { left: things, ..Worker::default() };
        BackupsWorkload {
            workers: (0..workers).map(worker).collect(),
            tops,
            tokens: Vec::new(),
            made: 0,
            last: CallId(0),
            taker: Taker::new(topology.clone(), snapshots, mutation),
            judge: Judge::default(),
            net: Net::new((seed, 0xbac0), topology, workers as u64 + 1, |session| session),
        }
    }

    fn asked(&mut self, update: Update, now: Time) -> (CallId, Ask) {
        self.last.0 += 1;
        let (call, deadline) = (self.last, now + PATIENCE);
        (call, Ask::Update { call, change: Change::new(Timestamp::default(), update), deadline })
    }

    /// What a worker does next.
    fn choose(&mut self, at: usize, now: Time) -> (Update, Option<Token>) {
        let random = &mut self.net.random;
        let top = *self.tops.choose(random).expect("there are some");
        let number = self.workers[at].left;
        if self.made < TOKENS {
            self.made += 1;
            let name = Bytes::from(format!("token-{}", self.made));
            return (Update::Create { parent: top, name, node: file() }, None);
        }
        let kind = random.random_range(0..4);
        if kind == 0 && !self.tokens.is_empty() {
            let token = self.tokens.swap_remove(random.random_range(0..self.tokens.len()));
            let (from, from_name) = token.at.clone();
            let to_name = Bytes::from(format!("token-{at}-{number}"));
            let update = Update::Rename {
                from,
                from_name,
                to: top,
                to_name,
                moved: token.file,
                replaced: None,
                mode: RenameMode::Replace,
                ancestors: Vec::new(),
                keep_for: None,
                whiteout: None,
            };
            return (update, Some(token));
        }
        if kind == 1
            && let Some(inode) = self.workers[at].own
        {
            let block = BlockId::named(inode.partition, now.0 / 1_000_000, random.random());
            let extent = Extent { len: 100, data: Data::Block { block, start: 0 } };
            let pieces = vec![Piece { offset: 0, extent }];
            return (Update::Write { inode, at: WriteAt::Offset(0), pieces }, None);
        }
        let name = Bytes::from(format!("made-{at}-{number}"));
        (Update::Create { parent: top, name, node: file() }, None)
    }

    fn on_updated(&mut self, at: usize, ts: Stamp, result: &Result<Done, FsError>) {
        let Some(Doing { update, token, .. }) = self.workers[at].doing.take() else { return };
        let Ok(done) = result else {
            self.net.counts.add("refused", 1);
            // Tokens are moved by nobody else: so was this one, by an update that is named anew.
            return;
        };
        match (update, token, done) {
            (Update::Create { parent, name, .. }, _, Done::Attributes(made)) => {
                if name.starts_with(b"token") {
                    self.judge.token(made.place, ts);
                    self.tokens.push(Token { file: made.place, at: (parent, name) });
                } else {
                    self.workers[at].own = Some(made.place);
                    self.judge.acknowledged(Acknowledged { worker: at, parent, name, ts });
                }
                self.net.counts.add("made", 1);
            }
            (Update::Rename { to, to_name, .. }, Some(token), _) => {
                self.tokens.push(Token { at: (to, to_name), ..token });
                self.net.counts.add("renamed", 1);
            }
            (_, _, _) => self.net.counts.add("written", 1),
        }
    }

    fn is_taker(&self, at: usize) -> bool {
        at == self.workers.len()
    }
}

fn file() -> NewNode {
    NewNode::new(Kind::File, 0o644)
}

impl Crowd for BackupsWorkload {
    type Own = Infallible;
    const HABITS: Habits = Habits { pause_ms: 2..60, still: (400, 2_000), gone: 4_000 };

    fn net(&self) -> &Net<Infallible> {
        &self.net
    }

    fn net_mut(&mut self) -> &mut Net<Infallible> {
        &mut self.net
    }

    fn waiting(&self) -> String {
        let all = self.workers.iter().enumerate();
        let of =
            |(at, worker): (usize, &Worker)| Some(format!("{at}: {:?}", worker.doing.as_ref()?));
        all.filter_map(of).chain([format!("{:?}", self.taker)]).collect::<Vec<_>>().join("\n")
    }

    fn on_told(
        &mut self,
        at: usize,
        _now: Time,
        told: Told,
        events: &mut VecDeque<Event<Session>>,
    ) -> Option<Stimulus<Node>> {
        match told {
            Told::Updated { call, ts, result, .. } if self.is_taker(at) => {
                self.taker.on_marked(call, result.is_ok().then_some(ts));
            }
            Told::Updated { call, ts, result, .. } => {
                let doing = self.workers[at].doing.as_ref().map(|doing| doing.call);
                assert_eq!(doing, Some(call), "it does one thing at a time");
                self.on_updated(at, ts, &result);
            }
            Told::GaveUp { call, .. } => {
                self.net.counts.add("given up", 1);
                match self.is_taker(at) {
                    true => self.taker.on_marked(call, None),
                    false => self.workers[at].doing = None,
                }
                events.push_back(Event::Command(Ask::Release(call)));
            }
            other => panic!("nobody asked for {other:?}"),
        }
        None
    }

    fn on_own(&mut self, _at: usize, own: Infallible, _now: Time) -> Ask {
        match own {}
    }

    fn on_reply(
        &mut self,
        _at: usize,
        _from: NodeId,
        reply: &Reply,
        _now: Time,
    ) -> Option<Vec<Stimulus<Node>>> {
        let id = taker::is_own(reply.id).then_some(reply.id)?;
        let answer = match &reply.body {
            ReplyBody::Snapshot(stand) => Some(stand),
            _ => None,
        };
        if let Some((group, queries, answers)) = self.taker.on_answer(id, answer) {
            let compared = self.judge.compare(group, &queries, &answers);
            compared.unwrap_or_else(|what| self.net.violate(what));
            self.net.counts.add("looked", 1);
        }
        Some(Vec::new())
    }

    fn on_freed(&mut self, at: NodeId, blocks: &[BlockId]) {
        if let Err(what) = self.judge.on_freed(at, blocks) {
            self.net.violate(what);
        }
        self.net.counts.add("freed", blocks.len() as u64);
    }

    fn look(&mut self, at: NodeId, node: &Node) {
        let Some(of) = self.taker.taken() else { return };
        if let Err(what) = self.judge.look(at, node, of, &mut self.net.counts) {
            self.net.violate(what);
        }
    }

    fn act(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        if self.is_taker(at) {
            return self.take(at, now);
        }
        if self.workers[at].doing.is_some() || self.workers[at].left == 0 {
            return Vec::new();
        }
        self.workers[at].left -= 1;
        let (update, token) = self.choose(at, now);
        let (call, ask) = self.asked(update.clone(), now);
        self.workers[at].doing = Some(Doing { call, update, token });
        self.step(at, now, Event::Command(ask))
    }

    fn may_go(&self, at: usize) -> bool {
        !self.is_taker(at)
    }

    fn is_done(&self) -> bool {
        let done = |worker: &Worker| worker.left == 0 && worker.doing.is_none();
        let mut all = self.workers.iter().enumerate();
        all.all(|(at, worker)| self.net.is_gone(at) || done(worker)) && self.taker.is_done()
    }
}

impl BackupsWorkload {
    /// The taker goes on.
    fn take(&mut self, at: usize, now: Time) -> Vec<Stimulus<Node>> {
        let step = self.taker.act(now, &mut self.net);
        if step.began {
            self.judge.begin();
        }
        if step.ended {
            self.judge.end();
        }
        let mut stimuli: Vec<_> = step
            .requests
            .into_iter()
            .filter_map(|(to, request)| self.net.send(at, to, request))
            .collect();
        if let Some(groups) = step.mark {
            let (call, ask) = self.asked(Update::Mark { partitions: groups }, now);
            self.taker.marking(call);
            stimuli.extend(self.step(at, now, Event::Command(ask)));
        }
        stimuli
    }
}

/// The directory of a group that everything is made in.
pub(crate) fn top(partition: GroupId) -> Place {
    Place { ino: Ino::top(partition), partition }
}
