//! Certificate, key and authority as files say, read again when they have changed.
//!
//! The files are looked at when a connection begins, and not more often than [`LOOK_AGAIN`]. If
//! what is there cannot be used (half of it is written), connections go on with what was read
//! before. Connections that are open keep what they began with.

use crate::verifier::{Callers, Nodes, principal, until};
use meridian_core::principal::{Principal, Role};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the files are looked at, at most.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// From so long before its end on a certificate is told of: time enough to make another.
pub const ENDS_SOON: Duration = Duration::from_secs(14 * A_DAY.as_secs());
/// How often the log says that one ends.
const A_DAY: Duration = Duration::from_secs(24 * 3600);
/// A file of certificates or a key is no longer than this.
const FILE_MAX: u64 = 1 << 20;

/// Where certificate, key and authority lie: files of PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The certificates of the authorities whose signature counts.
    pub authority: PathBuf,
    /// The certificate, and others between it and an authority, if there are such.
    pub certificate: PathBuf,
    /// Its key, which nobody but its owner may read.
    pub key: PathBuf,
}

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// One cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Others than its owner can read the key.
    #[error(
        "others than its owner can read or write the key {} (mode {mode:o}): chmod 600 it, and \
         have it replaced if anybody may have read it", path.display()
    )]
    Open {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It holds nothing that can be used.
    #[error("{}: {why}", path.display())]
    Wrong {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

fn wrong(path: &Path) -> impl Fn(String) -> CredentialsError {
    move |why| CredentialsError::Wrong { path: path.into(), why }
}

/// What a server or client shows, and whose certificates it accepts.
#[derive(Debug)]
pub struct Credentials {
    files: Files,
    cluster: String,
    /// How many connections were refused for who was at the other end.
    pub(crate) refused: AtomicU64,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    loaded: Arc<Loaded>,
    stamp: Stamp,
    looked: Instant,
    /// When the log said last that it ends.
    told: Option<Instant>,
}

/// What tells whether files have changed: of each its inode, length and time of change.
type Stamp = [Option<(u64, u64, i64, i64)>; 3];

/// Until when certificates count, in seconds since 1970; `None` of one that cannot be read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The one that is shown, or what is between it and an authority, if that ends before.
    pub own: Option<u64>,
    /// The authority whose signature counts; of several the first that ends.
    pub authority: Option<u64>,
}

impl Ends {
    /// In how many whole days the first of them ends, if that is soon, at `now`, in seconds since
    /// 1970; none of what has ended.
    pub fn days_left(&self, now: u64) -> Option<u64> {
        let first = self.own.into_iter().chain(self.authority).min()?;
        let left = first.saturating_sub(now);
        (left <= ENDS_SOON.as_secs()).then_some(left / A_DAY.as_secs())
    }
}

/// What was made of the files.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) ends: Ends,
    pub(crate) principal: Arc<Principal>,
    pub(crate) client: Arc<ClientConfig>,
    /// None if the certificate may not be shown to who calls: it is no node's, nor of a client that
    /// is watched.
    pub(crate) server: Option<Arc<ServerConfig>>,
}

impl Credentials {
    /// Reads the files, for use in the cluster of that name.
    ///
    /// # Errors
    /// If one of them cannot be used, with what is wrong.
    pub fn open(files: Files, cluster: &str) -> Result<Credentials, CredentialsError> {
        let stamp = stamp(&files);
        let loaded = Arc::new(load(&files, cluster)?);
        let mut current = Current { loaded, stamp, looked: Instant::now(), told: None };
        current.tell_of_end(&files);
        let current = Mutex::new(current);
        let refused = AtomicU64::new(0);
        Ok(Credentials { files, cluster: cluster.into(), refused, current })
    }

    /// Whom the certificate names.
    pub fn principal(&self) -> Arc<Principal> {
        self.loaded().principal.clone()
    }

    /// What the files say now.
    pub(crate) fn loaded(&self) -> Arc<Loaded> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked.elapsed() < LOOK_AGAIN {
            return current.loaded.clone();
        }
        current.looked = Instant::now();
        let stamp = stamp(&self.files);
        if stamp == current.stamp {
            current.tell_of_end(&self.files);
            return current.loaded.clone();
        }
        current.stamp = stamp;
        let certificate = self.files.certificate.display();
        match load(&self.files, &self.cluster) {
            Ok(loaded) if loaded.principal == current.loaded.principal => {
                tracing::info!(%certificate, "a renewed certificate is used from now on");
                current.loaded = Arc::new(loaded);
            }
            Ok(loaded) => {
                let (old, new) = (&current.loaded.principal, &loaded.principal);
                tracing::warn!(%certificate, %old, %new, "names another: the old one stays");
            }
            Err(error) => {
                tracing::warn!(%error, "the files have changed: the old certificate stays");
            }
        }
        current.loaded.clone()
    }
}

impl Current {
    /// Says, once a day, that the certificate ends soon or has ended.
    fn tell_of_end(&mut self, files: &Files) {
        let days = self.loaded.ends.days_left(UnixTime::now().as_secs());
        let Some(days) = days.filter(|_| self.told.is_none_or(|told| told.elapsed() >= A_DAY))
        else {
            return;
        };
        self.told = Some(Instant::now());
        let certificate = files.certificate.display();
        tracing::warn!(%certificate, days, "it or its authority ends soon: make another");
    }
}

fn stamp(files: &Files) -> Stamp {
    [&files.authority, &files.certificate, &files.key].map(|path| {
        let data = fs::metadata(path).ok()?;
        Some((data.ino(), data.len(), data.mtime(), data.mtime_nsec()))
    })
}

fn read(path: &Path) -> Result<Vec<u8>, CredentialsError> {
    let failed = |source| CredentialsError::Read { path: path.into(), source };
    let len = fs::metadata(path).map_err(failed)?.len();
    if len > FILE_MAX {
        return Err(wrong(path)(format!("{len} bytes are too many for certificates or a key")));
    }
    fs::read(path).map_err(failed)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let text = read(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let read = read.map_err(|error| wrong(path)(format!("no certificates of PEM: {error}")))?;
    if read.is_empty() {
        Err(wrong(path)("there is no certificate in it".into()))
    } else {
        Ok(read)
    }
}

/// Reads a key that only its owner can.
fn key(path: &Path) -> Result<PrivateKeyDer<'static>, CredentialsError> {
    let data = fs::metadata(path)
        .map_err(|source| CredentialsError::Read { path: path.into(), source })?;
    let mode = data.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(CredentialsError::Open { path: path.into(), mode });
    }
    PrivateKeyDer::from_pem_slice(&read(path)?)
        .map_err(|error| wrong(path)(format!("no key of PEM: {error}")))
}

fn load(files: &Files, cluster: &str) -> Result<Loaded, CredentialsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    let authorities = certificates(&files.authority)?;
    let authority = authorities.iter().filter_map(until).min();
    for root in authorities {
        let added = roots.add(root);
        added.map_err(|error| wrong(&files.authority)(error.to_string()))?;
    }
    let roots = Arc::new(roots);
    let wrong = wrong(&files.certificate);
    let chain = certificates(&files.certificate)?;
    let ends = Ends { own: chain.iter().filter_map(until).min(), authority };
    let key = key(&files.key)?;
    let shown = CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider)
        .map_err(|error| wrong(format!("does not fit {}: {error}", files.key.display())))?;
    let named = principal(&chain[0], cluster).map_err(|error| wrong(describe(&error)))?;
    let callers = Callers::new(roots.clone(), provider.clone(), cluster).map_err(&wrong)?;
    let nodes = Nodes::new(roots, &provider, cluster);
    // Who would be refused everywhere is told so here.
    let own = match named.role {
        Role::Node => nodes.verify(&chain[0], &chain[1..], UnixTime::now()),
        Role::Client | Role::Admin | Role::Watcher => {
            callers.verify_client_cert(&chain[0], &chain[1..], UnixTime::now()).map(drop)
        }
    };
    own.map_err(|error| wrong(describe(&error)))?;
    let server = match nodes.verify_called(&chain[0], &chain[1..], UnixTime::now()) {
        Ok(()) => Some(Arc::new(server(&provider, callers, &shown).map_err(&wrong)?)),
        Err(_) => None, // It is good for calling others, as was seen above.
    };
    let client = client(&provider, nodes, (chain, key)).map_err(&wrong)?;
    Ok(Loaded { ends, principal: Arc::new(named), client: Arc::new(client), server })
}

fn server(
    provider: &Arc<CryptoProvider>,
    callers: Callers,
    shown: &CertifiedKey,
) -> Result<ServerConfig, String> {
    let text = |error: rustls::Error| error.to_string();
    let shown = rustls::sign::SingleCertAndKey::from(shown.clone());
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).map_err(text)?;
    let builder = builder.with_client_cert_verifier(Arc::new(callers));
    let mut config = builder.with_cert_resolver(Arc::new(shown));
    // A connection that resumed another would not show its certificate again.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(config)
}

fn client(
    provider: &Arc<CryptoProvider>,
    nodes: Nodes,
    (chain, key): (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
) -> Result<ClientConfig, String> {
    let text = |error: rustls::Error| error.to_string();
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).map_err(text)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(nodes));
    let mut config = builder.with_client_auth_cert(chain, key).map_err(text)?;
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// What is wrong with a certificate, for people.
pub(crate) fn describe(error: &rustls::Error) -> String {
    use rustls::{AlertDescription as Alert, CertificateError as Bad, Error};
    match error {
        Error::InvalidCertificate(bad) => match bad {
            Bad::Expired | Bad::ExpiredContext { .. } => "the certificate has expired".into(),
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
                "the certificate is not valid yet: is this machine's clock right?".into()
            }
            // The same name and another key: BadSignature.
            Bad::UnknownIssuer | Bad::BadSignature => {
                "the certificate is of another authority".into()
            }
            Bad::Other(why) => why.to_string(),
            other => format!("the certificate: {other}"),
        },
        Error::NoCertificatesPresented => "no certificate was shown".into(),
        Error::AlertReceived(Alert::CertificateRequired) => "it wants a certificate".into(),
        Error::AlertReceived(Alert::CertificateExpired) => {
            "the other end says that this one's certificate has expired".into()
        }
        Error::AlertReceived(Alert::UnknownCA | Alert::CertificateUnknown) => {
            "the other end does not accept this one's certificate".into()
        }
        Error::InvalidMessage(_) => "the other end does not speak TLS".into(),
        other => other.to_string(),
    }
}
