//! The far end of [`Processes`](super::processes::Processes): a replica in a process of its own.
//!
//! It reads lines of JSON from standard input and answers so on standard output. When its input
//! ends it closes and ends.

use super::processes::{Answer, Order, Place, Program};
use anyhow::{Context, bail};
use meridian_terminal::{log, output};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::BufRead;
use std::net::TcpListener;
use std::process::ExitCode;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A replica that knows itself and its peers.
pub struct Joined<P: Program> {
    pub place: Place<P::Setup>,
    /// Where it listens.
    pub socket: TcpListener,
    /// Where all replicas listen, by node.
    pub addresses: Vec<String>,
    /// What it is asked from now on, until standard input ends.
    pub requests: UnboundedReceiver<Order<P::Setup, P::Request>>,
}

/// Runs a replica, which `play` is once it has joined the others.
///
/// # Errors
/// If standard output cannot be written.
pub fn run<P: Program>(
    play: impl AsyncFnOnce(Joined<P>) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    log::to_stderr("warn");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let played = runtime.block_on(async {
        match join::<P>().await? {
            Some(joined) => play(joined).await,
            None => Ok(()),
        }
    });
    match played {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            answer::<P>(Answer::Failed(output::one_line(&error)))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// `None` if standard input has ended meanwhile.
async fn join<P: Program>() -> anyhow::Result<Option<Joined<P>>> {
    let mut requests = orders();
    let Some(Order::Be(place)) = requests.recv().await else {
        bail!("this is started by `meridian bench`, not by hand");
    };
    let place: Place<P::Setup> = place;
    let socket = TcpListener::bind(&place.listen)
        .with_context(|| format!("cannot listen on {}", place.listen))?;
    answer::<P>(Answer::Listening(socket.local_addr()?.to_string()))?;
    let joined = requests.recv().await.map(|order| match order {
        Order::Join(addresses) => Ok(Joined { place, socket, addresses, requests }),
        Order::Be(_) | Order::Request(_) => bail!("asked before it has joined"),
    });
    joined.transpose()
}

/// Reports to the parent.
///
/// # Errors
/// If standard output cannot be written.
pub fn report<P: Program>(report: P::Report) -> anyhow::Result<()> {
    answer::<P>(Answer::Report(report))
}

fn answer<P: Program>(answer: Answer<P::Report>) -> anyhow::Result<()> {
    fn print(answer: &impl Serialize) -> anyhow::Result<()> {
        output::print(&serde_json::to_string(answer)?)
    }
    print(&answer)
}

/// What comes on standard input, until it ends.
fn orders<O: DeserializeOwned + Send + 'static>() -> UnboundedReceiver<O> {
    let (send, orders) = unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines().map_while(Result::ok);
        let read = lines.map_while(|line| serde_json::from_str(&line).ok());
        read.map_while(|order| send.send(order).ok()).for_each(drop);
    });
    orders
}
