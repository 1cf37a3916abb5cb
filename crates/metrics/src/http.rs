//! A listener for who watches: one request for each connection.
//!
//! It is for a handful of watchers, and may be open to many: whoever calls, there are at most
//! [`CONNECTIONS_MAX`] connections, each with at most [`HEAD_MAX`] bytes of its request and
//! [`TIME_MAX`] of time. Who comes beyond that waits in the kernel's queue.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// So many are served at once: each costs a descriptor and a few kilobytes.
pub const CONNECTIONS_MAX: usize = 32;
/// A request's line and headers have so many bytes at most; browsers send one or two thousand.
pub const HEAD_MAX: usize = 8192;
/// A request is read and answered in that time, or given up.
pub const TIME_MAX: Duration = Duration::from_secs(5);
/// What is there, for who asks for something else.
pub const PATHS: &str = "there are / (the dashboard), /status.json, /metrics and /healthz\n";
/// For so long none is accepted when the system has no descriptor left.
const BREATHER: Duration = Duration::from_millis(100);

/// Takes an address for who watches.
///
/// # Errors
/// If it is none, or cannot be had; in words that name it.
pub fn listen(address: &str) -> std::io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address).map_err(|error| {
        let why = format!("cannot listen on {address} for who watches: {error}");
        std::io::Error::new(error.kind(), why)
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves these routes for ever.
pub async fn serve(listener: TcpListener, routes: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        let Ok((stream, _)) = listener.accept().await else {
            sleep(BREATHER).await;
            continue;
        };
        let routes = routes.clone();
        tokio::spawn(async move {
            // Whether it was answered is the client's concern.
            let _ = timeout(TIME_MAX, converse(stream, routes)).await;
            drop(place);
        });
    }
}

async fn converse(stream: TcpStream, routes: Router) -> hyper::Result<()> {
    let mut bounded = http1::Builder::new();
    bounded.keep_alive(false).max_buf_size(HEAD_MAX);
    bounded.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)).await
}
