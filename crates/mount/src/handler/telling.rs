//! What the mount says of itself: attributes that are in no list of them ([`crate::about`]).

use super::{Handler, name};
use crate::about::{self, About, State};
use crate::answers::xattr;
use crate::call::Call;
use meridian_core::MessageId;

impl Handler {
    /// Answers if the attribute is one of those; the call, if it is not.
    pub(super) fn tell(&self, call: Call, of: &[u8], size: u32) -> Option<Call> {
        let client = self.files.client();
        // Who asks for the length only is told that of the longest value, and has read nothing.
        let taken = |take: &dyn Fn() -> Vec<u8>| match size {
            0 => vec![0; about::VALUE_MAX],
            _ => take(),
        };
        let value = if of == about::NAME.as_bytes()
            && call.node == client.root().ino
            && let Some(kernel) = self.kernel.get()
        {
            About::new(client, kernel.transport()).to_string().into_bytes()
        } else if of == about::TIMES.as_bytes() {
            about::json(&client.times())
        } else if of == about::STATE.as_bytes() {
            let mut state = State::new(client, self.slowest.under_way());
            if !self.may_see_paths(&call) {
                state.calls.clear();
            }
            taken(&|| about::json(&state))
        } else if of == about::SLOWEST.as_bytes() {
            if !self.may_see_paths(&call) {
                call.reply.error(libc::EACCES);
                return None;
            }
            taken(&|| about::json(&self.slowest.take()))
        } else if of == about::UPDATES.as_bytes() {
            taken(&|| about::json(&client.slowest_updates()))
        } else if let Some(of) = about::message(of) {
            self.tell_timeline(call, of, size);
            return None;
        } else if let Some(of) = of.strip_prefix(about::HOLDS.as_bytes()) {
            about::yes_or_no(self.files.holds(call.node, &name(of))).to_vec()
        } else if let Some(of) = of.strip_prefix(about::KEEPS.as_bytes()) {
            about::yes_or_no(self.files.would_keep(call.node, &name(of))).to_vec()
        } else {
            return Some(call);
        };
        xattr(Ok(value.into()), size, call.reply);
        None
    }

    /// Paths may have names in them that others must not see.
    fn may_see_paths(&self, call: &Call) -> bool {
        call.uid == 0 || call.uid == self.owner
    }

    fn tell_timeline(&self, call: Call, of: MessageId, size: u32) {
        let client = self.files.client().clone();
        self.answer(
            call,
            move |told, reply| xattr(told, size, reply),
            |_| async move { Ok(about::json(&client.timeline(of).await).into()) },
        );
    }
}
