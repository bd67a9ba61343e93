//! What a container has that names no share itself: `[default_request]`, behind its own keys.
//!
//! It may say nothing of gpool at all and ask for GPUs as NVIDIA's runtime has it, by a variable that images of CUDA bring with
//! them. docker's `--gpus` writes the same one beside the toolkit's hook, a number of GPUs as the first of them
//! (daemon/nvidia_linux.go of moby; the variable is of cmd/nvidia-container-runtime-hook of NVIDIA's container toolkit); newer
//! releases have it be CDI devices, whose edits are the GPUs' nodes and that variable as `void` (nvidia-ctk cdi generate).

use crate::placed::gpus_in;
use gpool_configuration::DefaultRequest;
use gpool_protocol::{ErrorBody, ErrorCode};
use std::collections::BTreeSet;

/// The variable by which a container asks for GPUs in that way.
pub const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Modes without a share of a GPU.
const WITHOUT_SHARE: [&str; 3] = ["exclusive", "timeslice", "mig"];
/// GPUs that it names.
const DEVICE: &str = "device";
const GPUS: &str = "gpus";

/// GPUs that a container asks for in NVIDIA's way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// One that has room.
    Any,
    /// So many.
    Count(usize),
    /// These, by number or UUID.
    These(BTreeSet<&'a str>),
}

/// What the environment asks for in that way, with the GPUs' nodes beside it or docker's hook. None if it asks for nothing, or for
/// what is no GPU as a whole.
pub fn wanted(env: &[String], has_nodes: bool, has_hook: bool) -> Option<Wanted<'_>> {
    let told = told(env)?;
    let named = match told {
        "all" => return Some(Wanted::Any),
        "void" if has_nodes => return Some(Wanted::Any),
        "" | "void" | "none" => return None,
        named => gpus_in(named)?,
    };
    let is_count = has_hook && named.iter().enumerate().all(|(place, name)| *name == place.to_string());
    match named.len() {
        1 if is_count => Some(Wanted::Any),
        count if is_count => Some(Wanted::Count(count)),
        _ => Some(Wanted::These(named.into_iter().collect())),
    }
}

/// What programs see of the variable.
fn told(env: &[String]) -> Option<&str> {
    env.iter().rev().find_map(|entry| entry.strip_prefix(VISIBLE)?.strip_prefix('=')).map(str::trim)
}

/// What a container is given for what it does not say itself; `said` are its own keys. None if it names a share.
pub fn for_the_rest<'a>(
    default: &DefaultRequest,
    said: impl Fn(&str) -> Option<&'a str>,
) -> Option<Vec<(&'static str, String)>> {
    let mode = said("mode").map(str::trim);
    let names_a_share = said("fraction").is_some() || said("mig-profile").is_some();
    if names_a_share || mode.is_some_and(|mode| WITHOUT_SHARE.contains(&mode)) {
        return None;
    }
    // What does not go with its own words is not what it would have said.
    let goes = |key: &str| match key {
        "class" => said("p99").is_none(),
        "priority" => said("deadline").is_none() && mode != Some("mps"),
        _ => true,
    };
    let keys: Vec<_> = default.keys().into_iter().filter(|(key, _)| said(key).is_none() && goes(key)).collect();
    (!keys.is_empty()).then_some(keys)
}

/// The keys for the GPUs that it asks for in NVIDIA's way, as far as its environment may.
pub fn on(wanted: &Wanted<'_>, env_allow: &[String]) -> Vec<(&'static str, String)> {
    let keys = match wanted {
        Wanted::Any => Vec::new(),
        Wanted::Count(count) => vec![(GPUS, count.to_string())],
        Wanted::These(names) => {
            let all: Vec<&str> = names.iter().copied().collect();
            let count = (all.len() > 1).then(|| (GPUS, all.len().to_string()));
            [(DEVICE, all.join(","))].into_iter().chain(count).collect()
        }
    };
    let may = keys.iter().all(|(key, _)| env_allow.iter().any(|allowed| allowed == key));
    if may { keys } else { Vec::new() }
}

/// The keys for the GPUs that docker's `--gpus` or a compose file names, in a container that has a share by keys of its own, which
/// `said` has. Those that it says itself are left out.
///
/// # Errors
/// Both name GPUs, and not the same; or what is named is no GPU as a whole.
pub fn beside_own<'a>(
    env: &[String],
    said: impl Fn(&str) -> Option<&'a str>,
    env_allow: &[String],
) -> Result<Vec<(&'static str, String)>, ErrorBody> {
    let Some(wanted) = wanted(env, false, true) else {
        return match told(env).unwrap_or_default() {
            "" | "void" | "none" => Ok(Vec::new()),
            other => Err(contradicts(other, "gpool gives shares of whole GPUs by their numbers or UUIDs")),
        };
    };
    let own = |key: &str| said(key).map(str::trim).filter(|value| !value.is_empty());
    let count = match &wanted {
        Wanted::Any => None,
        Wanted::Count(count) => Some(*count),
        Wanted::These(names) => Some(names.len()),
    };
    if let (Some(count), Some(gpus)) = (count, own(GPUS))
        && gpus != count.to_string()
    {
        return Err(contradicts(told(env).unwrap_or_default(), &format!("its own key says {GPUS}={gpus}")));
    }
    if let (Wanted::These(names), Some(devices)) = (&wanted, own(DEVICE)) {
        let devices: BTreeSet<&str> = devices.split(',').map(str::trim).collect();
        if !are_the_same(names, &devices) {
            let own = devices.into_iter().collect::<Vec<_>>().join(",");
            return Err(contradicts(told(env).unwrap_or_default(), &format!("its own key says {DEVICE}={own}")));
        }
    }
    let keys = on(&wanted, env_allow);
    if count.is_some() && keys.is_empty() && own(DEVICE).or(own(GPUS)).is_none() {
        return Err(contradicts(
            told(env).unwrap_or_default(),
            &format!("[policy.env] allow lets its environment have no {DEVICE} and {GPUS}"),
        ));
    }
    Ok(keys.into_iter().filter(|(key, _)| own(key).is_none()).collect())
}

/// Whether both name the same GPUs, where a UUID may be cut short.
fn are_the_same(some: &BTreeSet<&str>, others: &BTreeSet<&str>) -> bool {
    let is_uuid = |name: &str| name.starts_with("GPU-");
    let begins = |long: &str, short: &str| {
        is_uuid(short) && long.get(..short.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(short))
    };
    let is_same = |a: &str, b: &str| a == b || begins(a, b) || begins(b, a);
    let is_in = |name: &&str, all: &BTreeSet<&str>| all.iter().any(|other| is_same(name, other));
    some.len() == others.len() && some.iter().all(|name| is_in(name, others))
}

fn contradicts(named: &str, own: &str) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::BundleInvalid,
        format!(
            "the container is given the GPUs {named} by docker's --gpus, or by deploy.resources.reservations.devices of its compose file, \
             and {own}"
        ),
        "leave --gpus or deploy.resources.reservations.devices out: gpool brings GPU and driver itself",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;

    fn default() -> DefaultRequest {
        let text =
            "[default_request]\nfraction = \"0.25\"\nmemory = \"8GiB\"\nclass = \"notebook\"\npriority = \"burst\"\n";
        gpool_configuration::parse(std::path::Path::new("/etc/gpool/config.toml"), text).unwrap().default_request
    }

    fn words(keys: &[(&'static str, String)]) -> String {
        keys.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    }

    /// What is given to one that says these keys.
    fn given(own: &[(&str, &'static str)]) -> Option<String> {
        let said = |key: &str| own.iter().find(|(its, _)| *its == key).map(|(_, value)| *value);
        for_the_rest(&default(), said).map(|keys| words(&keys))
    }

    #[test]
    fn who_names_no_share_has_the_default_and_keeps_what_it_says() {
        let whole = "fraction=0.25 memory=8GiB class=notebook priority=burst";
        assert_eq!(given(&[]).as_deref(), Some(whole));
        assert_eq!(given(&[("team", "vision"), ("mode", "slice")]).as_deref(), Some(whole));
        let own = [("memory", "4GiB"), ("class", "train")];
        assert_eq!(given(&own).as_deref(), Some("fraction=0.25 priority=burst"));
        for share in [("fraction", "0.5"), ("mode", "exclusive"), ("mode", "timeslice"), ("mig-profile", "1g.10gb")] {
            assert_eq!(given(&[share]), None);
        }
        assert_eq!(for_the_rest(&DefaultRequest::default(), |_| None), None);
    }

    #[test]
    fn what_would_not_go_with_its_own_words_is_left_out() {
        assert_eq!(given(&[("p99", "20ms")]).as_deref(), Some("fraction=0.25 memory=8GiB priority=burst"));
        assert_eq!(given(&[("deadline", "6h")]).as_deref(), Some("fraction=0.25 memory=8GiB class=notebook"));
        assert_eq!(given(&[("mode", "mps")]).as_deref(), Some("fraction=0.25 memory=8GiB class=notebook"));
    }

    /// What is asked for in NVIDIA's way, as keys.
    fn asked(told: &str, has_nodes: bool, has_hook: bool) -> Option<String> {
        let env = [format!("{VISIBLE}={told}")];
        let allow = ["device", "gpus"].map(str::to_owned);
        wanted(&env, has_nodes, has_hook).map(|wanted| words(&on(&wanted, &allow)))
    }

    #[test]
    fn nvidias_variable_asks_for_gpus_and_names_them() {
        let of = |told: &str| asked(told, false, false);
        assert_eq!(of("all").as_deref(), Some(""));
        assert_eq!(of("GPU-5131").as_deref(), Some("device=GPU-5131"));
        assert_eq!(of(" 0,1,0").as_deref(), Some("device=0,1 gpus=2"));
        for nothing in ["", "none", "void", "MIG-1", "all,0"] {
            assert_eq!(of(nothing), None, "{nothing:?}");
        }
        let both = ["all", "void"].map(|told| format!("{VISIBLE}={told}"));
        assert_eq!(wanted(&both, false, false), None, "what a program sees is the last");
        assert_eq!(wanted(&["A=1".to_owned()], true, false), None, "somebody has brought a node by hand");
    }

    #[test]
    fn docker_s_gpus_are_counted_or_are_devices() {
        let of = |told: &str| asked(told, false, true);
        assert_eq!([of("0"), of("all")], [Some(String::new()), Some(String::new())]);
        assert_eq!(of("0,1").as_deref(), Some("gpus=2"));
        assert_eq!(of("1").as_deref(), Some("device=1"));
        assert_eq!(asked("void", true, false).as_deref(), Some(""), "by CDI");
    }

    #[test]
    fn who_has_a_share_has_it_on_the_gpus_that_docker_was_told() {
        let with = |told: &str, own: &[(&str, &'static str)], allow: &[&str]| {
            let env = ["NVIDIA_VISIBLE_DEVICES=all".to_owned(), format!("{VISIBLE}={told}")];
            let allow: Vec<String> = allow.iter().map(|key| (*key).to_owned()).collect();
            let said = |key: &str| own.iter().find(|(its, _)| *its == key).map(|(_, value)| *value);
            beside_own(&env, said, &allow).map(|keys| words(&keys))
        };
        let both = ["device", "gpus"];
        let given = |told: &str, own: &[(&str, &'static str)]| with(told, own, &both).unwrap();
        assert_eq!([given("all", &[]), given("0", &[]), given("none", &[])], ["", "", ""]);
        assert_eq!([given("0,1", &[]), given("1", &[])], ["gpus=2", "device=1"]);
        assert_eq!(given("1,2", &[]), "device=1,2 gpus=2");
        assert_eq!(given("GPU-51aa", &[("device", "GPU-51")]), "", "cut short");
        assert_eq!(given("1,2", &[("device", "2, 1"), ("gpus", "2")]), "");
        assert_eq!(given("all", &[("gpus", "2"), ("device", "0,1")]), "");
        assert_eq!(with("2", &[("device", "2")], &[]).unwrap(), "", "by an annotation");
        let error = with("2", &[], &[]).unwrap_err();
        assert!(error.message.contains("[policy.env] allow lets its environment have no device"), "{error}");
        for (told, key, value) in [
            ("0,1", "gpus", "1"),
            ("1", "gpus", "2"),
            ("1", "device", "2"),
            ("1", "device", "GPU-51"),
            ("MIG-1", "", ""),
        ] {
            let error = with(told, &[(key, value)], &both).unwrap_err();
            assert_presentable(&error);
            assert!(error.code == ErrorCode::BundleInvalid && error.message.contains(told), "{error}");
            assert!(error.message.contains(&format!("{key}={value}")) || key.is_empty(), "{error}");
            assert!(error.remedy.contains("deploy.resources.reservations.devices"), "{error}");
        }
    }

    #[test]
    fn an_environment_that_may_name_no_gpus_has_any() {
        let env = [format!("{VISIBLE}=0,1")];
        let of = |allow: &[&str]| {
            let allow: Vec<String> = allow.iter().map(|key| (*key).to_owned()).collect();
            words(&on(&wanted(&env, false, false).unwrap(), &allow))
        };
        assert_eq!([of(&["device", "gpus"]).as_str(), &of(&["device"]), &of(&[])], ["device=0,1 gpus=2", "", ""]);
    }
}
