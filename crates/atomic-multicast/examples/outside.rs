//! A client that is in no group multicasts to any of them. All show certificates to each other.
//!
//! `cargo run -p meridian-atomic-multicast --example outside`

use meridian_atomic_multicast::transport::{Authority, Credentials, Files, Issued, Role, Security};
use meridian_atomic_multicast::{
    Client, ClientOptions, Failure, GroupId, Groups, Member, NodeId, Options, PrimCast,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

const GREEN: GroupId = GroupId(0);
const BLUE: GroupId = GroupId(1);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

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
    let (authority, issued) = Authority::new("example")?;
    let principal = |role, name: &str| -> Result<Security, Box<dyn Error>> {
        let own = authority.issue(role, name, YEAR)?;
        let files = put(&dir.path().join(name), &issued, &own)?;
        Ok(Security::tls(Credentials::open(files, "example")?))
    };
    let [green, blue] = [0..3, 3..6].map(|nodes| nodes.map(NodeId).collect());
    let groups: Groups = Arc::new(BTreeMap::from([(GREEN, green), (BLUE, blue)]));
    let all = Options::on_this_machine("example", &groups)?;
    let names: BTreeMap<_, _> =
        all.iter().map(|one| (one.me, format!("node-{}", one.me.node.0))).collect();
    let mut members = Vec::new();
    for mut options in all {
        options.security = principal(Role::Node, &names[&options.me])?;
        options.names.set(names.clone());
        let process = PrimCast::new(options.me, groups.clone());
        members.push(Member::start(options, process).await?);
    }

    let addresses = members.iter().map(|(one, _)| (one.me(), one.address().to_string()));
    let security = principal(Role::Client, "someone")?;
    let options = ClientOptions::new("example", addresses.collect());
    let client = Client::new(ClientOptions { security, ..options });
    for (text, dest) in [("to blue", vec![BLUE]), ("to both", vec![BLUE, GREEN])] {
        match client.multicast(&dest, text).await {
            Ok(ts) => println!("{text:?} is delivered with timestamp {}", ts.0),
            Err(failure @ Failure::Unknown) => return Err(failure.into()), // It may be, later.
            Err(failure) => return Err(failure.into()), // It will not: try again, or do not.
        }
    }
    for (member, deliveries) in &mut members {
        let expected: &[&str] =
            if member.me().group == GREEN { &["to both"] } else { &["to blue", "to both"] };
        for text in expected {
            let delivery = deliveries.next_message().await.ok_or("it has stopped")?;
            assert_eq!(delivery.start.payload, text);
        }
    }
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
