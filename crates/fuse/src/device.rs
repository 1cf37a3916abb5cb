//! The device file: one read brings one request, one write takes one reply.

use crate::raw;
use crate::reply::header;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io::{self, IoSlice};

/// Where it is.
pub const PATH: &str = "/dev/fuse";

/// One descriptor of a session. Requests that were read from it are answered through it.
#[derive(Debug)]
pub(crate) struct Device {
    descriptor: OwnedFd,
}

impl Device {
    /// A new one, which belongs to no session yet.
    ///
    /// # Errors
    /// As those of `open`.
    pub fn open() -> io::Result<Device> {
        let descriptor = rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Device { descriptor })
    }

    /// A further one of the same session, which reads requests of its own.
    ///
    /// # Errors
    /// As those of `open`; or the kernel refuses.
    pub fn again(&self) -> io::Result<Device> {
        let device = Device::open()?;
        raw::join(&device.descriptor, &self.descriptor)?;
        Ok(device)
    }

    /// Waits for a request; `None` if the file system is unmounted.
    ///
    /// # Errors
    /// As those of `read`, but for those upon which one tries again.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        loop {
            match rustix::io::read(&self.descriptor, &mut *buffer) {
                Ok(length) => return Ok(Some(&buffer[..length])),
                // ENOENT: whoever asked was killed meanwhile.
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::NODEV) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Answers the request of that number: `error` is 0 or the negative of an errno.
    ///
    /// # Errors
    /// As those of `writev`.
    pub fn reply(&self, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
        let header = header(unique, error, body.len());
        // The kernel takes all or nothing.
        rustix::io::writev(&self.descriptor, &[IoSlice::new(&header), IoSlice::new(body)])?;
        Ok(())
    }
}

impl From<OwnedFd> for Device {
    fn from(descriptor: OwnedFd) -> Device {
        Device { descriptor }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
