//! Commands on files, and the calls of a mount that they lead to.

use super::durable::Durable;
use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Subcommand;
use meridian_client::files::OpenMode;
use meridian_client::files::names::Named;
use meridian_client::plan::Asked;
use meridian_client::{ClientError, Durability, Files};
use meridian_core::GroupId;
use meridian_fs::operation::{NewNode, RenameMode};
use meridian_fs::types::Attributes;
use meridian_fs::{FsError, Ino, Kind};
use meridian_mount::about::{self, About};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// So much is explained of a write or a read at most: a mount does more in several steps.
const BYTES_MAX: u64 = 1 << 20;

/// A command.
#[derive(Debug, Subcommand)]
pub enum Intent {
    /// Rename FROM to TO, or into the directory TO
    Mv {
        /// What is moved
        from: PathBuf,
        /// Its new name, or a directory
        to: PathBuf,
    },
    /// Give TARGET another name, a hard link
    Ln {
        /// A file
        target: PathBuf,
        /// Its new name, or a directory
        name: PathBuf,
    },
    /// Remove the name of a file
    Rm {
        /// The file
        file: PathBuf,
    },
    /// Remove an empty directory
    Rmdir {
        /// The directory
        dir: PathBuf,
    },
    /// Make a directory
    Mkdir {
        /// The directory
        dir: PathBuf,
    },
    /// Make a file
    #[command(alias = "touch")]
    Create {
        /// The file; `touch` sets its times afterwards, which takes as long again
        file: PathBuf,
    },
    /// Write to a file: this is what `fsync` or `close` take, as `write` returns at once; or what
    /// `write` takes where the mode is `sync`
    Write {
        /// The file
        file: PathBuf,
        /// How much, up to 1M; K and M stand for powers of 1024
        #[arg(long, value_name = "N", default_value = "1K", value_parser = crate::quota::bytes_of)]
        bytes: u64,
    },
    /// Read a file, up to 1M of it
    #[command(alias = "cat")]
    Read {
        /// The file
        file: PathBuf,
    },
    /// List a directory
    Ls {
        /// The directory
        dir: PathBuf,
    },
    /// Look at what is there
    Stat {
        /// Anything
        path: PathBuf,
    },
    /// Place an empty directory elsewhere, as `meridian fs place`
    Place {
        /// The directory
        dir: PathBuf,
        /// A region, or `global`
        to: String,
    },
}

/// A path, and the mount that it is in.
#[derive(Clone, Debug)]
pub struct Located {
    /// Where the mount is.
    pub root: PathBuf,
    /// What the mount says of itself.
    pub about: About,
    /// The names from there on.
    names: Vec<OsString>,
    /// Whether the mount would answer a look at the last name without asking a node.
    held: bool,
    /// Whether it would keep back now that a file of the last name is made, or removed.
    keeps: bool,
}

/// A question about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Of this partition.
    pub group: GroupId,
    /// Whether the mount can answer it.
    pub held: bool,
}

/// What a command would have a mount ask.
#[derive(Debug)]
pub struct Wanted {
    /// For the names that the command gives.
    pub looks: Vec<Look>,
    /// For what it is about.
    pub asked: Vec<Asked>,
    /// When what it does is durable.
    pub durable: Durable,
}

impl fmt::Display for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Intent::Mv { from, to } => write!(f, "mv {} {}", from.display(), to.display()),
            Intent::Ln { target, name } => write!(f, "ln {} {}", target.display(), name.display()),
            Intent::Rm { file } => write!(f, "rm {}", file.display()),
            Intent::Rmdir { dir } => write!(f, "rmdir {}", dir.display()),
            Intent::Mkdir { dir } => write!(f, "mkdir {}", dir.display()),
            Intent::Create { file } => write!(f, "create {}", file.display()),
            Intent::Write { file, bytes } => write!(f, "write {bytes} bytes to {}", file.display()),
            Intent::Read { file } => write!(f, "read {}", file.display()),
            Intent::Ls { dir } => write!(f, "ls {}", dir.display()),
            Intent::Stat { path } => write!(f, "stat {}", path.display()),
            Intent::Place { dir, to } => write!(f, "place {} in {to}", dir.display()),
        }
    }
}

impl Located {
    /// # Errors
    /// If its directory is not there, or in no mount of this build.
    fn new(path: &Path) -> anyhow::Result<Located> {
        let cannot = || format!("cannot look at {}", path.display());
        let whole = match path.file_name() {
            Some(name) => {
                let dir = path.parent().filter(|dir| *dir != Path::new(""));
                dir.unwrap_or(Path::new(".")).canonicalize().with_context(cannot)?.join(name)
            }
            None => path.canonicalize().with_context(cannot)?,
        };
        // Not at the path itself first: the mount would hold its name then. And who looks has what
        // is kept back sent.
        let named = whole.parent().zip(whole.file_name());
        let keeps = named.is_some_and(|(dir, name)| about::keeps(dir, name));
        let held = named.is_some_and(|(dir, name)| about::holds(dir, name));
        for root in whole.ancestors().skip(1).chain([&*whole]) {
            if let Ok(about) = About::of(root) {
                let names = whole.strip_prefix(root).unwrap_or(Path::new("")).iter();
                let names = names.map(OsString::from).collect();
                return Ok(Located { root: root.into(), about, names, held, keeps });
            }
        }
        bail!("{} is in no Meridian mount of this build", path.display())
    }
}

impl Intent {
    fn paths(&self) -> Vec<&Path> {
        match self {
            Intent::Mv { from, to } => vec![from, to],
            Intent::Ln { target, name } => vec![target, name],
            Intent::Rm { file }
            | Intent::Create { file }
            | Intent::Write { file, .. }
            | Intent::Read { file } => vec![file],
            Intent::Rmdir { dir }
            | Intent::Mkdir { dir }
            | Intent::Ls { dir }
            | Intent::Place { dir, .. } => vec![dir],
            Intent::Stat { path } => vec![path],
        }
    }

    /// Where its paths are.
    ///
    /// # Errors
    /// If they are not in one mount of this build.
    pub fn located(&self) -> anyhow::Result<Vec<Located>> {
        let paths = self.paths();
        let at = paths.iter().map(|path| Located::new(path));
        let at = at.collect::<anyhow::Result<Vec<_>>>()?;
        if let [first, second] = &at[..]
            && first.root != second.root
        {
            bail!(
                "{} and {} are in two mounts: what is moved between mounts is copied",
                paths[0].display(),
                paths[1].display()
            );
        }
        Ok(at)
    }

    /// What it would have a mount ask, found out with a client that plans.
    ///
    /// # Errors
    /// If the tree would refuse it, or nodes do not answer.
    pub async fn plan(&self, files: &Arc<Files>, at: &[Located]) -> anyhow::Result<Wanted> {
        let mut walk = Walk { files, looks: Vec::new() };
        let first = walk.along(&at[0]).await.with_context(|| self.refused())?;
        let second = match &at[1..] {
            [to] => Some(walk.along_into(to, &first).await.with_context(|| self.refused())?),
            _ => None,
        };
        let durable = self.durable(files.client().durability(), &at[0], (&first, second.as_ref()));
        let mut looks = walk.looks;
        if let Intent::Read { .. } = self {
            // Programs ask for the attributes of what they have opened, before they read it.
            looks.extend(looks.last().copied());
        }
        // The call asks for the names again, in order, and then for what no mount holds.
        let ends = [Some(first.held), second.as_ref().map(|end| end.held)];
        let mut held = ends.into_iter().flatten().chain(std::iter::repeat(false));
        files.client().planned();
        match self.ask(files, first, second).await {
            Ok(()) | Err(ClientError::NotSent) => {}
            Err(error) => return Err(anyhow::Error::new(error).context(self.refused())),
        }
        let mut asked = files.client().planned();
        if asked.iter().any(|asked| matches!(asked, Asked::Update(_))) {
            looks.extend(asked.iter().filter_map(|asked| match asked {
                Asked::Look(group) => Some(Look { group: *group, held: held.next()? }),
                Asked::Fetch(_) | Asked::Store { .. } | Asked::Update(_) => None,
            }));
            asked.retain(|asked| !matches!(asked, Asked::Look(_)));
        }
        Ok(Wanted { looks, asked, durable })
    }

    /// By the mode of the directory that gets or loses a name, or of what is there.
    fn durable(
        &self,
        mount: Durability,
        at: &Located,
        (first, second): (&End, Option<&End>),
    ) -> Durable {
        let end = second.unwrap_or(first);
        let mut modes = end.modes.clone();
        match self {
            Intent::Mv { .. }
            | Intent::Ln { .. }
            | Intent::Rm { .. }
            | Intent::Rmdir { .. }
            | Intent::Mkdir { .. }
            | Intent::Create { .. } => modes.truncate(end.directories),
            Intent::Write { .. }
            | Intent::Read { .. }
            | Intent::Ls { .. }
            | Intent::Stat { .. }
            | Intent::Place { .. } => {}
        }
        Durable::new(self, modes, (mount, at.keeps))
    }

    fn refused(&self) -> String {
        format!("{self} would fail")
    }

    async fn ask(
        &self,
        files: &Arc<Files>,
        first: End,
        second: Option<End>,
    ) -> Result<(), ClientError> {
        let new = |kind, mode| NewNode::new(kind, mode);
        let End { named, found, .. } = first;
        let (parent, name) = (named.parent, &named.name);
        match self {
            Intent::Mv { .. } => {
                let to = second.ok_or(FsError::Invalid)?.named;
                files.rename(&named, &to, RenameMode::Replace, None).await
            }
            Intent::Ln { .. } => {
                let (target, to) = (there(found)?, second.ok_or(FsError::Invalid)?.named);
                if target.kind == Kind::Directory {
                    return Err(FsError::NotPermitted.into());
                }
                files.link(target.place.ino, to.parent, &to.name).await.map(drop)
            }
            Intent::Rm { .. } => files.unlink(parent, name).await,
            Intent::Rmdir { .. } => files.rmdir(parent, name).await,
            Intent::Mkdir { .. } | Intent::Create { .. } if found.is_some() => {
                Err(FsError::Exists.into())
            }
            Intent::Mkdir { .. } => {
                files.create(parent, name, new(Kind::Directory, 0o777)).await.map(drop)
            }
            Intent::Create { .. } => {
                files.create(parent, name, new(Kind::File, 0o666)).await.map(drop)
            }
            Intent::Write { bytes, .. } => {
                let mode = OpenMode { write: true, ..OpenMode::default() };
                let found = file(found)?;
                let durability = files.durability_of(&found);
                let handle = files.open_as(found.place.ino, mode, Some(durability)).await?;
                let bytes = usize::try_from((*bytes).min(BYTES_MAX)).unwrap_or_default();
                files.write(handle, 0, &vec![0; bytes]).await?;
                files.sync(handle).await
            }
            Intent::Read { .. } => {
                let found = file(found)?;
                let mode = OpenMode { noatime: true, ..OpenMode::default() };
                let handle = files.open(found.place.ino, mode).await?;
                let bytes = usize::try_from(found.size.min(BYTES_MAX)).unwrap_or_default();
                files.read(handle, 0, bytes.max(1)).await.map(drop)
            }
            Intent::Ls { .. } => files.entries(there(found)?.place.ino).await.map(drop),
            // The look at its name has told all.
            Intent::Stat { .. } => there(found).map(drop),
            Intent::Place { to, .. } => {
                let group = files.client().topology().group_named(to);
                files.place(there(found)?.place.ino, group.ok_or(FsError::Invalid)?).await
            }
        }
    }
}

fn there(found: Option<Attributes>) -> Result<Attributes, ClientError> {
    found.ok_or(FsError::NotFound.into())
}

fn file(found: Option<Attributes>) -> Result<Attributes, ClientError> {
    match there(found)? {
        found if found.kind == Kind::Directory => Err(FsError::IsDirectory.into()),
        found => Ok(found),
    }
}

/// Where a path leads.
#[derive(Clone, Debug)]
struct End {
    /// The root has no name.
    named: Named,
    /// What is there.
    found: Option<Attributes>,
    /// Whether the mount would answer a look at the name without asking a node.
    held: bool,
    /// The modes that are set from the root down to what is there.
    modes: Vec<(PathBuf, Option<Durability>)>,
    /// So many of them are of directories above the name.
    directories: usize,
}

/// Looks at paths as a kernel does.
struct Walk<'a> {
    files: &'a Arc<Files>,
    /// What was asked for last names.
    looks: Vec<Look>,
}

impl Walk<'_> {
    async fn along(&mut self, at: &Located) -> Result<End, ClientError> {
        let mut here = self.files.attributes(Ino::ROOT).await?;
        let mut end = End {
            named: Named { parent: Ino::ROOT, name: Bytes::new() },
            found: Some(here),
            held: at.held,
            modes: vec![(at.root.clone(), here.durability())],
            directories: at.names.len(),
        };
        let mut path = at.root.clone();
        for (index, name) in at.names.iter().enumerate() {
            let name = Bytes::from(name.clone().into_vec());
            let is_last = index + 1 == at.names.len();
            self.files.client().planned();
            let parent = here.place.ino;
            let found = match self.files.lookup(parent, &name).await {
                Err(ClientError::Fs(FsError::NotFound)) if is_last => None,
                found => Some(found?),
            };
            if is_last {
                let asked = self.files.client().planned().into_iter();
                let looks = asked.filter_map(|asked| match asked {
                    Asked::Look(group) => Some(Look { group, held: at.held }),
                    Asked::Fetch(_) | Asked::Store { .. } | Asked::Update(_) => None,
                });
                self.looks.extend(looks);
            }
            here = found.unwrap_or(here);
            path.push(&at.names[index]);
            end.modes.extend(found.map(|found| (path.clone(), found.durability())));
            end = End { named: Named { parent, name }, found, ..end };
        }
        Ok(end)
    }

    /// The same; or if a directory is there, its name in that, as `mv` and `ln` do.
    async fn along_into(&mut self, at: &Located, from: &End) -> Result<End, ClientError> {
        let end = self.along(at).await?;
        if end.found.is_none_or(|found| found.kind != Kind::Directory) {
            return Ok(end);
        }
        let name = std::ffi::OsStr::from_bytes(&from.named.name);
        let names = at.names.iter().cloned().chain([name.into()]).collect();
        let directory = at.names.iter().fold(at.root.clone(), |dir, name| dir.join(name));
        let held = about::holds(&directory, name);
        self.along(&Located { names, held, ..at.clone() }).await
    }
}
