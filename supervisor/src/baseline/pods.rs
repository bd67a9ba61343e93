//! Which pod of Kubernetes a container is of, without asking anybody: the pod's uid is in the cgroup's path, and the kubelet keeps a
//! folder of logs for each pod that is called by its namespace, name and uid.

use std::path::Path;

/// Where the kubelet has these folders, `NAMESPACE_NAME_UID`.
pub const LOGS: &str = "/var/log/pods";
/// So many of them are looked at.
const PODS: usize = 4096;
/// A uid has 36 characters, and that of a static pod, which is a hash, 32.
const UID_CHARACTERS: [usize; 2] = [32, 36];
/// A namespace has 63 characters at most, a pod's name 253.
const NAME_CHARACTERS: usize = 317;

/// The pod's namespace and name; none of what is in no pod, or in one of which the kubelet keeps no logs.
pub fn pod_at(path: &str, logs: &Path) -> Option<String> {
    let uid = path.split('/').find_map(pod_uid)?;
    let folders = std::fs::read_dir(logs).ok()?.flatten().take(PODS);
    let end = format!("_{uid}");
    folders.filter_map(|folder| folder.file_name().into_string().ok()).find_map(|name| named(name.strip_suffix(&end)?))
}

/// `kubepods-burstable-podUID.slice`, with `_` in place of `-`, where systemd makes cgroups; `podUID` where the kubelet does.
fn pod_uid(part: &str) -> Option<String> {
    let slice = part.split(':').next()?;
    let name = slice.strip_suffix(".slice").unwrap_or(slice);
    let (_, uid) = name.rsplit_once("pod")?;
    let is_uid = UID_CHARACTERS.contains(&uid.len())
        && uid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-' | b'_'));
    is_uid.then(|| uid.replace('_', "-"))
}

/// Neither of them has an underscore in it (RFC 1123).
fn named(folder: &str) -> Option<String> {
    let (namespace, name) = folder.split_once('_')?;
    let is_plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
    };
    (folder.len() <= NAME_CHARACTERS && is_plain(namespace) && is_plain(name)).then(|| format!("{namespace}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_s_pod_is_found_by_its_uid() {
        let logs = tempfile::tempdir().unwrap();
        let (uid, of_static) = ("0a1b2c3d-1122-3344-5566-77889900aabb", "0123456789abcdef0123456789abcdef");
        for folder in [format!("ml_trainer-0_{uid}"), format!("kube-system_proxy_{of_static}"), "odd".to_owned()] {
            std::fs::create_dir(logs.path().join(folder)).unwrap();
        }
        let at = |path: &str| pod_at(path, logs.path());
        let in_systemd = uid.replace('-', "_");
        for path in [
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{in_systemd}.slice/cri-containerd-1.scope"
            ),
            format!("/kubepods/burstable/pod{uid}/1"),
            format!("/system.slice/containerd.service/kubepods-burstable-pod{in_systemd}.slice:cri-containerd:1"),
        ] {
            assert_eq!(at(&path).as_deref(), Some("ml/trainer-0"), "{path}");
        }
        assert_eq!(at(&format!("/kubepods/pod{of_static}/1")).as_deref(), Some("kube-system/proxy"));
        assert_eq!(at(&format!("/kubepods/pod{}/1", uid.replace('a', "b"))), None, "of which there are no logs");
        assert_eq!((at("/kubepods/burstable/x"), at("/docker/1")), (None, None));
        assert_eq!(pod_at(&format!("/kubepods/pod{uid}/1"), Path::new("/nonexistent")), None);
        assert_eq!([named("ml_a b"), named("ml_"), named("ml")], [None, None, None]);
    }
}
