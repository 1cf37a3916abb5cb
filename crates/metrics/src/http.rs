//! A listener for who watches: one request for each connection.
//!
//! It asks for a certificate (decision 109): of a watcher, an admin or a node of the cluster, or
//! the one that it shows itself. Who speaks plain text, or has another, is told so.
//!
//! It is for a handful of watchers, and may be open to many: whoever calls, there are at most
//! [`CONNECTIONS_MAX`] connections, each with at most [`HEAD_MAX`] bytes of its request and
//! [`TIME_MAX`] of time, of which showing certificates is a part. Who comes beyond that waits in
//! the kernel's queue. Who is refused is counted; the log has a line a minute at most.

use axum::Router;
use axum::http::StatusCode;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use meridian_core::principal::Speaker;
use meridian_transport::{Refusal, Security};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

/// So many are served at once: each costs a descriptor and some kilobytes.
pub const CONNECTIONS_MAX: usize = 32;
/// A request's line and headers have so many bytes at most; browsers send one or two thousand.
pub const HEAD_MAX: usize = 8192;
/// Certificates are shown, and a request is read and answered, in that time, or given up.
pub const TIME_MAX: Duration = Duration::from_secs(5);
/// What is there, for who asks for something else.
pub const PATHS: &str = "there are / (the dashboard), /status.json, /metrics and /healthz\n";
/// For who speaks plain text to a port that does not.
pub const WANTS_TLS: &str =
    "this port speaks HTTPS, and asks for the certificate of a watcher (meridian certify)\n";
/// For so long none is accepted when the system has no descriptor left.
const BREATHER: Duration = Duration::from_millis(100);
/// The log has no second line on who is refused before that: strangers must not fill it.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// Takes an address for who watches.
///
/// # Errors
/// If it is none, or cannot be had; in words that name it.
pub fn listen(address: &str) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address).map_err(|error| {
        let why = format!("cannot listen on {address} for who watches: {error}");
        io::Error::new(error.kind(), why)
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// What the URLs of a listener that is secured so begin with.
pub fn scheme(security: &Security) -> &'static str {
    match security {
        Security::InsecurePlainText => "http",
        Security::Tls(..) => "https",
    }
}

/// Serves these routes for ever.
pub async fn serve(listener: TcpListener, security: Security, routes: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let door = Arc::new(Door { security, routes, log: Mutex::default() });
    loop {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        let Ok((stream, from)) = listener.accept().await else {
            sleep(BREATHER).await;
            continue;
        };
        let door = door.clone();
        tokio::spawn(async move {
            // Whether it was answered is the client's concern.
            let _ = timeout(TIME_MAX, door.converse(stream, from)).await;
            drop(place);
        });
    }
}

/// Whom a listener lets in, and what they find.
struct Door {
    security: Security,
    routes: Router,
    log: Mutex<Log>,
}

impl Door {
    async fn converse(&self, tcp: TcpStream, from: SocketAddr) -> io::Result<()> {
        if matches!(self.security, Security::InsecurePlainText) {
            return answer(tcp, self.routes.clone()).await;
        }
        if speaks_http(&tcp).await? {
            self.refuse(from, "it speaks plain text");
            return answer(tcp, telling(StatusCode::BAD_REQUEST, WANTS_TLS)).await;
        }
        let stream = match self.security.accept_any(tcp).await {
            Ok(stream) => stream,
            Err(Refusal::Io(error)) => return Err(error),
            Err(refusal @ Refusal::Unauthorized(_)) => {
                self.refuse(from, &refusal.to_string());
                return Ok(());
            }
        };
        let routes = match self.admits(stream.speaker()) {
            true => self.routes.clone(),
            false => {
                let who = stream.speaker();
                let why = format!("not authorized: {who} is no watcher, no admin and no node");
                self.refuse(from, &why);
                telling(StatusCode::FORBIDDEN, format!("{why}\n"))
            }
        };
        let (reader, writer) = stream.into_split();
        answer(tokio::io::join(reader, writer), routes).await
    }

    /// Whoever has the certificate that is shown here may see what is told here.
    fn admits(&self, who: &Speaker) -> bool {
        who.may_watch() || *who == self.security.own()
    }

    /// Counts and logs a connection of one that is not served.
    fn refuse(&self, from: SocketAddr, why: &str) {
        self.security.count_refused();
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(unsaid) = log.refused(Instant::now()) {
            tracing::warn!(
                from = %from.ip(), why, unsaid,
                "somebody is refused who would watch; more within a minute are only counted"
            );
        }
    }
}

/// When the log was told of who is refused.
#[derive(Debug, Default)]
struct Log {
    told: Option<Instant>,
    /// How many it was not told of since.
    unsaid: u64,
}

impl Log {
    /// One more is refused. If the log is to be told: how many it was not told of.
    fn refused(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now.duration_since(told) < LOG_AGAIN) {
            self.unsaid += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

/// Whether what comes begins as requests of HTTP do, and TLS does not: with a letter.
async fn speaks_http(tcp: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    Ok(tcp.peek(&mut first).await? == 1 && first[0].is_ascii_alphabetic())
}

/// Answers all with this.
fn telling(status: StatusCode, why: impl Into<String>) -> Router {
    let why = why.into();
    Router::new().fallback(async move || (status, why))
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, routes: Router) -> io::Result<()> {
    let mut bounded = http1::Builder::new();
    bounded.keep_alive(false).max_buf_size(HEAD_MAX);
    let served = bounded.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    served.await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_one_line_a_minute_and_the_next_tells_how_many_came_between() {
        let (mut log, begin) = (Log::default(), Instant::now());
        let at = |s| begin + Duration::from_secs(s);
        assert_eq!(log.refused(at(0)), Some(0));
        assert!((1..60).all(|s| log.refused(at(s)).is_none()));
        assert_eq!(log.refused(at(60)), Some(59));
        assert_eq!(log.refused(at(119)), None);
        assert_eq!(log.refused(at(300)), Some(1));
    }
}
