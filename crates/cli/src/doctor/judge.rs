//! What is to be said of what was measured: whether it will do, and what to do if not.

use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Requests over `io_uring` are offered from this release on.
const RINGS_FROM: (u32, u32) = (6, 14);
/// Each write waits for a sync at most nodes: with slower ones it is the disk that one waits for.
const SYNC_SLOW: Duration = Duration::from_millis(10);
/// One sync may take longer when others write; much longer, and the node counts as gone.
const SYNC_MAX: Duration = Duration::from_millis(500);
/// A log and its checkpoint take so much, before any block.
const FREE_MIN: u64 = 2 << 30;
/// A node of some million files and blocks.
const MEMORY_MIN: u64 = 1 << 30;
/// A server serves 4096 clients, and has files of its own.
const OPEN_FILES_MIN: u64 = 8192;
/// Times of files, and the lag that is shown between regions, are as wrong as the clock.
const CLOCK_ERROR_MAX: Duration = Duration::from_millis(500);
/// What the clock may differ from the time that passed while it is set by and by (0.05 %), and what
/// is measured wrongly on a busy machine.
const CLOCK_STEP_MAX: Duration = Duration::from_millis(20);

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// It will do.
    Well,
    /// It will do, and something will be slower or less safe than it could be.
    Warning,
    /// It will not do.
    Bad,
}

impl Level {
    /// Four letters in front of a line.
    pub fn mark(self) -> &'static str {
        match self {
            Level::Well => "ok  ",
            Level::Warning => "warn",
            Level::Bad => "BAD ",
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    pub level: Level,
    /// What was seen.
    pub found: String,
    /// What to do, unless it is well.
    pub advice: Option<String>,
}

fn well(check: &'static str, found: impl Into<String>) -> Finding {
    Finding { check, level: Level::Well, found: found.into(), advice: None }
}

fn finding(check: &'static str, level: Level, found: impl Into<String>, advice: &str) -> Finding {
    Finding { check, level, found: found.into(), advice: Some(advice.into()) }
}

/// Of the device that mounts need.
pub fn fuse(tried: Result<(), String>) -> Finding {
    let check = "fuse";
    match tried {
        Ok(()) => well(check, "/dev/fuse can be opened"),
        Err(why) => {
            let (found, advice) = why.split_once(": ").unwrap_or((&why, "see `man fuse`"));
            finding(check, Level::Bad, found, &format!("to mount here: {advice}"))
        }
    }
}

/// Of how requests could come to mounts.
pub fn rings(kernel: &str, offered: Option<bool>) -> Finding {
    let check = "io_uring for mounts";
    let mut numbers = kernel.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let release = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match offered {
        Some(true) => well(check, format!("Linux {kernel} offers it")),
        _ if release < RINGS_FROM => finding(
            check,
            Level::Warning,
            format!("Linux {kernel} has none, Linux 6.14 and later have"),
            "mounts use /dev/fuse, which is slower for what they answer themselves",
        ),
        _ => finding(
            check,
            Level::Warning,
            format!("Linux {kernel} could offer it, and does not"),
            "as root, before mounting: echo Y > /sys/module/fuse/parameters/enable_uring",
        ),
    }
}

/// Of whether the clock is in step, and by how much it may be wrong.
pub fn clock(clock: Result<(bool, Duration), String>) -> Finding {
    let check = "clock";
    let advice = "run chrony or systemd-timesyncd: nothing is lost by a wrong clock, but times of \
                  files are wrong, and so is the lag that is shown between regions";
    match clock {
        Ok((true, error)) if error <= CLOCK_ERROR_MAX => {
            well(check, format!("in step with others, to {} ms at worst", error.as_millis()))
        }
        Ok((true, error)) => {
            let found = format!("in step with others, but {} ms may be wrong", error.as_millis());
            finding(check, Level::Warning, found, advice)
        }
        Ok((false, _)) => {
            finding(check, Level::Warning, "the system says that nothing keeps it in step", advice)
        }
        Err(why) => {
            finding(check, Level::Warning, format!("the system does not tell: {why}"), advice)
        }
    }
}

/// Of how much the clock has differed from the time that passed.
pub fn clock_steps(step: Duration) -> Finding {
    let (check, found) = ("clock steps", format!("{:.1} ms within half a second", ms(step)));
    match step <= CLOCK_STEP_MAX {
        true => well(check, found),
        false => finding(
            check,
            Level::Warning,
            found,
            "something sets the clock by steps: let one service alone keep it, slewing (in a \
             virtual machine that may be the host's)",
        ),
    }
}

/// Of the memory that is left, in bytes.
pub fn memory(left: Result<u64, String>) -> Finding {
    let check = "memory";
    let advice = "a node wants 1 GiB and more: it keeps the names of its regions' files in memory";
    match left {
        Ok(left) if left >= MEMORY_MIN => well(check, format!("{} MiB can be had", left >> 20)),
        Ok(left) => {
            finding(check, Level::Warning, format!("{} MiB can be had", left >> 20), advice)
        }
        Err(why) => finding(check, Level::Warning, why, advice),
    }
}

/// Of how many files a process may have open.
pub fn open_files(limit: Option<u64>) -> Finding {
    let check = "open files";
    match limit {
        None => well(check, "no limit"),
        Some(limit) if limit >= OPEN_FILES_MIN => well(check, format!("{limit} for a process")),
        Some(limit) => finding(
            check,
            Level::Warning,
            format!("{limit} for a process"),
            "a server with many clients needs 8192: LimitNOFILE= in its unit, or ulimit -n",
        ),
    }
}

/// Of the file system below a node's folder.
pub fn kind_of_disk(dir: &Path, magic: u64) -> Finding {
    let (check, on) = ("kind of disk", |what| format!("{} lies on {what}", dir.display()));
    let network = "a node's log must be on a local disk: over a network a sync may not last, and \
                   two machines may open it";
    match magic {
        0x0102_1994 | 0x8584_58f6 => finding(
            check,
            Level::Bad,
            on("a file system in memory"),
            "what a node promises is gone when the machine is: name a folder on a disk",
        ),
        0x6969 => finding(check, Level::Bad, on("NFS"), network),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => {
            finding(check, Level::Bad, on("a share of SMB"), network)
        }
        0x00c3_6400 => finding(check, Level::Bad, on("CephFS"), network),
        0x0102_1997 => finding(check, Level::Bad, on("a share of 9P"), network),
        0x6573_5546 => finding(
            check,
            Level::Bad,
            on("a file system of FUSE"),
            "that may be a network's, or Meridian's own: name a folder on a local disk",
        ),
        0x794c_7630 => finding(
            check,
            Level::Warning,
            on("an overlay"),
            "in a container, a volume is kept when the container is replaced, and an overlay is \
             not",
        ),
        _ => well(check, on("a local disk")),
    }
}

/// Of the room on it, in bytes.
pub fn free(dir: &Path, bytes: u64) -> Finding {
    let (check, found) = ("free disk", format!("{} MiB at {}", bytes >> 20, dir.display()));
    match bytes >= FREE_MIN {
        true => well(check, found),
        false => finding(
            check,
            Level::Bad,
            found,
            "a node's log alone takes a gigabyte, and its blocks come on top: 2 GiB at least",
        ),
    }
}

/// Of the time that a sync takes, in the middle and at worst.
pub fn syncs(dir: &Path, times: Result<(Duration, Duration), String>) -> Finding {
    let check = "speed of syncs";
    let (middle, worst) = match times {
        Ok(times) => times,
        Err(why) => {
            let found = format!("a file in {} cannot be synced: {why}", dir.display());
            let advice = "the user that runs the server must be able to write there";
            return finding(check, Level::Bad, found, advice);
        }
    };
    let found = format!("{:.2} ms, {:.2} ms at worst", ms(middle), ms(worst));
    if middle <= SYNC_SLOW && worst <= SYNC_MAX {
        return well(check, found);
    }
    let advice = "each update waits for a sync at most nodes of a region: a disk with a write \
                  cache that survives a loss of power (most server SSDs) syncs in a tenth of a \
                  millisecond";
    finding(check, Level::Warning, found, advice)
}

/// Of whether a node's server could listen.
pub fn own_port(node: &str, address: &str, tried: Result<(), String>) -> Finding {
    let check = "own port";
    match tried {
        Ok(()) => well(check, format!("{node} can listen at {address}")),
        Err(why) => finding(
            check,
            Level::Bad,
            format!("{node} cannot listen at {address}: {why}"),
            "is its server up already, or another program there? Else the address must be one of \
             this machine, as the cluster file has it",
        ),
    }
}

/// Of the way to another node.
pub fn way(node: &str, address: &str, tried: Result<Duration, String>) -> Finding {
    let check = "way to a node";
    match tried {
        Ok(time) => well(check, format!("{node} at {address} in {:.1} ms", ms(time))),
        Err(why) => finding(
            check,
            Level::Warning,
            format!("{node} at {address}: {why}"),
            "if its server is up: let firewalls on the way pass TCP to that port, from all nodes \
             and clients",
        ),
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(finding: Finding) -> Level {
        assert_eq!(finding.level == Level::Well, finding.advice.is_none(), "{finding:?}");
        finding.level
    }

    #[test]
    fn what_will_do_will_not_do_and_may_be_better() {
        use Level::{Bad, Warning, Well};
        let (dir, ms) = (Path::new("/data"), Duration::from_millis);
        let refused = || Err("refused".to_string());
        let cases = [
            (fuse(Ok(())), Well),
            (fuse(Err("/dev/fuse is missing: `modprobe fuse`".into())), Bad),
            (rings("6.18.44-x", Some(true)), Well),
            (rings("6.18.44-x", Some(false)), Warning),
            (rings("5.10.0", None), Warning),
            (clock(Ok((true, ms(3)))), Well),
            (clock(Ok((true, ms(900)))), Warning),
            (clock(Ok((false, ms(3)))), Warning),
            (clock_steps(ms(1)), Well),
            (clock_steps(ms(400)), Warning),
            (memory(Ok(4 << 30)), Well),
            (memory(Ok(1 << 20)), Warning),
            (open_files(None), Well),
            (open_files(Some(1 << 16)), Well),
            (open_files(Some(1024)), Warning),
            (kind_of_disk(dir, 0xef53), Well),
            (kind_of_disk(dir, 0x0102_1994), Bad),
            (kind_of_disk(dir, 0x6969), Bad),
            (kind_of_disk(dir, 0x6573_5546), Bad),
            (kind_of_disk(dir, 0x794c_7630), Warning),
            (free(dir, 3 << 30), Well),
            (free(dir, 1 << 30), Bad),
            (syncs(dir, Ok((ms(1), ms(9)))), Well),
            (syncs(dir, Ok((ms(30), ms(90)))), Warning),
            (syncs(dir, Ok((ms(1), ms(900)))), Warning),
            (syncs(dir, refused().map(|()| (ms(1), ms(1)))), Bad),
            (own_port("us-1", "h:1", Ok(())), Well),
            (own_port("us-1", "h:1", refused()), Bad),
            (way("us-1", "h:1", Ok(ms(1))), Well),
            (way("us-1", "h:1", refused().map(|()| ms(1))), Warning),
        ];
        for (finding, expected) in cases {
            let said = format!("{finding:?}");
            assert_eq!(level(finding), expected, "{said}");
        }
    }

    #[test]
    fn advice_about_fuse_is_what_mounting_says() {
        let found = fuse(Err("/dev/fuse is missing: `modprobe fuse`".into()));
        assert_eq!(found.found, "/dev/fuse is missing");
        assert_eq!(found.advice.as_deref(), Some("to mount here: `modprobe fuse`"));
    }
}
