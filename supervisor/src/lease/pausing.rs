//! Keeping a lease's gate closed, and who may open it again.

use super::change::check_has_share;
use super::described::about;
use super::entitlement::fails_open;
use super::grant::Leases;
use super::record::Record;
use super::refusal::failed;
use crate::gatekeeper::Order;
use gpool_protocol::{ErrorBody, ErrorCode, EventKind, LeaseView};

impl Leases {
    /// Keeps a lease's gate closed until it is resumed, or ends that; `who` is the user who says so, and whether that one administers this
    /// host. Said again, it changes nothing.
    ///
    /// # Errors
    /// An unknown lease, one that somebody else keeps paused whom that user may not overrule, or one that cannot be written down.
    pub fn set_paused(&self, lease: &str, paused: bool, who: (u32, bool)) -> Result<LeaseView, ErrorBody> {
        let mut book = self.book();
        let lease = book.find(lease)?;
        check_has_share(&lease.record)?;
        let paused_by = paused_by(&lease.record, paused, who)?;
        let (mut new, (uid, _)) = (Record { paused, paused_by, ..lease.record.clone() }, who);
        // Who resumes it has it come back, and who pauses it keeps it away, whatever was asked for before.
        new.suspension
            .iter_mut()
            .for_each(|its| (its.is_asked, its.is_cancelled) = (!paused, its.is_cancelled && paused));
        if new == lease.record {
            return Ok(lease.view());
        }
        new.write(&self.configuration().paths.run_dir)
            .map_err(|cause| failed("the lease cannot be written down, and is as it was", cause))?;
        lease.record = new;
        lease.suspension.next_try = None;
        self.suspensions.ring();
        lease.region.set_fail_open(fails_open(&self.configuration(), &lease.record));
        let tenant = lease.tenant;
        let (order, kind, done) = match paused {
            true => (Order::Pause { tenant }, EventKind::LeasePaused, "paused"),
            false => (Order::Resume { tenant }, EventKind::LeaseResumed, "resumed"),
        };
        // The gate of one that is suspended opens when it is back.
        if paused || !lease.is_kept_from_running() {
            self.gatekeeper.order(order);
        }
        let message = format!("{done} {}", lease.record.container_id.short());
        self.events.note(kind, about(&lease.record, Some(uid)), message);
        Ok(lease.view())
    }
}

/// Who keeps a lease paused once `who` has paused or resumed it. What its own user and who administers the host both do, that one alone
/// may undo.
fn paused_by(record: &Record, paused: bool, (uid, administers): (u32, bool)) -> Result<Option<u32>, ErrorBody> {
    let holder = record.paused_by.filter(|_| record.paused);
    match holder {
        Some(holder) if !paused && holder != uid && !administers => Err(ErrorBody::new(
            ErrorCode::NotPermitted,
            format!("container {} was paused by user {holder}", record.container_id.short()),
            "ask that user, root or a member of the socket's group",
        )),
        _ if !paused => Ok(None),
        Some(holder) if !administers || holder != record.owner_uid => Ok(Some(holder)),
        _ => Ok(Some(uid)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::*;

    #[test]
    fn what_who_administers_has_paused_its_user_does_not_resume() {
        let (owner, other, root) = ((1000, false), (1001, true), (0, true));
        let of = |paused, paused_by| Record { paused, paused_by, owner_uid: 1000, ..sample() };
        let by_nobody = of(false, None);
        assert_eq!(paused_by(&by_nobody, true, owner), Ok(Some(1000)));
        let by_owner = of(true, Some(1000));
        assert_eq!(paused_by(&by_owner, true, root), Ok(Some(0)), "both want it paused, and root decides");
        assert_eq!(paused_by(&by_owner, false, other), Ok(None));
        let by_root = of(true, Some(0));
        assert_eq!(paused_by(&by_root, true, owner), Ok(Some(0)));
        assert_eq!(paused_by(&by_root, true, other), Ok(Some(0)));
        let refused = paused_by(&by_root, false, owner).unwrap_err();
        assert_eq!((refused.code, refused.message.contains("user 0")), (ErrorCode::NotPermitted, true));
        assert_eq!(paused_by(&by_root, false, other), Ok(None));
        assert_eq!(paused_by(&of(true, None), false, owner), Ok(None), "of an older supervisor's pause nobody knows");
    }
}
