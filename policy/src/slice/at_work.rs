//! Who was at work last, and who was so beside that one.

use crate::TenantId;

/// The two tenants that were at work last, each with the time at which it was seen so last, the later one first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AtWork([Option<(TenantId, u64)>; 2]);

impl AtWork {
    /// This one comes, wants the device, or has just had it.
    pub(super) fn note(&mut self, tenant: TenantId, now_ns: u64) {
        if self.0[0].is_none_or(|(last, _)| last != tenant) {
            self.0[1] = self.0[0];
        }
        self.0[0] = Some((tenant, now_ns));
    }

    /// When anybody else was last.
    pub(super) fn last_beside(&self, tenant: TenantId) -> Option<u64> {
        self.0.iter().flatten().find(|(other, _)| *other != tenant).map(|(_, last_ns)| *last_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_beside_each_is_known() {
        let [a, b, c] = [1, 2, 3].map(TenantId);
        let mut at_work = AtWork::default();
        assert_eq!(at_work.last_beside(a), None);
        at_work.note(a, 1);
        assert_eq!((at_work.last_beside(a), at_work.last_beside(b)), (None, Some(1)));
        at_work.note(b, 2);
        at_work.note(a, 3);
        at_work.note(a, 4);
        assert_eq!([a, b, c].map(|tenant| at_work.last_beside(tenant)), [Some(2), Some(4), Some(4)]);
        at_work.note(c, 5);
        assert_eq!([a, b, c].map(|tenant| at_work.last_beside(tenant)), [Some(5), Some(5), Some(4)]);
    }
}
