//! What is said to and of those who have a deadline.

use super::super::ends::Run;
use super::super::grant::Leases;
use super::deadline_ns;
use crate::clock;
use crate::events::About;
use crate::queue::Appointment;
use gpool_policy::deadline::{Job, Plan, earliest};
use gpool_protocol::{Deadline, ErrorBody, ErrorCode, EventKind, LeaseRequest, format_seconds};

/// What has become of one that waits and has a deadline, as it is counted.
const PLANNED: &str = "planned";
const AT_RISK: &str = "at_risk";

/// Whether one that would have its GPUs so long is through in time.
///
/// # Errors
/// It is not, also if it begins now.
pub fn check_in_time(asked: &LeaseRequest, run: Run, since_ns: u64) -> Result<(), ErrorBody> {
    let Some(deadline) = asked.request.deadline else { return Ok(()) };
    let now_ns = clock::now_ns();
    let ends_ns = run.ends_ns.unwrap_or(u64::MAX);
    let late_ns = ends_ns.saturating_sub(deadline_ns(deadline, since_ns, now_ns));
    if late_ns == 0 {
        return Ok(());
    }
    let left_ns = ends_ns.saturating_sub(now_ns);
    Err(cannot(
        format!(
            "deadline={} would be missed by {}: run-time is {}, and begins now at the earliest",
            deadline.text(),
            up_to(late_ns),
            run.seconds.map_or_else(|| up_to(left_ns), format_seconds)
        ),
        "give a later deadline or a shorter run time, or leave the deadline out",
    ))
}

/// Whoever has a deadline has a promise to keep to it.
pub fn without_hours() -> ErrorBody {
    cannot(
        "the budget of its team or user is spent, so that it would be promised nothing".to_owned(),
        "leave the deadline out; gpool quota ls --format wide says when the next period begins",
    )
}

/// A refusal because of a deadline.
pub fn cannot(why: String, remedy: &str) -> ErrorBody {
    ErrorBody::new(ErrorCode::DeadlineNotMet, why, remedy)
}

/// Nanoseconds in words, rounded up to seconds.
fn up_to(ns: u64) -> String {
    format_seconds(ns.div_ceil(1_000_000_000))
}

/// That there is no room in time, and when there would be.
pub fn not_in_time(asked: &LeaseRequest, job: &Job, others: &[&Plan], now_ns: u64) -> ErrorBody {
    let deadline = asked.request.deadline.map_or_else(String::new, Deadline::text);
    let at_any_time = Job { begins_by_ns: u64::MAX, ..job.clone() };
    let (why, remedy) = match earliest(&at_any_time, others, now_ns, |_| true) {
        Some(plan) if plan.begins_ns <= job.begins_by_ns => (
            "its quota does not let it in by then".to_owned(),
            "ask for less, or leave the deadline out and add wait (gpool quota ls)",
        ),
        Some(plan) => (
            format!(
                "there is room in {} at the earliest, which is {} too late",
                up_to(plan.begins_ns.saturating_sub(now_ns)),
                up_to(plan.begins_ns.saturating_sub(job.begins_by_ns))
            ),
            "give a later deadline, ask for less, or leave the deadline out and add wait",
        ),
        None => (
            "those who have what it needs have no end that anybody could count on".to_owned(),
            "ask for less, or leave the deadline out and add wait; run-time says of others when they end",
        ),
    };
    cannot(format!("deadline={deadline} cannot be kept to: {why}"), remedy)
}

fn about_waiting(asked: &LeaseRequest, uid: u32) -> About {
    About { container_id: Some(asked.container_id.clone()), uid: Some(uid), ..About::default() }
}

impl Appointment {
    /// When and where it begins, as the rest of a sentence.
    pub fn told(&self, now_ns: u64) -> String {
        let gpus: Vec<&str> = self.gpus.iter().map(|gpu| gpu.0.as_str()).collect();
        let made = if self.is_made { ", for which containers of a lower priority have to make room" } else { "" };
        let begins = up_to(self.begins_ns.saturating_sub(now_ns));
        format!("begins in {begins} at the latest on {}, in time for its deadline{made}", gpus.join(", "))
    }
}

impl Leases {
    /// Says that a moment was given.
    pub fn tell_planned(&self, asked: &LeaseRequest, uid: u32, its: &Appointment) {
        let deadline = asked.request.deadline.map_or_else(String::new, Deadline::text);
        let (id, told) = (asked.container_id.short(), its.told(clock::now_ns()));
        let message = format!("{id}, which has deadline={deadline}, {told}");
        self.counters.note_deadline(PLANNED);
        self.events.note(EventKind::Deadline, about_waiting(asked, uid), message);
    }

    /// Says that it has none any more.
    pub fn tell_at_risk(&self, asked: &LeaseRequest, uid: u32, deadline: Deadline, why: &ErrorBody) {
        let message = format!(
            "{} will probably not be through by its deadline={}, and waits for room as others do: {}",
            asked.container_id.short(),
            deadline.text(),
            why.message
        );
        self.counters.note_deadline(AT_RISK);
        self.events.note(EventKind::Deadline, about_waiting(asked, uid), message);
    }
}
