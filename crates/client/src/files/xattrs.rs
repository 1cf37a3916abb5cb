//! Extended attributes.

use crate::error::ClientError;
use crate::files::Files;
use crate::files::attributes::strange;
use crate::files::durability::DURABILITY;
use crate::files::quota::{QUOTA, limits_of};
use bytes::Bytes;
use meridian_fs::operation::XattrMode;
use meridian_fs::types::{Attributes, Ino, Name};
use meridian_fs::{Answer, FsError, Query, Update};
use std::os::unix::ffi::OsStrExt as _;

/// The extended attribute that shows, and on an empty directory changes, where it lives.
pub const PLACEMENT: &[u8] = b"user.meridian.placement";
/// The extended attribute that gives a program rights of root. The tree takes it from a file that
/// is changed.
pub const CAPABILITY: &[u8] = b"security.capability";
/// The extended attribute with the list of access rights that is in force.
pub const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The one with the list that a directory hands down.
pub const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
/// The extended attribute that tells where the cluster file is.
pub const CLUSTER: &[u8] = b"user.meridian.cluster";

/// Whether the marks of an inode tell that it has no extended attribute of that name.
pub(crate) fn lacks(of: &Attributes, name: &Name) -> bool {
    match &name[..] {
        ACCESS_LIST => !of.marks.access_list,
        DEFAULT_LIST => !of.marks.default_list,
        CAPABILITY => !of.marks.capability,
        _ => false,
    }
}

impl Files {
    /// `getxattr`.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`] if it has none of that name.
    pub async fn xattr(&self, ino: Ino, name: Name) -> Result<Bytes, ClientError> {
        if &name[..] == PLACEMENT {
            // Of a directory that is cut off, too: who asks why a path hangs has to be told.
            let attributes = self.attributes(ino).await?;
            let topology = self.client.topology();
            return Ok(topology.group_name(attributes.place.partition).into());
        }
        if &name[..] == CLUSTER {
            let path = self.client.cluster_file().ok_or(FsError::NoAttribute)?;
            return Ok(Bytes::copy_from_slice(path.as_os_str().as_bytes()));
        }
        if &name[..] == QUOTA {
            return self.quota_in_words(ino).await;
        }
        if &name[..] == DURABILITY {
            return self.durability_in_words(ino).await;
        }
        self.marked_xattr(ino, name).await
    }

    /// As [`Files::xattr`] of what is stored, however long it takes.
    pub(crate) async fn xattr_now(&self, ino: Ino, name: Name) -> Result<Bytes, ClientError> {
        self.send_settings(ino).await?;
        if self.is_held_without(ino, &name).await {
            return Err(FsError::NoAttribute.into());
        }
        match self.ask(ino, |inode| Query::Xattr { inode, name: name.clone() }).await {
            Ok((Answer::Bytes(value), _)) => Ok(value),
            Ok(_) => Err(strange()),
            Err(error) => {
                if &name[..] == CAPABILITY && matches!(error, ClientError::Fs(_)) {
                    self.note_capability(ino, false);
                }
                Err(error)
            }
        }
    }

    /// Whether this client holds the inode, so that its marks tell that it has none of that name.
    async fn is_held_without(&self, ino: Ino, name: &Name) -> bool {
        let query = Query::Attributes { inode: self.place_of(ino) };
        if !self.client.driver().holds(&query) {
            return false;
        }
        let found = self.client.read(query).await;
        matches!(found, Ok(Answer::Attributes(of)) if lacks(&of, name))
    }

    /// Whether the file is written here, and has no capability for programs or loses it by that: so
    /// that kernels, which ask at each write, can be answered at once.
    pub fn lacks_capability(&self, ino: Ino) -> bool {
        let open = self.open_inode(ino);
        open.is_some_and(|open| crate::client::lock(&open.buffer).lacks_capability)
    }

    fn note_capability(&self, ino: Ino, has: bool) {
        let Some(open) = self.open_inode(ino) else { return };
        let mut buffer = crate::client::lock(&open.buffer);
        buffer.lacks_capability = !has && buffer.writers > 0;
    }

    /// `listxattr`.
    ///
    /// # Errors
    /// If the inode is gone.
    pub async fn xattrs(&self, ino: Ino) -> Result<Vec<Name>, ClientError> {
        self.send_settings(ino).await?;
        match self.ask(ino, |inode| Query::Xattrs { inode }).await?.0 {
            Answer::Names(names) => Ok(names),
            _ => Err(strange()),
        }
    }

    /// `setxattr`; of [`PLACEMENT`]: [`Files::place`]; of [`QUOTA`]: [`Files::set_quota`]; of
    /// [`DURABILITY`]: [`Files::set_durability`]. `drops_set_gid`: the set-group-id bit goes with a
    /// new list of access rights.
    ///
    /// # Errors
    /// If the tree refuses.
    pub async fn set_xattr(
        &self,
        ino: Ino,
        name: Name,
        value: Bytes,
        mode: XattrMode,
        drops_set_gid: bool,
    ) -> Result<(), ClientError> {
        if &name[..] == PLACEMENT {
            let group = std::str::from_utf8(&value).ok();
            let group = group.and_then(|name| self.client.topology().group_named(name));
            return self.place(ino, group.ok_or(FsError::Invalid)?).await;
        }
        if &name[..] == QUOTA {
            let limits = limits_of(&value).ok_or(FsError::Invalid)?;
            return self.set_quota(ino, Some(limits)).await;
        }
        if &name[..] == DURABILITY {
            return self.set_durability_in_words(ino, &value).await;
        }
        if mode == XattrMode::Any && self.keep_xattr(ino, (&name, &value), drops_set_gid)? {
            if &name[..] == CAPABILITY {
                self.note_capability(ino, true);
            }
            return Ok(());
        }
        let update = |inode| {
            let (name, value) = (name.clone(), value.clone());
            Update::SetXattr { inode, name, value, mode, drops_set_gid }
        };
        let open = self.open_inode(ino);
        let _guard = self.flushed(open.as_ref()).await?;
        let result = self.ordered(open.as_ref(), ino, update).await.map(drop);
        if &name[..] == CAPABILITY {
            self.note_capability(ino, true);
        }
        result
    }

    /// `removexattr`.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`] if it has none of that name.
    pub async fn remove_xattr(&self, ino: Ino, name: Name) -> Result<(), ClientError> {
        if &name[..] == QUOTA {
            return self.set_quota(ino, None).await;
        }
        if &name[..] == DURABILITY {
            return self.set_durability(ino, None).await;
        }
        let update = |inode| Update::RemoveXattr { inode, name: name.clone() };
        let open = self.open_inode(ino);
        let _guard = self.flushed(open.as_ref()).await?;
        self.ordered(open.as_ref(), ino, update).await.map(drop)
    }
}
