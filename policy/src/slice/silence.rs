//! Work that should have ended and has not.

use super::queue::Place;
use super::scheduler::SliceScheduler;
use super::{Command, TenantId};

/// Since when nothing of a tenant's work has ended, while some of it should have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    since_ns: Option<u64>,
    /// Whether that has been told.
    told: bool,
    /// Since when it does not go on.
    stands_since_ns: Option<u64>,
}

impl Silence {
    /// The tenant may launch: from now on work of it should end. A silence that lasts already goes on.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.since_ns.get_or_insert(now_ns);
        self.go_on(now_ns);
    }

    /// What has been launched should be able to end. Whether the silence stood until now.
    fn go_on(&mut self, now_ns: u64) -> bool {
        let Some(stood_since_ns) = self.stands_since_ns.take() else { return false };
        let stood_ns = now_ns.saturating_sub(stood_since_ns);
        self.since_ns = self.since_ns.map(|since_ns| since_ns.saturating_add(stood_ns).min(now_ns));
        true
    }

    /// What the tenant has launched may not be able to end until it may launch again: the silence stands still.
    fn stand(&mut self, now_ns: u64) {
        self.stands_since_ns.get_or_insert(now_ns);
    }

    /// Work of it has ended then. Whether that ends a silence that was told.
    pub(super) fn heard(&mut self, end_ns: u64) -> bool {
        let Some(since_ns) = self.since_ns.as_mut().filter(|since_ns| **since_ns < end_ns) else { return false };
        *since_ns = end_ns;
        std::mem::take(&mut self.told)
    }

    /// Nobody listened until now.
    pub(super) fn restart(&mut self, now_ns: u64) {
        self.since_ns = self.since_ns.map(|_| now_ns);
    }

    /// The tenant could not have been heard until now, told or not.
    pub(super) fn excuse(&mut self, now_ns: u64) {
        self.restart(now_ns);
        self.told = false;
    }

    /// The tenant has nothing outstanding.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// It has been told.
    pub(super) fn tell(&mut self) {
        self.told = true;
    }

    /// What was told has to be told again.
    pub(super) fn untell(&mut self) {
        self.told = false;
    }

    /// Since when, if it goes on and has not been told.
    fn untold_since_ns(self) -> Option<u64> {
        self.since_ns.filter(|_| !self.told && self.stands_since_ns.is_none())
    }
}

impl SliceScheduler {
    /// Tells who has had work outstanding for so long that it must be hanging, once each.
    pub(super) fn look_for_the_hung(&mut self, commands: &mut Vec<Command>) {
        let now_ns = self.now_ns;
        if self.next_silence_check_ns.is_none_or(|at_ns| at_ns > now_ns) {
            return;
        }
        let silent = self.queue.iter().filter_map(|(tenant, place)| {
            let since_ns = place.silence.untold_since_ns()?;
            Some((tenant, since_ns, since_ns.saturating_add(self.hang_ns(tenant, place))))
        });
        let (hung, rest): (Vec<_>, Vec<_>) = silent.partition(|(_, _, hung_ns)| *hung_ns <= now_ns);
        self.next_silence_check_ns = rest.iter().map(|(_, _, hung_ns)| *hung_ns).min();
        for (tenant, since_ns, _) in hung {
            self.note_told(tenant);
            commands.push(Command::Hung { tenant, since_ns });
        }
    }

    /// How long nothing of a tenant may end, as things are: less while a latency tenant other than itself waits.
    fn hang_ns(&self, tenant: TenantId, place: &Place) -> u64 {
        let hang = place.share.hang;
        let is_shorter = hang.heeds_latency() && self.queue.latency_waits(tenant);
        if is_shorter { hang.latency_waits_ns } else { hang.usual_ns }
    }

    /// A tenant may launch, or is silent once more: that will have to be looked at.
    pub(super) fn listen_to(&mut self, tenant: TenantId) {
        let Some(place) = self.queue.get(tenant) else { return };
        let since_ns = place.silence.untold_since_ns().unwrap_or(self.now_ns);
        let hung_ns = since_ns.saturating_add(self.hang_ns(tenant, place));
        self.next_silence_check_ns = Some(self.next_silence_check_ns.map_or(hung_ns, |at_ns| at_ns.min(hung_ns)));
    }

    /// What makes a silence too long has changed: look at all of them now.
    pub(super) fn listen_anew(&mut self) {
        self.next_silence_check_ns = Some(self.now_ns);
    }

    /// The gate of a gang is closed. What it has launched may wait for what stands there, a kernel for one on another GPU; but
    /// where nothing stands there, nothing is waited for.
    pub(super) fn note_whether_silence_stands(&mut self, gang: TenantId) {
        let (now_ns, mut goes_on) = (self.now_ns, false);
        self.queue.note(gang, |place| match place.paused || place.wants_since_ns.is_some() {
            true => place.silence.stand(now_ns),
            false => goes_on = place.silence.go_on(now_ns),
        });
        if goes_on {
            self.listen_to(gang);
        }
    }

    /// Work of a tenant has ended then, here or on another GPU of it.
    pub(super) fn hear(&mut self, tenant: TenantId, end_ns: u64) {
        let mut was_told = false;
        self.queue.note(tenant, |place| was_told = place.silence.heard(end_ns));
        if was_told {
            self.listen_to(tenant);
        }
    }

    /// The tenant's silence has to be told again, here or by another GPU of it.
    pub(super) fn untell(&mut self, tenant: TenantId) {
        self.queue.note(tenant, |place| place.silence.untell());
        self.listen_anew();
    }

    /// The tenant's silence has been told, here or by another GPU of it.
    pub(super) fn note_told(&mut self, tenant: TenantId) {
        self.queue.note(tenant, |place| place.silence.tell());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_that_ended_later_breaks_a_silence() {
        let mut silence = Silence::default();
        assert!(!silence.heard(5), "it had none");
        silence.begin(10);
        silence.begin(20);
        assert_eq!(silence.untold_since_ns(), Some(10));
        silence.tell();
        assert_eq!(silence.untold_since_ns(), None);
        assert!(!silence.heard(10) && silence.heard(30) && !silence.heard(40));
        assert_eq!(silence.untold_since_ns(), Some(40));
        silence.tell();
        silence.excuse(50);
        assert_eq!(silence.untold_since_ns(), Some(50));
        silence.end();
        silence.excuse(60);
        assert_eq!(silence.untold_since_ns(), None);
    }

    #[test]
    fn a_silence_that_stands_is_none_and_goes_on_where_it_was() {
        let mut silence = Silence::default();
        silence.begin(10);
        silence.stand(30);
        silence.stand(40);
        assert_eq!(silence.untold_since_ns(), None);
        silence.begin(100);
        assert_eq!(silence.untold_since_ns(), Some(80), "20 of it had gone by");
        silence.stand(105);
        assert!(silence.go_on(110) && !silence.go_on(115));
        assert_eq!(silence.untold_since_ns(), Some(85));
        silence.stand(120);
        assert!(!silence.heard(130));
        silence.begin(125);
        assert_eq!(silence.untold_since_ns(), Some(125), "it is never ahead of the time");
    }
}
