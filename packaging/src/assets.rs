//! Files of a package: where they come from, where they go, and with which mode.

use serde::Deserialize;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where sources that are built begin in the manifest, and those that `prepare.sh` makes of them.
const STAGE: &str = "../target/gpool/";
const PREPARED: &str = "../target/gpool/package/";

/// One line of a list of files.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asset {
    /// Relative to the manifest; the last part may begin with an asterisk, which stands for any name that ends so.
    source: String,
    /// A directory, which ends with a slash, or a file.
    dest: String,
    /// In octal digits.
    mode: String,
    /// What an administrator changes stays.
    #[serde(default)]
    pub config: bool,
}

/// Where sources lie.
pub struct Places {
    /// The manifest's directory.
    pub manifest: PathBuf,
    /// What `make build` has laid out.
    pub stage: PathBuf,
    /// What `prepare.sh` has made of it.
    pub prepared: PathBuf,
}

impl Places {
    fn of(&self, source: &str) -> PathBuf {
        match (source.strip_prefix(PREPARED), source.strip_prefix(STAGE)) {
            (Some(rest), _) => self.prepared.join(rest),
            (None, Some(rest)) => self.stage.join(rest),
            (None, None) => self.manifest.join(source),
        }
    }
}

impl Asset {
    /// Copies it below `root`; the places in the package that it takes.
    ///
    /// # Errors
    /// When nothing is there, or it cannot be copied.
    pub fn place(&self, places: &Places, root: &Path) -> io::Result<Vec<String>> {
        let said = |cause: io::Error| io::Error::new(cause.kind(), format!("{}: {cause}", self.source));
        let mode = u32::from_str_radix(&self.mode, 8).map_err(io::Error::other).map_err(said)?;
        let mut placed = Vec::new();
        for source in self.sources(places).map_err(said)? {
            let name = source.file_name().unwrap_or_default().to_string_lossy();
            let dest = if self.dest.ends_with('/') { format!("{}{name}", self.dest) } else { self.dest.clone() };
            let path = root.join(dest.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap_or(root))?;
            fs::copy(&source, &path).map_err(said)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            placed.push(dest);
        }
        Ok(placed)
    }

    fn sources(&self, places: &Places) -> io::Result<Vec<PathBuf>> {
        let path = places.of(&self.source);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (Some(ending), Some(directory)) = (name.strip_prefix('*'), path.parent()) else { return Ok(vec![path]) };
        let entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
        let mut found: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
        found.retain(|path| path.to_string_lossy().ends_with(ending));
        found.sort();
        if found.is_empty() { Err(io::Error::other("no such files")) } else { Ok(found) }
    }
}
