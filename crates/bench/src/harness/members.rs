//! Members of a protocol inside this process: where they listen, the threads that they share, their
//! end.

use anyhow::Context;
use meridian_core::Endpoint;
use meridian_runtime::{Handle, Worker};
use std::collections::BTreeMap;
use std::net::TcpListener;

/// A socket for each member, in the order of `members`, and all addresses.
///
/// # Errors
/// If no port of this machine can be had.
pub fn sockets<E: Endpoint>(
    members: &[E],
) -> anyhow::Result<(BTreeMap<E, String>, Vec<TcpListener>)> {
    let (mut addresses, mut sockets) = (BTreeMap::new(), Vec::new());
    for member in members {
        let socket = TcpListener::bind("127.0.0.1:0").context("cannot listen on 127.0.0.1")?;
        addresses.insert(*member, socket.local_addr()?.to_string());
        sockets.push(socket);
    }
    Ok((addresses, sockets))
}

/// So many threads for members to run on.
///
/// # Errors
/// If the system refuses one.
pub fn workers(count: usize) -> anyhow::Result<Vec<Worker>> {
    let workers = (0..count).map(|at| Worker::start(&format!("bench-{at}")));
    Ok(workers.collect::<Result<_, _>>()?)
}

/// Ends all members, in order.
///
/// # Errors
/// If one had stopped by itself.
pub async fn close<R: Send + 'static, E: Endpoint>(members: &[Handle<R, E>]) -> anyhow::Result<()> {
    for member in members {
        member.close().await?;
    }
    Ok(())
}
