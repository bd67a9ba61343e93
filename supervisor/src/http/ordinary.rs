//! What users without root may ask for whom `[policy] rootless_group` lets start leased containers: as much as an image may.
//! Their wrapper is theirs to change, so what it would refuse is refused here as well.

use gpool_configuration::Policy;
use gpool_protocol::{Class, ErrorBody, ErrorCode, LeaseRequest, LeaseUpdate, Mode, Priority, Request};

/// The id of a sandbox, as containerd and CRI-O make one; a namespace has fewer.
const SANDBOX_CHARACTERS: usize = 64;

/// # Errors
/// Names the first key that is beyond what `[policy.env]` allows.
pub fn check_request(policy: &Policy, uid: u32, asked: &LeaseRequest) -> Result<(), ErrorBody> {
    let request = &asked.request;
    let keys = [
        ("fraction", true),
        ("limit", request.limit_permille.is_some()),
        ("memory", request.memory.is_some()),
        ("spill", request.spill_bytes.is_some()),
        ("gpus", request.gpus != 1),
        ("class", request.class != Class::default()),
        ("p99", request.p99_ns.is_some()),
        ("priority", request.priority != Priority::default()),
        ("team", request.team.is_some()),
        ("project", request.project.is_some()),
        ("cost-center", request.cost_center.is_some()),
        ("device", !request.devices.is_empty()),
        ("model", !request.models.is_empty()),
        ("min-memory", request.min_memory_bytes.is_some()),
        ("wait", request.wait_seconds.is_some()),
        ("run-time", request.run_seconds.is_some()),
        ("deadline", request.deadline.is_some()),
        ("isolation", request.isolation.is_some()),
        ("mig-profile", request.mig_profile.is_some()),
        ("mode", names_mode(request)),
        ("resource", request.resource.is_some()),
    ];
    check_keys(policy, uid, &keys)?;
    if asked.unenforced && !policy.unenforced {
        return Err(ErrorBody::new(
            ErrorCode::RequestNotAllowed,
            "the container is not confined, so no share of it could be enforced",
            "start it without what undoes its confinement, or ask root for [policy] unenforced = true and gpool config reload",
        ));
    }
    Ok(())
}

/// Leaves out of a request what its user says of whose pod the container is: that is the word of an engine of his own, and bills go by
/// it. By its place in a pod it comes back to its own place alone; what could be read as a namespace is none either.
pub fn without_doubtful_pod(asked: &mut LeaseRequest) {
    let is_of_engine = |id: &str| id.len() == SANDBOX_CHARACTERS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    asked.pod = None;
    asked.in_pod = asked.in_pod.take().filter(|place| is_of_engine(&place.sandbox_id));
}

/// Of a lease that runs as well: what may not be asked for at the start is not had by a change.
///
/// # Errors
/// As [`check_request`].
pub fn check_change(policy: &Policy, uid: u32, change: &LeaseUpdate) -> Result<(), ErrorBody> {
    let keys = [
        ("fraction", change.fraction_permille.is_some()),
        ("limit", change.limit_permille.is_some() || change.no_limit),
        ("memory", change.memory_bytes.is_some()),
        ("spill", change.spill_bytes.is_some()),
        ("class", change.class.is_some()),
        ("p99", change.p99_ns.is_some() || change.no_p99),
        ("priority", change.priority.is_some()),
        ("run-time", change.run_seconds.is_some() || change.no_run_time),
    ];
    check_keys(policy, uid, &keys)
}

/// `keys` says of each whether it is asked for.
fn check_keys(policy: &Policy, uid: u32, keys: &[(&str, bool)]) -> Result<(), ErrorBody> {
    let is_allowed = |key: &str| policy.env.allow.iter().any(|allowed| allowed == key);
    let Some((key, _)) = keys.iter().find(|(key, is_set)| *is_set && !is_allowed(key)) else { return Ok(()) };
    Err(ErrorBody::new(
        ErrorCode::RequestNotAllowed,
        format!("user {uid} may not ask for {key}: users without root ask for what [policy.env] allow names"),
        format!("leave {key} out, or ask root to add it to the list and run gpool config reload"),
    ))
}

/// Whether the mode is another one than follows from the other keys.
fn names_mode(request: &Request) -> bool {
    match request.mode {
        Mode::Slice => request.mig_profile.is_some(),
        Mode::Auto => request.isolation.is_none(),
        Mode::Mig => request.mig_profile.is_none(),
        Mode::Exclusive | Mode::TimeSlice | Mode::Mps => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_configuration::{Configuration, REQUEST_KEYS};

    #[test]
    fn users_without_root_ask_for_what_images_may() {
        let mut policy = Configuration::default().policy;
        let plain = r#"{"container_id":"c","request":{"fraction_permille":300}}"#;
        let asked: LeaseRequest = serde_json::from_str(plain).unwrap();
        assert_eq!(check_request(&policy, 7, &asked), Ok(()));
        for (fields, key) in [
            (r#""team":"x""#, "team"),
            (r#""project":"x""#, "project"),
            (r#""cost_center":"x""#, "cost-center"),
            (r#""priority":"burst""#, "priority"),
            (r#""resource":"percent=30""#, "resource"),
            (r#""priority":"scavenger""#, "priority"),
            (r#""mode":"exclusive""#, "mode"),
            (r#""mode":"auto","isolation":"hardware""#, "isolation"),
            (r#""mode":"mig","mig_profile":"1g.10gb""#, "mig-profile"),
        ] {
            let text = plain.replace("300", &format!("300,{fields}"));
            let error = check_request(&policy, 7, &serde_json::from_str(&text).unwrap()).unwrap_err();
            assert!(error.message.contains(key) && error.code == ErrorCode::RequestNotAllowed, "{error}");
        }
        // Every key has its word with it, or an administrator could not take it from the list.
        let every = r#"300,"limit_permille":400,"memory":{"bytes":1},"spill_bytes":1,"gpus":2,"devices":["0"],"models":["H100"],
            "min_memory_bytes":1,"mode":"auto","mig_profile":"1g","isolation":"shared","class":"latency","p99_ns":1,"priority":"burst",
            "team":"a","project":"a","cost_center":"a","wait_seconds":1,"run_seconds":1,"deadline":{"within_seconds":1}"#;
        let every: LeaseRequest = serde_json::from_str(&plain.replace("300", every)).unwrap();
        for key in REQUEST_KEYS.into_iter().filter(|key| !matches!(*key, "mig-profile" | "mode")) {
            let mut without = policy.clone();
            without.env.allow = REQUEST_KEYS.iter().filter(|other| **other != key).map(ToString::to_string).collect();
            let told = check_request(&without, 7, &every).unwrap_err();
            assert!(told.message.contains(&format!("ask for {key}:")), "{key}: {told}");
        }
        let unconfined = LeaseRequest { unenforced: true, ..asked.clone() };
        assert!(check_request(&policy, 7, &unconfined).is_err());
        policy.unenforced = true;
        assert_eq!(check_request(&policy, 7, &unconfined), Ok(()));
        let priority = LeaseUpdate { priority: Some(Priority::Burst), ..LeaseUpdate::default() };
        assert!(check_change(&policy, 7, &priority).unwrap_err().message.contains("priority"));
        let more = LeaseUpdate { fraction_permille: Some(500), no_limit: true, ..LeaseUpdate::default() };
        assert_eq!(check_change(&policy, 7, &more), Ok(()));
        policy.env.allow.retain(|key| key != "limit");
        assert!(check_change(&policy, 7, &more).unwrap_err().message.contains("limit"));
        policy.env.allow.clear();
        assert!(check_request(&policy, 7, &asked).unwrap_err().message.contains("fraction"));
    }
}
