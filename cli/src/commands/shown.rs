//! Which leases are shown of those that there are.

use crate::arguments::LeasesOptions;
use crate::table::all_gpus;
use gpool_protocol::{Client, ErrorBody, ErrorCode, GpuView, LeaseView};
use std::collections::BTreeSet;

/// The leases that are asked for.
///
/// # Errors
/// There is no such GPU, or the supervisor does not answer.
pub fn leases(client: &Client, options: &LeasesOptions) -> Result<Vec<LeaseView>, ErrorBody> {
    let mut leases: Vec<LeaseView> = client.get("/v1/leases")?;
    if let Some(name) = &options.gpu {
        let on = on(name, &client.get::<Vec<GpuView>>("/v1/gpus")?, &leases)?;
        leases.retain(|lease| all_gpus(lease).any(|uuid| on.contains(uuid)));
    }
    leases.retain(|lease| is_of(lease, options));
    Ok(leases)
}

/// Whether it is of the team and the user that are asked for.
fn is_of(lease: &LeaseView, options: &LeasesOptions) -> bool {
    let team = lease.team.as_deref().unwrap_or_default();
    options.team.as_ref().is_none_or(|asked| asked == team) && options.user.is_none_or(|uid| uid == lease.owner_uid)
}

/// Which GPUs that names: by its number or the beginning of its UUID a board with the instances that it is divided into, or an instance.
/// One that is gone is named as leases have it.
fn on(name: &str, gpus: &[GpuView], leases: &[LeaseView]) -> Result<BTreeSet<String>, ErrorBody> {
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let begins = |uuid: &str| !is_number && uuid.starts_with(name);
    let is_named = |gpu: &&GpuView| begins(&gpu.uuid.0) || (is_number && gpu.index.to_string() == name);
    let mut found: BTreeSet<String> =
        leases.iter().flat_map(all_gpus).filter(|uuid| begins(uuid)).map(str::to_owned).collect();
    for named in gpus.iter().filter(is_named) {
        let is_part = |gpu: &&GpuView| named.divided && gpu.index == named.index;
        found.extend(gpus.iter().filter(is_part).chain([named]).map(|gpu| gpu.uuid.0.clone()));
    }
    if found.is_empty() {
        let numbers: BTreeSet<u32> = gpus.iter().map(|gpu| gpu.index).collect();
        let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
        let remedy = format!("there are: {}; gpool gpu ls has their UUIDs", numbers.join(", "));
        return Err(ErrorBody::new(ErrorCode::MessageInvalid, format!("there is no GPU {name}"), remedy));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::gpu;
    use gpool_protocol::GpuUuid;

    fn lease(id: &str, (uid, team): (u32, &str), gpus: &[&str]) -> LeaseView {
        let text = r#"{"lease_id":"01","container_id":"c","state":"active","gpu_uuid":"GPU-1","fraction_permille":300,
            "received_permille":250,"charged_gpu_ns":0,"memory_cap_bytes":3,"memory_used_bytes":4,"allocations_refused":5,
            "gate_wait_ns":0,"launches":7,"processes":0,"init_pid":null,"cgroup":null,"enforcement":"co-operative",
            "owner_uid":0,"created_unix_ms":9}"#;
        let on = |uuid: &&str| {
            let text = r#"{"gpu_uuid":"","received_permille":0,"charged_gpu_ns":0,"memory_used_bytes":0}"#;
            let mut view: gpool_protocol::LeaseGpuView = serde_json::from_str(text).unwrap();
            view.gpu_uuid = GpuUuid((*uuid).into());
            view
        };
        LeaseView {
            container_id: gpool_protocol::ContainerId(id.into()),
            team: (!team.is_empty()).then(|| team.into()),
            owner_uid: uid,
            gpu_uuid: GpuUuid(gpus[0].into()),
            gpus: gpus.iter().map(on).collect(),
            ..serde_json::from_str(text).unwrap()
        }
    }

    #[test]
    fn leases_are_of_a_user_and_of_a_team() {
        let all =
            [lease("a", (0, "red"), &["GPU-0"]), lease("b", (7, "red"), &["GPU-0"]), lease("c", (7, ""), &["GPU-1"])];
        let shown = |user: Option<u32>, team: Option<&str>| {
            let options = LeasesOptions { team: team.map(str::to_owned), user, gpu: None };
            let its = all.iter().filter(|lease| is_of(lease, &options));
            its.map(|lease| lease.container_id.0.as_str()).collect::<String>()
        };
        assert_eq!([shown(None, None), shown(Some(7), None), shown(None, Some("red"))], ["abc", "bc", "ab"]);
        assert_eq!([shown(Some(7), Some("")), shown(Some(1), None)], ["c", ""]);
    }

    #[test]
    fn a_gpu_goes_by_its_number_or_the_beginning_of_its_uuid_with_its_instances() {
        let divided = GpuView { divided: true, ..gpu(1, "", 0) };
        let instance = |uuid: &str| GpuView { uuid: GpuUuid(uuid.into()), ..gpu(1, "", 0) };
        let gpus = [gpu(0, "", 0), divided, instance("MIG-a"), instance("MIG-b"), gpu(10, "", 0)];
        let all = [
            lease("a", (0, ""), &["GPU-0"]),
            lease("b", (0, ""), &["MIG-a"]),
            lease("c", (0, ""), &["MIG-b"]),
            lease("d", (0, ""), &["GPU-0", "GPU-10"]),
            lease("e", (0, ""), &["GPU-gone"]),
        ];
        let shown = |name: &str| {
            let on = on(name, &gpus, &all)?;
            let its = all.iter().filter(|lease| all_gpus(lease).any(|uuid| on.contains(uuid)));
            Ok::<String, ErrorBody>(its.map(|lease| lease.container_id.0.as_str()).collect())
        };
        assert_eq!(["0", "1", "10"].map(|name| shown(name).unwrap()), ["ad", "bc", "d"]);
        assert_eq!(["GPU-0", "GPU-1", "MIG-", "MIG-b"].map(|name| shown(name).unwrap()), ["ad", "bcd", "bc", "c"]);
        assert_eq!(shown("GPU-g").unwrap(), "e", "one that is not there any more");
        let refused = shown("2").unwrap_err();
        assert!(
            refused.message.ends_with("no GPU 2") && refused.remedy.starts_with("there are: 0, 1, 10;"),
            "{refused}"
        );
        assert!(shown("GPU-7").is_err());
    }
}
