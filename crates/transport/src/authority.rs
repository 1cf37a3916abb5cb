//! Makes the authority of a cluster, and certificates that name its principals.

use meridian_core::principal::{Principal, Role};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;

/// So long before it is made a certificate counts already: clocks differ.
const BEFORE: Duration = Duration::from_secs(3600);
/// A host that each certificate of a node names beside the node: programs that ask a port for who
/// watches insist on a host's name, and know no principals (decision 109).
pub const THIS_MACHINE: &str = "localhost";
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
        let principal = self.principal(role, name);
        self.issue_for(&principal, SystemTime::now() + lasts)
    }

    /// A client's that it may also show to who calls it, as the host of its name: a mount that is
    /// watched. Programs that know no principals, and no names of hosts, take it for a node.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn issue_watched(&self, name: &str, lasts: Duration) -> Result<Issued, AuthorityError> {
        let principal = self.principal(Role::Client, name);
        self.sign(&principal, SystemTime::now() + lasts, &[name])
    }

    fn principal(&self, role: Role, name: &str) -> Principal {
        Principal { cluster: self.cluster.clone(), role, name: name.into() }
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
        match principal.role {
            Role::Node => self.sign(principal, until, &[&principal.name, THIS_MACHINE]),
            Role::Client | Role::Admin | Role::Watcher => self.sign(principal, until, &[]),
        }
    }

    /// One for calling others, and for being called as these hosts, if there are any.
    fn sign(
        &self,
        principal: &Principal,
        until: SystemTime,
        hosts: &[&str],
    ) -> Result<Issued, AuthorityError> {
        let named = failed("name a principal");
        let uri = principal.to_string().try_into().map_err(&named)?;
        let hosts = hosts.iter().map(|host| Ia5String::try_from(*host));
        let hosts = hosts.collect::<Result<Vec<_>, _>>().map_err(&named)?;
        let key = KeyPair::generate().map_err(failed("make a key"))?;
        let mut params = CertificateParams::default();
        params.not_before = date(SystemTime::now().min(until) - BEFORE);
        params.not_after = date(until);
        params.distinguished_name = called(&principal.name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !hosts.is_empty() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let uri = std::iter::once(SanType::URI(uri));
        params.subject_alt_names = uri.chain(hosts.into_iter().map(SanType::DnsName)).collect();
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
