//! Replicas and a client that show certificates to each other, and one who has none.
//!
//! `cargo run -p meridian-replication --example secured`

use meridian_replication::transport::{Authority, Credentials, Files, Issued, Role, Security};
use meridian_replication::{
    Bytes, Client, ClientError, ClientOptions, NodeId, Options, Replica, Service, Storage,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Answers what it is asked.
#[derive(Clone)]
struct Echo;

impl Service for Echo {
    fn execute(&mut self, request: &Bytes) -> Bytes {
        request.clone()
    }
    fn query(&self, question: &[u8]) -> Bytes {
        Bytes::copy_from_slice(question)
    }
    fn snapshot(&self) -> Bytes {
        Bytes::new()
    }
    fn restore(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

/// Writes what an operator puts on a machine: the authority, a certificate and its key.
fn put(dir: &Path, authority: &Issued, own: &Issued) -> io::Result<Files> {
    fs::create_dir_all(dir)?;
    let [ca, certificate, key] = ["ca.pem", "own.pem", "own.key"].map(|name| dir.join(name));
    fs::write(&ca, &authority.certificate)?;
    fs::write(&certificate, &own.certificate)?;
    fs::write(&key, &own.key)?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    Ok(Files { authority: ca, certificate, key })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    // Once, by whoever runs the cluster. Its key stays off the machines.
    let (authority, issued) = Authority::new("echo")?;
    let principal = |role, name: &str| -> Result<Security, Box<dyn Error>> {
        let own = authority.issue(role, name, YEAR)?;
        let files = put(&dir.path().join(name), &issued, &own)?;
        // The files are read again when they change, so certificates are renewed in place.
        Ok(Security::tls(Credentials::open(files, "echo")?))
    };
    let names: BTreeMap<_, _> = (0..3).map(|at| (NodeId(at), format!("echo-{at}"))).collect();
    let mut replicas = Vec::new();
    for options in Options::on_this_machine("echo", 3, |me| {
        Storage::directory(dir.path().join(format!("data-{}", me.0)))
    })? {
        let security = principal(Role::Node, &names[&options.me])?;
        let options = Options { security, names: names.clone(), ..options };
        replicas.push(Replica::start(options, Echo).await?);
    }
    let addresses: Vec<_> = replicas.iter().map(|one| one.address().to_string()).collect();

    let security = principal(Role::Client, "someone")?;
    let options = ClientOptions { security, ..ClientOptions::new("echo", &addresses) };
    let mut client = Client::connect_with(options).await?;
    println!("with a certificate: {:?}", client.execute("hello").await?);

    // Replicas that are called in plain text close the connection; the client asks the others.
    let give_up_after = Duration::from_secs(1);
    let plain = ClientOptions { give_up_after, ..ClientOptions::new("echo", &addresses) };
    match Client::connect_with(plain).await {
        Err(error @ (ClientError::Refused(_) | ClientError::Unavailable { .. })) => {
            println!("without: {error}");
        }
        Err(error) => return Err(error.into()),
        Ok(_) => return Err("who has no certificate is served".into()),
    }
    for replica in replicas {
        replica.close().await?;
    }
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
