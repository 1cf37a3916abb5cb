//! One request after the other, of any node that answers. A change is made once, however often a
//! line must ask.

use super::KeysOptions;
use super::connection::{Connection, Failure};
use super::course::{Course, Host, Kind, Outcome, Step};
use super::error::KeysError;
use meridian_core::ClientId;
use meridian_keys::resp::answer::Answered;
use meridian_keys::{Moment, names};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep, timeout_at};

/// A node that is silent for so long is asked no more, and another is.
const SILENT: Duration = Duration::from_millis(1500);
/// So many bytes are sent in a microsecond at least: a slow network.
const SENT_PER_MICROSECOND: u64 = 10;
/// A name is used for so long: nodes do not remember it for ever.
const NAME_USED: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Line {
    course: Course,
    connection: Option<Connection>,
    random: u64,
    name: ClientId,
    named_at: Instant,
    sequence: u64,
}

/// A request.
pub(super) struct Request<'a> {
    pub words: &'a [&'a [u8]],
    pub key: &'a [u8],
    pub kind: Kind,
}

/// What a step has led to.
enum Came {
    Outcome(Outcome, String),
    Answer(Answered),
    Error(KeysError),
}

impl Line {
    pub fn new(nodes: usize, first: usize, random: u64) -> Line {
        Line {
            course: Course::new(nodes, first),
            connection: None,
            random,
            name: name(random),
            named_at: Instant::now(),
            sequence: 0,
        }
    }

    /// So often it was connected.
    pub fn connections(&self) -> u64 {
        self.course.connections()
    }

    /// Whether it can be used for another request.
    pub fn is_free(&self) -> bool {
        !self.course.is_in_doubt()
    }

    /// Asks until there is an answer, or it is too late.
    pub async fn ask(
        &mut self,
        options: &KeysOptions,
        request: &Request<'_>,
        deadline: Instant,
    ) -> Result<Answered, KeysError> {
        let kind = request.kind;
        self.course.begin();
        if kind == Kind::Change {
            self.rename();
            self.sequence += 1;
        }
        let mut last = "it is too late".to_string();
        loop {
            let step = self.course.next(kind);
            let late = deadline.min(Instant::now() + SILENT + time_for(request));
            let came = timeout_at(late, self.carry_out(step, options, request)).await;
            let outcome = match came {
                Ok(Came::Answer(answer)) => {
                    self.course.on(step, kind, Outcome::Answered);
                    return Ok(answer);
                }
                Ok(Came::Error(error)) => return Err(self.ended(step, error)),
                Ok(Came::Outcome(outcome, why)) => {
                    if !why.is_empty() {
                        last = why;
                    }
                    outcome
                }
                Err(_) => {
                    last = "it is silent".into();
                    Outcome::Broken
                }
            };
            let pause = self.course.on(step, kind, outcome);
            if !self.course.is_connected() {
                self.connection = None;
            }
            if Instant::now() + pause >= deadline {
                return Err(self.too_late(&options.addresses, last));
            }
            if !pause.is_zero() {
                sleep(pause).await;
            }
        }
    }

    /// Takes a new name now and then.
    fn rename(&mut self) {
        if self.named_at.elapsed() > NAME_USED {
            self.random = meridian_core::mix(self.random);
            (self.name, self.named_at) = (name(self.random), Instant::now());
            (self.sequence, self.connection) = (0, None);
            self.course.leave();
        }
    }

    /// The node answers with an error. That of a change which was asked for says that it was not
    /// made, but for one that comes before the node looks for its name; any other says nothing of
    /// it.
    fn ended(&mut self, step: Step, error: KeysError) -> KeysError {
        let is_early = |why: &String| why.starts_with("NOPERM ") || why.starts_with("OOM ");
        let early = matches!(&error, KeysError::Refused(why) if is_early(why));
        let may_be_made = early && self.course.was_tried();
        self.course.on(step, Kind::Read, Outcome::Answered);
        if !matches!(error, KeysError::Refused(_)) {
            self.connection = None; // Nobody knows where its next answer begins.
            self.course.leave();
        }
        match self.course.is_in_doubt() || may_be_made {
            true => KeysError::Unknown { why: error.to_string() },
            false => error,
        }
    }

    fn too_late(&self, addresses: &[String], why: String) -> KeysError {
        if self.course.is_in_doubt() || self.course.was_tried() {
            return KeysError::Unknown { why };
        }
        KeysError::Unreachable { addresses: addresses.join(", "), why }
    }

    async fn carry_out(
        &mut self,
        step: Step,
        options: &KeysOptions,
        request: &Request<'_>,
    ) -> Came {
        let KeysOptions { addresses, security, .. } = options;
        let done = match (step, self.connection.as_mut()) {
            (Step::Connect(place), _) => {
                match Connection::open(&addresses[place], security).await {
                    Ok(connection) => {
                        self.connection = Some(connection);
                        return Came::Outcome(Outcome::Connected, String::new());
                    }
                    Err(failure) => Err(failure),
                }
            }
            (_, None) => Err(Failure::Broken("it is not connected".into())),
            (Step::Name, Some(connection)) => {
                let name = self.name.0.to_string();
                connection.ask(&[b"MERIDIAN.CLIENT", name.as_bytes()]).await
            }
            (Step::Settle(Host { node, epoch }), Some(connection)) => {
                let (node, epoch) = (node.to_string(), epoch.to_string());
                let command = &b"MERIDIAN.SETTLED"[..];
                connection.ask(&[command, node.as_bytes(), epoch.as_bytes(), request.key]).await
            }
            (Step::Ask, Some(connection)) if request.kind == Kind::Change => {
                let sequence = self.sequence.to_string();
                let mut words = vec![&b"MERIDIAN.ONCE"[..], sequence.as_bytes()];
                words.extend(request.words);
                match connection.ask(&words).await {
                    // Of all regions: what becomes of it cannot be asked.
                    Ok(Answered::Error(why)) if why.starts_with("NOTONCE") => {
                        connection.ask(request.words).await
                    }
                    answer => answer,
                }
            }
            (Step::Ask, Some(connection)) => connection.ask(request.words).await,
        };
        match done {
            Ok(answer) => judge(step, answer),
            Err(Failure::Broken(why)) => Came::Outcome(Outcome::Broken, why),
            Err(Failure::Protocol(error)) => Came::Error(error),
        }
    }
}

/// How long it may take to send it.
fn time_for(request: &Request<'_>) -> Duration {
    let bytes: usize = request.words.iter().map(|word| word.len()).sum();
    Duration::from_micros(bytes as u64 / SENT_PER_MICROSECOND)
}

/// What an answer means.
fn judge(step: Step, answer: Answered) -> Came {
    let Answered::Error(why) = answer else { return accept(step, answer) };
    let outcome = match why.split(' ').next() {
        Some("CLUSTERDOWN" | "BUSY" | "TRYAGAIN") => Outcome::Refused,
        Some("UNKNOWN") => Outcome::Unknown,
        _ => return Came::Error(KeysError::Refused(why)),
    };
    Came::Outcome(outcome, why)
}

fn accept(step: Step, answer: Answered) -> Came {
    let named = |words: &[Answered]| match words {
        [Answered::Integer(node), Answered::Integer(epoch)] => {
            Some(Host { node: *node, epoch: *epoch })
        }
        _ => None,
    };
    let outcome = match (step, &answer) {
        (Step::Ask, _) => return Came::Answer(answer),
        (Step::Settle(_), Answered::Integer(settled)) => Some(Outcome::Settled(*settled == 1)),
        (Step::Name, Answered::Array(words)) => named(words).map(Outcome::Named),
        _ => None,
    };
    match outcome {
        Some(Outcome::Settled(false)) => {
            Came::Outcome(Outcome::Settled(false), "the node asked first may go on".into())
        }
        Some(outcome) => Came::Outcome(outcome, String::new()),
        None => Came::Error(KeysError::Protocol(format!("{answer:?}"))),
    }
}

fn name(random: u64) -> ClientId {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    names::draw(Moment(u64::try_from(now.as_millis()).unwrap_or(u64::MAX)), random)
}
