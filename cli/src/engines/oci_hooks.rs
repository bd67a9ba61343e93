//! Directories with files that name OCI hooks (oci-hooks(5)). Podman and CRI-O share a default, and CRI-O does not start
//! while a file there names a stage that podman alone knows. gpool's own file therefore lies where no engine looks by
//! itself, and podman alone is told of that place.

use std::path::{Path, PathBuf};

/// Where gpool's own hook file lies.
pub const OWN_DIRECTORY: &str = "/usr/share/gpool/oci-hooks.d";

/// Where podman and CRI-O look when nothing else is said (`DefaultDir` of containers/common, pkg/hooks).
pub const DEFAULT_DIRECTORY: &str = "/usr/share/containers/oci/hooks.d";

/// The stages of the OCI runtime specification. Podman knows `precreate` besides; CRI-O takes no other
/// (`hooks.New(ctx, config.HooksDir, []string{})` in its internal/lib, `Validate` of containers/common, pkg/hooks/1.0.0).
const STAGES: [&str; 6] = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

/// A hook file that keeps CRI-O from starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unstartable {
    /// The file, as CRI-O finds it.
    pub file: PathBuf,
    /// The stage that CRI-O does not know.
    pub stage: String,
}

/// What keeps a CRI-O that reads `directories` of the host below `root` from starting. Files that cannot be read are
/// passed over.
pub fn unstartable(root: &Path, directories: &[String]) -> Option<Unstartable> {
    directories.iter().find_map(|directory| {
        let below = root.join(directory.trim_start_matches('/'));
        let mut names: Vec<_> = std::fs::read_dir(&below).ok()?.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        names.into_iter().filter(|name| Path::new(name).extension().is_some_and(|end| end == "json")).find_map(|name| {
            let text = std::fs::read_to_string(below.join(&name)).ok()?;
            let hook: serde_json::Value = serde_json::from_str(&text).ok()?;
            let stages = hook["stages"].as_array()?;
            let stage = stages.iter().filter_map(|stage| stage.as_str()).find(|stage| !STAGES.contains(stage))?;
            Some(Unstartable { file: Path::new(directory).join(name), stage: stage.to_owned() })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_stops_crio_and_one_of_a_known_stage_does_not() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join(DEFAULT_DIRECTORY.trim_start_matches('/'));
        let directories = ["/nowhere".to_owned(), DEFAULT_DIRECTORY.to_owned()];
        assert_eq!(unstartable(root.path(), &directories), None);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("10-other.json"), r#"{"stages": ["poststop", "createRuntime"]}"#).unwrap();
        std::fs::write(directory.join("20-broken.json"), "{").unwrap();
        let shipped = include_str!("../../../configs/oci-hooks.d/50-gpool.json");
        std::fs::write(directory.join("50-gpool.json.off"), shipped).unwrap();
        assert_eq!(unstartable(root.path(), &directories), None);
        std::fs::write(directory.join("50-gpool.json"), shipped).unwrap();
        let found = unstartable(root.path(), &directories).unwrap();
        assert_eq!(found.file, Path::new("/usr/share/containers/oci/hooks.d/50-gpool.json"));
        assert_eq!(found.stage, "precreate");
    }
}
