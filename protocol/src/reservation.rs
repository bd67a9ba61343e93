//! Reservations: what is kept free of which GPUs, for whom and when, and what of it those have already.

use crate::class::Priority;
use crate::identity::GpuUuid;
use serde::{Deserialize, Serialize};

/// Whether it is the time of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReservationState {
    /// It is.
    Open,
    /// It is not yet, and nobody else is given any more what is reserved.
    Ahead,
    /// It is not.
    Closed,
    /// It will never be again.
    Over,
}

impl ReservationState {
    /// The word on the wire.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            ReservationState::Open => "open",
            ReservationState::Ahead => "ahead",
            ReservationState::Closed => "closed",
            ReservationState::Over => "over",
        }
    }
}

/// A GPU that a reservation is on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationSeat {
    /// Which.
    pub gpu_uuid: GpuUuid,
    /// Guaranteed share that is reserved of it, permille.
    pub share_permille: u16,
    /// Memory that is, bytes.
    pub memory_bytes: u64,
    /// What of the share nobody else is given: what those who may have it do not have yet.
    pub kept_share_permille: u16,
    /// The same of the memory.
    pub kept_memory_bytes: u64,
    /// What of the share that is kept others have still.
    pub missing_share_permille: u16,
    /// The same of the memory.
    pub missing_memory_bytes: u64,
}

/// A reservation, and how it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationView {
    /// Its name: `serving` of `[reservation.serving]`.
    pub name: String,
    /// Teams that may have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub teams: Vec<String>,
    /// Users that may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<u32>,
    /// The lowest priority that may; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// On how many GPUs.
    pub gpus: u16,
    /// Guaranteed share of each, permille.
    pub share_permille: u16,
    /// Memory of each, bytes; absent: the share of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// On which, by words of their names; absent: on any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether it is its time.
    pub state: ReservationState,
    /// When that begins, where it is not, Unix seconds; absent: never again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_unix_s: Option<u64>,
    /// When it ends, where it is, Unix seconds; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_unix_s: Option<u64>,
    /// Where it is, in its time and ahead of it; fewer than `gpus` where no more of these are there that would do.
    pub seats: Vec<ReservationSeat>,
}

impl ReservationView {
    /// What is reserved on its GPUs together: share, in thousandths of a GPU, and memory.
    #[must_use]
    pub fn reserved(&self) -> (u64, u64) {
        self.sum(|seat| (seat.share_permille, seat.memory_bytes))
    }

    /// What of that those have who may have it.
    #[must_use]
    pub fn used(&self) -> (u64, u64) {
        let ((share, memory), (kept_share, kept_memory)) =
            (self.reserved(), self.sum(|seat| (seat.kept_share_permille, seat.kept_memory_bytes)));
        (share.saturating_sub(kept_share), memory.saturating_sub(kept_memory))
    }

    /// What others have of it still, with all of each GPU that is not there, of whose memory nobody knows.
    #[must_use]
    pub fn missing(&self) -> (u64, u64) {
        let (share, memory) = self.sum(|seat| (seat.missing_share_permille, seat.missing_memory_bytes));
        (share.saturating_add(self.missing_gpus() * u64::from(self.share_permille)), memory)
    }

    /// How many GPUs are missing, in its time and ahead of it.
    #[must_use]
    pub fn missing_gpus(&self) -> u64 {
        match self.state {
            ReservationState::Open | ReservationState::Ahead => {
                u64::from(self.gpus).saturating_sub(self.seats.len() as u64)
            }
            ReservationState::Closed | ReservationState::Over => 0,
        }
    }

    /// Whether nothing is missing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing() == (0, 0) && self.missing_gpus() == 0
    }

    fn sum(&self, of: impl Fn(&ReservationSeat) -> (u16, u64)) -> (u64, u64) {
        self.seats.iter().map(of).fold((0, 0), |(permille, bytes), (its_permille, its_bytes)| {
            (permille + u64::from(its_permille), bytes.saturating_add(its_bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_and_missing_is_of_all_gpus_together() {
        let text = r#"{"name":"serving","teams":["vision"],"gpus":3,"share_permille":500,"state":"open","seats":[
            {"gpu_uuid":"GPU-1","share_permille":500,"memory_bytes":40,"kept_share_permille":200,"kept_memory_bytes":40,
             "missing_share_permille":100,"missing_memory_bytes":0},
            {"gpu_uuid":"GPU-2","share_permille":500,"memory_bytes":40,"kept_share_permille":0,"kept_memory_bytes":0,
             "missing_share_permille":0,"missing_memory_bytes":0}]}"#;
        let mut view: ReservationView = serde_json::from_str(text).unwrap();
        assert_eq!((view.reserved(), view.used(), view.missing()), ((1000, 80), (800, 40), (600, 0)));
        assert!(!view.is_whole() && view.missing_gpus() == 1);
        assert_eq!(serde_json::from_str::<ReservationView>(&serde_json::to_string(&view).unwrap()).unwrap(), view);
        (view.state, view.seats) = (ReservationState::Closed, Vec::new());
        assert!(view.is_whole(), "nothing is missing while nothing is kept");
        for state in [ReservationState::Open, ReservationState::Ahead, ReservationState::Closed, ReservationState::Over]
        {
            assert_eq!(serde_json::to_value(state).unwrap(), state.text());
        }
    }
}
