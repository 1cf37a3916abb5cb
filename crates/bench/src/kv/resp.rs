//! Connections that write keys over RESP: just enough of that protocol to put load on a server.

use crate::harness::latency::{Latency, histogram};
use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use meridian_core::mix;
use serde::Serialize;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A server that says nothing for so long is given up.
const TIMEOUT: Duration = Duration::from_secs(20);

/// When a connection asks a redis-server to wait for its two replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Never.
    Never,
    /// Behind each SET.
    BehindEach,
    /// Once behind all SETs that are sent at once.
    BehindBatch,
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Asking {
    /// Of the servers; connections spread over them.
    pub ports: Vec<u16>,
    pub connections: u32,
    /// So many SETs are sent at once, and more when all are answered.
    pub batch: u32,
    pub waits: Waits,
    pub keys: u32,
    pub value_bytes: u32,
    pub length: Duration,
}

/// How fast it was answered.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    pub per_second: f64,
    /// From sending a batch to its last answer.
    pub batch_p50_us: f64,
    pub batch_p99_us: f64,
}

/// Writes with all connections for a while.
///
/// # Errors
/// If a server does not answer each SET with OK, and each WAIT with two.
pub fn write(asking: &Asking) -> anyhow::Result<Rate> {
    let begin = Instant::now();
    let written = std::thread::scope(|scope| {
        let start = |number| scope.spawn(move || write_one(asking, number));
        let threads: Vec<_> = (0..asking.connections).map(start).collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(written) => written,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect::<anyhow::Result<Vec<_>>>()
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    let mut all = histogram();
    for batches in &written {
        all += batches;
    }
    let latency = Latency::of(&all);
    ensure!(latency.count > 0, "nothing was answered");
    Ok(Rate {
        per_second: latency.count as f64 * f64::from(asking.batch) / seconds,
        batch_p50_us: latency.p50_us,
        batch_p99_us: latency.p99_us,
    })
}

/// How long the batches of one connection took.
fn write_one(asking: &Asking, number: u32) -> anyhow::Result<Histogram<u64>> {
    let port = asking.ports[number as usize % asking.ports.len()];
    let (mut stream, mut replies) = connect(port)?;
    let value = vec![b'v'; asking.value_bytes as usize];
    let (mut drawn, mut request, mut line) = (u64::from(number) << 32, Vec::new(), String::new());
    let mut batches = histogram();
    let begin = Instant::now();
    while begin.elapsed() < asking.length {
        request.clear();
        for _ in 0..asking.batch {
            drawn += 1;
            let key = format!("key:{:012}", mix(drawn) % u64::from(asking.keys));
            command(&mut request, &[b"SET", key.as_bytes(), &value]);
            if asking.waits == Waits::BehindEach {
                command(&mut request, &[b"WAIT", b"2", b"0"]);
            }
        }
        if asking.waits == Waits::BehindBatch {
            command(&mut request, &[b"WAIT", b"2", b"0"]);
        }
        let sent = Instant::now();
        stream.write_all(&request)?;
        let waits = match asking.waits {
            Waits::Never => 0,
            Waits::BehindEach => asking.batch,
            Waits::BehindBatch => 1,
        };
        let (mut done, mut waited) = (0, 0);
        while done + waited < asking.batch + waits {
            line.clear();
            ensure!(replies.read_line(&mut line)? > 0, "the server has ended the connection");
            match line.trim_end() {
                "+OK" => done += 1,
                ":2" => waited += 1,
                other => bail!("a server answers {other}"),
            }
        }
        let nanos = u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX);
        batches.saturating_record(nanos.max(1));
    }
    Ok(batches)
}

fn connect(port: u16) -> anyhow::Result<(TcpStream, BufReader<TcpStream>)> {
    let stream = TcpStream::connect(("127.0.0.1", port))
        .with_context(|| format!("nobody listens at port {port}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let replies = BufReader::new(stream.try_clone()?);
    Ok((stream, replies))
}

fn command(request: &mut Vec<u8>, words: &[&[u8]]) {
    request.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
}

/// Asks one thing on a connection of its own: the first line of the reply, or the text that it
/// announces.
///
/// # Errors
/// If there is no reply.
pub fn call(port: u16, words: &[&[u8]]) -> anyhow::Result<String> {
    let (mut stream, mut replies) = connect(port)?;
    let (mut request, mut line) = (Vec::new(), String::new());
    command(&mut request, words);
    stream.write_all(&request)?;
    replies.read_line(&mut line)?;
    let line = line.trim_end().to_string();
    let Some(len) = line.strip_prefix('$').and_then(|len| len.parse::<usize>().ok()) else {
        return Ok(line);
    };
    ensure!(len <= 1 << 20, "a reply of {len} bytes");
    let mut text = vec![0; len];
    replies.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that answers all as Redis would.
    fn server(answers: usize) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = move |stream: TcpStream| {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let mut stream = stream;
            while let Some(Ok(line)) = lines.next() {
                match line.as_str() {
                    "SET" => stream.write_all(b"+OK\r\n").unwrap(),
                    "WAIT" => stream.write_all(b":2\r\n").unwrap(),
                    "GET" => stream.write_all(b"$3\r\nabc\r\n").unwrap(),
                    _ => {}
                }
            }
        };
        std::thread::spawn(move || {
            let streams = listener.incoming().take(answers).map(Result::unwrap);
            streams.map(|stream| std::thread::spawn(move || serve(stream))).for_each(drop);
        });
        port
    }

    #[test]
    fn batches_are_written_and_waited_for() {
        let ports = vec![server(2), server(2)];
        let asking = |waits| Asking {
            ports: ports.clone(),
            connections: 2,
            batch: 3,
            waits,
            keys: 10,
            value_bytes: 5,
            length: Duration::from_millis(20),
        };
        for waits in [Waits::BehindEach, Waits::BehindBatch] {
            let rate = write(&asking(waits)).unwrap();
            assert!(rate.per_second > 0.0 && rate.batch_p50_us <= rate.batch_p99_us, "{rate:?}");
        }
    }

    #[test]
    fn a_text_is_read_whole_and_an_error_ends_it() {
        assert_eq!(call(server(1), &[b"GET", b"k"]).unwrap(), "abc");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        assert!(call(port, &[b"GET", b"k"]).is_err());
    }
}
