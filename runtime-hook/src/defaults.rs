//! What a container has that names no share itself: `[default_request]`, laid under its own keys.
//!
//! It may say nothing of gpool at all and ask for GPUs as NVIDIA's runtime has it, by a variable that images of CUDA bring with
//! them; docker's `--gpus` writes the same one beside the toolkit's hook
//! (daemon/nvidia_linux.go of moby; the variable is of cmd/nvidia-container-runtime-hook of NVIDIA's container toolkit).

use crate::placed::gpus_in;
use gpool_configuration::DefaultRequest;
use gpool_protocol::{ANNOTATION_PREFIX, ENV_PREFIX};
use std::collections::BTreeMap;

/// The variable by which a container asks for GPUs in that way.
pub const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Keys of a container that say how much it has: with one of them there is nothing to add.
const SHARES: [&str; 3] = ["fraction", "mode", "mig-profile"];
/// GPUs that it names.
const DEVICE: &str = "device";
const GPUS: &str = "gpus";

/// Whether it may ask for GPUs in NVIDIA's way; which it asks for, [`asked_for`] says.
pub fn may_ask(env: &[String]) -> bool {
    asked_for(env).is_some()
}

/// The GPUs that a container asks for in NVIDIA's way, none of them named where any will do. None if it asks for none, or for what
/// is no GPU as a whole.
fn asked_for(env: &[String]) -> Option<Vec<&str>> {
    let told = env.iter().rev().find_map(|entry| entry.strip_prefix(VISIBLE)?.strip_prefix('='))?.trim();
    match told {
        "" | "void" | "none" => None,
        "all" => Some(Vec::new()),
        named => gpus_in(named),
    }
}

/// The annotations of a container with what it does not say itself; none if there is nothing to add. `env_allow` is what its
/// environment may ask for.
pub fn laid_under(
    default: &DefaultRequest,
    annotations: &BTreeMap<String, String>,
    env: &[String],
    env_allow: &[String],
) -> Option<BTreeMap<String, String>> {
    let keys = default.keys();
    let is_said_by = |entry: &String, key: &str| {
        let name = entry.split_once('=').and_then(|(name, _)| name.strip_prefix(ENV_PREFIX));
        name.is_some_and(|name| name.to_ascii_lowercase().replace('_', "-") == key)
    };
    let says = |key: &str| {
        annotations.contains_key(&format!("{ANNOTATION_PREFIX}{key}")) || env.iter().any(|entry| is_said_by(entry, key))
    };
    if keys.is_empty() || SHARES.iter().any(|key| says(key)) {
        return None;
    }
    let mut all = annotations.clone();
    let added = keys.into_iter().chain(named(env, env_allow)).filter(|(key, _)| !says(key));
    all.extend(added.map(|(key, value)| (format!("{ANNOTATION_PREFIX}{key}"), value)));
    Some(all)
}

/// The GPUs that the environment names in NVIDIA's way, as far as it may.
fn named(env: &[String], env_allow: &[String]) -> Vec<(&'static str, String)> {
    let gpus = asked_for(env).unwrap_or_default();
    let needed: &[&str] = if gpus.len() == 1 { &[DEVICE] } else { &[DEVICE, GPUS] };
    let may = needed.iter().all(|key| env_allow.iter().any(|allowed| allowed == key));
    match may && !gpus.is_empty() {
        true => vec![(DEVICE, gpus.join(",")), (GPUS, gpus.len().to_string())],
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default() -> DefaultRequest {
        let text = "[default_request]\nfraction = \"0.25\"\nmemory = \"8GiB\"\nclass = \"notebook\"\n";
        gpool_configuration::parse(std::path::Path::new("/etc/gpool/config.toml"), text).unwrap().default_request
    }

    /// What is added, in words.
    fn added(default: &DefaultRequest, annotations: &[(&str, &str)], env: &[&str], allow: &[&str]) -> Option<String> {
        let own: BTreeMap<String, String> =
            annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let texts = |texts: &[&str]| -> Vec<String> { texts.iter().map(|text| (*text).to_owned()).collect() };
        let all = laid_under(default, &own, &texts(env), &texts(allow))?;
        assert!(own.iter().all(|(key, value)| all.get(key) == Some(value)));
        let new = all.iter().filter(|(key, _)| !own.contains_key(*key));
        let words: Vec<String> =
            new.map(|(key, value)| format!("{}={value}", &key[ANNOTATION_PREFIX.len()..])).collect();
        Some(words.join(" "))
    }

    #[test]
    fn who_names_no_share_has_the_default_and_keeps_what_it_says() {
        let of = |annotations: &[(&str, &str)], env: &[&str]| added(&default(), annotations, env, &[]);
        let whole = Some("class=notebook fraction=0.25 memory=8GiB".to_owned());
        assert_eq!(of(&[], &[]), whole);
        assert_eq!(of(&[("gpool.io/team", "vision")], &[]), whole);
        assert_eq!(of(&[], &["GPOOL_MEMORY=4GiB"]).as_deref(), Some("class=notebook fraction=0.25"));
        assert_eq!(of(&[("gpool.io/class", "train")], &[]).as_deref(), Some("fraction=0.25 memory=8GiB"));
        for share in ["GPOOL_FRACTION=0.5", "GPOOL_MODE=exclusive", "GPOOL_MIG_PROFILE=1g.10gb"] {
            assert_eq!(of(&[], &[share]), None);
        }
        assert_eq!(of(&[("gpool.io/fraction", "0.5")], &["NVIDIA_VISIBLE_DEVICES=all"]), None);
        assert_eq!(added(&DefaultRequest::default(), &[("gpool.io/team", "vision")], &[], &[]), None);
    }

    #[test]
    fn nvidias_variable_asks_for_gpus_and_names_them() {
        let of = |told: &str| {
            let env = [format!("{VISIBLE}={told}")];
            let named = added(&default(), &[], &[&env[0]], &["device", "gpus"]).unwrap_or_default();
            may_ask(&env)
                .then(|| named.replace("class=notebook ", "").replace(" fraction=0.25", "").replace(" memory=8GiB", ""))
        };
        assert_eq!(of("all").as_deref(), Some("fraction=0.25"));
        assert_eq!(of("GPU-5131").as_deref(), Some("device=GPU-5131 gpus=1"));
        assert_eq!(of(" 0,1").as_deref(), Some("device=0,1 gpus=2"));
        for nothing in ["", "none", "void", "MIG-1", "all,0"] {
            assert_eq!(of(nothing), None, "{nothing:?}");
        }
        let both = ["all", "void"].map(|told| format!("{VISIBLE}={told}"));
        assert!(!may_ask(&both) && !may_ask(&["A=1".to_owned()]), "what a program sees is the last");
    }

    #[test]
    fn an_environment_that_may_name_no_gpus_has_any() {
        let of = |told: &str, allow: &[&str]| added(&default(), &[], &[told], allow).unwrap().contains("device=");
        let (one, two) = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=0,1");
        assert_eq!([of(two, &["device", "gpus"]), of(two, &["device"]), of(one, &["device"])], [true, false, true]);
        assert!(!of(one, &[]));
    }
}
