//! The service manager that has started this process, if one has: systemd, or what speaks as it
//! does (`sd_notify(3)`).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where it is told how far a service is.
#[derive(Debug)]
pub struct Manager {
    socket: UnixDatagram,
}

impl Manager {
    /// The one that `NOTIFY_SOCKET` names; none if that is not set.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub fn from_environment() -> io::Result<Option<Manager>> {
        match std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) {
            Some(name) => Manager::at(&name).map(Some),
            None => Ok(None),
        }
    }

    /// That of a path, or of an abstract name that begins with `@`.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn at(name: &OsStr) -> io::Result<Manager> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // A manager that reads nothing must not hold up what it manages.
        socket.set_nonblocking(true)?;
        Ok(Manager { socket })
    }

    /// The service does what it is for, and `status` is how it is, for people, in a line.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}"));
    }

    /// How the service is, for people, in a line.
    pub fn status(&self, status: &str) {
        self.say(&format!("STATUS={status}"));
    }

    /// The service ends.
    pub fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// What cannot be said is no reason not to go on.
    fn say(&self, text: &str) {
        let _ = self.socket.send(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hears(socket: &UnixDatagram, name: &OsStr) {
        let manager = Manager::at(name).unwrap();
        manager.status("starts");
        manager.ready("serves");
        manager.stopping();
        let said = ["STATUS=starts", "READY=1\nSTATUS=serves", "STOPPING=1"];
        for expected in said {
            let mut bytes = [0; 99];
            let len = socket.recv(&mut bytes).unwrap();
            assert_eq!(std::str::from_utf8(&bytes[..len]).unwrap(), expected);
        }
    }

    #[test]
    fn a_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let name = format!("/tmp/meridian-manager-{}", std::process::id());
        let socket = UnixDatagram::bind(&name).unwrap();
        hears(&socket, OsStr::new(&name));
        std::fs::remove_file(&name).unwrap();
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        hears(&UnixDatagram::bind_addr(&address).unwrap(), OsStr::new(&format!("@{name}")));
        assert!(Manager::at(OsStr::new("/nowhere/socket")).is_err());
    }
}
