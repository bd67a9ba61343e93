//! All kinds of events, for who counts or shows them.

use crate::messages::EventKind;

impl EventKind {
    /// Every kind, in the order of its definition.
    pub const ALL: [EventKind; 32] = [
        EventKind::SupervisorStarted,
        EventKind::LeaseGranted,
        EventKind::LeaseRefused,
        EventKind::LeaseBound,
        EventKind::LeaseTakenOver,
        EventKind::LeaseUpdated,
        EventKind::LeasePaused,
        EventKind::LeaseResumed,
        EventKind::LeaseRevoked,
        EventKind::LeaseEnded,
        EventKind::AllocationRefused,
        EventKind::UnknownVersion,
        EventKind::PlacesFull,
        EventKind::Breach,
        EventKind::UnderReported,
        EventKind::Hung,
        EventKind::Bypass,
        EventKind::OverCap,
        EventKind::Outside,
        EventKind::GpuSilent,
        EventKind::GpuAnswers,
        EventKind::MigApplied,
        EventKind::MigChanged,
        EventKind::MpsStarted,
        EventKind::MpsStopped,
        EventKind::MpsServerDied,
        EventKind::MpsServerFault,
        EventKind::TimeSlicesTried,
        EventKind::TimeSlicesChanged,
        EventKind::MigNotApplied,
        EventKind::ConfigurationReloaded,
        EventKind::ConfigurationRefused,
    ];

    /// The word on the wire, `lease-granted`.
    #[must_use]
    pub fn word(self) -> String {
        serde_json::to_value(self).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kind_is_left_out() {
        for (index, kind) in EventKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "{kind:?}");
        }
        // What is read names all that could be written there.
        let error = serde_json::from_str::<EventKind>("\"no-such-kind\"").unwrap_err().to_string();
        let known = error.split_once("expected one of").unwrap().1;
        assert_eq!(known.matches('`').count(), 2 * EventKind::ALL.len(), "{error}");
        assert!(EventKind::ALL.iter().all(|kind| known.contains(&format!("`{}`", kind.word()))), "{error}");
    }
}
