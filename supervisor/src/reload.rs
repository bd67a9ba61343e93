//! Taking a changed configuration over: on SIGHUP, and when somebody asks for it.

use crate::events::About;
use crate::gatekeeper::Order;
use crate::lease::{Leases, class_policy, fails_open};
use gpool_protocol::{ChangedKey, ErrorBody, ErrorCode, EventKind, Reloaded};
use nix::sys::signal::{SigSet, Signal};
use std::sync::atomic::Ordering;

/// Keeps SIGHUP from ending this thread and those that it starts; the signal to wait for.
///
/// # Errors
/// When the kernel does not let it be blocked.
pub fn block_hangup() -> nix::Result<SigSet> {
    let mut hangup = SigSet::empty();
    hangup.add(Signal::SIGHUP);
    hangup.thread_block()?;
    Ok(hangup)
}

/// Reloads at each SIGHUP, for ever.
pub fn at_each(hangup: &SigSet, leases: &Leases) {
    while hangup.wait().is_ok() {
        // What came of it is an event, also when it was refused.
        let _ = leases.reload(None);
    }
}

impl Leases {
    /// Reads the configuration again: all of it is taken over, or nothing. What needs a restart is named in the answer.
    ///
    /// # Errors
    /// When the files cannot be used.
    pub fn reload(&self, uid: Option<u32>) -> Result<Reloaded, ErrorBody> {
        // Nothing is granted in between by half of the old rules.
        let mut book = self.book();
        let old = self.configuration();
        let about = About { uid, ..About::default() };
        let reloaded = self.settings.reload().map_err(|error| {
            let message = format!("the configuration in force stays: {error}");
            self.events.note(EventKind::ConfigurationRefused, about.clone(), message.clone());
            ErrorBody::new(ErrorCode::ConfigurationInvalid, message, "correct the line and reload again")
        })?;
        let new = self.configuration();
        // What may be denied to a container may have changed as well, and is found out by trying.
        self.may_not_take.store(false, Ordering::Relaxed);
        for lease in book.leases.values_mut() {
            lease.end_notice.retry();
            lease.makes_room.notice.retry();
            let (tenant, class) = (lease.tenant, lease.record.class);
            let (before, after) = (class_policy(&old, class), class_policy(&new, class));
            if before != after {
                lease.region.set_fail_open(fails_open(&new, &lease.record));
                self.gatekeeper.order(Order::Change { tenant, share: lease.share(&new) });
            }
            // The one that hangs now may be the reason for the change.
            if before.hang_action != after.hang_action {
                self.gatekeeper.order(Order::TellAgain { tenant });
            }
        }
        self.memory_limits.ring();
        self.events.note(EventKind::ConfigurationReloaded, about, in_words(&reloaded));
        Ok(reloaded)
    }
}

fn in_words(reloaded: &Reloaded) -> String {
    let listed = |changes: &[ChangedKey]| match changes {
        [] => "nothing".to_owned(),
        _ => changes.iter().map(|change| change.key.as_str()).collect::<Vec<_>>().join(", "),
    };
    let applied = format!("reloaded the configuration: {} changed", listed(&reloaded.applied));
    match reloaded.needs_restart.as_slice() {
        [] => applied,
        waiting => format!("{applied}; {} waits for a restart", listed(waiting)),
    }
}
