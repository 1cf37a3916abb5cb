//! Who speaks on a connection, as a certificate says, and what that allows.
//!
//! A certificate of a cluster names one principal, as a URI: `meridian://CLUSTER/ROLE/NAME`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// What such a URI begins with.
const SCHEME: &str = "meridian://";
/// The longest name of a principal or a cluster, in bytes.
const NAME_MAX: usize = 64;

/// What a principal is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A server: it speaks for the node of its name, and for no other.
    Node,
    /// It uses files and keys.
    Client,
    /// A client that may change the cluster, too.
    Admin,
    /// It asks ports for who watches how servers and mounts are, and may do nothing else.
    Watcher,
}

impl Role {
    /// All that there are.
    pub const ALL: [Role; 4] = [Role::Node, Role::Client, Role::Admin, Role::Watcher];

    /// Its name in a URI.
    pub fn name(self) -> &'static str {
        match self {
            Role::Node => "node",
            Role::Client => "client",
            Role::Admin => "admin",
            Role::Watcher => "watcher",
        }
    }
}

/// Who holds a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// The name of the cluster that it belongs to.
    pub cluster: String,
    /// What it is there.
    pub role: Role,
    /// What it is called: a node as the cluster file calls it.
    pub name: String,
}

/// A text that names no principal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not meridian://CLUSTER/ROLE/NAME with a role of node, client, admin or watcher")]
pub struct NoPrincipal(String);

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.cluster, self.role.name(), self.name)
    }
}

impl FromStr for Principal {
    type Err = NoPrincipal;

    fn from_str(uri: &str) -> Result<Principal, NoPrincipal> {
        let wrong = || NoPrincipal(uri.chars().take(4 * NAME_MAX).collect());
        let rest = uri.strip_prefix(SCHEME).ok_or_else(wrong)?;
        let parts: Vec<&str> = rest.splitn(4, '/').collect();
        let [cluster, role, name] = parts[..] else { return Err(wrong()) };
        let role = Role::ALL.into_iter().find(|known| known.name() == role).ok_or_else(wrong)?;
        if !is_name(cluster) || !is_name(name) {
            return Err(wrong());
        }
        Ok(Principal { cluster: cluster.into(), role, name: name.into() })
    }
}

/// Whether a principal or a cluster may be called that: 1 to 64 letters, digits, `.`, `_` and `-`.
pub fn is_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(good)
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Speaker {
    /// The connection is plain text, and whoever has reached the port may do all.
    #[default]
    Anybody,
    /// The holder of a certificate.
    Known(Arc<Principal>),
}

impl Speaker {
    /// Whether it may speak for the node of this name; not if nobody knows the name.
    pub fn is_node(&self, name: Option<&str>) -> bool {
        match self {
            Speaker::Anybody => true,
            Speaker::Known(who) => who.role == Role::Node && Some(&*who.name) == name,
        }
    }

    /// Whether it may change the cluster. Nodes may: they tell what has become of a change.
    pub fn is_admin(&self) -> bool {
        match self {
            Speaker::Anybody => true,
            Speaker::Known(who) => match who.role {
                Role::Admin | Role::Node => true,
                Role::Client | Role::Watcher => false,
            },
        }
    }

    /// Whether it may ask how a server or a mount is, at its port for who watches. Not each client:
    /// one that works below one directory is not to see what others do elsewhere.
    pub fn may_watch(&self) -> bool {
        match self {
            Speaker::Anybody => true,
            Speaker::Known(who) => who.role != Role::Client,
        }
    }

    /// Whether it may do that and nothing else.
    pub fn only_watches(&self) -> bool {
        matches!(self, Speaker::Known(who) if who.role == Role::Watcher)
    }
}

impl fmt::Display for Speaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Speaker::Anybody => f.write_str("anybody"),
            Speaker::Known(who) => write!(f, "{} {}", who.role.name(), who.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(uri: &str) -> Speaker {
        Speaker::Known(Arc::new(uri.parse().unwrap()))
    }

    #[test]
    fn what_a_principal_is_called_is_read_as_it_was_written() {
        let good = [
            "meridian://17/node/us-1",
            "meridian://a.b/client/x_y",
            "meridian://1/admin/a",
            "meridian://1/watcher/prometheus",
        ];
        for uri in good {
            assert_eq!(uri.parse::<Principal>().unwrap().to_string(), uri);
        }
        let long = format!("meridian://1/node/{}", "a".repeat(NAME_MAX + 1));
        let bad = [
            "",
            "meridian://",
            "meridian://1/node",
            "meridian://1/node/",
            "meridian://1/boss/a",
            "meridian:///node/a",
            "meridian://1/node/a/b",
            "meridian://1/node/a b",
            "http://1/node/a",
            "meridian://1/Node/a",
            &long,
        ];
        for uri in bad {
            assert!(uri.parse::<Principal>().is_err(), "{uri}");
        }
    }

    #[test]
    fn a_certificate_speaks_for_its_own_node_only() {
        let node = known("meridian://1/node/us-1");
        assert!(node.is_node(Some("us-1")) && node.is_admin());
        assert!(!node.is_node(Some("us-2")) && !node.is_node(None));
        for uri in ["meridian://1/client/us-1", "meridian://1/admin/us-1"] {
            assert!(!known(uri).is_node(Some("us-1")), "{uri}");
        }
        assert!(known("meridian://1/admin/a").is_admin());
        assert!(!known("meridian://1/client/a").is_admin());
        assert!(!known("meridian://1/watcher/a").is_admin());
        assert!(Speaker::Anybody.is_node(None) && Speaker::Anybody.is_admin());
    }

    /// Decision 109.
    #[test]
    fn a_watcher_watches_and_a_client_does_not() {
        let all = ["node", "client", "admin", "watcher"];
        let speakers = all.map(|role| known(&format!("meridian://1/{role}/a")));
        assert_eq!(speakers.each_ref().map(Speaker::may_watch), [true, false, true, true]);
        assert_eq!(speakers.each_ref().map(Speaker::only_watches), [false, false, false, true]);
        assert!(Speaker::Anybody.may_watch() && !Speaker::Anybody.only_watches());
        assert!(!known("meridian://1/watcher/us-1").is_node(Some("us-1")));
    }
}
