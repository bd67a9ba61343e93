//! The folder that an engine keeps for a container from its making to its removal, as config.json names it.
//!
//! docker and nerdctl mount files of that folder, podman files of one below it; the folder has the container's id for its name. A
//! container in the network of another one, or in a pod, has the other one's files, which say nothing of its own removal.

use crate::podman::is_id;
use gpool_protocol::ContainerId;
use serde_json::Value;
use std::path::Path;

/// What is mounted from it.
const FILES: [&str; 3] = ["/etc/hostname", "/etc/resolv.conf", "/run/.containerenv"];

/// The folder of the container of that id; none where config.json names none.
pub fn of(spec: &Value, id: &ContainerId) -> Option<String> {
    let mounts = spec["mounts"].as_array().into_iter().flatten();
    let is_of_engine = |mount: &&Value| mount["destination"].as_str().is_some_and(|place| FILES.contains(&place));
    let sources = mounts.filter(is_of_engine).filter_map(|mount| mount["source"].as_str());
    sources.into_iter().find_map(|source| folder(source, &id.0))
}

fn folder(source: &str, id: &str) -> Option<String> {
    let source = Path::new(source);
    // By a name of somebody's own a volume's folder could be meant.
    let may_be = is_id(id) && source.is_absolute();
    let its = source.ancestors().skip(1).find(|folder| folder.file_name().is_some_and(|name| name == id))?;
    its.to_str().filter(|_| may_be).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ID: &str = "bc4a3362eabfcf8f419da797e25b275680503eae818617f1f119466346bea239";

    fn found(id: &str, destination: &str, source: &str) -> Option<String> {
        let mounts = json!([{"destination": "/proc"}, {"destination": destination, "source": source}]);
        of(&json!({ "mounts": mounts }), &ContainerId(id.into()))
    }

    #[test]
    fn each_engine_s_folder_is_found() {
        for (folder, file) in [
            ("/var/lib/docker/containers", "hostname"),
            ("/var/lib/docker/231072.231072/containers", "resolv.conf"),
            ("/var/lib/nerdctl/1935db59/containers/default", "hostname"),
            ("/run/containers/storage/overlay-containers", "userdata/hostname"),
        ] {
            let its = format!("{folder}/{ID}");
            let place = format!("/etc/{}", file.rsplit('/').next().unwrap());
            assert_eq!(found(ID, &place, &format!("{its}/{file}")), Some(its));
        }
        let its = format!("/run/containers/storage/overlay-containers/{ID}");
        assert_eq!(found(ID, "/run/.containerenv", &format!("{its}/userdata/.containerenv")), Some(its));
    }

    #[test]
    fn no_other_folder_is_taken_for_it() {
        let its = format!("/var/lib/docker/containers/{ID}/hostname");
        let other = ID.replace('b', "a");
        assert_eq!(found(&other, "/etc/hostname", &its), None, "it has another one's network");
        assert_eq!(found(ID, "/data", &its), None, "a volume");
        assert_eq!(found(ID, "/etc/hostname", &its[1..]), None);
        assert_eq!(found(ID, "/etc/hostname", ID), None);
        assert_eq!(found("web", "/etc/hostname", "/srv/web/hostname"), None, "a name that somebody has chosen");
        assert_eq!(of(&json!({}), &ContainerId(ID.into())), None);
    }
}
