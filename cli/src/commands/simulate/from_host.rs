//! A scenario of the containers that share a GPU of this host.

use crate::exit::{ExitStatus, Failure};
use gpool_policy_simulator::scenario::SHIPPED;
use gpool_protocol::{LeaseState, LeaseView, format_permille};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Whose device and delays it has: those of a host as most are.
const LIKE: &str = "coarse";
/// For a launch of which nothing is known.
const GUESS_US: u64 = 1000;
/// The longest name that a scenario takes.
const NAME_LETTERS: usize = 32;

/// The file, of the GPU whose UUID begins so; without that of the only one that is shared.
pub fn text(leases: &[LeaseView], gpu: Option<&str>) -> Result<String, Failure> {
    // With what each had of it lately.
    let mut shared: BTreeMap<&str, Vec<(&LeaseView, u16)>> = BTreeMap::new();
    // Who is in the host's memory, or has no container that runs, wants nothing; and who has no gate shares by no slices.
    let is_there = |lease: &&LeaseView| {
        lease.state == LeaseState::Active && lease.mechanism.has_shims() && lease.suspension.is_none()
    };
    for lease in leases.iter().filter(is_there) {
        let all = lease.gpus.iter().map(|gpu| (&gpu.gpu_uuid, gpu.received_permille));
        let first = Some((&lease.gpu_uuid, lease.received_permille)).filter(|_| lease.gpus.is_empty());
        for (uuid, had) in all.chain(first).filter(|(uuid, _)| uuid.0.starts_with(gpu.unwrap_or_default())) {
            shared.entry(&uuid.0).or_default().push((lease, had));
        }
    }
    let names: Vec<&str> = shared.keys().copied().collect();
    match shared.iter().next() {
        None => {
            let sentence = "gpool: no container has a slice of such a GPU now; gpool ps shows what runs".to_owned();
            Err(Failure::Refused(ExitStatus::NotFound, sentence))
        }
        Some((uuid, tenants)) if names.len() == 1 => Ok(file(uuid, tenants)),
        Some(_) => {
            let sentence = format!("gpool: containers share {}; say with --gpu which", names.join(" and "));
            Err(Failure::Refused(ExitStatus::Usage, sentence))
        }
    }
}

fn file(uuid: &str, tenants: &[(&LeaseView, u16)]) -> String {
    let mut text = format!(
        "# What shares {uuid} of this host. What each container wants is not known: here all of them always have work. Give\n\
         # those that have not requests, on_off or steps. The device and the delays are those of the scenario {LIKE}.\n{}",
        head()
    );
    for (lease, had_permille) in tenants {
        let _ = write!(text, "\n{}", tenant(lease, *had_permille));
    }
    text
}

/// What stands in front of the tenants of the scenario that it is like, without what that says of itself.
fn head() -> &'static str {
    let like = SHIPPED.iter().find(|(name, _)| *name == LIKE).map_or("", |(_, text)| text);
    let tables = like.split("\n[[tenant]]").next().unwrap_or_default();
    tables.find("duration_ms").map_or(tables, |begin| &tables[begin..])
}

fn tenant(lease: &LeaseView, had_permille: u16) -> String {
    let short = lease.container_id.short();
    let name = if short.len() <= NAME_LETTERS { short } else { &lease.lease_id.0 };
    let limit = lease.limit_permille.map(|limit| format!("limit = {}\n", decimal(limit))).unwrap_or_default();
    let (about, length_us) = match lease.kernel_ns {
        0 => ("How long its kernels are is not known yet: a guess.", GUESS_US),
        ns => ("So long are its kernels in the mean of a second.", ns.div_ceil(1000)),
    };
    format!(
        "[[tenant]]\nname = {name:?}\nfraction = {}\n{limit}class = \"{}\"\npriority = \"{}\"\n# It had {} of the GPU in the last seconds.\n\
         # {about}\nkernels = {{ fixed_us = {length_us} }}\n",
        decimal(lease.fraction_permille),
        lease.class,
        lease.priority,
        format_permille(had_permille.into()),
    )
}

fn decimal(permille: u16) -> String {
    format!("{}.{:03}", permille / 1000, permille % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_policy_simulator::designs::Design;
    use gpool_policy_simulator::run;
    use gpool_policy_simulator::scenario::Scenario;
    use gpool_protocol::{Class, ContainerId, GpuUuid, Mechanism, Priority};

    fn lease(letter: &str, gpu: &str, fraction_permille: u16) -> LeaseView {
        let text = r#"{"lease_id":"01M7WY5J1RZE6GAZ693WF3W6ET","container_id":"c","state":"active","gpu_uuid":"GPU-1",
            "fraction_permille":300,"received_permille":254,"charged_gpu_ns":0,"memory_cap_bytes":3,"memory_used_bytes":4,
            "allocations_refused":5,"gate_wait_ns":0,"launches":7,"processes":0,"init_pid":null,"cgroup":null,
            "enforcement":"co-operative","owner_uid":0,"created_unix_ms":9}"#;
        let lease: LeaseView = serde_json::from_str(text).unwrap();
        let (container_id, gpu_uuid) = (ContainerId(letter.repeat(64)), GpuUuid(gpu.into()));
        LeaseView { container_id, gpu_uuid, fraction_permille, ..lease }
    }

    #[test]
    fn who_shares_a_gpu_becomes_a_scenario_that_runs() {
        let service = LeaseView {
            class: Class::Latency,
            limit_permille: Some(500),
            kernel_ns: 1_234_500,
            ..lease("a", "GPU-1", 300)
        };
        let scavenger = LeaseView { priority: Priority::Scavenger, ..lease("b", "GPU-1", 1000) };
        let whole = LeaseView { mechanism: Mechanism::Exclusive, ..lease("c", "GPU-1", 1000) };
        let over = LeaseView { state: LeaseState::Held, ..lease("d", "GPU-1", 1000) };
        let text = text(&[service, scavenger, whole, over], None).unwrap();
        assert!(text.starts_with("# What shares GPU-1 of this host."), "{text}");
        assert!(text.contains("# It had 25.4 % of the GPU in the last seconds.\n"), "{text}");
        let scenario = Scenario::parse("this-host.toml", &text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let [first, second] = &scenario.tenants[..] else { panic!("{text}") };
        assert_eq!((first.name.as_str(), first.share.weight_permille), ("aaaaaaaaaaaa", 300));
        assert_eq!(first.share.limit_permille, Some(500));
        assert_eq!((second.share.weight_permille, second.share.limit_permille), (1000, None));
        assert!(text.contains("fixed_us = 1235 }") && text.contains("fixed_us = 1000 }"), "{text}");
        let outcome = run(&Scenario { duration_ns: 8_000_000_000, ..scenario }, 1, Design::Gpool);
        assert!(outcome.tenants[0].received_ppm.abs_diff(500_000) <= 10_000, "its limit: {outcome:?}");
    }

    #[test]
    fn one_gpu_is_shared_by_itself_and_of_several_one_is_named() {
        let both = [lease("a", "GPU-1", 300), lease("b", "GPU-2", 300)];
        let Err(Failure::Refused(ExitStatus::Usage, sentence)) = text(&both, None) else { panic!("which?") };
        assert!(sentence.contains("GPU-1 and GPU-2") && sentence.contains("--gpu"), "{sentence}");
        assert!(text(&both, Some("GPU-2")).unwrap().contains("bbbbbbbbbbbb"));
        assert!(matches!(text(&both, Some("GPU-3")), Err(Failure::Refused(ExitStatus::NotFound, _))));
        assert!(matches!(text(&[], None), Err(Failure::Refused(ExitStatus::NotFound, _))));
    }
}
