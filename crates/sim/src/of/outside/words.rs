//! What members and clients that are members of none say to each other, in words: those of the
//! multicast, and what passes between a client and a member.

use super::station::{Alarm, NOWHERE, Station, Told, Travels};
use crate::of::multicast::replica::Kept;
use crate::of::multicast::words as multicast;
use crate::trace::Teller;
use crate::world::{Happened, Way, What};
use meridian_core::{MessageId, ProcessId};
use meridian_multicast::outside::{self, Refusal, Say};

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Words {
    multicast: multicast::Words,
}

impl Teller<Station> for Words {
    fn name(&self, peer: ProcessId) -> String {
        if peer.group == NOWHERE { format!("c{}", peer.node.0) } else { peer.to_string() }
    }

    fn message(&self, _way: Way<ProcessId>, message: &Travels) -> String {
        match message {
            Travels::Inside(message) => multicast::of_message(message),
            Travels::Outside(say) => of_say(say),
        }
    }

    fn command(&self, command: &outside::Command) -> String {
        let outside::Command::Multicast { call, message, .. } = command;
        let (to, touches) = (&message.dest, multicast::of_touches(&message.touches));
        format!("is to multicast to {}{touches}, call {call}", multicast::of_groups(to))
    }

    fn record(&self, record: &Kept) -> String {
        multicast::of_kept(record)
    }

    fn output(&self, output: &Told) -> String {
        match output {
            Told::Member(output) => multicast::of_output(output),
            Told::Client(outside::Output { call, outcome: Ok(ts) }) => {
                format!("call {call} is delivered at {}", ts.0)
            }
            Told::Client(outside::Output { call, outcome: Err(failure) }) => {
                format!("call {call} fails: {failure}")
            }
        }
    }

    fn timer(&self, timer: Alarm) -> String {
        match timer {
            Alarm::Member(timer) => format!("{timer:?}"),
            Alarm::Client(due) => format!("{due:?}"),
        }
    }

    fn about(&mut self, event: &Happened<'_, Station>) -> Vec<String> {
        let about = match (event.said(), event.what) {
            (Some((sent, way, Travels::Inside(message))), _) => {
                self.multicast.said(sent, way, message)
            }
            (Some((_, _, Travels::Outside(say))), _) => vec![said(say)],
            (None, What::Record(record)) => multicast::kept(record),
            (None, What::Output(Told::Member(output))) => multicast::told(output),
            _ => Vec::new(),
        };
        about.iter().map(ToString::to_string).collect()
    }
}

/// The message that it is about.
fn said(say: &Say) -> MessageId {
    match say {
        Say::Start(start) => start.id,
        Say::Delivered { id, .. } | Say::Refused { id, .. } => *id,
    }
}

fn of_say(say: &Say) -> String {
    match say {
        Say::Start(start) => format!("Start {}", multicast::of_start(start)),
        Say::Delivered { id, ts } => format!("Delivered {id} at {}", ts.0),
        Say::Refused { id, why } => format!("Refused {id}: {}", of_refusal(*why)),
    }
}

fn of_refusal(refusal: Refusal) -> String {
    match refusal {
        Refusal::Unreachable(group) => format!("g{} has no quorum in reach", group.0),
        Refusal::NoGroup(group) => format!("there is no g{}", group.0),
        Refusal::NotForUs => "it is not for this group".into(),
        Refusal::Busy => "too many clients are new".into(),
    }
}
