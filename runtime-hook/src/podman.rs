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
/// What every container of podman has mounted, from a folder that its id names: `.../ID/userdata/.containerenv`.
const CONTAINER_ENV: &str = "/run/.containerenv";

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

/// `PARENT/libpod-ID`, or `SLICE:libpod:ID` where systemd makes cgroups.
fn of_cgroup(spec: &Value) -> Option<&str> {
    let path = spec["linux"]["cgroupsPath"].as_str()?;
    let (_, id) = path.rsplit_once("/libpod-").or_else(|| path.rsplit_once(":libpod:"))?;
    is_id(id).then_some(id)
}

/// For a container without a cgroup of its own.
fn of_mounts(spec: &Value) -> Option<&str> {
    let mut mounts = spec["mounts"].as_array().into_iter().flatten();
    let source = mounts.find(|mount| mount["destination"] == CONTAINER_ENV)?["source"].as_str()?;
    let folder = Path::new(source).parent().filter(|folder| folder.ends_with("userdata"))?;
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
        let folder = format!("/run/containers/storage/overlay-containers/{ID}/userdata/.containerenv");
        for spec in [
            json!({"linux": {"cgroupsPath": format!("/libpod_parent/libpod-{ID}")}}),
            json!({"linux": {"cgroupsPath": format!("machine.slice:libpod:{ID}")}}),
            json!({"linux": {"cgroupsPath": ""}, "mounts": [{"destination": "/proc"},
                   {"destination": CONTAINER_ENV, "source": folder}]}),
        ] {
            assert_eq!(container_id(&spec), Some(ContainerId(ID.into())), "{spec}");
        }
        for spec in [
            json!({}),
            json!({"linux": {"cgroupsPath": "/docker/abc"}}),
            json!({"linux": {"cgroupsPath": "/libpod_parent/libpod-../../x"}}),
            json!({"mounts": [{"destination": CONTAINER_ENV, "source": format!("/somewhere/{ID}/else")}]}),
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
