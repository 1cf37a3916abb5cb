//! Why something came of a message where and when it did: the run of a seed is watched for it.
//!
//! A subject brings an [`Inquiry`], which gathers what it needs event by event and puts it in
//! words; what is the same for all is here.

use crate::trace::Teller;
use crate::trial::{Stage, Subject, run_watched};
use crate::world::{Happened, Watcher};
use meridian_core::{Process, Time};
use std::cell::RefCell;
use std::fmt::{Display, Write};
use std::rc::Rc;
use std::str::FromStr;

/// So many names are told to who asks for one that is not there.
pub(crate) const OTHERS_MAX: usize = 3;

/// Writes a line: what, and what is told of it.
pub(crate) fn line(text: &mut String, what: &str, told: impl Display) {
    let _ = writeln!(text, "  {what:25} {told}");
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Its number.
    pub number: u64,
    /// The time of the world.
    pub at: Time,
    /// What it was.
    pub words: String,
}

impl Moment {
    /// That of an event, told by `teller`.
    pub fn of<P: Process>(event: &Happened<'_, P>, teller: &(impl Teller<P> + ?Sized)) -> Moment {
        Moment { number: event.number, at: event.now, words: teller.words(event) }
    }

    /// When it was, which event, and what.
    pub fn text(&self) -> String {
        format!("{:.3} ms, #{} {}", self.at.0 as f64 / 1e6, self.number, self.words)
    }
}

/// What is gathered of one message of a run.
pub trait Inquiry<S: Subject>: Watcher<S::Process> + Sized + 'static {
    /// What messages are called.
    type Name: FromStr<Err: Display>;

    /// Into the message with this name; to be told of all events.
    fn about(name: Self::Name) -> Self;

    /// What was found, for people, once the run is over.
    ///
    /// # Errors
    /// There was no such message: the names of some that there were.
    fn found(&self, stage: &Stage<S>) -> Result<String, Vec<String>>;
}

/// What an inquiry `I` finds of a message in the run with this seed: see [`Subject::explain`].
///
/// # Errors
/// No message of the run has this name.
pub fn explain<I: Inquiry<S>, S: Subject>(
    subject: &S,
    seed: u64,
    message: &str,
) -> Result<String, String> {
    let name: I::Name = message.parse().map_err(|what| format!("{what}"))?;
    let inquiry = Rc::new(RefCell::new(I::about(name)));
    let (stage, judged) = run_watched(seed, subject, Box::new(inquiry.clone()));
    let found = inquiry.borrow().found(&stage);
    let text = found.map_err(|some| {
        format!("no message of seed {seed} is called {message}: there are {}, ..", some.join(", "))
    })?;
    let drawn = subject.draw(seed);
    let failed = judged.err().map(|what| format!("\n\nviolated: {what}")).unwrap_or_default();
    Ok(format!("seed {seed}; {drawn}\n\n{text}{failed}"))
}

/// Who watches may be looked at later.
impl<P: Process, W: Watcher<P>> Watcher<P> for Rc<RefCell<W>> {
    fn happened(&mut self, event: &Happened<'_, P>) {
        self.borrow_mut().happened(event);
    }

    fn stepped(&mut self, at: P::Peer, process: &P, now: Time) {
        self.borrow_mut().stepped(at, process, now);
    }
}
