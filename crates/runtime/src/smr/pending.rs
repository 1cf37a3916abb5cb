//! What waits for an answer, and for how long.

use crate::smr::client::ClientError;
use crate::smr::wire::{Asked, Told};
use bytes::Bytes;
use meridian_core::ClientId;
use meridian_paxos::{Answer, Consistency, Request};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Where an answer goes.
pub(crate) type Done<T> = oneshot::Sender<Result<T, ClientError>>;

/// The bounds of [`Pace::timeout`].
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// How fast answers come.
#[derive(Debug)]
pub(crate) struct Pace {
    /// A moving average of response times.
    average: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { average: Duration::ZERO }
    }
}

impl Pace {
    /// An answer came after so long.
    fn note(&mut self, response: Duration) {
        self.average = (self.average * 15 + response) / 16;
    }

    /// After how long without an answer another replica is asked (report, section 5.1.2).
    pub(crate) fn timeout(&self) -> Duration {
        (self.average * 3).clamp(TIMEOUT.0, TIMEOUT.1)
    }
}

/// What a client asks its driver.
pub(crate) enum Ask {
    Identity(Done<ClientId>),
    Request(Request, Done<Bytes>),
    Read(Bytes, Consistency, Done<Bytes>),
    /// A session has ended.
    Gone(ClientId),
}

enum What {
    Identity(Done<ClientId>),
    Read(Bytes, Consistency, Done<Bytes>),
}

#[derive(Clone, Copy)]
struct Times {
    /// When it was asked first.
    since: Instant,
    /// When it was sent on the present connection.
    sent: Instant,
    /// It was turned away for now.
    again: bool,
}

/// What an answer leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Something was answered.
    Done,
    /// Nothing.
    Stay,
    /// Ask that replica, or any other.
    Move(Option<meridian_core::NodeId>),
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Pending {
    requests: BTreeMap<ClientId, (Request, Done<Bytes>, Times)>,
    others: BTreeMap<u64, (What, Times)>,
    last_token: u64,
    pub(crate) pace: Pace,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.others.is_empty()
    }

    /// Notes what is asked; what is to be sent.
    pub(crate) fn add(&mut self, now: Instant, ask: Ask) -> Sent {
        let times = Times { since: now, sent: now, again: false };
        let what = match ask {
            Ask::Gone(client) => return Sent::Other(Asked::Gone(client)),
            Ask::Request(request, done) => {
                self.requests.insert(request.client, (request.clone(), done, times));
                return Sent::Request(request);
            }
            Ask::Identity(done) => What::Identity(done),
            Ask::Read(question, consistency, done) => What::Read(question, consistency, done),
        };
        self.last_token += 1;
        let asked = asked(self.last_token, &what);
        self.others.insert(self.last_token, (what, times));
        Sent::Other(asked)
    }

    /// All that is to be sent on a new connection; `now` it is.
    pub(crate) fn again(&mut self, now: Instant) -> Vec<Sent> {
        let mut all = Vec::new();
        self.requests.retain(|_, (_, done, _)| !done.is_closed());
        for (request, _, times) in self.requests.values_mut() {
            (times.sent, times.again) = (now, false);
            all.push(Sent::Request(request.clone()));
        }
        for (token, (what, times)) in &mut self.others {
            (times.sent, times.again) = (now, false);
            all.push(Sent::Other(asked(*token, what)));
        }
        all
    }

    /// What was turned away for now, to be asked again.
    pub(crate) fn turned_away(&mut self) -> Vec<Sent> {
        let mut all = Vec::new();
        for (request, _, times) in self.requests.values_mut() {
            if std::mem::take(&mut times.again) {
                all.push(Sent::Request(request.clone()));
            }
        }
        for (token, (what, times)) in &mut self.others {
            if std::mem::take(&mut times.again) {
                all.push(Sent::Other(asked(*token, what)));
            }
        }
        all
    }

    /// Whether something has waited too long on this connection.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        let timeout = self.pace.timeout();
        let late = |times: &Times| now.duration_since(times.sent) >= timeout;
        self.requests.values().any(|(_, _, times)| late(times))
            || self.others.values().any(|(_, times)| late(times))
    }

    /// Gives up what has waited for so long: `why` tells what is known.
    pub(crate) fn give_up(&mut self, now: Instant, after: Duration, why: impl Fn() -> ClientError) {
        let over = |times: &Times| now.duration_since(times.since) >= after;
        for (_, (_, done, _)) in self.requests.extract_if(.., |_, (_, _, times)| over(times)) {
            let _ = done.send(Err(why())); // Who asked has given up itself.
        }
        for (_, (what, _)) in self.others.extract_if(.., |_, (_, times)| over(times)) {
            what.fail(why());
        }
    }

    /// A replica has told something.
    pub(crate) fn on_told(&mut self, now: Instant, told: Told) -> Next {
        match told {
            Told::Reply { client, sequence, answer } => {
                self.on_answer(now, (client, sequence), answer)
            }
            Told::Read { token, answer } => self.on_read(now, token, answer),
            Told::Connected { token, client } => {
                if let Some((What::Identity(done), times)) = self.others.remove(&token) {
                    self.pace.note(now.duration_since(times.sent));
                    let _ = done.send(Ok(client)); // Who asked has given up.
                }
                Next::Done
            }
            Told::Refused { token: _ } => Next::Move(None),
            Told::LongReply { client, sequence } => {
                self.end(client, sequence, Err(ClientError::LongReply));
                Next::Stay
            }
            Told::LongAnswer { token } => {
                if let Some((what, _)) = self.others.remove(&token) {
                    what.fail(ClientError::LongReply);
                }
                Next::Stay
            }
            Told::Welcome { .. } | Told::Members(_) | Told::Closing(_) => Next::Stay,
        }
    }

    fn on_answer(&mut self, now: Instant, id: (ClientId, u64), answer: Answer) -> Next {
        let Some((request, _, times)) = self.requests.get_mut(&id.0) else { return Next::Stay };
        if request.sequence != id.1 {
            return Next::Stay; // An answer to one that was given up.
        }
        let what = match answer {
            Answer::Redirect(to) => return Next::Move(to),
            Answer::Busy => {
                times.again = true;
                return Next::Stay;
            }
            Answer::Done(reply) => Ok(reply),
            Answer::Forgotten => Err(ClientError::Forgotten),
            Answer::TooLong(max) => Err(ClientError::TooLong { len: request.payload.len(), max }),
        };
        let response = now.duration_since(times.sent);
        self.pace.note(response);
        self.end(id.0, id.1, what);
        Next::Done
    }

    fn end(&mut self, client: ClientId, sequence: u64, what: Result<Bytes, ClientError>) {
        if self.requests.get(&client).is_some_and(|(request, ..)| request.sequence == sequence)
            && let Some((_, done, _)) = self.requests.remove(&client)
        {
            let _ = done.send(what); // Who asked has given up.
        }
    }

    fn on_read(&mut self, now: Instant, token: u64, answer: Answer) -> Next {
        let what = match answer {
            Answer::Redirect(to) => return Next::Move(to),
            Answer::Busy => {
                if let Some((_, times)) = self.others.get_mut(&token) {
                    times.again = true;
                }
                return Next::Stay;
            }
            Answer::Done(reply) => Ok(reply),
            Answer::Forgotten => Err(ClientError::Forgotten),
            Answer::TooLong(max) => Err(ClientError::TooLong { len: max + 1, max }),
        };
        if let Some((What::Read(_, _, done), times)) = self.others.remove(&token) {
            self.pace.note(now.duration_since(times.sent));
            let _ = done.send(what); // Who asked has given up.
        }
        Next::Done
    }
}

/// What is to be sent.
pub(crate) enum Sent {
    Request(Request),
    Other(Asked),
}

fn asked(token: u64, what: &What) -> Asked {
    match what {
        What::Identity(_) => Asked::Identity { token },
        What::Read(question, consistency, _) => {
            Asked::Read { token, question: question.clone(), consistency: *consistency }
        }
    }
}

impl What {
    fn fail(self, why: ClientError) {
        // Who asked may have given up.
        match self {
            What::Identity(done) => drop(done.send(Err(why))),
            What::Read(_, _, done) => drop(done.send(Err(why))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_paxos::Kind;

    #[test]
    fn another_replica_is_asked_after_three_times_the_usual_time() {
        let mut pace = Pace::default();
        assert_eq!(pace.timeout(), Duration::from_millis(500));
        for _ in 0..200 {
            pace.note(Duration::from_secs(1));
        }
        assert!(pace.timeout() > Duration::from_millis(2900));
        for _ in 0..200 {
            pace.note(Duration::from_secs(60));
        }
        assert_eq!(pace.timeout(), Duration::from_secs(30));
    }

    #[tokio::test]
    async fn an_answer_to_what_was_given_up_is_not_taken_for_another() {
        let (mut pending, now) = (Pending::default(), Instant::now());
        let request = |sequence| Request {
            client: ClientId(7),
            sequence,
            kind: Kind::Execute,
            payload: Bytes::new(),
        };
        let (done, mut told) = oneshot::channel();
        pending.add(now, Ask::Request(request(2), done));
        let late = Answer::Done(Bytes::from_static(b"of 1"));
        assert_eq!(pending.on_answer(now, (ClientId(7), 1), late), Next::Stay);
        assert!(told.try_recv().is_err());
        let redirect = Answer::Redirect(Some(meridian_core::NodeId(3)));
        let next = pending.on_answer(now, (ClientId(7), 2), redirect);
        assert_eq!(next, Next::Move(Some(meridian_core::NodeId(3))));
        assert_eq!(pending.again(now).len(), 1);
        let reply = Answer::Done(Bytes::from_static(b"of 2"));
        assert_eq!(pending.on_answer(now, (ClientId(7), 2), reply), Next::Done);
        assert_eq!(told.try_recv().unwrap().unwrap(), "of 2");
        assert!(pending.is_empty());
    }
}
