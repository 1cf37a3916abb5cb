//! The listener under clients that mean no good.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use axum::Router;
use axum::routing::get;
use meridian_metrics::http::{self, CONNECTIONS_MAX, HEAD_MAX};
use meridian_transport::Security;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn served() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = Router::new().route("/metrics", get(async || "a 1\n"));
    tokio::spawn(http::serve(listener, Security::InsecurePlainText, routes));
    address
}

/// What is answered to these bytes.
async fn answered(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn requests_are_answered_and_others_are_refused() {
    let address = served().await;
    let get = answered(address, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(get.starts_with("HTTP/1.1 200 OK\r\n") && get.ends_with("\r\n\r\na 1\n"), "{get}");
    assert!(get.contains("content-length: 4\r\n") && get.contains("connection: close"), "{get}");
    let head = answered(address, b"HEAD /metrics HTTP/1.0\r\n\r\n").await;
    assert!(head.contains("content-length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'x'; HEAD_MAX]].concat();
    let cases: [(&[u8], &str); 6] = [
        (b"GET /none HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"GET metrics HTTP/1.1\r\n\r\n", "404"),
        (b"GET /metrics\r\n\r\n", "400"),
        (b"\xff\xfe\x00\r\n\r\n", "400"),
        (&long, "431"),
    ];
    for (request, status) in cases {
        let answer = answered(address, request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    }
}

/// As many as there are places hold them and say nothing, and more wait behind them. They are
/// given up in their time, not for ever, and then the others are served. Time goes as fast as it
/// can here.
#[tokio::test(start_paused = true)]
async fn who_says_nothing_is_given_up_and_others_are_served() {
    let address = served().await;
    let mut silent = Vec::new();
    for _ in 0..2 * CONNECTIONS_MAX {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let get = answered(address, b"GET /metrics HTTP/1.1\r\n\r\n").await;
    assert!(get.starts_with("HTTP/1.1 200 OK"), "{get}");
    let mut byte = [0];
    let ended = silent[0].read(&mut byte).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "the first was given up: {ended:?}");
}

/// Who sends a byte now and then, for ever, has no more time than who sends nothing.
#[tokio::test(start_paused = true)]
async fn a_request_that_never_ends_is_given_up() {
    let address = served().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (mut read, mut write) = stream.split();
    let begin = tokio::time::Instant::now();
    let drip = async {
        while write.write_all(b"x").await.is_ok() {
            tokio::time::sleep(http::TIME_MAX / 10).await;
        }
    };
    let mut byte = [0];
    let ended = tokio::select! {
        () = drip => None,
        ended = read.read(&mut byte) => Some(ended),
    };
    assert!(matches!(ended, None | Some(Ok(0) | Err(_))), "{ended:?}");
    assert!(begin.elapsed() < http::TIME_MAX * 3);
}
