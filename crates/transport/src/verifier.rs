//! Whose certificates are accepted: those that the authority has signed, that have not run out, and
//! that name a principal of the cluster. The addresses of nodes change, so a node's certificate
//! tells its name and not where it listens.

use meridian_core::principal::{Principal, Role};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use std::sync::Arc;
use std::time::Duration;

/// Why a certificate that is in order otherwise is not of this cluster.
#[derive(Debug, thiserror::Error)]
enum Stranger {
    #[error("the certificate names {0} principals of meridian, not one")]
    Names(usize),
    #[error("the certificate is of {0}, not of cluster {1}")]
    Cluster(Principal, String),
    #[error("the certificate is of {0}, which is no node")]
    Role(Principal),
}

fn refused(why: Stranger) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))
}

/// Whom a certificate names, if that is one of `cluster`.
pub(crate) fn principal(
    certificate: &CertificateDer<'_>,
    cluster: &str,
) -> Result<Principal, Error> {
    let parsed = webpki::EndEntityCert::try_from(certificate)
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let names: Vec<Principal> =
        parsed.valid_uri_names().filter_map(|uri| uri.parse().ok()).collect();
    match <[Principal; 1]>::try_from(names) {
        Ok([named]) if named.cluster == cluster => Ok(named),
        Ok([named]) => Err(refused(Stranger::Cluster(named, cluster.into()))),
        Err(names) => Err(refused(Stranger::Names(names.len()))),
    }
}

/// Until when a certificate counts, in seconds since 1970, if it can be read.
pub(crate) fn until(certificate: &CertificateDer<'_>) -> Option<u64> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    // Whether it counts at the end of all times is answered by when it has ended: before anything
    // else of it is looked at, so it may be an authority's.
    let (end, usage) = (Duration::from_secs(u64::MAX), webpki::KeyUsage::client_auth());
    let end = UnixTime::since_unix_epoch(end);
    match parsed.verify_for_usage(&[], &[], &[], end, usage, None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => Some(not_after.as_secs()),
        _ => None,
    }
}

/// Decides at a server who may call.
#[derive(Debug)]
pub(crate) struct Callers {
    chain: Arc<dyn ClientCertVerifier>,
    cluster: String,
}

impl Callers {
    /// Holders of certificates that one of these authorities has signed.
    pub(crate) fn new(
        roots: Arc<RootCertStore>,
        provider: Arc<CryptoProvider>,
        cluster: &str,
    ) -> Result<Callers, String> {
        // Who has a certificate of another authority shows it and is told why it is refused.
        let builder = WebPkiClientVerifier::builder_with_provider(roots, provider);
        let chain = builder.clear_root_hint_subjects().build();
        let chain = chain.map_err(|error| error.to_string())?;
        Ok(Callers { chain, cluster: cluster.into() })
    }
}

impl ClientCertVerifier for Callers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        principal(end_entity, &self.cluster)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Decides at a caller who is a node.
#[derive(Debug)]
pub(crate) struct Nodes {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
    cluster: String,
}

impl Nodes {
    /// Holders of certificates that one of these authorities has signed.
    pub(crate) fn new(
        roots: Arc<RootCertStore>,
        provider: &CryptoProvider,
        cluster: &str,
    ) -> Nodes {
        let algorithms = provider.signature_verification_algorithms;
        Nodes { roots, algorithms, cluster: cluster.into() }
    }

    /// Whether one of the authorities has signed the certificate, so that it may be shown to who
    /// calls, as those of nodes are.
    pub(crate) fn verify_called(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let (roots, algorithms) = (&self.roots, self.algorithms.all);
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)
    }

    /// Whether one of the authorities has signed the certificate of a node.
    pub(crate) fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        self.verify_called(end_entity, intermediates, now)?;
        let named = principal(end_entity, &self.cluster)?;
        if named.role == Role::Node { Ok(()) } else { Err(refused(Stranger::Role(named))) }
    }
}

impl ServerCertVerifier for Nodes {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(end_entity, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
