//! Changing leases while their containers run.

use super::account::GpuAccount;
use super::ahead::Ahead;
use super::book::{Book, Lease};
use super::described::{about, described, without_room};
use super::ends::{check_end_can_come, check_has_end, run_changed};
use super::entitlement::{check_class, class_policy, fails_open, held_demand};
use super::grant::Leases;
use super::placing::LOOK_PATIENCE;
use super::plans::Admitted;
use super::promised::{measure, promise_changed};
use super::quota::Tally;
use super::record::Record;
use super::refusal::{
    failed, kept_for_waiting, quota_kept_for_waiting, reserved_for_others_while_it_runs, worded_of_change,
};
use super::reserved::Whom;
use crate::clock;
use crate::gatekeeper::Order;
use gpool_policy::admission::{Demand, GpuCapacity, Held, MemoryDemand, Part, check_update};
use gpool_policy::queue::Taken;
use gpool_protocol::{
    ErrorBody, ErrorCode, EventKind, LEAST_BYTES, LeaseUpdate, LeaseView, Priority, check_limit, format_bytes,
    format_permille, format_seconds, format_short_time,
};
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Leases {
    /// Changes a running lease: all that is asked for, or nothing. `who` is the user, and whether that one administers this host.
    ///
    /// # Errors
    /// An unknown lease, values that do not go together, a class that this host denies, no room on one of its GPUs, or an end that
    /// the user may not put off.
    pub fn update(&self, lease: &str, change: &LeaseUpdate, who: (u32, bool)) -> Result<LeaseView, ErrorBody> {
        let outcome = match self.try_update(lease, change, who) {
            Err(refusal) if self.may_be_free_by_now(&refusal) => {
                self.occupants.look_again(Instant::now() + LOOK_PATIENCE);
                self.try_update(lease, change, who)
            }
            outcome => outcome,
        };
        if let Ok(view) = &outcome
            && of_share(change) != LeaseUpdate::default()
        {
            self.note_changed(&view.lease_id);
        }
        outcome
    }

    fn try_update(
        &self,
        lease: &str,
        change: &LeaseUpdate,
        (uid, administers): (u32, bool),
    ) -> Result<LeaseView, ErrorBody> {
        let mut book = self.book();
        let (id, old, held_bytes) = {
            let lease = book.find(lease)?;
            let held = |its: &GpuAccount| its.seen_bytes().max(its.memory_limit.used_bytes());
            let held_bytes = lease.accounts.iter().map(held).max().unwrap_or(0);
            (lease.record.lease_id.clone(), lease.record.clone(), held_bytes)
        };
        let of_share = of_share(change);
        let is_of_share = of_share != LeaseUpdate::default();
        if is_of_share {
            check_can_change(&old, &of_share, held_bytes)?;
            check_is_there(&old)?;
        }
        let run = run_changed(&old, change, administers, clock::now_ns())?;
        let mut new = Record { run_seconds: run.seconds, ends_ns: run.ends_ns, ..changed(&old, change)? };
        if old.init.is_some() && old.run_seconds.is_none() {
            check_end_can_come(&new, old.cgroup.as_deref())?;
        }
        if change.class.is_some() {
            check_class(&self.configuration(), new.class)?;
            if !administers {
                check_has_end(new.run_seconds, new.class, self.longest_run_seconds(new.class))?;
            }
        }
        if is_of_share {
            new.memory_cap_bytes = self.check_room(&book, &old, &new)?;
        }
        if new.spill_bytes > old.spill_bytes {
            self.check_spill_change(&book, &id, new.spill_bytes)?;
        }
        new.highest_spill_bytes = old.highest_spill_bytes.map(|highest| highest.max(new.spill_bytes));
        new.highest_cap_bytes = old.highest_cap_bytes.map(|highest| highest.max(new.memory_cap_bytes));
        let lease = book.leases.get_mut(&id).expect("found above");
        if new == old {
            return Ok(lease.view());
        }
        new.write(&self.configuration().paths.run_dir)
            .map_err(|cause| failed("the lease cannot be written down, and is as it was", cause))?;
        let Lease { meter, record, .. } = &mut *lease;
        meter.run(clock::now_ns(), record);
        lease.record = new;
        if !is_of_share {
            let message = format!("changed {}: {}", old.container_id.short(), difference(&old, &lease.record));
            self.events.note(EventKind::LeaseUpdated, about(&lease.record, Some(uid)), message);
            return Ok(lease.view());
        }
        lease.region.control().memory_cap_bytes.store(lease.record.memory_cap_bytes, Ordering::Relaxed);
        lease.region.control().spill_bytes.store(lease.record.spill_bytes, Ordering::Relaxed);
        // From now on nothing more is had beyond it. What is, nobody is sold.
        for (gpu, bytes) in lease.note_lowered_cap() {
            self.foreign_bytes[gpu].fetch_add(bytes, Ordering::Relaxed);
        }
        let configuration = self.configuration();
        lease.region.set_fail_open(fails_open(&configuration, &lease.record));
        lease.region.set_fraction(lease.record.fraction_permille);
        let (tenant, share) = (lease.tenant, lease.share(&configuration));
        self.gatekeeper.order(Order::Change { tenant, share });
        self.gatekeeper.order(measure(&lease.record, tenant));
        if (old.p99_ns, old.class) != (lease.record.p99_ns, lease.record.class) {
            lease.note_promise_changed();
        }
        let hang_action = |record: &Record| class_policy(&configuration, record.class).hang_action;
        if hang_action(&old) != hang_action(&lease.record) {
            self.gatekeeper.order(Order::TellAgain { tenant });
        }
        self.time_slices.ring();
        let mut message = format!("changed {}: {}", old.container_id.short(), difference(&old, &lease.record));
        if lease.record.memory_cap_bytes != old.memory_cap_bytes {
            let context_bytes = lease.region.control().context_bytes.load(Ordering::Relaxed);
            message += &without_room(&lease.record, context_bytes);
        }
        self.events.note(EventKind::LeaseUpdated, about(&lease.record, Some(uid)), message);
        Ok(lease.view())
    }

    /// Whether what `new` asks for beyond `old` goes with the quotas and is free on each GPU of the lease; the memory cap.
    pub fn check_room(&self, book: &Book, old: &Record, new: &Record) -> Result<u64, ErrorBody> {
        let gpus = self.gpus_for_new();
        let scene = self.scene(book, None, &gpus);
        let own = book.leases.get(&old.lease_id).map(|lease| Tally::of_lease(lease, &gpus));
        let (own, wanted) = (own.unwrap_or_else(|| Tally::of(old, &gpus)), Tally::of(new, &gpus));
        let goes = |ahead: &[Tally]| self.check_quota(&scene, Some(&own), &wanted, ahead);
        goes(&[])?;
        self.check_hours_are_read(Some(&own), &wanted)?;
        let waiting = book.queue.before_lease(new, new.priority);
        let (whom, more) = (Whom::of(new), growth(old, new));
        let accounts = book.leases.get(&old.lease_id).map_or(&[][..], |lease| &lease.accounts);
        let on: Vec<usize> = accounts.iter().map(|account| account.gpu).collect();
        // In what is reserved for it those alone are before it who may have that too.
        let ahead = match self.grows_in_what_is_kept(&whom, &on, more, &scene) {
            true => self.ahead_of_members(&whom, &waiting, &scene),
            false => self.taken_by(&waiting, &scene),
        };
        let Ahead { taken, whose, reserved, .. } = &ahead;
        let beside = |taken: &[Taken]| self.check_room_among(&scene.capacities_beside(taken), book, old, new);
        let outcome = beside(taken);
        let grown = Taken { indices: on, demand: Demand::exactly(more) };
        let broken = scene.tables_broken_by(&whom, &grown, (taken, whose));
        if outcome.is_ok() && !broken.is_empty() {
            return Err(reserved_for_others_while_it_runs(&broken));
        }
        let its = (&new.container_id, new.owner_uid);
        let broken = |more: &Taken, is_made: bool| {
            let of_those = |its: &Admitted| its.is_made == is_made;
            scene.plans.broken_by(its, (more, &whom), (&ahead, new.ends_ns), of_those).len()
        };
        // Who was to make room for one and is promised something now takes all of it from that one.
        let all = Part { permille: held_demand(new).guaranteed_permille(), bytes: new.promised_bytes() };
        let all = Taken { demand: Demand::exactly(all), ..grown.clone() };
        let rises = old.priority != new.priority && new.priority == Priority::Guaranteed;
        let broken = match more.is_none() {
            true => 0,
            false => broken(&grown, false) + if rises { broken(&all, true) } else { broken(&grown, true) },
        };
        if outcome.is_ok() && broken > 0 {
            return Err(kept_for_waiting(broken));
        }
        if outcome.is_ok()
            && !self.leaves_plans_their_quota(its, &scene, (Some((&own, &old.lease_id)), &wanted), new.ends_ns)
        {
            return Err(quota_kept_for_waiting(1));
        }
        // Nobody gets past the queue by starting small.
        if outcome.is_ok() && goes(reserved).is_err() {
            return Err(quota_kept_for_waiting(reserved.len()));
        }
        if outcome.is_ok() || taken.is_empty() {
            return outcome;
        }
        beside(&[]).and(Err(kept_for_waiting(taken.len())))
    }

    fn check_room_among(
        &self,
        capacities: &[GpuCapacity],
        book: &Book,
        old: &Record,
        new: &Record,
    ) -> Result<u64, ErrorBody> {
        let demand = Demand { memory: MemoryDemand::Bytes(new.memory_cap_bytes), ..held_demand(new) };
        let accounts = book.leases.get(&old.lease_id).map_or(&[][..], |lease| &lease.accounts);
        for account in accounts {
            let held = Held {
                guaranteed_permille: held_demand(old).guaranteed_permille(),
                memory_bytes: old.memory_cap_bytes,
                memory_excess_bytes: account.excess_bytes(),
            };
            check_update(&capacities[account.gpu], held, &demand).map_err(|refusal| worded_of_change(&refusal))?;
        }
        Ok(new.memory_cap_bytes)
    }
}

/// How much more of each GPU it would be promised.
fn growth(old: &Record, new: &Record) -> Part {
    let part =
        |record: &Record| Part { permille: held_demand(record).guaranteed_permille(), bytes: record.promised_bytes() };
    part(new).minus(part(old))
}

/// Whether what is to change is there: of time slices, the fraction that the hardware keeps and the cap that the driver does.
fn check_can_change(record: &Record, change: &LeaseUpdate, held_bytes: u64) -> Result<(), ErrorBody> {
    let (has_fraction, has_cap) = (record.is_kept_by_hardware(), record.caps_time_slices);
    if !(has_fraction || has_cap) || record.revocation.is_some() {
        return check_has_share(record);
    }
    let kept = LeaseUpdate {
        fraction_permille: change.fraction_permille.filter(|_| has_fraction),
        memory_bytes: change.memory_bytes.filter(|_| has_cap),
        ..LeaseUpdate::default()
    };
    if *change == kept {
        return check_is_held(record, change, held_bytes);
    }
    let all: Vec<&str> = [(has_fraction, "the fraction"), (has_cap, "the memory")]
        .iter()
        .filter(|(has, _)| *has)
        .map(|(_, name)| *name)
        .collect();
    let all = all.join(" and ");
    Err(ErrorBody::new(
        ErrorCode::RequestInvalid,
        format!(
            "container {} was started with mode=timeslice, of which {all} alone can be changed",
            record.container_id.short()
        ),
        format!("change {all}, or start it anew with mode=slice"),
    ))
}

/// What a change is but for the run time.
fn of_share(change: &LeaseUpdate) -> LeaseUpdate {
    LeaseUpdate { run_seconds: None, no_run_time: false, ..change.clone() }
}

/// Whether a cap that the driver alone keeps is not lowered below what is held, which it would go on holding while that is sold to
/// others.
fn check_is_held(record: &Record, change: &LeaseUpdate, held_bytes: u64) -> Result<(), ErrorBody> {
    let is_below = |bytes: &u64| *bytes < held_bytes.min(record.memory_cap_bytes);
    if !change.memory_bytes.is_some_and(|bytes| is_below(&bytes)) {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::LeaseConflict,
        format!(
            "container {} holds {}, and nothing takes that from it in time slices",
            record.container_id.short(),
            format_bytes(held_bytes)
        ),
        "give it no less than that, or have its programs free some first",
    ))
}

/// Whether its room is its own: of one that is suspended it is free for others, and is asked for as it was when it comes back.
fn check_is_there(record: &Record) -> Result<(), ErrorBody> {
    if record.suspension.is_none() {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::LeaseConflict,
        format!("container {} is suspended, and comes back with what it had", record.container_id.short()),
        "resume it first (gpool resume), and change it when it is back",
    ))
}

/// Whether there is a share and a gate.
pub fn check_has_share(record: &Record) -> Result<(), ErrorBody> {
    if record.revocation.is_some() {
        return Err(ErrorBody::new(
            ErrorCode::LeaseConflict,
            format!("the GPUs were taken from container {}", record.container_id.short()),
            "start it anew: it asks for its share again",
        ));
    }
    if record.mechanism.has_shims() {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::LeaseConflict,
        format!(
            "container {} was started with mode={}, and has neither a share nor a gate",
            record.container_id.short(),
            record.mechanism
        ),
        "start it anew with a fraction, or stop and go on with docker pause",
    ))
}

/// The record with the change in it.
///
/// # Errors
/// A value out of its range, or values that do not go together.
fn changed(old: &Record, change: &LeaseUpdate) -> Result<Record, ErrorBody> {
    let wrong = |message: &str, remedy: &str| Err(ErrorBody::new(ErrorCode::RequestInvalid, message, remedy));
    if change.fraction_permille.is_some_and(|permille| !(10..=1000).contains(&permille)) {
        return wrong("fraction_permille lies between 10 and 1000", "correct the value");
    }
    if change.memory_bytes.is_some_and(|bytes| bytes < LEAST_BYTES) {
        return wrong("memory_bytes is at least 1048576 (1MiB)", "give the cap in bytes, 4294967296 for 4GiB");
    }
    if change.spill_bytes.is_some_and(|bytes| (1..LEAST_BYTES).contains(&bytes)) {
        return wrong("spill_bytes is 0 or at least 1048576 (1MiB)", "give it in bytes, 8589934592 for 8GiB");
    }
    if change.no_limit && change.limit_permille.is_some() {
        return wrong("limit_permille and no_limit do not go together", "give one of them");
    }
    let mut new = old.clone();
    new.fraction_permille = change.fraction_permille.unwrap_or(old.fraction_permille);
    new.limit_permille = if change.no_limit { None } else { change.limit_permille.or(old.limit_permille) };
    new.memory_cap_bytes = change.memory_bytes.unwrap_or(old.memory_cap_bytes);
    if change.spill_bytes.is_some_and(|bytes| bytes > 0) && old.highest_spill_bytes.is_none() {
        return Err(ErrorBody::new(
            ErrorCode::LeaseConflict,
            format!(
                "container {} was started by a gpool that had nothing go to the host's memory",
                old.container_id.short()
            ),
            "start it anew",
        ));
    }
    new.spill_bytes = change.spill_bytes.unwrap_or(old.spill_bytes);
    new.p99_ns = promise_changed(old, change)?;
    new.class = change.class.unwrap_or(old.class);
    new.priority = change.priority.unwrap_or(old.priority);
    // Who says how it is to be served from now on has said it, also where a budget had changed it.
    new.has_no_hours &= change.priority.is_none();
    check_limit(new.fraction_permille, new.limit_permille)?;
    Ok(new)
}

/// What has changed, in words.
fn difference(old: &Record, new: &Record) -> String {
    let share = |record: &Record| format_permille(record.fraction_permille.into());
    let limit = |record: &Record| record.limit_permille.map_or("none".into(), |limit| format_permille(limit.into()));
    // Some MiB more may not show in its shortest form.
    let memory = |record: &Record, other: &Record| {
        let text = format_bytes(record.memory_cap_bytes);
        let is_alike =
            record.memory_cap_bytes != other.memory_cap_bytes && text == format_bytes(other.memory_cap_bytes);
        if is_alike { format!("{} bytes", record.memory_cap_bytes) } else { text }
    };
    let spill = |record: &Record| match record.spill_bytes {
        0 => "none".to_owned(),
        bytes => format_bytes(bytes),
    };
    let p99 = |record: &Record| record.p99_ns.map_or("none".into(), format_short_time);
    let run_time = |record: &Record| record.run_seconds.map_or("none".into(), format_seconds);
    let all = [
        ("fraction", share(old), share(new)),
        ("limit", limit(old), limit(new)),
        ("memory", memory(old, new), memory(new, old)),
        ("spill", spill(old), spill(new)),
        ("class", old.class.to_string(), new.class.to_string()),
        ("p99", p99(old), p99(new)),
        ("priority", old.priority.to_string(), new.priority.to_string()),
        ("run time", run_time(old), run_time(new)),
    ];
    let mut told: Vec<String> = all
        .iter()
        .filter(|(_, old, new)| old != new)
        .map(|(name, old, new)| format!("{name} {old} to {new}"))
        .collect();
    if old.is_beyond_budget() && !new.is_beyond_budget() && new.priority == old.priority {
        told.push(format!("priority {}, also when its budget has GPU hours again", new.priority));
    }
    if told.is_empty() { format!("nothing, it has {} as before", described(new)) } else { told.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::*;
    use gpool_protocol::{Class, Mechanism, Priority};

    #[test]
    fn only_what_is_named_changes() {
        let mut old = sample();
        old.limit_permille = Some(500);
        let change =
            LeaseUpdate { class: Some(Class::Latency), fraction_permille: Some(400), ..LeaseUpdate::default() };
        let new = changed(&old, &change).unwrap();
        assert_eq!((new.fraction_permille, new.limit_permille, new.class), (400, Some(500), Class::Latency));
        assert_eq!(difference(&old, &new), "fraction 30 % to 40 %, class batch to latency");
        let new = changed(&old, &LeaseUpdate { no_limit: true, ..LeaseUpdate::default() }).unwrap();
        assert_eq!(difference(&old, &new), "limit 50 % to none");
        let priority = LeaseUpdate { priority: Some(Priority::Burst), ..LeaseUpdate::default() };
        assert_eq!(difference(&old, &changed(&old, &priority).unwrap()), "priority guaranteed to burst");
        assert!(difference(&old, &old).contains("as before"));
    }

    #[test]
    fn what_may_go_to_the_hosts_memory_is_changed_where_the_shims_send_it_there() {
        let spill = |bytes| LeaseUpdate { spill_bytes: Some(bytes), ..LeaseUpdate::default() };
        let old = Record { highest_spill_bytes: Some(0), ..sample() };
        let new = changed(&old, &spill(8 << 30)).unwrap();
        assert_eq!((new.spill_bytes, difference(&old, &new)), (8 << 30, "spill none to 8GiB".to_owned()));
        assert_eq!(changed(&new, &spill(0)).unwrap().spill_bytes, 0);
        assert!(changed(&new, &spill(4096)).unwrap_err().message.contains("0 or at least 1048576"));
        let told = changed(&sample(), &spill(8 << 30)).unwrap_err();
        assert!(told.code == ErrorCode::LeaseConflict && told.remedy == "start it anew", "{told}");
        assert!(changed(&sample(), &spill(0)).is_ok(), "it has none");
    }

    #[test]
    fn of_time_slices_that_can_be_changed_which_the_hardware_and_the_driver_keep() {
        let fraction = LeaseUpdate { fraction_permille: Some(400), ..LeaseUpdate::default() };
        let memory = LeaseUpdate { memory_bytes: Some(5 << 30), ..LeaseUpdate::default() };
        let both = LeaseUpdate { memory_bytes: Some(5 << 30), ..fraction.clone() };
        let of = |fraction_permille, caps_time_slices| Record {
            mechanism: Mechanism::TimeSlice,
            fraction_permille,
            caps_time_slices,
            ..sample()
        };
        let may =
            |record: &Record| [&fraction, &memory, &both].map(|change| check_can_change(record, change, 0).is_ok());
        assert_eq!(may(&of(300, false)), [true, false, false]);
        assert_eq!(may(&of(0, true)), [false, true, false]);
        assert_eq!(may(&of(300, true)), [true, true, true]);
        assert_eq!(may(&of(0, false)), [false; 3]);
        let told = check_can_change(&of(300, true), &LeaseUpdate { class: Some(Class::Train), ..both }, 0).unwrap_err();
        assert!(told.message.contains("the fraction and the memory alone"), "{told}");
        let lower = LeaseUpdate { memory_bytes: Some(2 << 30), ..LeaseUpdate::default() };
        let told = check_can_change(&of(0, true), &lower, 3 << 30).unwrap_err();
        assert!(
            told.message.contains("holds 3GiB") && check_can_change(&of(0, true), &lower, 2 << 30).is_ok(),
            "{told}"
        );
    }

    #[test]
    fn a_limit_stays_above_the_fraction_whichever_of_them_changes() {
        let mut old = sample();
        old.limit_permille = Some(500);
        for change in [
            LeaseUpdate { fraction_permille: Some(501), ..LeaseUpdate::default() },
            LeaseUpdate { limit_permille: Some(299), ..LeaseUpdate::default() },
            LeaseUpdate { limit_permille: Some(1001), ..LeaseUpdate::default() },
            LeaseUpdate { limit_permille: Some(600), no_limit: true, ..LeaseUpdate::default() },
            LeaseUpdate { fraction_permille: Some(9), ..LeaseUpdate::default() },
            LeaseUpdate { memory_bytes: Some(LEAST_BYTES - 1), ..LeaseUpdate::default() },
        ] {
            assert_eq!(changed(&old, &change).unwrap_err().code, ErrorCode::RequestInvalid, "{change:?}");
        }
        let both = LeaseUpdate { fraction_permille: Some(600), no_limit: true, ..LeaseUpdate::default() };
        assert_eq!(changed(&old, &both).unwrap().fraction_permille, 600);
    }
}
