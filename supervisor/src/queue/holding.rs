//! Holding one back that waits, and putting one before the others.

use super::tending::{is_meant, nobody};
use super::{Queue, Waiter};
use crate::events::About;
use crate::lease::Leases;
use gpool_protocol::{ContainerId, ErrorBody, ErrorCode, EventKind, LeaseRequest, WaitingView};

/// What becomes of the place of one that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placing {
    /// It is held back.
    Hold,
    /// It is held back no more.
    Release,
    /// It stands before the others of its priority.
    First,
}

impl Leases {
    /// Holds back the one of this container and user, releases it, or puts it first: `who` is the user who says so, and whether
    /// that one administers this host. Said again, it changes nothing.
    ///
    /// # Errors
    /// It does not wait any more, or is held back by somebody whom that user may not overrule.
    pub fn place_waiting(
        &self,
        (id, owner_uid): (&ContainerId, u32),
        placing: Placing,
        (by, administers): (u32, bool),
    ) -> Result<WaitingView, ErrorBody> {
        let mut book = self.book();
        let found = book.queue.waiters.iter_mut().find(|waiter| is_meant(waiter, &id.0, owner_uid));
        let is_new = place(found.ok_or_else(|| nobody(&id.0))?, placing, (by, administers))?;
        let shown = book.queue.views().into_iter().find(|view| view.container_id == *id && view.owner_uid == owner_uid);
        let view = shown.ok_or_else(|| nobody(&id.0))?;
        if is_new {
            let about = About { container_id: Some(id.clone()), uid: Some(by), ..About::default() };
            let what = match placing {
                Placing::Hold => "is held back in the queue",
                Placing::Release => "was released in the queue",
                Placing::First => "was put first in the queue, of its priority,",
            };
            self.events.note(EventKind::LeaseQueued, about, format!("{} {what} by user {by}", id.short()));
            self.write_queue(&mut book);
        }
        Ok(view)
    }
}

/// Whether that is new.
fn place(waiter: &mut Waiter, placing: Placing, (by, administers): (u32, bool)) -> Result<bool, ErrorBody> {
    match (placing, waiter.held_by) {
        // Its own user may hold it back, and who administers: what both do that one alone may undo.
        (Placing::Hold, Some(holder)) if administers && holder == waiter.uid && holder != by => {
            waiter.held_by = Some(by)
        }
        (Placing::Hold, Some(_)) | (Placing::Release, None) => return Ok(false),
        (Placing::Release, Some(holder)) if holder != by && !administers => {
            return Err(ErrorBody::new(
                ErrorCode::NotPermitted,
                format!("container {} is held back by user {holder}", waiter.asked.container_id.short()),
                "ask that user, root or a member of the socket's group",
            ));
        }
        (Placing::Hold, None) => {
            waiter.held_by = Some(by);
            // What was kept, made or planned for it is for those behind it.
            waiter.keep_nothing();
            waiter.making_on.borrow_mut().clear();
            waiter.appointment.replace(None);
        }
        (Placing::Release, Some(_)) => waiter.held_by = None,
        (Placing::First, _) => return Ok(!std::mem::replace(&mut waiter.is_first, true)),
    }
    Ok(true)
}

impl Queue {
    /// Those that are held back, as they came.
    pub fn held(&self) -> Vec<&Waiter> {
        let mut held: Vec<&Waiter> = self.waiters.iter().filter(|it| it.is_there() && it.held_by.is_some()).collect();
        held.sort_by_key(|waiter| waiter.claim);
        held
    }

    /// Who holds this request back, if somebody does.
    pub fn held_by(&self, asked: &LeaseRequest, uid: u32) -> Option<u32> {
        self.waiter_of(asked, uid).and_then(|waiter| waiter.held_by)
    }
}

/// There may be room, and somebody does not let it begin.
pub fn held_back(by: u32) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::ShareNotFree,
        format!("it is held back in the queue by user {by}"),
        "have it released (gpool queue release), and start it again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::WatchedProcess;
    use gpool_protocol::HostPid;

    fn queue(ids: &[&str]) -> Queue {
        let mut queue = Queue::default();
        for (id, since_ns) in ids.iter().zip(1..) {
            let text = format!(
                r#"{{"container_id":"{id}","request":{{"fraction_permille":300,"wait_seconds":60,"team":"{id}"}}}}"#
            );
            let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
            queue.join(&serde_json::from_str(&text).unwrap(), 1000, this, since_ns);
        }
        queue
    }

    fn shown(queue: &Queue) -> Vec<(String, u32)> {
        queue.views().into_iter().map(|view| (view.container_id.0, view.place)).collect()
    }

    #[test]
    fn who_is_held_back_stands_in_nobodys_way_and_has_its_place_when_it_is_released() {
        let mut queue = queue(&["a", "b", "c"]);
        assert_eq!(place(&mut queue.waiters[0], Placing::Hold, (1000, false)), Ok(true));
        assert_eq!(
            place(&mut queue.waiters[0], Placing::Hold, (1000, false)),
            Ok(false),
            "said again it changes nothing"
        );
        assert_eq!(shown(&queue), [("b".into(), 1), ("c".into(), 2), ("a".into(), 3)]);
        assert_eq!(queue.in_order().len(), 2);
        assert!(queue.find("a", 1000).is_ok(), "it can be released, or taken out");
        let asked = queue.waiters[0].asked.clone();
        assert_eq!((queue.held_by(&asked, 1000), queue.ahead_of(&asked, 1000).len()), (Some(1000), 2));
        assert_eq!(place(&mut queue.waiters[0], Placing::Release, (1000, false)), Ok(true));
        assert_eq!(shown(&queue)[0], ("a".into(), 1));
        assert_eq!(place(&mut queue.waiters[0], Placing::Release, (1000, false)), Ok(false));
    }

    #[test]
    fn what_an_administrator_holds_back_no_user_releases() {
        let mut queue = queue(&["a"]);
        place(&mut queue.waiters[0], Placing::Hold, (1000, false)).unwrap();
        assert_eq!(place(&mut queue.waiters[0], Placing::Hold, (0, true)), Ok(true), "whoever held it back before");
        assert_eq!(place(&mut queue.waiters[0], Placing::Hold, (1000, false)), Ok(false));
        let refused = place(&mut queue.waiters[0], Placing::Release, (1000, false)).unwrap_err();
        assert_eq!((refused.code, queue.waiters[0].held_by), (ErrorCode::NotPermitted, Some(0)));
        assert_eq!(place(&mut queue.waiters[0], Placing::Release, (7, true)), Ok(true));
    }

    #[test]
    fn who_is_put_first_stands_before_the_others_of_its_priority() {
        let mut queue = queue(&["a", "b", "c"]);
        assert_eq!(place(&mut queue.waiters[2], Placing::First, (0, true)), Ok(true));
        assert_eq!(place(&mut queue.waiters[2], Placing::First, (0, true)), Ok(false));
        assert_eq!(shown(&queue), [("c".into(), 1), ("a".into(), 2), ("b".into(), 3)]);
        let asked = queue.waiters[2].asked.clone();
        assert!(queue.ahead_of(&asked, 1000).is_empty());
        place(&mut queue.waiters[0], Placing::First, (0, true)).unwrap();
        assert_eq!(shown(&queue)[0], ("a".into(), 1), "among those that are put first it is as before");
    }
}
