//! What a program has set of a file and is not yet sent: it goes with the bytes that are kept then,
//! in one update (`fs::settled`). A plain value.

use meridian_fs::operation::Changes;
use meridian_fs::settled::{SETTINGS_MAX, Setting};
use meridian_fs::types::{Attributes, Timestamp};

/// So many bytes of extended attributes are kept of a file: more goes at once.
const XATTRS_MAX: usize = 16 << 10;
/// Bits of a mode that a write may take.
const SET_IDS: u16 = 0o6000;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    all: Vec<Setting>,
    /// When the program set something last.
    time: Timestamp,
}

impl Settings {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// When something was set last.
    pub fn time(&self) -> Timestamp {
        self.time
    }

    /// Each, in its order.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.all.iter()
    }

    /// What an update brings of it.
    pub fn to_vec(&self) -> Vec<Setting> {
        self.all.clone()
    }

    /// Whether extended attributes are set.
    pub fn has_xattrs(&self) -> bool {
        self.all.iter().any(|setting| matches!(setting, Setting::Xattr { .. }))
    }

    /// Adds what was set at `time`, unless it is too much.
    pub fn push(&mut self, setting: Setting, time: Timestamp) -> bool {
        let bytes = self.all.iter().chain([&setting]).map(bytes_of).sum::<usize>();
        if bytes > XATTRS_MAX {
            return false;
        }
        if let Some(joined) = self.all.last().and_then(|last| joined(last, &setting)) {
            self.all.pop();
            self.all.push(joined);
        } else if self.all.len() < SETTINGS_MAX {
            self.all.push(setting);
        } else {
            return false;
        }
        self.time = self.time.max(time);
        true
    }

    /// Bytes that are written come before it in the update, and after it for the program: what they
    /// undo is not set.
    pub fn on_write(&mut self) {
        let all = std::mem::take(&mut self.all);
        self.all = all.into_iter().filter_map(Setting::after_write).collect();
    }

    /// Puts what was set before this before it. It has been in one update, so with this it may be
    /// too much for one: the rest is what stays here.
    pub fn put_before(&mut self, before: Settings) {
        let after = std::mem::replace(self, before);
        for setting in after.all {
            match self.all.last().and_then(|last| joined(last, &setting)) {
                Some(joined) => {
                    self.all.pop();
                    self.all.push(joined);
                }
                None => self.all.push(setting),
            }
        }
        self.time = self.time.max(after.time);
    }

    /// Takes at most as much as one update brings.
    pub fn take(&mut self) -> Settings {
        let rest = self.all.split_off(self.all.len().min(SETTINGS_MAX));
        Settings { all: std::mem::replace(&mut self.all, rest), time: self.time }
    }

    /// What a write does not undo, to go before the bytes, and what must come after them.
    pub fn split(self) -> (Settings, Settings) {
        let (time, all) = (self.time, self.all);
        let part = |all| Settings { all, time };
        let first = all.iter().cloned().filter_map(before_bytes).collect();
        (part(first), part(all.into_iter().filter_map(after_bytes).collect()))
    }

    /// Whether something of it can go before the bytes.
    pub fn can_go_first(&self) -> bool {
        self.all.iter().any(|setting| before_bytes(setting.clone()).is_some())
    }

    /// What `stat` shows of the file after it.
    pub fn show(&self, shown: &mut Attributes) {
        let time = shown.ctime.max(self.time);
        self.all.iter().for_each(|setting| setting.show(shown, time));
    }
}

/// What of a setting can go before bytes that were written before it.
fn before_bytes(setting: Setting) -> Option<Setting> {
    match after_bytes(setting.clone()) {
        None => Some(setting),
        Some(Setting::Attributes(_)) => setting.after_write(),
        Some(Setting::Xattr { .. }) => None,
    }
}

/// What of a setting bytes would undo that come after it.
fn after_bytes(setting: Setting) -> Option<Setting> {
    match &setting {
        Setting::Attributes(changes) => {
            let mode = changes.mode.filter(|mode| mode & SET_IDS != 0);
            let left = Changes { mode, mtime: changes.mtime, ..Changes::default() };
            (left != Changes::default()).then_some(Setting::Attributes(left))
        }
        Setting::Xattr { .. } => setting.clone().after_write().is_none().then_some(setting),
    }
}

/// Both as one, if that is the same.
fn joined(first: &Setting, second: &Setting) -> Option<Setting> {
    let (Setting::Attributes(first), Setting::Attributes(second)) = (first, second) else {
        return None;
    };
    // A change of the owner takes set-id bits, and comes before the mode in one setting.
    let owner_given = second.uid.is_some() || second.gid.is_some();
    if first.mode.is_some() && owner_given {
        return None;
    }
    Some(Setting::Attributes(Changes {
        mode: second.mode.or(first.mode),
        uid: second.uid.or(first.uid),
        gid: second.gid.or(first.gid),
        size: None,
        atime: second.atime.or(first.atime),
        mtime: second.mtime.or(first.mtime),
    }))
}

fn bytes_of(setting: &Setting) -> usize {
    match setting {
        Setting::Attributes(_) => 0,
        Setting::Xattr { name, value, .. } => name.len() + value.len(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const TIME: Timestamp = Timestamp { seconds: 9, nanos: 0 };

    fn mode(mode: u16) -> Setting {
        Setting::Attributes(Changes { mode: Some(mode), ..Changes::default() })
    }

    fn owner(uid: u32) -> Setting {
        Setting::Attributes(Changes { uid: Some(uid), ..Changes::default() })
    }

    fn mtime() -> Setting {
        Setting::Attributes(Changes { mtime: Some(TIME), ..Changes::default() })
    }

    fn xattr(name: &'static [u8], len: usize) -> Setting {
        let (name, value) = (Bytes::from_static(name), Bytes::from(vec![b'x'; len]));
        Setting::Xattr { name, value, drops_set_gid: false }
    }

    fn settings(all: &[Setting]) -> Settings {
        let mut settings = Settings::default();
        all.iter().for_each(|setting| assert!(settings.push(setting.clone(), TIME)));
        settings
    }

    #[test]
    fn what_is_set_twice_goes_once_if_the_order_does_not_matter() {
        let joined = settings(&[owner(5), mode(0o4755), mtime()]);
        let changes =
            Changes { uid: Some(5), mode: Some(0o4755), mtime: Some(TIME), ..Changes::default() };
        assert_eq!(joined.to_vec(), [Setting::Attributes(changes)]);
        let apart = [mode(0o4755), owner(5)];
        assert_eq!(settings(&apart).to_vec(), apart, "the owner takes the bit");
        assert_eq!(settings(&[mode(0o700), mode(0o600)]).to_vec(), [mode(0o600)]);
    }

    #[test]
    fn what_is_too_much_is_not_kept() {
        let mut many = Settings::default();
        for _ in 0..SETTINGS_MAX {
            assert!(many.push(xattr(b"user.x", 1), TIME));
        }
        assert!(!many.push(xattr(b"user.x", 1), TIME));
        let mut long = Settings::default();
        assert!(!long.push(xattr(b"user.x", XATTRS_MAX), TIME) && long.is_empty());
    }

    #[test]
    fn a_write_undoes_times_and_capabilities() {
        let mut all = settings(&[mode(0o640), mtime(), xattr(b"user.x", 1)]);
        assert!(all.push(xattr(b"security.capability", 9), TIME));
        all.on_write();
        assert_eq!(all.to_vec(), [mode(0o640), xattr(b"user.x", 1)]);
    }

    #[test]
    fn what_is_split_is_all_of_it() {
        let capability = xattr(b"security.capability", 9);
        let all = [mode(0o640), xattr(b"user.x", 1), mtime(), capability.clone()];
        let (first, rest) = settings(&all).split();
        assert_eq!(first.to_vec(), [mode(0o640), xattr(b"user.x", 1)]);
        assert_eq!(rest.to_vec(), [mtime(), capability]);
    }
}
