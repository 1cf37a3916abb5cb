//! Makes the authority of a cluster, and certificates that name its principals.

use meridian_core::principal::{Principal, Role};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;

/// So long before it is made a certificate counts already: clocks differ.
const BEFORE: Duration = Duration::from_secs(3600);
/// How long an authority lasts: as long as a cluster, since a change of it concerns all machines.
const AUTHORITY_LASTS: Duration = Duration::from_secs(20 * 365 * 24 * 3600);

/// Why nothing could be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}")]
pub struct AuthorityError {
    action: &'static str,
    source: rcgen::Error,
}

fn failed(action: &'static str) -> impl Fn(rcgen::Error) -> AuthorityError {
    move |source| AuthorityError { action, source }
}

/// A certificate and its key, as files of PEM hold them.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its key: a secret.
    pub key: String,
}

/// Who signs certificates of one cluster.
pub struct Authority {
    cluster: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority for the cluster of that name, and its files.
    ///
    /// # Errors
    /// If the system gives no random numbers.
    pub fn new(cluster: &str) -> Result<(Authority, Issued), AuthorityError> {
        let key = KeyPair::generate().map_err(failed("make a key"))?;
        let params = params_of_authority(cluster);
        let certificate = params.self_signed(&key).map_err(failed("sign the authority"))?;
        let issued = Issued { certificate: certificate.pem(), key: key.serialize_pem() };
        let issuer = Issuer::new(params, key);
        Ok((Authority { cluster: cluster.into(), issuer }, issued))
    }

    /// The authority of the cluster of that name that has this key.
    ///
    /// # Errors
    /// If that is no key.
    pub fn with_key(cluster: &str, key: &str) -> Result<Authority, AuthorityError> {
        let key = KeyPair::from_pem(key).map_err(failed("read the authority's key"))?;
        let issuer = Issuer::new(params_of_authority(cluster), key);
        Ok(Authority { cluster: cluster.into(), issuer })
    }

    /// A certificate that says who its holder is, for so long from now on.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn issue(&self, role: Role, name: &str, lasts: Duration) -> Result<Issued, AuthorityError> {
        let principal = Principal { cluster: self.cluster.clone(), role, name: name.into() };
        let until = SystemTime::now() + lasts;
        self.issue_for(&principal, until)
    }

    /// The same for any principal and until any time; for tests of what is refused.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn issue_for(
        &self,
        principal: &Principal,
        until: SystemTime,
    ) -> Result<Issued, AuthorityError> {
        let uri = principal.to_string().try_into().map_err(failed("name a principal"))?;
        let key = KeyPair::generate().map_err(failed("make a key"))?;
        let mut params = CertificateParams::default();
        params.not_before = date(SystemTime::now().min(until) - BEFORE);
        params.not_after = date(until);
        params.distinguished_name = called(&principal.name);
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match principal.role {
            Role::Node => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            Role::Client | Role::Admin => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        let signed = params.signed_by(&key, &self.issuer).map_err(failed("sign a certificate"))?;
        Ok(Issued { certificate: signed.pem(), key: key.serialize_pem() })
    }
}

/// All of an authority but its key: the same whenever it is asked for, so the key suffices to sign.
fn params_of_authority(cluster: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    let now = SystemTime::now();
    (params.not_before, params.not_after) = (date(now - BEFORE), date(now + AUTHORITY_LASTS));
    params.distinguished_name = called(&format!("meridian cluster {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn called(name: &str) -> DistinguishedName {
    let mut called = DistinguishedName::new();
    called.push(DnType::CommonName, name);
    called
}

fn date(at: SystemTime) -> OffsetDateTime {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
