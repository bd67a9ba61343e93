//! `gpool gpu drain` and `gpool gpu undrain`

use super::{called, evict};
use crate::exit::{ExitStatus, Failure};
use crate::output;
use gpool_protocol::{
    Client, DrainRequest, DrainedGpu, ErrorBody, GpuUuid, GpuView, HealthFinding, LeaseView, UndrainRequest,
    format_seconds, gpu_path, health_words,
};
use std::time::{Duration, Instant};

/// Between two looks at the leases that are left.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// For so long a supervisor may be away, as one that is restarted is, before nobody waits any more.
pub(super) const AWAY: Duration = Duration::from_secs(60);
/// What is said when everybody has gone.
pub(super) const NOBODY: &str = "no lease is left\n";

/// Said where pods of a cluster are on the host. What they have on a drained GPU is nobody's after them, which their scheduler cannot
/// know: it would have one after the other make room.
const CORDON: &str = "pods of a cluster have shares that it counts: kubectl cordon this node, or pods of a higher priority may have them \
                      ended for room that nobody gets; kubectl uncordon it after gpool gpu undrain\n";

/// Drains GPUs, and waits `wait_seconds` at most until no lease is on them, if it is to wait. If it is to `evict`, whoever is left then
/// loses them.
///
/// # Errors
/// GPUs that are refused, which do not keep the others from it, but from waiting; or leases that are left in the end.
pub fn drain(
    client: &Client,
    gpus: &[String],
    reason: &str,
    (wait_seconds, evict): (Option<u64>, bool),
) -> Result<(), Failure> {
    let asked = DrainRequest { reason: reason.to_owned() };
    let (mut drained, mut refused) = (Vec::new(), Vec::new());
    for gpu in gpus {
        match post::<_, DrainedGpu>(client, gpu, "drain", &asked) {
            Ok(gpu) => drained.push(gpu),
            Err(refusal) => refused.push(refusal),
        }
    }
    for gpu in &drained {
        output::print(&format!("{}\n", told(gpu)))?;
    }
    if drained.iter().any(|gpu| gpu.leases > 0) && has_counted(&client.get::<Vec<LeaseView>>("/v1/leases")?) {
        output::print(CORDON)?;
    }
    // Nobody waits for an hour to hear that a name was wrong.
    Failure::of_all(&refused)?;
    match (wait_seconds, evict) {
        (None, false) => Ok(()),
        (Some(seconds), false) => wait_until_empty(client, &drained, seconds),
        (wait_seconds, true) => match left_after(client, &drained, wait_seconds.unwrap_or(0), AWAY)? {
            left if left.is_empty() => output::print(NOBODY),
            _ => evict::evict(client, &drained),
        },
    }
}

/// Lets GPUs take leases again.
///
/// # Errors
/// GPUs that are refused, which do not keep the others from it.
pub fn undrain(client: &Client, gpus: &[String], fault: bool) -> Result<(), Failure> {
    let (mut refused, asked) = (Vec::new(), UndrainRequest { fault });
    for gpu in gpus {
        match post::<_, DrainedGpu>(client, gpu, "undrain", &asked) {
            Ok(gpu) => output::print(&format!("{}{}{}\n", opened(&gpu), spite(client, &gpu.uuid), dropped(&gpu)))?,
            Err(refusal) => refused.push(refusal),
        }
    }
    Failure::of_all(&refused)
}

fn opened(gpu: &DrainedGpu) -> String {
    format!("{} takes leases again", called(gpu.index, &gpu.uuid))
}

/// For which fault it was drained, which is known to nobody any more from now on.
fn dropped(gpu: &DrainedGpu) -> String {
    gpu.drain.fault.as_ref().map_or_else(String::new, |fault| format!("; it was drained for {fault}"))
}

/// In spite of what it does, as the end of a sentence; an older supervisor does not say.
fn spite(client: &Client, uuid: &GpuUuid) -> String {
    let gpus: Vec<GpuView> = client.get("/v1/gpus").unwrap_or_default();
    let health = gpus.into_iter().find(|gpu| gpu.uuid == *uuid).and_then(|gpu| gpu.health).unwrap_or_default();
    in_spite(&health)
}

fn in_spite(health: &[HealthFinding]) -> String {
    match health {
        [] => String::new(),
        found => format!(
            ", although it shows {}: it is not drained for that again until it becomes more or comes back",
            health_words(Some(found))
        ),
    }
}

fn post<B: serde::Serialize, A: serde::de::DeserializeOwned>(
    client: &Client,
    gpu: &str,
    verb: &str,
    body: &B,
) -> Result<A, ErrorBody> {
    client.post(&format!("{}/{verb}", gpu_path(gpu)?), body)
}

/// What is left on a drained GPU.
fn told(gpu: &DrainedGpu) -> String {
    let left = match gpu.leases {
        0 => "no lease is on it".to_owned(),
        1 => "1 lease is on it, and goes on".to_owned(),
        leases => format!("{leases} leases are on it, and go on"),
    };
    // Also one that the supervisor has drained before, for a fault that would go unseen otherwise.
    let fault =
        gpu.drain.fault.as_ref().map_or_else(String::new, |fault| format!("; it has a fault of its own: {fault}"));
    format!("{} takes no new leases; {left}{fault}", called(gpu.index, &gpu.uuid))
}

/// Whether a cluster counts what any of them has.
fn has_counted(leases: &[LeaseView]) -> bool {
    leases.iter().any(|lease| lease.resource.is_some())
}

fn wait_until_empty(client: &Client, drained: &[DrainedGpu], seconds: u64) -> Result<(), Failure> {
    let left = left_after(client, drained, seconds, Duration::ZERO)?;
    if left.is_empty() {
        return output::print(NOBODY);
    }
    let sentence = format!("gpool: after {} {}; gpool ps lists them", format_seconds(seconds), left.join(", "));
    Err(Failure::Refused(ExitStatus::Failed, sentence))
}

/// What is left on GPUs after so long; nothing as soon as nothing is. For an answer it is waited longer, by `patience` at most.
///
/// # Errors
/// Nobody answers, or one of them is not drained any more.
pub(super) fn left_after(
    client: &Client,
    drained: &[DrainedGpu],
    seconds: u64,
    patience: Duration,
) -> Result<Vec<String>, Failure> {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut answered = Instant::now();
    loop {
        let now: Vec<DrainedGpu> = match client.get("/v1/gpus/drained") {
            Ok(now) => now,
            Err(refusal) if answered.elapsed() >= AWAY || Instant::now() >= deadline + patience => {
                return Err(refusal.into());
            }
            Err(_) => {
                std::thread::sleep(LOOK_PERIOD);
                continue;
            }
        };
        answered = Instant::now();
        let (left, ended) = left_of(drained, &now);
        if let Some(uuid) = ended {
            let sentence = format!("gpool: {} is no longer drained: somebody else has ended that", uuid.0);
            return Err(Failure::Refused(ExitStatus::Failed, sentence));
        }
        let time = deadline.saturating_duration_since(Instant::now());
        if left.is_empty() || time.is_zero() {
            return Ok(left);
        }
        std::thread::sleep(LOOK_PERIOD.min(time));
    }
}

/// What is left on each of `drained`, and the first that is no longer among them.
fn left_of<'a>(drained: &'a [DrainedGpu], now: &[DrainedGpu]) -> (Vec<String>, Option<&'a GpuUuid>) {
    let mut left = Vec::new();
    for gpu in drained {
        match now.iter().find(|its| its.uuid == gpu.uuid) {
            None => return (left, Some(&gpu.uuid)),
            Some(its) if its.leases > 0 => left.push(told(its)),
            Some(_) => {}
        }
    }
    (left, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::Drain;

    fn drained(uuid: &str, leases: u32) -> DrainedGpu {
        let drain = Drain { since_unix_ms: 1, uid: Some(0), reason: String::new(), fault: None };
        DrainedGpu { uuid: GpuUuid(uuid.into()), index: Some(3), drain, leases }
    }

    #[test]
    fn who_opens_a_gpu_hears_what_is_still_wrong_with_it() {
        let finding = HealthFinding {
            kind: "remap-pending".into(),
            since_unix_ms: 1,
            cause: "memory is to be replaced".into(),
            remedy: "reset it".into(),
            accepted: true,
        };
        assert!(
            in_spite(&[]).is_empty()
                && in_spite(&[finding]).starts_with(", although it shows remap-pending: it is not")
        );
    }

    #[test]
    fn a_fault_is_told_to_who_drains_the_gpu_and_to_who_opens_it() {
        let mut gpu = drained("GPU-1", 0);
        assert!(!told(&gpu).contains("fault") && dropped(&gpu).is_empty());
        gpu.drain.fault = Some("Xid 79".into());
        assert!(told(&gpu).ends_with("; no lease is on it; it has a fault of its own: Xid 79"), "{}", told(&gpu));
        assert_eq!(dropped(&gpu), "; it was drained for Xid 79");
    }

    #[test]
    fn a_cluster_that_counts_pods_here_is_told_of_a_drain() {
        let lease = |more: &str| -> LeaseView {
            let text = format!(
                r#"{{"lease_id":"1","container_id":"1","state":"active","gpu_uuid":"GPU-1","fraction_permille":300,
                "received_permille":1,"charged_gpu_ns":2,"memory_cap_bytes":3,"memory_used_bytes":4,"allocations_refused":5,
                "gate_wait_ns":6,"launches":7,"processes":0,"init_pid":null,"cgroup":null,"enforcement":"co-operative",
                "owner_uid":0,"created_unix_ms":9{more}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let counted = lease(r#","resource":"percent=30""#);
        assert_eq!(
            [has_counted(&[]), has_counted(&[lease("")]), has_counted(&[lease(""), counted])],
            [false, false, true]
        );
    }

    #[test]
    fn what_is_left_is_counted_where_it_was_asked_and_nowhere_else() {
        let asked = [drained("GPU-1", 2), drained("GPU-2", 0)];
        let others = [drained("GPU-0", 9), drained("GPU-1", 1), drained("GPU-2", 0)];
        let (left, ended) = left_of(&asked, &others);
        assert_eq!(left, ["GPU 3 (GPU-1) takes no new leases; 1 lease is on it, and goes on"]);
        assert_eq!(ended, None);
        assert!(left_of(&asked[1..], &others).0.is_empty());
        assert_eq!(left_of(&asked, &others[..2]).1, Some(&GpuUuid("GPU-2".into())));
    }
}
