//! Processes that execute another program (execve(2)). Nobody says so: the pidfd is of the process, and the new program may
//! never register. But the program before has ended as if it had been killed: its threads have gone, and the kernel has closed
//! what it had opened of the device. So it wants nothing any more, and what it held goes when the device no longer lists the
//! process, or as soon as that has no children, which might hold it.

use super::acceptance::write_down;
use super::{is_anothers, retire, take_out};
use crate::lease::{Dead, Lease, Leases};
use crate::procfs::{self, ProcessName, ProgramMark};
use crate::region::RegionHost;
use gpool_policy::TenantId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Programs are looked at this often.
pub const PERIOD: Duration = Duration::from_secs(1);

/// A program that has registered.
struct Registered {
    tenant: TenantId,
    slot: usize,
    /// The number that it made up when it took the slot.
    number: u64,
    name: ProcessName,
    program: Option<ProgramMark>,
}

impl Registered {
    /// Whether its process runs another program now.
    fn is_over(&self) -> bool {
        ProgramMark::has_changed(self.program, ProgramMark::of(self.name.pid)) && goes_on(&self.name)
    }
}

/// Whether the pid is still this process's, which has not ended.
fn goes_on(name: &ProcessName) -> bool {
    procfs::goes_on(name.pid, Some(name.start_ticks))
}

/// Whether a process goes on and has no children. The children of one that has ended are another's.
fn is_alone(name: &ProcessName) -> bool {
    !procfs::has_children(name.pid) && goes_on(name)
}

/// Takes programs that are over out of their leases, and frees the slots of those seen before that nobody can hold anything of.
/// The kernel is asked without the book. No other thread puts processes into it.
pub fn look(leases: &Leases) {
    let (registered, earlier) = all(leases);
    let over: Vec<Registered> = registered.into_iter().filter(Registered::is_over).collect();
    let alone: Vec<(TenantId, ProcessName)> = earlier.into_iter().filter(|(_, name)| is_alone(name)).collect();
    if over.is_empty() && alone.is_empty() {
        return;
    }
    let mut book = leases.book();
    for (tenant, name) in alone {
        if let Some(lease) = book.of_tenant(tenant) {
            free(&lease.region, &mut lease.dead, name);
        }
    }
    for its in &over {
        if let Some(lease) = book.of_tenant(its.tenant) {
            end(leases, lease, its);
        }
    }
    drop(book);
    // A supervisor that starts would take them for the programs that their processes run by then.
    write_down(leases, &over.iter().map(|its| its.tenant).collect());
}

/// The programs of all leases, and the processes whose earlier programs have their slots still.
fn all(leases: &Leases) -> (Vec<Registered>, BTreeSet<(TenantId, ProcessName)>) {
    let (book, mut registered, mut earlier) = (leases.book(), Vec::new(), BTreeSet::new());
    for lease in book.leases.values() {
        let tenant = lease.tenant;
        registered.extend(lease.processes.iter().map(|(slot, process)| Registered {
            tenant,
            slot: *slot,
            number: process.registration,
            name: process.watched.name,
            program: process.program,
        }));
        earlier.extend(names(&lease.dead).map(|name| (tenant, name)));
    }
    (registered, earlier)
}

/// Takes back what a program wanted that is over. What it held stays until a later look, as that of a process that has ended
/// does: the kernel closes what it had opened while the next one begins.
fn end(leases: &Leases, lease: &mut Lease, its: &Registered) {
    if lease.processes.get(&its.slot).is_none_or(|process| process.registration != its.number) {
        return;
    }
    let died = Instant::now();
    take_out(leases, lease, &[its.slot], |lease, slot, last, _| {
        let dead = Dead { name: Some(its.name), registration: its.number, died, has_executed: true };
        retire(leases, lease, slot, last, dead);
    });
}

/// The processes among these that go on with another program.
pub fn names(dead: &BTreeMap<usize, Dead>) -> impl Iterator<Item = ProcessName> {
    dead.values().filter(|dead| dead.has_executed).filter_map(|dead| dead.name)
}

/// Frees the slots of the programs that the process `name` ran before. Not to be called while it has children.
pub fn free(region: &RegionHost, dead: &mut BTreeMap<usize, Dead>, name: ProcessName) {
    dead.retain(|slot, dead| {
        let is_its = dead.has_executed && dead.name == Some(name);
        if is_its && !is_anothers(region, *slot, dead.registration) {
            region.clear_slot(*slot);
        }
        !is_its
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::WatchedProcess;
    use crate::region::{ControlPage, Report};
    use gpool_protocol::HostPid;
    use gpool_shared_region::{SLOT_BYTES, SLOTS};
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::FileExt;
    use std::process::{Command, Stdio};

    /// What a program held that restarts itself may be with a child of it, and is free as soon as that has ended, though the new
    /// program waits for no child.
    #[test]
    fn a_program_is_over_when_its_process_executes_another_and_lets_go_with_its_last_child() {
        let script = "sleep 60 & echo $!; read go && exec sleep 60";
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let grandchild = HostPid(line.trim().parse().unwrap());
        let name = WatchedProcess::open(HostPid(child.id())).unwrap().name;
        let its = Registered { tenant: TenantId(1), slot: 0, number: 7, name, program: ProgramMark::of(name.pid) };
        assert!(its.program.is_some() && !its.is_over());
        let later = Registered { name: ProcessName { start_ticks: name.start_ticks + 1, ..name }, ..its };
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        while !its.is_over() {
            std::thread::yield_now();
        }
        assert!(!later.is_over(), "its pid is another's by now");
        assert!(!is_alone(&name));
        WatchedProcess::open(grandchild).unwrap().kill();
        while procfs::is_alive(grandchild) {
            std::thread::yield_now();
        }
        assert!(is_alone(&name));
        child.kill().and_then(|()| child.wait()).unwrap();
        assert!(!its.is_over() && !is_alone(&name), "it has ended, and its children are another's");
    }

    #[test]
    fn what_is_freed_is_that_of_the_same_process_s_earlier_programs_alone() {
        let dir = tempfile::tempdir().unwrap();
        let region = RegionHost::create_unmounted(dir.path(), &ControlPage::of_half());
        let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("report")).unwrap();
        (0..5).for_each(|slot| file.write_all_at(&9u64.to_le_bytes(), slot * SLOT_BYTES as u64).unwrap());
        let [one, other] = [1, 2].map(|pid| ProcessName { pid: HostPid(pid), start_ticks: 7 });
        let dead = |name, registration, has_executed| {
            let died = Instant::now();
            Dead { name: Some(name), registration, died, has_executed }
        };
        // The last one's slot has gone to a process of another number.
        let places =
            [dead(one, 9, true), dead(one, 9, false), dead(other, 9, true), dead(one, 9, true), dead(one, 7, true)];
        let mut dead = BTreeMap::from_iter(places.into_iter().enumerate());
        assert_eq!(names(&dead).collect::<Vec<_>>(), [one, other, one, one]);
        free(&region, &mut dead, one);
        assert_eq!(dead.keys().copied().collect::<Vec<_>>(), [1, 2]);
        let mut report = Report::new();
        report.read(&region, SLOTS);
        assert_eq!(report.taken().map(|(slot, _)| slot).collect::<Vec<_>>(), [1, 2, 4]);
    }
}
