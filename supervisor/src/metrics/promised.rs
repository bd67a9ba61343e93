//! Figures of what is promised to teams and users: quotas and reservations.

use super::families::Family;
use super::seconds;
use super::text::Page;
use gpool_protocol::{QuotaView, ReservationState, ReservationView};

/// What a quota allows, and what of it is held.
pub fn of_a_quota(page: &mut Page, quota: &QuotaView) {
    let uid = quota.uid.map(|uid| uid.to_string());
    let name = quota.team.as_deref().or(uid.as_deref()).unwrap_or_default();
    let labels = [("of", quota.of.text()), ("name", name)];
    let (held, allowed) = (&quota.held, &quota.allowed);
    let gpus = |permille: u64| permille as f64 / 1000.0;
    page.add(Family::QuotaHeldGpus, &labels, gpus(held.share_permille));
    page.add(Family::QuotaHeldMemory, &labels, held.memory_bytes as f64);
    page.add(Family::QuotaHeldLeases, &labels, held.leases as f64);
    page.add(Family::QuotaWaiting, &labels, f64::from(quota.waiting));
    page.add(Family::QuotaHeldUp, &labels, f64::from(quota.held_up));
    let most = [
        (Family::QuotaAllowedGpus, allowed.share_permille.map(gpus)),
        (Family::QuotaAllowedMemory, allowed.memory_bytes.map(|bytes| bytes as f64)),
        (Family::QuotaAllowedLeases, allowed.leases.map(|leases| leases as f64)),
    ];
    for (family, value) in most {
        if let Some(value) = value {
            page.add(family, &labels, value);
        }
    }
    if let Some(budget) = &quota.budget {
        let labels = [labels[0], labels[1], ("period", budget.period.text())];
        page.add(Family::QuotaBudget, &labels, seconds(budget.allowed_gpu_ns));
        if let Some(spent_gpu_ns) = budget.spent_gpu_ns {
            page.add(Family::QuotaSpent, &labels, seconds(spent_gpu_ns));
        }
    }
}

/// What a reservation keeps, and what of it is used or missing.
pub fn of_a_reservation(page: &mut Page, reservation: &ReservationView) {
    let labels = [("reservation", reservation.name.as_str())];
    let is_open = reservation.state == ReservationState::Open;
    page.add(Family::ReservationOpen, &labels, f64::from(u8::from(is_open)));
    let parts = [
        (Family::ReservationGpus, Family::ReservationMemory, reservation.reserved()),
        (Family::ReservationUsedGpus, Family::ReservationUsedMemory, reservation.used()),
        (Family::ReservationMissingGpus, Family::ReservationMissingMemory, reservation.missing()),
    ];
    for (gpus, memory, (permille, bytes)) in parts {
        page.add(gpus, &labels, permille as f64 / 1000.0);
        page.add(memory, &labels, bytes as f64);
    }
}
