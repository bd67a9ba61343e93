//! What NVIDIA's toolkit has ordered to be done in the container, by an engine that knows its CDI devices.
//!
//! Its hooks run in the container's mount namespace when the lease's libraries are mounted there, and make links to
//! libraries by renaming them into place: onto a mount point that fails with EBUSY, and with it the start (nvidia-cdi-hook
//! create-symlinks). Which libcuda is behind the shim a lease decides, so nothing may put one of the image's before it
//! (enable-cuda-compat), and what memory it has is not for the image's environment to say (apply-cuda-memory-limits). All
//! others stay: those that run ldconfig leave alone what is mounted.

use crate::libraries::unversioned;
use serde_json::Value;
use std::path::Path;

/// Programs of the toolkit that are hooks; the second one does other things as well, and is a hook by its first word.
const PROGRAMS: [&str; 2] = ["nvidia-cdi-hook", "nvidia-ctk"];
const HOOK_WORD: &str = "hook";
/// Kinds of hooks of config.json in which the toolkit has had these.
const KINDS: [&str; 3] = ["createContainer", "createRuntime", "prestart"];
/// Makes a link for each `--link TARGET::PATH`.
const LINKS: &str = "create-symlinks";
const LINK: [&str; 2] = ["--link", "-link"];
/// Puts folders of the image before all others.
const COMPAT: &str = "enable-cuda-compat";
/// Gives the container's cgroup a limit of memory by NVIDIA_GPU_MEMORY_LIMIT, when the lease's has been set.
const LIMITS: &str = "apply-cuda-memory-limits";

/// Takes out of `spec` what would be done to `libraries` of the lease, which are file names such as `libcuda.so.1`.
pub fn spare(spec: &mut Value, libraries: &[&str]) {
    for kind in KINDS {
        if let Some(hooks) = spec.pointer_mut(&format!("/hooks/{kind}")).and_then(Value::as_array_mut) {
            hooks.retain_mut(|hook| is_kept(hook, libraries));
        }
    }
}

/// Whether anything of the hook remains.
fn is_kept(hook: &mut Value, libraries: &[&str]) -> bool {
    let program = hook["path"].as_str().and_then(|path| Path::new(path).file_name()?.to_str());
    if !program.is_some_and(|program| PROGRAMS.iter().any(|known| program.starts_with(known))) {
        return true;
    }
    let Some(words) = hook.get_mut("args").and_then(Value::as_array_mut) else { return true };
    let verb = words.iter().skip(1).filter_map(Value::as_str).find(|word| *word != HOOK_WORD && !word.starts_with('-'));
    match verb {
        Some(COMPAT | LIMITS) => false,
        Some(LINKS) => {
            let (links, makes_any) = remaining(words, libraries);
            *words = links;
            makes_any
        }
        _ => true,
    }
}

/// The words without the links under the names of `libraries`, and whether there are others.
fn remaining(words: &[Value], libraries: &[&str]) -> (Vec<Value>, bool) {
    let (mut kept, mut makes_any) = (Vec::new(), false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.as_str().unwrap_or_default();
        let joined = text.split_once('=').filter(|(option, _)| LINK.contains(option));
        match joined {
            Some((option, links)) => {
                if let Some(others) = others(links, libraries) {
                    kept.push(Value::String(format!("{option}={others}")));
                    makes_any = true;
                }
            }
            None if LINK.contains(&text) => {
                let links = words.next().and_then(Value::as_str).unwrap_or_default();
                if let Some(others) = others(links, libraries) {
                    kept.extend([word.clone(), Value::String(others)]);
                    makes_any = true;
                }
            }
            None => kept.push(word.clone()),
        }
    }
    (kept, makes_any)
}

/// Those of `links`, `TARGET::PATH` with commas between them, that are not under the name of a library; none if all are.
fn others(links: &str, libraries: &[&str]) -> Option<String> {
    let is_ours = |link: &&str| {
        let name = link.rsplit_once("::").map_or(*link, |(_, path)| path).rsplit('/').next().unwrap_or_default();
        libraries.iter().any(|library| name == *library || name == unversioned(library))
    };
    let others: Vec<&str> = links.split(',').filter(|link| !is_ours(link)).collect();
    (!others.is_empty()).then(|| others.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spared(hooks: Value) -> Value {
        let mut spec = json!({"hooks": {"createContainer": hooks, "poststop": [{"path": "/x"}]}, "other": 1});
        spare(&mut spec, &["libcuda.so.1", "libnvidia-ml.so.1"]);
        assert_eq!((&spec["other"], &spec["hooks"]["poststop"]), (&json!(1), &json!([{"path": "/x"}])));
        spec["hooks"]["createContainer"].clone()
    }

    fn hook(path: &str, words: &[&str]) -> Value {
        json!({"path": path, "args": words, "env": ["A=1"]})
    }

    #[test]
    fn links_to_libraries_of_the_lease_are_not_made_and_others_are() {
        let cdi = "/usr/bin/nvidia-cdi-hook";
        let words = [
            "nvidia-cdi-hook",
            "create-symlinks",
            "--link",
            "libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so",
            "--link",
            "libnvidia-opticalflow.so.1::/usr/lib/x86_64-linux-gnu/libnvidia-opticalflow.so",
            "--link=libcuda.so.580.95.05::/usr/lib64/libcuda.so.1",
        ];
        let want = hook(cdi, &[&words[..2], &words[4..6]].concat());
        assert_eq!(spared(json!([hook(cdi, &words)])), json!([want]));
        assert_eq!(spared(json!([hook(cdi, &words[..4])])), json!([]), "none is left");
        let ctk = ["nvidia-ctk", "--quiet", "hook", "create-symlinks", "-link", "x::/lib/libnvidia-ml.so.1"];
        assert_eq!(spared(json!([hook("/usr/bin/nvidia-ctk", &ctk)])), json!([]));
        let commas = |links: &str| hook(cdi, &["nvidia-cdi-hook", "create-symlinks", "--link", links]);
        let both = commas("a::/lib/libcuda.so,b::/lib/libnvoptix.so.1,c::/lib/libcuda.so.1");
        assert_eq!(spared(json!([both])), json!([commas("b::/lib/libnvoptix.so.1")]));
    }

    #[test]
    fn nothing_is_put_before_the_leases_libraries_and_the_rest_is_done() {
        let cdi = "/usr/local/nvidia/toolkit/nvidia-cdi-hook.real";
        let of = |verb: &str| hook(cdi, &["nvidia-cdi-hook", verb, "--folder", "/usr/lib/x86_64-linux-gnu"]);
        let [soname, compat, cache] = ["create-soname-symlinks", "enable-cuda-compat", "update-ldcache"].map(of);
        let limits = of("apply-cuda-memory-limits");
        let modprobe = hook("/usr/bin/nvidia-modprobe", &["nvidia-modprobe", "enable-cuda-compat"]);
        let stranger = hook("/opt/site/hook", &["nvidia-cdi-hook", "enable-cuda-compat"]);
        let all = json!([&soname, limits, &cache, compat, &modprobe, &stranger]);
        assert_eq!(spared(all), json!([soname, cache, modprobe, stranger]));
    }

    #[test]
    fn hooks_of_any_shape_are_left_alone() {
        for hooks in [json!(null), json!(7), json!([7, {}, {"path": 7}, {"path": "/nvidia-cdi-hook"}])] {
            assert_eq!(spared(hooks.clone()), hooks);
        }
    }
}
