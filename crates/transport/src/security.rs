//! How connections begin, at both ends: the one place where TLS and plain text differ.

use crate::credentials::{Credentials, Ends, describe};
use crate::shut::Shut;
use crate::stream::Stream;
use meridian_core::principal::Speaker;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::net::TcpStream;

/// What stands where TLS wants the name of a server. Nobody reads it: who is called is told by the
/// principal of its certificate.
const NOBODY: &str = "node.meridian.invalid";

/// Why a connection did not begin.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Who is at the other end has not shown that it may be there.
    #[error("not authorized: {0}")]
    Unauthorized(String),
    /// The network, or the other end went away.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        match refusal {
            Refusal::Unauthorized(_) => {
                io::Error::new(io::ErrorKind::PermissionDenied, refusal.to_string())
            }
            Refusal::Io(error) => error,
        }
    }
}

/// How the connections of a server or a client are secured. Clones share what they count.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// Not at all: plain text, and whoever reaches a port may do all. For tests, and for networks
    /// that are private.
    #[default]
    InsecurePlainText,
    /// TLS, with these certificates, but not with everybody who has one.
    Tls(Arc<Credentials>, Admission),
}

/// Who is let in: all but those that [`Security::shut_out`] names.
#[derive(Clone, Debug, Default)]
pub struct Admission(Arc<Shut>);

impl Security {
    /// TLS with these certificates.
    pub fn tls(credentials: Credentials) -> Security {
        Security::Tls(Arc::new(credentials), Admission::default())
    }

    /// The same certificates, for another door: who is shut out at one is not at the other.
    pub fn another_door(&self) -> Security {
        match self {
            Security::InsecurePlainText => Security::InsecurePlainText,
            Security::Tls(credentials, _) => {
                Security::Tls(credentials.clone(), Admission::default())
            }
        }
    }

    /// From now on these principals, as `ROLE/NAME`, are refused, and no others. Connections with
    /// them end; tells how many. Under plain text nobody is known, and nobody refused.
    pub fn shut_out(&self, principals: BTreeSet<String>) -> usize {
        match self {
            Security::InsecurePlainText => 0,
            Security::Tls(_, Admission(shut)) => shut.set(principals),
        }
    }

    /// Calls a server. Who is there is a node of the cluster, and [`Stream::speaker`] tells which.
    ///
    /// # Errors
    /// If nobody is there, or none who may be.
    pub async fn connect(&self, address: &str) -> Result<Stream, Refusal> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let Security::Tls(credentials, _) = self else { return Ok(Stream::plain(tcp)) };
        let config = credentials.loaded().client.clone();
        let name = ServerName::try_from(NOBODY).expect("it is a name");
        let connection = ClientConnection::new(config, name);
        let connection = connection.map_err(|error| unauthorized(&error))?;
        self.begin(tcp, connection.into()).await
    }

    /// Takes a connection of who uses the cluster. Whoever made it has shown who it is when this
    /// returns; the caller limits the time.
    ///
    /// # Errors
    /// If it has not, or is a watcher. Who refuses it counts that: [`Security::count_refused`].
    pub async fn accept(&self, tcp: TcpStream) -> Result<Stream, Refusal> {
        let stream = self.accept_any(tcp).await?;
        match stream.speaker().only_watches() {
            false => Ok(stream),
            true => Err(Refusal::Unauthorized(format!("{} only watches", stream.speaker()))),
        }
    }

    /// The same of who uses the cluster or only watches it: whether that is allowed here the caller
    /// decides.
    ///
    /// # Errors
    /// If it has not shown who it is.
    pub async fn accept_any(&self, tcp: TcpStream) -> Result<Stream, Refusal> {
        tcp.set_nodelay(true)?;
        let Security::Tls(credentials, _) = self else { return Ok(Stream::plain(tcp)) };
        let no_node = || Refusal::Unauthorized("this end has no certificate of a node".into());
        let config = credentials.loaded().server.clone().ok_or_else(no_node)?;
        let connection = ServerConnection::new(config).map_err(|error| unauthorized(&error))?;
        self.begin(tcp, connection.into()).await
    }

    async fn begin(&self, tcp: TcpStream, connection: Connection) -> Result<Stream, Refusal> {
        let Security::Tls(credentials, Admission(shut)) = self else {
            return Ok(Stream::plain(tcp));
        };
        let cluster = &credentials.principal().cluster;
        let stream = Stream::begin(tcp, connection, cluster).await?;
        match stream.is_admitted(shut) {
            true => Ok(stream),
            false => Err(Refusal::Unauthorized(format!("{} is shut out here", stream.speaker()))),
        }
    }

    /// Whether connections are taken: not under TLS with a certificate that is for calling others
    /// only.
    pub fn may_accept(&self) -> bool {
        match self {
            Security::InsecurePlainText => true,
            Security::Tls(credentials, _) => credentials.loaded().server.is_some(),
        }
    }

    /// One more connection was refused for who is at its other end.
    pub fn count_refused(&self) {
        if let Security::Tls(credentials, _) = self {
            credentials.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// So many connections were refused for who was at their other end: for their certificate, or
    /// for what it does not allow.
    pub fn refused(&self) -> u64 {
        match self {
            Security::InsecurePlainText => 0,
            Security::Tls(credentials, _) => credentials.refused.load(Ordering::Relaxed),
        }
    }

    /// Until when the certificates of this end count, as the files say now; nothing under plain
    /// text.
    pub fn ends(&self) -> Ends {
        match self {
            Security::InsecurePlainText => Ends::default(),
            Security::Tls(credentials, _) => credentials.loaded().ends,
        }
    }

    /// As whom this end shows itself.
    pub fn own(&self) -> Speaker {
        match self {
            Security::InsecurePlainText => Speaker::Anybody,
            Security::Tls(credentials, _) => Speaker::Known(credentials.principal()),
        }
    }
}

pub(crate) fn unauthorized(error: &rustls::Error) -> Refusal {
    Refusal::Unauthorized(describe(error))
}
