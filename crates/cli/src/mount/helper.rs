//! `mount.meridian`, which `mount -t meridian` and `fstab` call: the same program under that name.

use super::{HowToMount, MountArgs, OnCut, When, background};
use crate::certificates::TlsArgs;
use crate::log_options::LogOptions;
use anyhow::{Context, bail};
use clap::Parser;
use meridian_mount::Access;
use meridian_terminal::note;
use meridian_terminal::output;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

/// What `mount` takes as "could not be mounted".
const FAILED: u8 = 32;

/// Mounts a cluster, as `mount` and fstab ask for it
#[derive(Debug, Parser)]
#[command(name = "mount.meridian", version)]
#[command(after_help = "\
A line of /etc/fstab, in a machine of region eu:
  /etc/meridian/cluster.json /srv meridian region=eu,allow_other,_netdev 0 0

`mount -o remount,ro /srv` changes what may be done there, and noatime or relatime whether times of
reading are noted; region=, on_cut=, durability= and ask_always stay as they were. `umount /srv` ends it.")]
pub struct Helper {
    /// The cluster: its cluster.json
    cluster: PathBuf,
    /// An empty or new directory
    dir: PathBuf,
    /// Words of mount, region=REGION (nodes of that region are asked first), on_cut=, durability=
    /// and ask_always
    #[arg(short, value_name = "WORDS", value_delimiter = ',')]
    options: Vec<String>,
    /// Pass over words that are not known
    #[arg(short)]
    sloppy: bool,
    /// Only look whether it would be tried
    #[arg(short)]
    fake: bool,
    /// There is no table to be written; taken as mount gives it
    #[arg(short)]
    no_table: bool,
    /// Say where it is mounted
    #[arg(short)]
    verbose: bool,
    /// Taken as mount gives it
    #[arg(short, value_name = "TYPE", default_value = "meridian")]
    type_name: String,
}

/// What the words of `-o` ask for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Words {
    region: Option<String>,
    remount: bool,
    on_cut: OnCut,
    durability: When,
    ask_always: bool,
    access: Access,
}

impl Words {
    fn read(words: &[String], sloppy: bool) -> Result<Words, String> {
        let mut read = Words::default();
        let mut rest = Vec::new();
        for word in words {
            match word.split_once('=') {
                Some(("region", region)) => read.region = Some(region.to_string()),
                Some(("on_cut", on_cut)) => read.on_cut = on_cut.parse()?,
                Some(("durability", when)) => read.durability = when.parse()?,
                // The kernel's own, as its table has them when something is mounted again.
                Some(("user_id" | "group_id" | "max_read", _)) => {}
                _ if word == "remount" => read.remount = true,
                _ if word == "ask_always" => read.ask_always = true,
                _ if word == "default_permissions" => {}
                _ if sloppy && Access::from_str(word).is_err() => {}
                _ => rest.push(word.as_str()),
            }
        }
        read.access = rest.join(",").parse()?;
        Ok(read)
    }
}

/// Does what is asked if the program was called by that name.
pub fn called() -> Option<ExitCode> {
    let name = PathBuf::from(std::env::args_os().next()?);
    if name.file_name()? != "mount.meridian" {
        return None;
    }
    Some(run(&Helper::parse()).unwrap_or_else(|error| {
        note!("mount.meridian: {}", output::one_line(&error));
        ExitCode::from(FAILED)
    }))
}

fn run(helper: &Helper) -> anyhow::Result<ExitCode> {
    let Words { region, remount, on_cut, durability, ask_always, access } =
        Words::read(&helper.options, helper.sloppy).map_err(anyhow::Error::msg)?;
    if remount {
        return change(&helper.dir, access, helper.fake);
    }
    let Some(region) = region else {
        bail!("which region is this machine in? Add it to the words of -o: region=eu");
    };
    let cluster = helper.cluster.canonicalize();
    let cluster = cluster.with_context(|| {
        format!("{} is to be the cluster.json of a cluster", helper.cluster.display())
    })?;
    if helper.fake {
        return Ok(ExitCode::SUCCESS);
    }
    super::check_fuse()?;
    let args = MountArgs {
        tls: TlsArgs::default(),
        dir: helper.dir.clone(),
        region,
        // As it was named: `mount -a` looks for that in the table of mounts.
        source: helper.cluster.clone().into(),
        cluster: None,
        how: HowToMount {
            access: super::Words { access, ..super::Words::default() },
            ask_always,
            on_cut,
            durability,
        },
        background: true,
        foreground: false,
        metrics_address: None,
        insecure_metrics: false,
        log: LogOptions::default(),
    };
    let mounted = background::start(&args, &cluster)?;
    if helper.verbose {
        output::print(&mounted)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn change(dir: &Path, access: Access, fake: bool) -> anyhow::Result<ExitCode> {
    if !super::is_mounted(&super::absolute(dir)?)? {
        bail!("nothing is mounted at {}", dir.display());
    }
    if !fake {
        let what = || format!("cannot change how {} is mounted", dir.display());
        meridian_mount::remount(dir, access).with_context(what)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_mount_are_read() {
        let words = |words: &str| words.split(',').map(str::to_string).collect::<Vec<_>>();
        let read = Words::read(&words("rw,region=eu,noatime,_netdev"), false).unwrap();
        let access = Access { noatime: true, ..Access::default() };
        let expected = Words { region: Some("eu".into()), access, ..Words::default() };
        assert_eq!(read, expected);
        let read = Words::read(&words("region=eu,on_cut=fail,ask_always"), false).unwrap();
        assert!(read.ask_always);
        assert_eq!(read.on_cut, OnCut(std::time::Duration::ZERO));
        let again = words("remount,ro,user_id=0,group_id=0,default_permissions,max_read=1048576");
        let read = Words::read(&again, false).unwrap();
        assert!(read.remount && read.access.read_only);
        assert!(Words::read(&words("ro,colour"), false).unwrap_err().contains("colour"));
        assert!(Words::read(&words("colour,ro"), true).unwrap().access.read_only);
    }
}
