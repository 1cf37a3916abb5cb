//! A program of somebody else, which calls a node with whatever certificate it has.

#![allow(clippy::unwrap_used)] // Part of tests.

use meridian_transport::Issued;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// How long it waits for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Accepts whoever listens.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Calls, shows the certificate if it has one, says something, and listens to the end.
///
/// # Errors
/// Whatever ends the connection other than that the server closes it.
pub fn call(address: SocketAddr, shown: Option<&Issued>, says: &[u8]) -> io::Result<Vec<u8>> {
    let mut heard = Vec::new();
    listen(address, shown, says, |bytes| heard.extend_from_slice(bytes))?;
    Ok(heard)
}

/// A connection over which it says what it likes.
pub type Line = StreamOwned<ClientConnection, TcpStream>;

/// The same, and hands over each piece as it comes.
///
/// # Errors
/// As [`call`].
pub fn listen(
    address: SocketAddr,
    shown: Option<&Issued>,
    says: &[u8],
    mut hears: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut line = connect(address, shown)?;
    line.write_all(says)?;
    let mut piece = [0; 4096];
    loop {
        match line.read(&mut piece)? {
            0 => return Ok(()),
            len => hears(&piece[..len]),
        }
    }
}

/// Calls, and shows the certificate if it has one. The handshake comes with the first words.
///
/// # Errors
/// If nobody listens.
pub fn connect(address: SocketAddr, shown: Option<&Issued>) -> io::Result<Line> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().dangerous();
    let builder = builder.with_custom_certificate_verifier(Arc::new(Anybody));
    let config = match shown {
        None => builder.with_no_client_auth(),
        Some(issued) => {
            let chain = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![chain], key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_nodelay(true)?;
    Ok(StreamOwned::new(connection, socket))
}
