#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

/// A request as the kernel sends it.
fn sent(code: u32, fields: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = (REQUEST_HEADER + fields.len()) as u32;
    [length, code].iter().for_each(|field| bytes.extend(field.to_ne_bytes()));
    [9_u64, 5].iter().for_each(|field| bytes.extend(field.to_ne_bytes()));
    [1_u32, 2, 3, 0].iter().for_each(|field| bytes.extend(field.to_ne_bytes()));
    bytes.extend(fields);
    bytes
}

fn small(fields: &[u32]) -> Vec<u8> {
    fields.iter().flat_map(|field| field.to_ne_bytes()).collect()
}

fn large(fields: &[u64]) -> Vec<u8> {
    fields.iter().flat_map(|field| field.to_ne_bytes()).collect()
}

#[track_caller]
fn check(code: u32, fields: &[Vec<u8>], operation: Operation<'_>) {
    let bytes = sent(code, &fields.concat());
    let request = Request { unique: 9, node: 5, uid: 1, gid: 2, thread: 3, operation };
    assert_eq!(parse(&bytes), Some(Received::Request(request)));
    let cut = sent(code, &fields.concat()[..fields.concat().len().saturating_sub(1)]);
    let whole = parse(&cut).is_some_and(|cut| matches!(cut, Received::Request(_)));
    assert!(!whole || fields.is_empty() || !operation_ends_with_a_field(code), "{operation:?}");
}

/// Of others the last bytes are padding, or not of interest.
fn operation_ends_with_a_field(code: u32) -> bool {
    use opcode as c;
    [c::LOOKUP, c::SYMLINK, c::MKNOD, c::MKDIR, c::RENAME2, c::LINK, c::CREATE, c::WRITE]
        .contains(&code)
        || [c::SETXATTR, c::GETXATTR, c::FLUSH, c::IOCTL].contains(&code)
}

#[test]
fn references_are_dropped_one_by_one_or_many_at_once() {
    let one = sent(opcode::FORGET, &large(&[3]));
    assert_eq!(parse(&one), Some(Received::Forget { node: 5, lookups: 3 }));
    let many = sent(opcode::BATCH_FORGET, &[small(&[2, 0]), large(&[6, 1, 7, 4])].concat());
    let Some(Received::ForgetMany(many)) = parse(&many) else { panic!() };
    assert_eq!(forgotten(many).collect::<Vec<_>>(), [(6, 1), (7, 4)]);
    assert_eq!(forgotten(&many[..31]).count(), 1);
    assert_eq!(parse(&sent(opcode::FORGET, &[])), Some(Received::Nothing));
}

#[test]
fn names_are_cut_at_their_nul() {
    use opcode as c;
    let name = b"name\0".to_vec();
    check(c::LOOKUP, std::slice::from_ref(&name), Operation::Lookup { name: b"name" });
    let target = b"to\0".to_vec();
    let link = Operation::Symlink { name: b"name", target: b"to" };
    check(c::SYMLINK, &[name.clone(), target.clone()], link);
    let node = Operation::MakeNode { name: b"name", mode: 0o100_644, device: 7, umask: 0o22 };
    check(c::MKNOD, &[small(&[0o100_644, 7, 0o22, 0]), name.clone()], node);
    let directory = Operation::MakeDirectory { name: b"name", mode: 0o755, umask: 0o77 };
    check(c::MKDIR, &[small(&[0o755, 0o77]), name.clone()], directory);
    let rename = Operation::Rename { name: b"name", new_parent: 6, new_name: b"to", flags: 2 };
    check(c::RENAME2, &[large(&[6]), small(&[2, 0]), name.clone(), target], rename);
    check(c::LINK, &[large(&[6]), name.clone()], Operation::Link { of: 6, name: b"name" });
    let create = Operation::Create { name: b"name", mode: 0o600, umask: 7, flags: libc::O_RDWR };
    check(c::CREATE, &[small(&[libc::O_RDWR as u32, 0o600, 7, 0]), name], create);
    let unnamed = Operation::CreateUnnamed { mode: 0o600, umask: 7, flags: libc::O_RDWR };
    let fields = small(&[libc::O_RDWR as u32, 0o600, 7, 0]);
    check(c::STATX, &[large(&[0; 3])], Operation::GetAllAttributes);
    check(c::TMPFILE, &[fields, b"/\0".to_vec()], unnamed);
    assert_eq!(
        parse(&sent(c::LOOKUP, b"name without an end")),
        Some(Received::Refused { unique: 9, errno: libc::EINVAL })
    );
}

#[test]
fn data_have_the_length_that_is_told() {
    use opcode as c;
    let head = [large(&[4, 1 << 40]), small(&[3, WRITE_IS_CACHE]), large(&[0])].concat();
    let fields = [head, small(&[libc::O_APPEND as u32, 0]), b"abc".to_vec()];
    let (handle, offset, flags) = (4, 1 << 40, libc::O_APPEND);
    let write = Operation::Write { handle, offset, data: b"abc", flags, cached: true };
    check(c::WRITE, &fields, write);
    let set =
        Operation::SetXattr { name: b"user.x", value: b"v\0w", flags: 1, drops_set_gid: false };
    check(c::SETXATTR, &[small(&[3, 1]), b"user.x\0v\0w".to_vec()], set);
    let list = Operation::SetXattr { name: b"list", value: b"v\0w", flags: 0, drops_set_gid: true };
    check(c::SETXATTR, &[small(&[3, 0, 1, 0]), b"list\0v\0w".to_vec()], list);
    // Over a ring the fields of its kind, in their short and long form, come apart from the rest.
    for (fields, named, operation) in
        [(small(&[3, 1]), &b"user.x\0v\0w"[..], set), (small(&[3, 0, 1, 0]), b"list\0v\0w", list)]
    {
        let whole = sent(c::SETXATTR, &[&fields, named].concat());
        let received = parse_parts(&whole[..REQUEST_HEADER], &fields, named);
        let request = Request { unique: 9, node: 5, uid: 1, gid: 2, thread: 3, operation };
        assert_eq!(received, Some(Received::Request(request)));
    }
    let get = Operation::GetXattr { name: b"user.x", size: 3 };
    check(c::GETXATTR, &[small(&[3, 0]), b"user.x\0".to_vec()], get);
    let flush = Operation::Flush { handle: 4, owner: 8 };
    check(c::FLUSH, &[large(&[4, 0, 8])], flush);
    let control = Operation::Control { number: 77, data: b"asked", room: 9 };
    let fields = [large(&[4]), small(&[0, 77]), large(&[1 << 40]), small(&[5, 9])].concat();
    check(c::IOCTL, &[fields, b"asked".to_vec()], control);
}

#[test]
fn locks_tell_their_family() {
    for flock in [false, true] {
        let kind = libc::F_WRLCK;
        let lock = Lock { handle: 4, owner: 8, start: 1, end: 2, kind, pid: 77, flock };
        let fields = [large(&[4, 8, 1, 2]), small(&[kind as u32, 77, u32::from(flock), 0])];
        check(opcode::SETLKW, &fields, Operation::SetLock { lock, waits: true });
        check(opcode::GETLK, &fields, Operation::GetLock(lock));
    }
}

#[test]
fn only_chosen_attributes_are_set() {
    let which = set::MODE | set::ATIME | set::MTIME | set::MTIME_NOW;
    let fields = [
        small(&[which, 0]),
        large(&[0, 12, 0, (-3_i64).cast_unsigned(), 1, 1]),
        small(&[5, 6, 7, 0o100_600, 0, 1, 2, 0]),
    ];
    let atime = Some(SetTime::To(Time { seconds: -3, nanos: 5 }));
    let (mode, mtime) = (Some(0o100_600), Some(SetTime::Now));
    let wanted = NewAttributes { mode, atime, mtime, ..NewAttributes::default() };
    check(opcode::SETATTR, &fields, Operation::SetAttributes(wanted));
}

#[test]
fn what_is_not_known_is_refused() {
    assert_eq!(parse(&sent(999, &[])), Some(Received::Refused { unique: 9, errno: libc::ENOSYS }));
    let mut cut = sent(opcode::GETATTR, &[0; 16]);
    cut.pop();
    assert_eq!(parse(&cut), Some(Received::Refused { unique: 9, errno: libc::EIO }));
    assert_eq!(parse(&cut[..20]), None);
    let told = sent(opcode::INTERRUPT, &large(&[5]));
    assert_eq!(parse(&told), Some(Received::Interrupt { unique: 5 }));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        code in 0..60_u32,
        fields in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let bytes = sent(code, &fields);
        prop_assert!(parse(&bytes).is_some());
        let _ = parse(&fields);
    }
}
