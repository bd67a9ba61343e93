//! One lease as the gatekeeper sees it: its region, and what has been read from it.

use super::demand::{self, Unheeding, Wanted, all_leave};
use super::measured::Measured;
use super::order::Notice;
use crate::clock;
use crate::region::{RegionHost, Report};
use gpool_policy::TenantId;
use gpool_policy::slice::Input;
use gpool_policy::timeline::Burst;
use gpool_shared_region::{BURST_RING, BurstTag, GateWord, Opening, SLOTS};
use std::sync::Arc;
use std::time::Duration;

/// What one process has told before.
#[derive(Clone, Copy, Default)]
struct Seen {
    registration: u64,
    burst_count: u64,
    burst_total_ns: u64,
    /// When the last of them ended.
    ended_ns: u64,
}

/// What has been read from reports and not yet fed to the schedulers.
#[derive(Default)]
pub struct Heard {
    /// Measured bursts by GPU of this host, and from when on each stood before that.
    pub bursts: Vec<(usize, Burst, u64)>,
    /// Measured hand-offs.
    pub inputs: Vec<Input>,
}

/// A lease with its gate.
pub struct Tenant {
    pub id: TenantId,
    /// Indices of its GPUs on this host, in the order in which its bursts number them.
    pub gpus: Vec<usize>,
    pub region: Arc<RegionHost>,
    seen: [Seen; SLOTS],
    /// Slots below this have been rung from.
    slots: usize,
    word: GateWord,
    /// Set when the gate was opened after having been closed: the next first launch measures the hand-off.
    measured_from_ns: Option<u64>,
    /// When it was opened or renewed last.
    opened_ns: u64,
    unheeding: Unheeding,
    /// Whether its gate has been left open while it is idle: it has no slice.
    is_left_open: bool,
    /// The gate word behind which all its processes that work have said that they leave, if that is known.
    leaving_word: Option<u32>,
    /// Whether the last look found none of its processes that works or wants to.
    is_idle: bool,
    /// Whether the last look found anything outstanding or wanted.
    live: bool,
    cut: bool,
    /// Heartbeats for which it has kept a thread waiting, up to [`HELD`], when that is told.
    held: u32,
    /// How long its requests take; none where nobody wants to know.
    pub measured: Option<Measured>,
    /// Times that its bell was heard since the last heartbeat.
    looks: u32,
    /// Bursts that were read since the last heartbeat.
    bursts: usize,
    /// Notices about it since the last heartbeat.
    told: u32,
    /// When its report was read last.
    looked_ns: u64,
}

/// Bells heard from one tenant between two heartbeats at once. A process that works by fits and starts rings some hundred
/// times, up to three for each of its requests, and a lease may have many; one that rings more is listened to once in
/// [`DEAF_NS`], so that its noise is its own loss.
const LOOKS: u32 = 600;
/// How long a bell that is too loud is not heard. As late as that a gate opens and closes then.
pub const DEAF_NS: u64 = 1_000_000;
/// Bursts read from one tenant between two heartbeats. What its rings no longer show then is charged as one.
pub const BURSTS: usize = SLOTS * BURST_RING;
/// A call on a file of the lease takes microseconds. Nobody but its container makes it take this, with so many heartbeats one
/// after the other: they stand still when all of this process does.
const HOLD: Duration = Duration::from_millis(100);
const HELD: u32 = 50;
/// Notices about one tenant between two heartbeats.
const NOTICES: u32 = 2 * SLOTS as u32;

impl Tenant {
    /// A lease whose region is ready. The gate is closed: a taken-over tenant asks anew. Processes that are there
    /// already are told as registered: some may have come while no supervisor was there to see it.
    pub fn new(id: TenantId, gpus: Vec<usize>, region: Arc<RegionHost>, notices: &mut Vec<Notice>) -> Self {
        let word = region.close_gate();
        let mut tenant = Self {
            id,
            gpus,
            region,
            seen: [Seen::default(); SLOTS],
            slots: SLOTS,
            word,
            measured_from_ns: None,
            opened_ns: 0,
            unheeding: Unheeding::default(),
            is_left_open: false,
            leaving_word: None,
            is_idle: false,
            live: true,
            cut: false,
            held: 0,
            measured: None,
            looks: 0,
            bursts: 0,
            told: 0,
            looked_ns: clock::now_ns(),
        };
        tenant.skip_the_past(notices);
        tenant
    }

    /// Bursts from before this supervisor's life are charged to nobody.
    fn skip_the_past(&mut self, notices: &mut Vec<Notice>) {
        let mut report = Report::new();
        report.read(&self.region, SLOTS);
        self.slots = 1;
        for (index, slot) in report.taken() {
            let seen = Seen {
                registration: slot.registration(),
                burst_count: slot.burst_count(),
                burst_total_ns: slot.burst_total_ns(),
                ended_ns: clock::now_ns(),
            };
            self.seen[index] = seen;
            self.slots = self.slots.max(index + 1);
            notices.push(Notice::Registered { tenant: self.id, slot: index, registration: seen.registration });
        }
    }

    /// Whether it may have bursts to tell without ringing.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Its bell was heard. False when it rings too much.
    pub fn hush(&mut self) -> bool {
        self.looks += 1;
        self.looks <= LOOKS
    }

    /// A new count of bells, bursts and notices begins. Whether its bell was heard in the last one, and is to be emptied.
    pub fn begin_period(&mut self) -> bool {
        let has_rung = self.looks > 0;
        (self.looks, self.bursts, self.told) = (0, 0, 0);
        has_rung
    }

    /// Whether it has kept a thread waiting for long by now, which is told once. To be asked with each heartbeat.
    pub fn has_held(&mut self) -> bool {
        if self.held == HELD {
            return false;
        }
        self.held = if self.region.keeps_waiting(HOLD) { self.held + 1 } else { 0 };
        self.held == HELD
    }

    /// Whether its gate is open.
    pub fn is_open(&self) -> bool {
        self.word.is_open()
    }

    /// Opens or renews the gate. `due_ns` is when this should have happened: a late timer is part of the hand-off.
    pub fn open(&mut self, now_ns: u64, due_ns: u64, opening: Opening) {
        if !self.word.is_open() {
            self.measured_from_ns = Some(due_ns);
        }
        if let Some(measured) = &mut self.measured {
            measured.opened(now_ns);
        }
        self.word = self.region.open_gate(now_ns, opening);
        self.opened_ns = now_ns;
        (self.live, self.is_left_open) = (true, false);
    }

    /// Leaves the gate open while it is idle. Its next launch passes and rings; of a shim that does not ring then no more
    /// is known before it falls idle, or the opening ends.
    pub fn leave_open(&mut self, now_ns: u64, opening: Opening) {
        self.word = self.region.open_gate(now_ns, opening);
        self.opened_ns = now_ns;
        self.is_left_open = true;
    }

    /// Whether its gate has been left open, and it has no slice.
    pub fn is_left_open(&self) -> bool {
        self.is_left_open
    }

    /// Whether the last look found none of its processes that works or wants to.
    pub fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Closes the gate.
    pub fn close(&mut self) {
        if self.word.is_open() {
            self.word = self.region.close_gate();
        }
        (self.measured_from_ns, self.leaving_word) = (None, None);
        self.is_left_open = false;
    }

    /// Reads the report into `report`: measured bursts and hand-offs go to `heard`, new processes to `notices`.
    pub fn collect(&mut self, report: &mut Report, heard: &mut Heard, notices: &mut Vec<Notice>) {
        self.read(report);
        let now_ns = clock::now_ns();
        if report.is_cut() && !self.cut {
            self.cut = true;
            notices.push(Notice::ReportCut { tenant: self.id });
        }
        for (index, slot) in report.taken() {
            let seen = &mut self.seen[index];
            if seen.registration != slot.registration() {
                if self.told >= NOTICES {
                    continue;
                }
                self.told += 1;
                *seen = Seen { registration: slot.registration(), ended_ns: self.looked_ns, ..Seen::default() };
                notices.push(Notice::Registered { tenant: self.id, slot: index, registration: seen.registration });
            }
            if self.bursts >= BURSTS {
                continue;
            }
            let (count, total_ns) = (slot.burst_count(), slot.burst_total_ns());
            let first = seen.burst_count.max(count.saturating_sub(BURST_RING as u64));
            self.bursts += count.saturating_sub(first) as usize;
            let (mut told_ns, mut ended_ns) = (0u64, seen.ended_ns);
            for number in first..count {
                let (start_ns, end_ns) = slot.burst(number);
                told_ns = end_ns.saturating_sub(start_ns).saturating_add(told_ns);
                ended_ns = end_ns.max(ended_ns);
                let tag = slot.burst_tag(number);
                let begun_ns = start_ns.saturating_add(tag.queued_ns()).clamp(start_ns, end_ns.max(start_ns));
                if let Some(measured) = &mut self.measured {
                    measured.worked(now_ns, start_ns, (begun_ns, end_ns));
                }
                let (gpu, burst) = burst_of(self.id, &self.gpus, index, tag, (begun_ns, end_ns));
                heard.bursts.push((gpu, burst, start_ns));
            }
            // The ring turned over between two looks: what it no longer shows is charged just before the rest. It is of the time
            // since what was read before: where streams run beside each other it is more than that, and others' time was before.
            let lost_ns = total_ns.saturating_sub(seen.burst_total_ns).saturating_sub(told_ns);
            if first > seen.burst_count && lost_ns > 0 {
                let end_ns = slot.burst(first).0;
                let start_ns = end_ns.saturating_sub(lost_ns).max(seen.ended_ns.min(end_ns));
                if let Some(measured) = &mut self.measured {
                    measured.worked(now_ns, start_ns, (start_ns, end_ns));
                }
                let (gpu, burst) = burst_of(self.id, &self.gpus, index, slot.burst_tag(first), (start_ns, end_ns));
                heard.bursts.push((gpu, burst, start_ns));
            }
            // A count that goes backward is a lie or a truncated file; either way start from what it says now.
            (seen.burst_count, seen.burst_total_ns, seen.ended_ns) = (count, total_ns, ended_ns);
            if let Some(from_ns) = self.measured_from_ns
                && slot.first_launch_word() == self.word.0
            {
                self.measured_from_ns = None;
                // What is yet to come nobody has measured.
                let first_ns = Some(slot.first_launch_ns()).filter(|first_ns| *first_ns <= now_ns);
                heard.inputs.extend(first_ns.map(|first_ns| {
                    let after_open_ns = first_ns.saturating_sub(from_ns);
                    Input::FirstLaunch { tenant: self.id, after_open_ns }
                }));
            }
        }
        self.looked_ns = now_ns;
    }

    /// Reads the slots that are in use. A process takes the first that is free: what has rung since the last look shows by the
    /// slot behind those that are known, or by what has been taken out of the bell.
    fn read(&mut self, report: &mut Report) {
        self.slots = self.slots.max(self.region.slots_rung());
        report.read(&self.region, self.slots + 1);
        if report.slots() > self.slots {
            report.read(&self.region, SLOTS);
            self.slots = report.slots();
        }
    }

    /// Whether it was said to leave, and the report that `collect` just read says that it issued more. Nobody rings for that.
    pub fn has_changed_its_mind(&mut self, report: &Report) -> bool {
        self.leaving_word.take_if(|word| !all_leave(report, *word)).is_some()
    }

    /// What the processes together want, from the report that `collect` just read, the first thing first.
    pub fn demand(&mut self, report: &Report) -> [Option<Input>; 2] {
        let demand = self.first_demand(report);
        let (tenant, word) = (self.id, self.word.0);
        // Also of one whose gate was left open, which has its slice with that.
        let leaves = self.word.is_open() && all_leave(report, word);
        let was_leaving = std::mem::replace(&mut self.leaving_word, leaves.then_some(word)).is_some();
        let more = match (leaves, was_leaving) {
            (true, _) => {
                let estimated_end_ns = demand::end_ns(report, self.gpus.len(), clock::now_ns());
                Some(Input::Leaves { tenant, estimated_end_ns })
            }
            // Behind another word than the present one it is not known any more whether it does.
            (false, true) => Some(Input::Stays { tenant }),
            (false, false) => None,
        };
        [demand, more]
    }

    fn first_demand(&mut self, report: &Report) -> Option<Input> {
        let (tenant, open) = (self.id, self.word.is_open());
        let open_since_ns = open.then_some(self.opened_ns);
        let wanted = self.unheeding.wanted(report, self.word.0, open_since_ns, self.gpus.len());
        let Wanted { waiting, waiting_here, running, end_ns } = wanted;
        self.live = waiting || running;
        self.is_idle = !self.live;
        match (open, waiting, running) {
            (_, false, false) => Some(Input::Idle { tenant }),
            (true, ..) if self.is_left_open => Some(Input::Wants { tenant }),
            (false, true, _) if end_ns == 0 => Some(Input::Drained { tenant }),
            (false, true, _) => Some(Input::Wants { tenant }),
            // Closed, and still finishing what it issued: nothing new.
            (false, false, true) => None,
            (true, true, false) if waiting_here => Some(Input::Announced { tenant, estimated_end_ns: end_ns }),
            // One process has used its part of the slice, another has not: the slice ends with the grant.
            (true, true, true) if waiting_here => {
                let until_ns = self.region.control().until_ns.load(std::sync::atomic::Ordering::Relaxed);
                Some(Input::Announced { tenant, estimated_end_ns: end_ns.max(until_ns) })
            }
            // It stood at the gate before this opening and is being woken, or is at work.
            (true, _, _) => None,
        }
    }
}

/// A burst of the process in slot `slot`, and the GPU that it ran on. Of a GPU that the lease does not have, it counts on
/// the first. Contexts of different processes never have one number: 24 bits are the process's own, as many as a tag
/// is believed for.
fn burst_of(
    tenant: TenantId,
    gpus: &[usize],
    slot: usize,
    tag: BurstTag,
    (start_ns, end_ns): (u64, u64),
) -> (usize, Burst) {
    let gpu = gpus.get(tag.gpu()).or(gpus.first()).copied().unwrap_or(0);
    let context = (slot as u64) << 24 | u64::from(tag.context() & 0xff_ffff);
    (gpu, Burst { tenant, context, start_ns, end_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::ControlPage;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_first_launch_that_is_yet_to_come_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let region = Arc::new(RegionHost::create_unmounted(dir.path(), &ControlPage::of_half()));
        let mut tenant = Tenant::new(TenantId(1), vec![0], region.clone(), &mut Vec::new());
        let mut measured = |after_open_ns: i64| {
            tenant.close();
            let due_ns = clock::now_ns();
            let until_ns = due_ns + 1_000_000_000;
            let opening = Opening {
                until_ns,
                depth_ns: 1,
                burst_ns: 1,
                is_left_open: false,
                heeds_leaving: false,
                stands_alone: false,
            };
            tenant.open(due_ns, due_ns, opening);
            let words = [(0, 77), (80, u64::from(region.gate().0)), (88, due_ns.saturating_add_signed(after_open_ns))];
            words.iter().for_each(|(at, word)| region.report_file().write_all_at(&word.to_le_bytes(), *at).unwrap());
            let mut heard = Heard::default();
            tenant.collect(&mut Report::new(), &mut heard, &mut Vec::new());
            let after_open_ns = |input: &Input| match input {
                Input::FirstLaunch { after_open_ns, .. } => Some(*after_open_ns),
                _ => None,
            };
            heard.inputs.iter().find_map(after_open_ns)
        };
        assert_eq!((measured(0), measured(-5)), (Some(0), Some(0)));
        assert_eq!(measured(3_600_000_000_000), None, "slices would be as long as hand-offs seem to be");
        assert_eq!(measured(1), Some(1), "the next one is measured again");
    }

    #[test]
    fn a_burst_counts_on_the_gpu_that_its_tag_names() {
        let on = |gpu, context| burst_of(TenantId(1), &[4, 7], 3, BurstTag::new(gpu, context), (10, 20));
        let (gpu, burst) = on(1, 5);
        assert_eq!((gpu, burst.context, burst.start_ns, burst.end_ns), (7, 3 << 24 | 5, 10, 20));
        assert_eq!(on(0, 5).0, 4);
        assert_eq!(on(2, 5).0, 4, "the lease has no third GPU");
        assert_eq!(on(0, u32::MAX).1.context, 3 << 24 | 0xff_ffff, "no claim reaches another process's contexts");
    }
}
