//! Programs that have lost their work on a GPU for good: told at once, and then ever more rarely for each lease. The program has the
//! driver's error and may say nothing of it, and NVML tells the GPU of an Xid and not whose it is.

use crate::clock;
use crate::device::Gpu;
use crate::lease::{Figures, Lease, Leases, LostContext, about};
use crate::region::Report;
use gpool_driver_abi::cuda::described;
use gpool_policy::xid::meaning;
use gpool_protocol::EventKind;

/// An Xid that was told of so shortly before is likely to be of the same fault, in nanoseconds.
const SAME_NS: u64 = 5_000_000_000;

/// Tells what the processes of a lease have lost, if it is to be told now; `report` holds its slots.
pub fn tell(leases: &Leases, lease: &mut Lease, figures: &Figures, report: &Report) {
    look(lease, report);
    if lease.lost_contexts.tellings.look(clock::now_ns(), figures.faults) {
        tell_now(leases, lease, figures);
    }
}

/// Tells what has been kept back, or not been seen, of a lease that is about to end.
pub fn tell_rest(leases: &Leases, lease: &mut Lease, figures: &Figures, report: &Report) {
    look(lease, report);
    if lease.lost_contexts.tellings.untold(figures.faults) > 0 {
        tell_now(leases, lease, figures);
    }
}

fn look(lease: &mut Lease, report: &Report) {
    let (now_ns, gpus) = (clock::now_ns(), lease.accounts.len());
    for (slot, claimed) in report.taken() {
        let pid = lease.processes.get(&slot).map(|process| process.watched.name.pid);
        lease.lost_contexts.look(&claimed, now_ns, pid, gpus);
    }
}

fn tell_now(leases: &Leases, lease: &mut Lease, figures: &Figures) {
    let count = lease.lost_contexts.tellings.untold(figures.faults);
    let container = lease.record.container_id.short();
    let last = lease.lost_contexts.last().map(|last| {
        let gpu = lease.accounts.get(last.gpu).and_then(|account| leases.gpus().get(account.gpu).cloned());
        let xid = gpu.as_ref().and_then(Gpu::board).and_then(|board| leases.xids.about(board, last.at_ns, SAME_NS));
        (last, gpu, xid)
    });
    let message = sentence(count, container, last.as_ref().map(|(last, gpu, xid)| (*last, gpu.as_ref(), *xid)));
    leases.events.note(EventKind::ProgramFault, about(&lease.record, None), message);
    lease.lost_contexts.tellings.note_told(figures.faults);
}

/// What has happened to `count` programs; of the last, if that is known, with its GPU and the Xid that belongs to it.
fn sentence(count: u64, container: &str, last: Option<(&LostContext, Option<&Gpu>, Option<u64>)>) -> String {
    let who = match count {
        1 => format!("a program of {container} has lost its work"),
        _ => format!("{count} programs of {container} have lost their work"),
    };
    let Some((last, gpu, xid)) = last else {
        return format!("{who} on a GPU by a fault, and can use it again once started anew");
    };
    let gpu = gpu.map_or_else(|| "a GPU".to_owned(), |gpu| format!("GPU {} ({})", gpu.index, gpu.uuid));
    let process = match (last.pid, last.comm.as_str()) {
        (None, _) => "it".to_owned(),
        (Some(pid), "") => format!("process {pid}"),
        (Some(pid), comm) => format!("process {pid} ({comm})"),
    };
    let process = if count > 1 { format!("the last was {process}, which") } else { process };
    let answer = match described(last.result) {
        Some((name, text)) => format!("{name}, {text}"),
        None => format!("CUDA error {}", last.result),
    };
    let xid = xid.map_or_else(String::new, |number| {
        format!("; the GPU told of Xid {number} about then, {}", meaning(number).words)
    });
    format!("{who} on {gpu}: {process} was answered {answer}{xid}; it can use that GPU again only once started anew")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::HostPid;

    fn lost(pid: Option<u32>, comm: &str, result: i32) -> LostContext {
        LostContext { pid: pid.map(HostPid), comm: comm.into(), result, gpu: 0, at_ns: 5 }
    }

    #[test]
    fn who_lost_what_is_said_with_the_driver_s_word_and_the_xid() {
        let gpu = Gpu::sample(1);
        assert_eq!(
            sentence(1, "abc", Some((&lost(Some(7), "python3", 700), Some(&gpu), Some(31)))),
            "a program of abc has lost its work on GPU 1 (GPU-1): process 7 (python3) was answered CUDA_ERROR_ILLEGAL_ADDRESS, an \
             illegal memory access was encountered; the GPU told of Xid 31 about then, a program has used an address that is not its; it can \
             use that GPU again only once started anew"
        );
        let several = sentence(3, "abc", Some((&lost(Some(7), "", 719), Some(&gpu), None)));
        assert!(
            several.starts_with(
                "3 programs of abc have lost their work on GPU 1 (GPU-1): the last was process 7, which was"
            )
        );
        let unknown = sentence(1, "abc", Some((&lost(None, "", -7), None, None)));
        assert!(unknown.contains("on a GPU: it was answered CUDA error -7; it can"), "{unknown}");
        assert!(sentence(2, "abc", None).starts_with("2 programs of abc have lost their work on a GPU"));
    }
}
