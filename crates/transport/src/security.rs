//! How connections begin, at both ends: the one place where TLS and plain text differ.

use crate::credentials::{Credentials, describe};
use crate::stream::Stream;
use meridian_core::principal::Speaker;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
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
    /// TLS, with these certificates.
    Tls(Arc<Credentials>),
}

impl Security {
    /// TLS with these certificates.
    pub fn tls(credentials: Credentials) -> Security {
        Security::Tls(Arc::new(credentials))
    }

    /// Calls a server. Who is there is a node of the cluster, and [`Stream::speaker`] tells which.
    ///
    /// # Errors
    /// If nobody is there, or none who may be.
    pub async fn connect(&self, address: &str) -> Result<Stream, Refusal> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let Security::Tls(credentials) = self else { return Ok(Stream::plain(tcp)) };
        let config = credentials.loaded().client.clone();
        let name = ServerName::try_from(NOBODY).expect("it is a name");
        let connection = ClientConnection::new(config, name);
        let connection = connection.map_err(|error| unauthorized(&error))?;
        self.begin(tcp, connection.into()).await
    }

    /// Takes a connection. Whoever made it has shown who it is when this returns; the caller limits
    /// the time.
    ///
    /// # Errors
    /// If it has not. Who refuses it counts that: [`Security::count_refused`].
    pub async fn accept(&self, tcp: TcpStream) -> Result<Stream, Refusal> {
        tcp.set_nodelay(true)?;
        let Security::Tls(credentials) = self else { return Ok(Stream::plain(tcp)) };
        let no_node = || Refusal::Unauthorized("this end has no certificate of a node".into());
        let config = credentials.loaded().server.clone().ok_or_else(no_node)?;
        let connection = ServerConnection::new(config).map_err(|error| unauthorized(&error))?;
        self.begin(tcp, connection.into()).await
    }

    async fn begin(&self, tcp: TcpStream, connection: Connection) -> Result<Stream, Refusal> {
        let Security::Tls(credentials) = self else { return Ok(Stream::plain(tcp)) };
        Stream::begin(tcp, connection, &credentials.principal().cluster).await
    }

    /// One more connection was refused for who is at its other end.
    pub fn count_refused(&self) {
        if let Security::Tls(credentials) = self {
            credentials.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// So many connections were refused for who was at their other end: for their certificate, or
    /// for what it does not allow.
    pub fn refused(&self) -> u64 {
        match self {
            Security::InsecurePlainText => 0,
            Security::Tls(credentials) => credentials.refused.load(Ordering::Relaxed),
        }
    }

    /// As whom this end shows itself.
    pub fn own(&self) -> Speaker {
        match self {
            Security::InsecurePlainText => Speaker::Anybody,
            Security::Tls(credentials) => Speaker::Known(credentials.principal()),
        }
    }
}

pub(crate) fn unauthorized(error: &rustls::Error) -> Refusal {
    Refusal::Unauthorized(describe(error))
}
