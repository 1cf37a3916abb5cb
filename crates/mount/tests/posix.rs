//! What POSIX and Linux have beyond the plain calls, over real mounts.
#![allow(clippy::unwrap_used)]

mod world;

use meridian_mount::Access;
use world::{mounted, mounted_for, run};

/// A user who owns nothing.
const NOBODY: &str = "nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"; }; ";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_access_rights_decide_and_follow_the_mode() {
    let world = mounted_for(Access { allow_other: true, ..Access::default() }).await;
    let (at, other) = world.again("eu");
    let script = "umask 022; cd us; echo secret > f; chmod 640 f; ! nobody cat f 2>/dev/null; \
        setfacl -m u:65534:rw f; stat -c %a f; nobody cat f; \
        chmod 600 f; ! nobody cat f 2>/dev/null; getfacl -cnE f; ls -l f | cut -c1-11; \
        chmod 660 f; nobody cat f; chmod u+s,g+s f; setfacl -m u:65534:r f; stat -c %a f; \
        nobody cat f";
    let printed = world.run(&format!("{NOBODY}{script}")).await;
    let list = "user::rw-\nuser:65534:rw-\ngroup::r--\nmask::---\nother::---\n\n";
    let expected = format!("660\nsecret\n{list}-rw-------+\nsecret\n6640\nsecret\n");
    assert_eq!(printed, expected);
    let there = run(at.path(), "getfacl -cnE us/f; setfacl -b us/f; stat -c %a us/f").await;
    assert_eq!(there, "user::rw-\nuser:65534:r--\ngroup::r--\nmask::r--\nother::---\n\n6640\n");
    let script = format!("{NOBODY}! nobody cat us/f 2>/dev/null; getfattr -m- us/f; ls -l us/f");
    let printed = world.run(&script).await;
    assert!(printed.starts_with("-rwSr-S--- 1"), "{printed}");
    other.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_hands_its_list_down_in_place_of_the_umask() {
    let world = mounted().await;
    let script = "cd us; umask 027; touch plain; mkdir d; stat -c %a plain d; \
        setfacl -d -m u:65534:rwx,o::--- d; stat -c %a d; umask 077; touch d/f; mkdir d/s; \
        mkfifo -m 640 d/p; ln -s f d/l; stat -c '%n %a' d/*; \
        getfacl -cnE d/f; getfacl -cnE d/s; getfacl -cnE d/p; setfacl -k d; touch d/g; stat -c %a d/g";
    let printed = world.run(script).await;
    let list = |user: &str, rest: &str| format!("user::{user}\nuser:65534:rwx\n{rest}");
    let file = list("rw-", "group::r-x\nmask::rw-\nother::---\n\n");
    let made = list("rwx", "group::r-x\nmask::rwx\nother::---\n");
    let handed = "default:user::rwx\ndefault:user:65534:rwx\ndefault:group::r-x\n\
        default:mask::rwx\ndefault:other::---\n\n";
    let pipe = list("rw-", "group::r-x\nmask::r--\nother::---\n\n");
    let modes = "640\n750\n750\nd/f 660\nd/l 777\nd/p 640\nd/s 770\n";
    assert_eq!(printed, format!("{modes}{file}{made}{handed}{pipe}600\n"));
    world.mount.unmount().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capability_is_kept_until_the_program_changes() {
    let world = mounted().await;
    let (at, other) = world.again("eu");
    world.run("cp /bin/true us/p; setcap cap_net_raw+ep us/p").await;
    let get = "getcap us/p";
    assert_eq!(world.run(get).await, "us/p cap_net_raw=ep\n");
    assert_eq!(run(at.path(), get).await, "us/p cap_net_raw=ep\n");
    let changes = ["echo x >> us/p", "truncate -s 10 us/p", "chown 1 us/p", "fallocate -l 99 us/p"];
    for change in changes {
        run(at.path(), change).await;
        assert_eq!(world.run(get).await, "", "{change}");
        world.run("setcap cap_net_raw+ep us/p; test -n \"$(getcap us/p)\"; touch us/p").await;
        assert_eq!(run(at.path(), get).await, "us/p cap_net_raw=ep\n", "after {change}");
    }
    let open = "exec 3<>us/p; test -n \"$(getcap us/p)\"; echo x >&3; getcap us/p; exec 3>&-; \
        setcap cap_net_raw+ep us/p; setcap -r us/p; getcap us/p; \
        python3 -c \"import os; os.setxattr('us/p', 'security.other', b'1')\" 2>&1 | tail -n1";
    assert!(world.run(open).await.contains("not supported"));
    other.unmount().await.unwrap();
    world.mount.unmount().await.unwrap();
}
