//! What follows a finding: an event in any case, and what the class of the container says.

use crate::cgroup;
use crate::events::About;
use crate::hang;
use crate::lease::{Leases, Taking, about, class_policy};
use crate::mps::terminate_clients;
use crate::revocation;
use gpool_configuration::BypassAction;
use gpool_policy::TenantId;
use gpool_protocol::{Class, EventKind};

/// What was done about a finding.
#[derive(Debug, PartialEq, Eq)]
enum Done {
    /// Nothing, as the class says.
    Told,
    /// The container is frozen.
    Frozen,
    /// It could not be frozen.
    NotFrozen,
    /// So many of its processes were killed.
    Killed(usize),
    /// Its GPUs are taken from it.
    Revoked,
    /// They could not be, for that reason.
    NotRevoked(String),
}

/// Notes `sentence`, which begins with the container, as an event of that kind, and does what the container's class says.
pub fn act_on(leases: &Leases, tenant: TenantId, kind: EventKind, sentence: &str) {
    let Some((about, cgroup, class, action)) = begin(leases, tenant) else { return };
    // The book is not locked while the kernel freezes.
    let done = match (action, cgroup.as_deref()) {
        (BypassAction::Event, _) => Done::Told,
        (BypassAction::Freeze, Some(cgroup)) if cgroup::freeze(cgroup) => Done::Frozen,
        (BypassAction::Freeze, _) => Done::NotFrozen,
        (BypassAction::Revoke, _) => revoke(leases, &about, class),
        (BypassAction::Kill, cgroup) => Done::Killed(kill(leases, tenant, cgroup)),
    };
    if done == Done::Killed(0)
        && let Some(lease) = leases.book().of_tenant(tenant)
    {
        lease.stopped = None;
    }
    leases.counters.note_guard_action(done.word());
    leases.events.note(kind, about, format!("{sentence}: {}", done.in_words(&class.to_string())));
}

/// What is to be known of the lease; one that is about to be killed says why before its container can end.
fn begin(leases: &Leases, tenant: TenantId) -> Option<(About, Option<String>, Class, BypassAction)> {
    let mut book = leases.book();
    let lease = book.of_tenant(tenant)?;
    let class = lease.record.class;
    let action = class_policy(&leases.configuration(), class).bypass_action;
    if action == BypassAction::Kill {
        lease.stopped = Some("its container was killed, as it used a GPU past the shims or held more than its cap");
    }
    Some((about(&lease.record, None), lease.record.cgroup.clone(), class, action))
}

/// Takes its GPUs from the container, which an event of its own tells.
fn revoke(leases: &Leases, about: &About, class: Class) -> Done {
    let id = about.lease_id.as_ref().map_or("", |id| id.0.as_str());
    match revocation::take(leases, id, Taking::Bypass, &format!("[class.{class}] bypass_action = \"revoke\"")) {
        Ok(()) => Done::Revoked,
        Err(error) => Done::NotRevoked(error.to_string()),
    }
}

/// Kills everything in the container's cgroup, which is the outermost of the container, and its init. How many there were.
fn kill(leases: &Leases, tenant: TenantId, cgroup: Option<&str>) -> usize {
    let mps_group = leases.book().of_tenant(tenant).and_then(|lease| lease.record.mps_group.clone());
    let terminated = mps_group.zip(cgroup).map(|(group, cgroup)| terminate_clients(leases, &group, cgroup));
    let mut killed = terminated.unwrap_or_default();
    killed.extend(cgroup.map(cgroup::kill).unwrap_or_default());
    if let Some(lease) = leases.book().of_tenant(tenant) {
        // One without a cgroup of its own loses its init, and with it its PID namespace.
        let registered = lease.processes.values().map(|process| &process.watched);
        killed.extend(hang::stop(cgroup, lease.init.as_ref(), registered));
    }
    killed.len()
}

impl Done {
    /// For the metrics.
    fn word(&self) -> &'static str {
        match self {
            Done::Told => "told",
            Done::Frozen => "frozen",
            Done::NotFrozen => "not_frozen",
            Done::Revoked => "revoked",
            Done::NotRevoked(_) => "not_revoked",
            Done::Killed(0) => "not_killed",
            Done::Killed(_) => "killed",
        }
    }

    fn in_words(&self, class: &str) -> String {
        let key = format!("[class.{class}] bypass_action");
        match self {
            Done::Told => format!("nothing follows but this event, as {key} = \"event\""),
            Done::Frozen => format!(
                "the container is frozen, as {key} = \"freeze\": remove it, or change the key, say gpool config reload and \
                 thaw it"
            ),
            Done::NotFrozen => format!("it could not be frozen, as {key} = \"freeze\" asks: remove the container"),
            Done::Killed(0) => format!("none of its processes could be killed, as {key} = \"kill\" asks: remove it"),
            Done::Revoked => format!("its GPUs are taken from it, as {key} = \"revoke\""),
            Done::NotRevoked(cause) => {
                format!("its GPUs could not be taken from it, as {key} = \"revoke\" asks: {cause}")
            }
            Done::Killed(_) => format!("its processes are killed, as {key} = \"kill\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_names_the_key_that_asked_for_it() {
        for (done, part) in [
            (Done::Told, "= \"event\""),
            (Done::Frozen, "is frozen"),
            (Done::NotFrozen, "could not be frozen"),
            (Done::Killed(0), "none of its processes"),
            (Done::Killed(3), "are killed"),
            (Done::Revoked, "are taken from it"),
            (Done::NotRevoked("it has no cgroup".into()), "it has no cgroup"),
        ] {
            let text = done.in_words("train");
            assert!(text.contains(part) && text.contains("[class.train] bypass_action"), "{text}");
        }
    }
}
