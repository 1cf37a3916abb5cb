//! What the compiler cannot check: calls with a number as their argument, and memory that is shared
//! with the kernel. No other file of this crate has unsafe code.
//!
//! A [`Ring`] is an `io_uring` of one thread whose entries carry requests of FUSE
//! (`linux/fuse.h`, `linux/io_uring.h`). The memory of an entry belongs either to the kernel, which
//! may write to it whenever the thread enters the kernel, or to who has its [`Slot`]:
//!
//! - a slot goes to the kernel by [`Ring::register`] and [`Ring::commit`], which take it;
//! - it comes back with the entry's completion, once for each time that it went.
//!
//! So who has a slot is alone with its memory, on whichever thread.

use crate::abi::{PAGE, REPLY_HEADER, ring as abi};
use crate::control::ROOM;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::io_uring::{
    IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringEnterFlags, IoringOp, IoringRegisterOp,
    IoringSetupFlags, io_cqring_offsets, io_sqring_offsets, io_uring_enter, io_uring_params,
    io_uring_setup,
};
use rustix::ioctl::{Opcode, Setter, Updater, ioctl};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::io;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of the call that joins a new descriptor to a session.
const CLONE: Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);
/// Commands that are handed to the kernel at once at most.
const SUBMISSIONS: u32 = 64;
/// The name of the completion that says that the bell was rung.
const RUNG: u64 = u64::MAX;
/// Bytes for what stands before an entry's payload, with the addresses of both behind it.
const HEAD: usize = 512;

/// Joins the device `new` to the session of `first`.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn join(new: &OwnedFd, first: &OwnedFd) -> io::Result<()> {
    let session = first.as_raw_fd().cast_unsigned();
    // SAFETY: the kernel reads one u32 at the address that `Setter` gives, and writes nothing.
    unsafe { ioctl(new, Setter::<CLONE, u32>::new(session))? };
    Ok(())
}

/// Asks the file system of an open file with what is in `data`, where its answer is then, also if
/// that is an error.
///
/// # Errors
/// The file system's, or there is none that knows the question.
pub(crate) fn control<const NUMBER: Opcode>(
    of: BorrowedFd<'_>,
    data: &mut [u8; ROOM],
) -> io::Result<()> {
    const { assert!(NUMBER as usize >> 16 == 3 << 14 | ROOM, "the number tells how long it is") };
    // SAFETY: by the number the kernel, and any driver that knows it, reads and writes `ROOM` bytes
    // at the address that `Updater` gives.
    unsafe { ioctl(of, Updater::<NUMBER, [u8; ROOM]>::new(data))? };
    Ok(())
}

/// Memory that was mapped, until it is dropped.
#[derive(Debug)]
struct Map {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it is an address and a length. Who reads or writes there says why that may be done.
unsafe impl Send for Map {}
// SAFETY: the same.
unsafe impl Sync for Map {}

impl Map {
    /// Zeros, which take room as soon as they are touched.
    fn new(length: usize) -> io::Result<Map> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE);
        // SAFETY: the kernel chooses the place, so it is nobody else's.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE | flags)? };
        Map::at(start.cast(), length)
    }

    /// A part of a ring.
    fn of(ring: &OwnedFd, length: usize, part: u64) -> io::Result<Map> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the place, so it is nobody else's.
        let start = unsafe {
            mmap(ptr::null_mut(), length, access, flags | MapFlags::POPULATE, ring, part)?
        };
        Map::at(start.cast(), length)
    }

    fn at(start: *mut u8, length: usize) -> io::Result<Map> {
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Map { start, length })
    }

    /// The place of a `T` behind so many bytes.
    fn place<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= self.length, "{offset} of {} bytes", self.length);
        // SAFETY: the place is within the mapped memory.
        let place = unsafe { self.start.as_ptr().add(offset) }.cast::<T>();
        assert!(place.is_aligned(), "{offset}");
        place
    }

    /// A number that the kernel reads and writes, too.
    fn shared(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the place is mapped as long as `self` lives, and all use it as an atomic.
        unsafe { AtomicU32::from_ptr(self.place(offset as usize)) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: nothing that borrows it lives any more, and the kernel does not write to it:
        // slots that it has are dropped after their ring, which nobody enters then.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// The memory of one entry, which is not the kernel's now.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Its number among all of the ring.
    pub number: u32,
    memory: Arc<Map>,
    head: usize,
    payload: usize,
    /// Bytes of the payload.
    size: usize,
}

impl Slot {
    /// Some, with numbers from `first` on, and room for a payload of `size` bytes each.
    ///
    /// # Errors
    /// As those of `mmap`.
    pub fn some(first: u32, count: usize, size: usize) -> io::Result<Vec<Slot>> {
        let (heads, size) = ((count * HEAD).next_multiple_of(PAGE), size.next_multiple_of(PAGE));
        let length = size.checked_mul(count).and_then(|bytes| bytes.checked_add(heads));
        let memory = Arc::new(Map::new(length.ok_or(io::ErrorKind::OutOfMemory)?)?);
        let slots = (first..).zip(0..count).map(|(number, at)| {
            let (head, payload) = (at * HEAD, heads + at * size);
            Slot { number, memory: memory.clone(), head, payload, size }
        });
        Ok(slots.collect())
    }

    /// What stands before a request.
    pub fn header(&self) -> [u8; abi::HEADER] {
        // SAFETY: the memory is this slot's alone, and any bytes are good ones.
        unsafe { self.memory.place::<[u8; abi::HEADER]>(self.head).read() }
    }

    /// The first bytes of the payload; `None` if there are not so many.
    pub fn payload(&self, length: usize) -> Option<&[u8]> {
        let start = self.memory.place::<u8>(self.payload);
        // SAFETY: the memory is this slot's alone; it is written to through `&mut self` only.
        (length <= self.size).then(|| unsafe { std::slice::from_raw_parts(start, length) })
    }

    /// Puts a body into the payload. Returns whether there was room.
    pub fn fill(&mut self, body: &[u8]) -> bool {
        let start = self.memory.place::<u8>(self.payload);
        let fits = body.len() <= self.size;
        if fits {
            // SAFETY: there is room for it, and the memory is this slot's alone, so `body` is not
            // in it.
            unsafe { ptr::copy_nonoverlapping(body.as_ptr(), start, body.len()) };
        }
        fits
    }

    /// Puts down what stands before a reply, and how long the payload is.
    pub fn answer(&mut self, header: [u8; REPLY_HEADER], length: u32) {
        // SAFETY: the memory is this slot's alone.
        unsafe {
            self.memory.place::<[u8; REPLY_HEADER]>(self.head).write(header);
            self.memory.place::<u32>(self.head + abi::PAYLOAD_LENGTH).write(length);
        }
    }

    /// Puts down where the head and the payload are, as the kernel wants to know it; where that is.
    fn addresses(&mut self) -> u64 {
        let head = libc::iovec { iov_base: self.memory.place(self.head), iov_len: abi::HEADER };
        let payload = libc::iovec { iov_base: self.memory.place(self.payload), iov_len: self.size };
        let place = self.memory.place::<[libc::iovec; 2]>(self.head + abi::HEADER);
        // SAFETY: the memory is this slot's alone.
        unsafe { place.write([head, payload]) };
        place as u64
    }
}

/// A command for the kernel (`struct io_uring_sqe` of 128 bytes).
#[repr(C)]
struct Submission {
    opcode: u8,
    flags: u8,
    priority: u16,
    descriptor: i32,
    /// What to do with the device, or for which completion a message is.
    operation: u64,
    address: u64,
    length: u32,
    how: u32,
    name: u64,
    rest: [u32; 2],
    /// `struct fuse_uring_cmd_req`, and what is free behind it.
    command: [u64; 10],
}

const _: () = assert!(size_of::<Submission>() == 128);
const _: () = assert!(abi::HEADER + size_of::<[libc::iovec; 2]>() <= HEAD);

/// What the kernel has done (`struct io_uring_cqe`).
#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    name: u64,
    result: i32,
    flags: u32,
}

/// What has come of a ring.
#[derive(Debug)]
pub(crate) enum Event {
    /// The kernel has a request.
    Request(Slot),
    /// The kernel does not take the entry any more.
    Refused(Slot, Errno),
    /// Another thread has rung.
    Rung,
}

/// Wakes the thread of a ring.
#[derive(Debug)]
pub(crate) struct Bell {
    ring: Arc<OwnedFd>,
}

/// See the module. It stays on the thread that has made it.
#[derive(Debug)]
pub(crate) struct Ring {
    // Dropped before the slots that the kernel has.
    descriptor: Arc<OwnedFd>,
    shared: Map,
    submissions: Map,
    submitted: io_sqring_offsets,
    completed: io_cqring_offsets,
    /// Those that the kernel has, by number.
    slots: Vec<Option<Slot>>,
    of_this_thread: PhantomData<*const ()>,
}

impl Ring {
    /// One for at most so many entries.
    ///
    /// # Errors
    /// As those of `io_uring_setup` and `mmap`.
    pub fn new(entries: u32) -> io::Result<Ring> {
        let mut how = io_uring_params::default();
        // The thread runs what is to be done for it when it looks for completions, and no earlier.
        how.flags = IoringSetupFlags::SINGLE_ISSUER | IoringSetupFlags::DEFER_TASKRUN;
        how.flags |= IoringSetupFlags::SQE128 | IoringSetupFlags::NO_SQARRAY;
        how.flags |= IoringSetupFlags::CQSIZE | IoringSetupFlags::SUBMIT_ALL;
        // Each entry has one completion at most, and the bell rings once for each look.
        how.cq_entries = (entries + 1).next_power_of_two();
        // SAFETY: no flag is set with which the kernel would take a descriptor or an address.
        let descriptor = unsafe { io_uring_setup(SUBMISSIONS, &mut how)? };
        let (submitted, completed) = (how.sq_off, how.cq_off);
        let end = completed.cqes as usize + how.cq_entries as usize * size_of::<Completion>();
        let shared = Map::of(&descriptor, end, IORING_OFF_SQ_RING)?;
        let length = how.sq_entries as usize * size_of::<Submission>();
        let submissions = Map::of(&descriptor, length, IORING_OFF_SQES)?;
        let (descriptor, slots) = (Arc::new(descriptor), Vec::new());
        let of_this_thread = PhantomData;
        Ok(Ring { descriptor, shared, submissions, submitted, completed, slots, of_this_thread })
    }

    /// What other threads wake this one with.
    pub fn bell(&self) -> Bell {
        Bell { ring: self.descriptor.clone() }
    }

    /// Gives the kernel a new entry of a queue.
    ///
    /// # Errors
    /// As those of `io_uring_enter`.
    pub fn register(
        &mut self,
        device: BorrowedFd<'_>,
        queue: u16,
        mut slot: Slot,
    ) -> io::Result<()> {
        let address = slot.addresses();
        self.push(device, (abi::REGISTER, address, 2), [0, 0, queue_word(queue)], slot)
    }

    /// Gives the kernel the reply that is in the slot, to the request of that number, and takes
    /// the next request for it.
    ///
    /// # Errors
    /// As those of `io_uring_enter`.
    pub fn commit(
        &mut self,
        device: BorrowedFd<'_>,
        queue: u16,
        request: u64,
        slot: Slot,
    ) -> io::Result<()> {
        let command = [0, request, queue_word(queue)];
        self.push(device, (abi::COMMIT_AND_FETCH, 0, 0), command, slot)
    }

    fn push(
        &mut self,
        device: BorrowedFd<'_>,
        (operation, address, length): (u32, u64, u32),
        [flags, request, queue]: [u64; 3],
        slot: Slot,
    ) -> io::Result<()> {
        if self.waiting() == SUBMISSIONS {
            self.enter(0)?;
            if self.waiting() == SUBMISSIONS {
                return Err(Errno::BUSY.into()); // It would have taken some, or said why not.
            }
        }
        let mut command = [0; 10];
        command[..3].copy_from_slice(&[flags, request, queue]);
        let submission = Submission {
            opcode: IoringOp::UringCmd as u8,
            flags: 0,
            priority: 0,
            descriptor: device.as_raw_fd(),
            operation: low_word(operation),
            address,
            length,
            how: 0,
            name: u64::from(slot.number),
            rest: [0; 2],
            command,
        };
        let tail = self.shared.shared(self.submitted.tail);
        let at = tail.load(Ordering::Relaxed);
        let place = (at % SUBMISSIONS) as usize * size_of::<Submission>();
        // SAFETY: the kernel does not read there: it has taken all but `waiting`, which are fewer
        // than there is room for. No other thread has this ring.
        unsafe { self.submissions.place::<Submission>(place).write(submission) };
        let number = slot.number as usize;
        if self.slots.len() <= number {
            self.slots.resize_with(number + 1, || None);
        }
        assert!(self.slots[number].is_none(), "slot {number} is there twice");
        self.slots[number] = Some(slot);
        tail.store(at.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// How many commands the kernel has not taken yet.
    fn waiting(&self) -> u32 {
        let tail = self.shared.shared(self.submitted.tail).load(Ordering::Relaxed);
        tail.wrapping_sub(self.shared.shared(self.submitted.head).load(Ordering::Acquire))
    }

    /// Lets the kernel take all commands, and waits until there are so many events.
    ///
    /// # Errors
    /// As those of `io_uring_enter`, but for those upon which one tries again.
    pub fn enter(&mut self, events: u32) -> io::Result<()> {
        let (ring, flags) = (self.descriptor.as_fd(), IoringEnterFlags::GETEVENTS);
        // SAFETY: all that the commands name lives: descriptors of devices are open while their
        // owner enters, and memory is in `slots` until the command is completed.
        match unsafe { io_uring_enter(ring, self.waiting(), events, flags) } {
            // EBUSY: there are more completions than room; they are to be taken first.
            Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The next event that is there.
    pub fn next(&mut self) -> Option<Event> {
        let head = self.shared.shared(self.completed.head);
        let at = head.load(Ordering::Relaxed);
        if at == self.shared.shared(self.completed.tail).load(Ordering::Acquire) {
            return None;
        }
        let mask = self.shared.shared(self.completed.ring_mask).load(Ordering::Relaxed);
        let place = (at & mask) as usize * size_of::<Completion>();
        let place = self.shared.place::<Completion>(self.completed.cqes as usize + place);
        // SAFETY: the kernel has written it, and does not write there before `head` goes on.
        let completion = unsafe { place.read() };
        head.store(at.wrapping_add(1), Ordering::Release);
        if completion.name == RUNG {
            return Some(Event::Rung);
        }
        let slot = usize::try_from(completion.name).ok().and_then(|at| self.slots.get_mut(at));
        let slot = slot.and_then(Option::take).expect("the kernel completes what it was given");
        Some(match completion.result {
            0.. => Event::Request(slot),
            error => Event::Refused(slot, Errno::from_raw_os_error(-error)),
        })
    }
}

impl Bell {
    /// Wakes the thread, or lets it not fall asleep.
    ///
    /// # Errors
    /// If the thread has ended, or the kernel has no memory.
    pub fn ring(&self) -> io::Result<()> {
        let message = Submission {
            opcode: IoringOp::MsgRing as u8,
            flags: 0,
            priority: 0,
            descriptor: self.ring.as_raw_fd(),
            operation: RUNG,
            address: 0,
            length: 0,
            how: 0,
            name: 0,
            rest: [0; 2],
            command: [0; 10],
        };
        // SAFETY: the kernel reads one command of 64 bytes, which names an open descriptor and no
        // memory.
        let rung = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                -1,
                IoringRegisterOp::RegisterSendMsgRing as libc::c_uint,
                &raw const message,
                1,
            )
        };
        if rung < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The word that has a `u32` in its first bytes.
fn low_word(low: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&low.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// The word that has the number of a queue in its first bytes.
fn queue_word(queue: u16) -> u64 {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&queue.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}
