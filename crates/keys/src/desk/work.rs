//! A request on its way to the replicas of the shards that have its keys.

use super::passing::{self, Part, Passed, Walk};
use super::tasks::{Tasks, is_settled};
use super::watch::{Subject, WATCHERS_MAX, Watchers};
use super::{ClientNumber, Counter, Now, Progress, Replica, Seat, not_serving};
use crate::access::{Access, Read};
use crate::causal::desk::Wish;
use crate::command::{Combined, Command, Connection, Scan, Watch, describe, settings};
use crate::connection::Peer;
use crate::grant::{Grant, Mutation};
use crate::names;
use crate::resp::Reply;
use crate::slots::{Shard, shard_of, slot_of};
use bytes::Bytes;
use meridian_core::MessageId;
use meridian_hermes::Command as Asked;
use std::sync::Arc;

/// The answer to one request is no longer than this, in bytes: the longest value, and as much again
/// for several.
pub const REPLY_MAX: usize = 128 << 20;

/// Why a request has no name: that of its update is another.
const NOT_ONCE: &str = "NOTONCE the key is causal: ask without MERIDIAN.ONCE. If no answer comes, \
                        the change may have been made or not";
/// Causal keys and others are two stores, with different promises.
const CROSSED: &str = "CROSSSLOT causal keys and keys of this region in one command: ask for them \
                       apart";

/// A request on its way to replicas.
pub(super) struct Work<'a> {
    pub now: Now,
    /// Whose, and which of its requests.
    pub place: (ClientNumber, u64),
    /// Whether all before it are answered.
    pub is_first: bool,
    pub seat: Seat,
    /// When keys take so many bytes, nothing more is taken.
    pub bytes_max: usize,
    /// Keys that begin so are causal, if there are such.
    pub causal: Option<&'a Bytes>,
    /// What the client may do, if not all.
    pub grant: Option<Arc<Grant>>,
    pub replica: &'a Replica,
    pub tasks: &'a mut Tasks,
    pub watchers: &'a mut Watchers,
    pub mutation: Mutation,
}

impl Work<'_> {
    pub fn execute(
        &mut self,
        command: Command<'_>,
        peer: &mut Peer,
        counter: &mut impl Counter,
    ) -> Progress {
        if let Some(grant) = &self.grant
            && let Err(refused) = self.mutation.check(grant, &command)
        {
            self.do_anyway(command, peer, counter);
            return Progress::Done(refused);
        }
        if peer.watches.is_some() && !matches!(command, Command::Connection(_)) {
            return Progress::Done(Reply::error("this connection watches: use another one"));
        }
        if command.grows() && self.bytes(counter) >= self.bytes_max {
            return Progress::Done(self.full(counter));
        }
        let command = match self.take_causal(command, peer, counter) {
            Ok(progress) => return progress,
            Err(command) => command,
        };
        let reply = match command {
            Command::One { key, access } => return self.one(key, None, access, counter),
            Command::Once { sequence, key, access } => match peer.client {
                Some(client) => {
                    return self.one(key, Some(MessageId { client, sequence }), access, counter);
                }
                None => Reply::error("this connection has no name: ask MERIDIAN.CLIENT first"),
            },
            Command::Many { each, combined } => return self.begin_all(each, combined, counter),
            Command::Scan(scan) => return self.scan(scan, counter),
            Command::Settled { node, epoch, key } => {
                let shard = shard_of(key, self.seat.shards);
                if shard != self.seat.shard {
                    counter.pass(shard, Passed::Settled(self.part(0), node, epoch));
                    return Progress::One;
                }
                is_settled(node, epoch, self.replica)
            }
            Command::Session(token, wait) => {
                let token = token.map(Bytes::copy_from_slice);
                let wish = token.map_or(Wish::Token, |token| Wish::GoOn(token, wait));
                return self.pass_causal(wish, peer, counter);
            }
            Command::Watch(watch) => self.watch(&watch, peer, counter),
            Command::Slot(key) => Reply::Integer(slot_of(key).into()),
            Command::Size => count(self.replica.len() + counter.elsewhere().keys),
            Command::Named(_) if !self.replica.is_live() => not_serving(),
            Command::Named(client) if !names::is_fresh(client, self.now.moment) => {
                Reply::error("a name begins with the minutes since 2020, in 24 bits")
            }
            Command::Named(client) => {
                peer.client = Some(client);
                let epoch = i64::try_from(self.replica.membership().epoch.0).unwrap_or(i64::MAX);
                let node = Reply::Integer(self.replica.me().0.into());
                Reply::Array(vec![node, Reply::Integer(epoch)])
            }
            Command::Connection(asked) => peer.handle(&asked),
            Command::Info(sections) => Reply::Text(counter.info(&sections).into()),
            Command::Describe(what) => describe(&what),
            Command::Settings(patterns) => settings(&patterns, self.bytes_max),
        };
        Progress::Done(reply)
    }

    /// The bug [`Mutation::DoesAnyway`]: nobody is told what comes of it.
    fn do_anyway(&mut self, refused: Command<'_>, peer: &mut Peer, counter: &mut impl Counter) {
        let has_keys = matches!(refused, Command::One { .. } | Command::Many { .. });
        if has_keys && self.mutation.is(Mutation::DoesAnyway) {
            (self.grant, self.place.0) = (None, ClientNumber::MAX);
            self.execute(refused, peer, counter);
        }
    }

    /// Why nothing is taken that would take room.
    fn full(&self, counter: &impl Counter) -> Reply {
        let bytes = self.bytes(counter);
        let why = format!(
            "OOM keys take {bytes} bytes already: nothing more is taken until some are removed"
        );
        Reply::Error(why.into())
    }

    /// Does what concerns causal keys; gives back what does not.
    fn take_causal<'c>(
        &mut self,
        command: Command<'c>,
        peer: &mut Peer,
        counter: &mut impl Counter,
    ) -> Result<Progress, Command<'c>> {
        let reply = match command {
            Command::One { key, access } if self.is_causal(key) => {
                let each = vec![(Bytes::copy_from_slice(key), access)];
                return Ok(self.pass_causal(Wish::Each(each, Combined::First), peer, counter));
            }
            Command::Once { key, .. } | Command::Settled { key, .. } if self.is_causal(key) => {
                Reply::Error(NOT_ONCE.into())
            }
            Command::Many { each, combined } if each.iter().any(|(key, _)| self.is_causal(key)) => {
                return Ok(self.many_causal(each, combined, peer, counter));
            }
            Command::Watch(Watch::Key(key) | Watch::Prefix(key)) if self.is_causal(key) => {
                Reply::error("causal keys cannot be watched yet: ask for them again and again")
            }
            Command::Connection(Connection::Reset) if peer.is_session => {
                match peer.handle(&Connection::Reset) {
                    error if error.is_error() => error,
                    done => return Ok(self.pass_causal(Wish::Begin(done), peer, counter)),
                }
            }
            command => return Err(command),
        };
        Ok(Progress::Done(reply))
    }

    fn is_causal(&self, key: &[u8]) -> bool {
        self.causal.is_some_and(|prefix| key.starts_with(prefix))
    }

    /// A command on several keys of which some are causal.
    fn many_causal(
        &mut self,
        each: Vec<(&[u8], Access)>,
        combined: Combined,
        peer: &mut Peer,
        counter: &mut impl Counter,
    ) -> Progress {
        if !each.iter().all(|(key, _)| self.is_causal(key)) {
            return Progress::Done(Reply::Error(CROSSED.into()));
        }
        let reads = |(_, access): &(&[u8], Access)| *access == Access::Read(Read::Get);
        let wish = if combined == Combined::List && each.iter().all(reads) {
            Wish::Snapshot(each.iter().map(|(key, _)| Bytes::copy_from_slice(key)).collect())
        } else {
            let owned = |(key, access)| (Bytes::copy_from_slice(key), access);
            Wish::Each(each.into_iter().map(owned).collect(), combined)
        };
        self.pass_causal(wish, peer, counter)
    }

    /// Passes it to the thread that has the causal keys.
    fn pass_causal(&mut self, wish: Wish, peer: &mut Peer, counter: &mut impl Counter) -> Progress {
        if self.causal.is_none() {
            return Progress::Done(Reply::error(
                "no keys are causal here: servers have an option, --keys-causal PREFIX",
            ));
        }
        peer.is_session = true;
        counter.pass(self.seat.causal(), Passed::Causal(self.part(0), wish));
        Progress::One
    }

    fn threads(&self) -> usize {
        self.seat.shards + usize::from(self.causal.is_some())
    }

    /// What the keys of all shards take.
    fn bytes(&self, counter: &impl Counter) -> usize {
        self.replica.bytes() + counter.elsewhere().bytes
    }

    fn part(&self, part: usize) -> Part {
        let (client, request) = self.place;
        Part { client, request, part }
    }

    fn one(
        &mut self,
        key: &[u8],
        id: Option<MessageId>,
        access: Access,
        counter: &mut impl Counter,
    ) -> Progress {
        let wish = passing::Wish { key: Bytes::copy_from_slice(key), id, access };
        self.begin(0, wish, counter).map_or(Progress::One, Progress::Done)
    }

    /// Some keys of one shard, and where to go on, in the next shard at the end of one. A key that
    /// is there all the time is shown by a walk from cursor 0 to cursor 0; one that comes or goes
    /// meanwhile may be.
    fn scan(&mut self, scan: Scan, counter: &mut impl Counter) -> Progress {
        let Scan { cursor, pattern, count, none } = scan;
        let shard = match u8::try_from(cursor >> 32) {
            Ok(shard) if usize::from(shard) < self.threads() => Shard(shard),
            _ => return Progress::Done(cursor_and(0, Vec::new())),
        };
        let from = u32::try_from(cursor & u64::from(u32::MAX)).expect("masked");
        let grant = self.grant.clone().filter(|_| !self.mutation.is(Mutation::ShowsAll));
        let walk = Walk { from, pattern, grant, count };
        if shard != self.seat.shard {
            counter.pass(shard, Passed::Walk(self.part(0), walk));
            return Progress::Page { shard, none };
        }
        let at = (shard, self.part(0));
        match self.tasks.walk(self.now, at, walk, self.replica, counter) {
            Some(found) => Progress::Done(page(found, shard, self.threads(), none)),
            None => Progress::Page { shard, none },
        }
    }

    fn watch(&mut self, watch: &Watch<'_>, peer: &mut Peer, counter: &mut impl Counter) -> Reply {
        if !self.is_first {
            return Reply::error("a watch begins when all that was asked before is answered");
        }
        if self.watchers.len() >= WATCHERS_MAX {
            return Reply::Error(format!("BUSY {WATCHERS_MAX} clients watch here already").into());
        }
        if !self.replica.is_live() {
            return not_serving();
        }
        let Seat { shard: own, shards } = self.seat;
        let (subject, shards): (_, Vec<_>) = match watch {
            Watch::Key(key) => {
                (Subject::Key(Bytes::copy_from_slice(key)), vec![shard_of(key, shards)])
            }
            Watch::Prefix(prefix) => {
                let all = self.seat.others().chain([own]);
                (Subject::Prefix(Bytes::copy_from_slice(prefix)), all.collect())
            }
        };
        peer.watches = Some(subject.clone());
        for shard in shards {
            if shard != own {
                counter.pass(shard, Passed::Watch(self.place.0, subject.clone()));
            } else if self.watchers.begin((own, self.place.0), subject.clone()) {
                counter.ask(Asked::Watch(true));
            }
        }
        Reply::OK
    }

    fn begin_all(
        &mut self,
        each: Vec<(&[u8], Access)>,
        combined: Combined,
        counter: &mut impl Counter,
    ) -> Progress {
        let keys = each.into_iter().enumerate();
        let begun = keys.map(|(part, (key, access))| {
            let wish = passing::Wish { key: Bytes::copy_from_slice(key), id: None, access };
            self.begin(part, wish, counter)
        });
        let parts: Vec<_> = begun.collect();
        match parts.iter().filter(|part| part.is_none()).count() {
            0 => Progress::Done(together(combined, parts)),
            left => Progress::Many { combined, parts, left },
        }
    }

    /// Asks the replica of this thread, which may answer at once, or another desk.
    fn begin(
        &mut self,
        part: usize,
        wish: passing::Wish,
        counter: &mut impl Counter,
    ) -> Option<Reply> {
        let (to, part) = (shard_of(&wish.key, self.seat.shards), self.part(part));
        if to == self.seat.shard {
            return self.tasks.begin(self.now, (to, part), wish, self.replica, counter);
        }
        counter.pass(to, Passed::Wish(part, wish));
        None
    }
}

/// The answer of SCAN, of the walk through a shard.
pub(super) fn page(found: Reply, shard: Shard, threads: usize, none: bool) -> Reply {
    let Reply::Array(found) = found else { return found };
    let [Reply::Integer(next), Reply::Array(keys)] =
        <[Reply; 2]>::try_from(found).expect("a walk ends with a place and keys")
    else {
        panic!("D1: no place and keys in answer to a walk");
    };
    let cursor = match u64::try_from(next) {
        Ok(place @ 1..) => u64::from(shard.0) << 32 | place,
        _ if usize::from(shard.0) + 1 < threads => (u64::from(shard.0) + 1) << 32,
        _ => 0,
    };
    cursor_and(cursor, if none { Vec::new() } else { keys })
}

fn cursor_and(cursor: u64, keys: Vec<Reply>) -> Reply {
    Reply::Array(vec![Reply::Bulk(Bytes::from(cursor.to_string())), Reply::Array(keys)])
}

fn count(count: usize) -> Reply {
    Reply::Integer(i64::try_from(count).expect("a number of things in memory"))
}

pub(crate) fn together(combined: Combined, parts: Vec<Option<Reply>>) -> Reply {
    let replies: Vec<_> = parts.into_iter().flatten().collect();
    let len = |reply: &Reply| if let Reply::Bulk(bytes) = reply { bytes.len() } else { 0 };
    if replies.iter().map(len).sum::<usize>() > REPLY_MAX {
        return Reply::error(format!("the values are longer than {REPLY_MAX} bytes together"));
    }
    combined.combine(replies)
}
