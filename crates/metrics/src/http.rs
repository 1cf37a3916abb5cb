//! A listener for who watches: `GET` and `HEAD`, one request for each connection.
//!
//! It is for a handful of watchers, and may be open to many: whoever calls, there are at most
//! [`CONNECTIONS_MAX`] connections, each with at most [`HEAD_MAX`] bytes of its request and
//! [`TIME_MAX`] of time. Who comes beyond that waits in the kernel's queue.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// So many are served at once: each costs a descriptor and a few kilobytes.
pub const CONNECTIONS_MAX: usize = 32;
/// A request's line and headers have so many bytes at most; browsers send one or two thousand.
pub const HEAD_MAX: usize = 8192;
/// A request is read and answered in that time, or given up.
pub const TIME_MAX: Duration = Duration::from_secs(5);
/// For so long none is accepted when the system has no descriptor left.
const BREATHER: Duration = Duration::from_millis(100);

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// For example 200 or 503.
    pub status: u16,
    /// `Content-Type`.
    pub kind: &'static str,
    /// What is said.
    pub body: String,
}

impl Answer {
    /// A line of text.
    pub fn line(status: u16, line: &str) -> Answer {
        Answer { status, kind: "text/plain; charset=utf-8", body: format!("{line}\n") }
    }
}

/// Serves for ever; `answer` is asked for each path, without what follows a `?`.
pub async fn serve<F>(listener: TcpListener, answer: impl Fn(String) -> F + Send + Sync + 'static)
where
    F: Future<Output = Option<Answer>> + Send,
{
    let (places, answer) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), Arc::new(answer));
    loop {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        let Ok((stream, _)) = listener.accept().await else {
            sleep(BREATHER).await;
            continue;
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            // Whether it was answered is the client's concern.
            let _ = timeout(TIME_MAX, converse(stream, &*answer)).await;
            drop(place);
        });
    }
}

async fn converse<F>(mut stream: TcpStream, answer: &impl Fn(String) -> F) -> std::io::Result<()>
where
    F: Future<Output = Option<Answer>>,
{
    let (mut head, mut len) = ([0; HEAD_MAX], 0);
    let read = loop {
        match stream.read(&mut head[len..]).await? {
            0 => return Ok(()),
            more => len += more,
        }
        if head[..len].windows(4).any(|end| end == b"\r\n\r\n") {
            break Ok(());
        }
        if len == HEAD_MAX {
            break Err(Answer::line(431, "the request is too long"));
        }
    };
    let request = read.and_then(|()| request(&head[..len]));
    let (answer, with_body) = match request {
        Err(refused) => (refused, true),
        Ok((path, with_body)) => {
            let missing = || Answer::line(404, "there are /metrics and /healthz");
            (answer(path).await.unwrap_or_else(missing), with_body)
        }
    };
    stream.write_all(written(&answer, with_body).as_bytes()).await?;
    stream.shutdown().await?;
    // What is not read when the socket is closed would make the system throw the answer away.
    while stream.read(&mut head).await? > 0 {}
    Ok(())
}

/// The path that is asked for, and whether its text is wanted.
fn request(head: &[u8]) -> Result<(String, bool), Answer> {
    let bad = || Answer::line(400, "this is not a request of HTTP");
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| bad())?;
    let words: Vec<_> = line.split(' ').collect();
    let [method, target, version] = words[..] else { return Err(bad()) };
    if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return Err(bad());
    }
    let with_body = match method {
        "GET" => true,
        "HEAD" => false,
        _ => return Err(Answer::line(405, "there are GET and HEAD")),
    };
    let path = target.split('?').next().unwrap_or_default();
    Ok((path.into(), with_body))
}

fn written(answer: &Answer, with_body: bool) -> String {
    let Answer { status, kind, body } = answer;
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "",
    };
    let allow = if *status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let len = body.len();
    let body = if with_body { body.as_str() } else { "" };
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{allow}\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n{body}"
    )
}
