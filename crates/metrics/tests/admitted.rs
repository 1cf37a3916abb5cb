//! Whom the listener serves, where there are certificates (decision 109).

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

#[allow(dead_code)] // Other tests use the rest of it.
#[path = "../../transport/tests/intruder/mod.rs"]
mod intruder;

use axum::Router;
use axum::routing::get;
use meridian_core::principal::Role;
use meridian_metrics::http::{self, TIME_MAX, WANTS_TLS};
use meridian_transport::{Authority, Credentials, Files, Issued, Security};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

const DAY: Duration = Duration::from_secs(24 * 3600);
const LIMIT: Duration = Duration::from_secs(20);
const GET: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";

/// A listener, and who signs certificates of its cluster.
struct Served {
    dir: tempfile::TempDir,
    authority: Authority,
    security: Security,
    address: SocketAddr,
}

impl Served {
    /// It shows what `own` makes of the authority.
    async fn new(own: impl FnOnce(&Authority) -> Issued) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let (authority, issued) = Authority::new("7").unwrap();
        fs::write(dir.path().join("ca.pem"), issued.certificate).unwrap();
        put(&dir, &own(&authority));
        let path = |name: &str| dir.path().join(name);
        let (certificate, key) = (path("own.pem"), path("own.key"));
        let files = Files { authority: path("ca.pem"), certificate, key };
        let security = Security::tls(Credentials::open(files, "7").unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route("/healthz", get(async || "serves\n"));
        tokio::spawn(http::serve(listener, security.clone(), routes));
        Served { dir, authority, security, address }
    }

    async fn of_node() -> Served {
        Served::new(|authority| authority.issue(Role::Node, "us-1", DAY).unwrap()).await
    }

    fn issue(&self, role: Role, name: &str) -> Issued {
        self.authority.issue(role, name, DAY).unwrap()
    }

    /// What is answered to who shows this, and the certificate that it is shown.
    async fn asked(&self, shown: Option<Issued>) -> io::Result<(String, Vec<u8>)> {
        let address = self.address;
        let ask = move || {
            let mut line = intruder::connect(address, shown.as_ref())?;
            line.write_all(GET)?;
            let mut heard = String::new();
            line.read_to_string(&mut heard)?;
            let own = line.conn.peer_certificates().unwrap()[0].to_vec();
            Ok((heard, own))
        };
        timeout(LIMIT, tokio::task::spawn_blocking(ask)).await.unwrap().unwrap()
    }

    async fn is_served(&self, shown: &Issued) {
        let heard = self.asked(Some(shown.clone())).await.unwrap().0;
        assert!(heard.starts_with("HTTP/1.1 200") && heard.ends_with("serves\n"), "{heard}");
    }

    /// It hears nothing, and is counted.
    async fn is_refused(&self, shown: Option<Issued>) {
        let before = self.security.refused();
        let heard = self.asked(shown).await;
        assert!(heard.as_ref().map_or(true, |(heard, _)| heard.is_empty()), "{heard:?}");
        // The server may see only then that the other end has read why.
        let counted = async {
            while self.security.refused() == before {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, counted).await.expect("it is counted");
        assert_eq!(self.security.refused(), before + 1);
    }

    /// It is told that it may not.
    async fn is_told_no(&self, shown: Issued, who: &str) {
        let before = self.security.refused();
        let heard = self.asked(Some(shown)).await.unwrap().0;
        assert!(heard.starts_with("HTTP/1.1 403") && heard.contains(who), "{heard}");
        assert!(!heard.contains("serves"), "{heard}");
        assert_eq!(self.security.refused(), before + 1);
    }
}

/// Replaces the certificate and its key, the key first.
fn put(dir: &tempfile::TempDir, issued: &Issued) {
    for (name, text) in [("own.key", &issued.key), ("own.pem", &issued.certificate)] {
        let beside = dir.path().join("new");
        let mut file = fs::File::options();
        let mut file = file.write(true).create_new(true).mode(0o600).open(&beside).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        fs::rename(beside, dir.path().join(name)).unwrap();
    }
}

#[tokio::test]
async fn watchers_admins_and_nodes_are_served_and_nobody_else() {
    let served = Served::of_node().await;
    for role in [Role::Watcher, Role::Admin, Role::Node] {
        served.is_served(&served.issue(role, "a")).await;
    }
    assert_eq!(served.security.refused(), 0);
    served.is_told_no(served.issue(Role::Client, "lab"), "client lab is no watcher").await;
    served.is_refused(None).await;
    let other = Authority::new("7").unwrap().0.issue(Role::Watcher, "a", DAY).unwrap();
    served.is_refused(Some(other)).await;
    let of_other_cluster = "meridian://8/watcher/a".parse().unwrap();
    let until = std::time::SystemTime::now() + DAY;
    let issued = served.authority.issue_for(&of_other_cluster, until).unwrap();
    served.is_refused(Some(issued)).await;
    served.is_served(&served.issue(Role::Watcher, "a")).await;
}

/// Decision 94.
#[tokio::test]
async fn who_is_revoked_is_served_no_more() {
    let served = Served::of_node().await;
    let (old, new) = (served.issue(Role::Watcher, "old"), served.issue(Role::Watcher, "new"));
    served.is_served(&old).await;
    served.security.shut_out(["watcher/old".to_string()].into());
    served.is_refused(Some(old)).await;
    served.is_served(&new).await;
}

/// What a mount shows is a client's: that client may look at its own mount, and no other client.
#[tokio::test]
async fn a_mount_is_watched_by_its_own_client_too() {
    let served = Served::new(|authority| authority.issue_watched("alice", DAY).unwrap()).await;
    served.is_served(&served.issue(Role::Client, "alice")).await;
    served.is_served(&served.issue(Role::Watcher, "prometheus")).await;
    served.is_told_no(served.issue(Role::Client, "bob"), "client bob").await;
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart() {
    let served = Served::of_node().await;
    let watcher = served.issue(Role::Watcher, "a");
    let renewed = served.issue(Role::Node, "us-1");
    put(&served.dir, &renewed);
    let renewed = CertificateDer::from_pem_slice(renewed.certificate.as_bytes()).unwrap();
    // The files are looked at once a second at most.
    let all = async {
        while served.asked(Some(watcher.clone())).await.unwrap().1 != *renewed {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, all).await.expect("the new one is shown within a second or two");
}

#[tokio::test]
async fn who_speaks_plain_text_is_told_what_to_speak() {
    let served = Served::of_node().await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(GET).await.unwrap();
    let mut heard = String::new();
    stream.read_to_string(&mut heard).await.unwrap();
    assert!(heard.starts_with("HTTP/1.1 400") && heard.ends_with(WANTS_TLS), "{heard}");
    assert_eq!(served.security.refused(), 1);
}

/// Showing certificates is a part of the time that a connection has.
#[tokio::test(start_paused = true)]
async fn a_handshake_that_never_ends_is_given_up() {
    let served = Served::of_node().await;
    let begin = Instant::now();
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"\x16\x03\x01\x02").await.unwrap();
    let ended = stream.read(&mut [0]).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert!((TIME_MAX..TIME_MAX * 3).contains(&begin.elapsed()));
}
