//! What podman writes into config.json that gpool has to know.

use gpool_protocol::ContainerId;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Podman's own marks, as `TRUE` or `FALSE`. Newer releases write them only where they are true.
const OWN_MARK: &str = "io.podman.annotations.privileged";
/// By whom a container is made. podman and CRI-O write it over what anybody else has said (annotations.ContainerManager).
const MANAGER: &str = "io.container.manager";
/// Podman's mark of a container that is removed when it ends (`--rm`), as `TRUE`.
const REMOVED_MARK: &str = "io.podman.annotations.autoremove";
/// What podman mounts into a container from a folder that the container's own id names: `.../ID/userdata/.containerenv`. The first it leaves
/// out where anything is mounted on /run, as in one that is read-only; others, as /etc/resolv.conf, may be of another one's in its pod.
const OWN_FILES: [&str; 2] = ["/run/.containerenv", "/etc/hostname"];

/// Whether the engine is a podman that may have copied these annotations from the image.
///
/// Until 4.5.1 podman gave a container the annotations of its image. config.json does not name the release, but
/// podman wrote this mark as `FALSE` until some releases after that, after the image's annotations, so that no
/// image can take it away or change it. For the releases in between this is stricter than it need be.
pub fn copies_annotations_of_images(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(OWN_MARK).is_some_and(|mark| mark == "FALSE")
}

/// Whether podman says that it makes the container. Under an engine that says nothing of it anybody may say so.
pub fn is_podmans(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(MANAGER).is_some_and(|manager| manager == "libpod")
}

/// Whether its engine reads files that name hooks (oci-hooks(5)), and has no `--gpus` that would add one: podman and CRI-O.
pub fn has_hooks_of_files(annotations: &BTreeMap<String, String>) -> bool {
    is_podmans(annotations) || annotations.get(MANAGER).is_some_and(|manager| manager == "cri-o")
}

/// Whether the container is removed when it ends: nothing starts again under its id.
pub fn removes_itself(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(REMOVED_MARK).is_some_and(|mark| mark == "TRUE")
}

/// The id of podman's container that config.json is for: a precreate hook is not told.
pub fn container_id(spec: &Value) -> Option<ContainerId> {
    of_cgroup(spec).or_else(|| of_mounts(spec)).map(|id| ContainerId(id.to_owned()))
}

/// `PARENT/libpod-ID`, or `SLICE:libpod:ID` where systemd makes cgroups. `UNIT/libpod-payload-ID` below a unit's own cgroup, which podman
/// has divided (`--cgroups=split`, as every Quadlet has it).
fn of_cgroup(spec: &Value) -> Option<&str> {
    let path = spec["linux"]["cgroupsPath"].as_str()?;
    let mut forms = ["/libpod-payload-", "/libpod-", ":libpod:"].into_iter();
    let (_, id) = forms.find_map(|form| path.rsplit_once(form))?;
    is_id(id).then_some(id)
}

/// For a container without a cgroup of its own.
fn of_mounts(spec: &Value) -> Option<&str> {
    let mounts = spec["mounts"].as_array()?;
    OWN_FILES.iter().find_map(|file| of_mount(mounts.iter().find(|mount| mount["destination"] == *file)?))
}

fn of_mount(mount: &Value) -> Option<&str> {
    let folder = Path::new(mount["source"].as_str()?).parent().filter(|folder| folder.ends_with("userdata"))?;
    folder.parent()?.file_name()?.to_str().filter(|id| is_id(id))
}

/// Whether it is an id as docker, podman and nerdctl make them.
pub fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ID: &str = "bc4a3362eabfcf8f419da797e25b275680503eae818617f1f119466346bea239";

    #[test]
    fn the_id_is_found_on_every_layout() {
        let userdata = format!("/run/containers/storage/overlay-containers/{ID}/userdata");
        let in_cgroup = |path: &str| json!({"linux": {"cgroupsPath": path}});
        let mounted = |file: &str, source: &str| {
            json!({"linux": {"cgroupsPath": ""}, "mounts": [{"destination": "/proc"},
                   {"destination": "/run", "source": "tmpfs"}, {"destination": file, "source": source}]})
        };
        let other = format!("/run/containers/storage/overlay-containers/{}/userdata", ID.replace('b', "a"));
        for spec in [
            in_cgroup(&format!("/libpod_parent/libpod-{ID}")),
            in_cgroup(&format!("machine.slice:libpod:{ID}")),
            in_cgroup(&format!("/system.slice/trainer.service/libpod-payload-{ID}")),
            in_cgroup(&format!("/system.slice/libpod-payload-a.service/libpod-payload-{ID}")),
            mounted("/run/.containerenv", &format!("{userdata}/.containerenv")),
            mounted("/etc/hostname", &format!("{userdata}/hostname")),
        ] {
            assert_eq!(container_id(&spec), Some(ContainerId(ID.into())), "{spec}");
        }
        for spec in [
            json!({}),
            in_cgroup("/docker/abc"),
            in_cgroup("/libpod_parent/libpod-../../x"),
            in_cgroup("/system.slice/trainer.service/libpod-payload-../x"),
            mounted("/run/.containerenv", &format!("/somewhere/{ID}/else")),
            // The folder of the one whose network it has.
            mounted("/etc/resolv.conf", &format!("{other}/resolv.conf")),
            mounted("/etc/hostname", "/etc/hostname"),
        ] {
            assert_eq!(container_id(&spec), None, "{spec}");
        }
    }

    #[test]
    fn only_the_mark_of_an_old_podman_counts() {
        let annotations = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        assert!(copies_annotations_of_images(&annotations(&[(OWN_MARK, "FALSE")])));
        for newer in [&[][..], &[(OWN_MARK, "TRUE")], &[("io.container.manager", "libpod")]] {
            assert!(!copies_annotations_of_images(&annotations(newer)));
        }
        let removed = |mark: &str| removes_itself(&annotations(&[(REMOVED_MARK, mark)]));
        assert!(removed("TRUE") && !removed("FALSE") && !removes_itself(&annotations(&[])));
    }
}
