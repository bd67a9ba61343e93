//! The control files of a `.deb`.

use crate::manifest::{Deb, Manifest};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const SCRIPTS: [&str; 4] = ["preinst", "postinst", "prerm", "postrm"];

/// Writes `DEBIAN` below `root`, where the package's files are already.
///
/// # Errors
/// When a file cannot be read or written.
pub fn write(manifest: &Manifest, deb: &Deb, version: &str, glibc: &str, root: &Path) -> io::Result<()> {
    let size_kib = size_kib(root)?;
    let control = root.join("DEBIAN");
    fs::create_dir(&control)?;
    fs::write(control.join("control"), text(manifest, deb, version, glibc, size_kib))?;
    if !deb.conf_files.is_empty() {
        fs::write(control.join("conffiles"), deb.conf_files.join("\n") + "\n")?;
    }
    for script in SCRIPTS {
        let source = manifest.directory().join(&deb.maintainer_scripts).join(script);
        if source.exists() {
            fs::copy(&source, control.join(script))?;
            fs::set_permissions(control.join(script), fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

fn text(manifest: &Manifest, deb: &Deb, version: &str, glibc: &str, size_kib: u64) -> String {
    let revision = if deb.revision.is_empty() { String::new() } else { format!("-{}", deb.revision) };
    let depends = depends(&deb.depends, glibc);
    let mut fields = vec![
        ("Package", deb.name.clone()),
        ("Version", format!("{version}{revision}")),
        ("Architecture", "amd64".to_owned()),
        ("Maintainer", deb.maintainer.clone()),
        ("Installed-Size", size_kib.to_string()),
        ("Depends", depends),
        ("Recommends", deb.recommends.clone()),
        ("Suggests", deb.suggests.clone()),
        ("Section", deb.section.clone()),
        ("Priority", deb.priority.clone()),
        ("Description", manifest.description.clone()),
    ];
    fields.retain(|(_, value)| !value.is_empty());
    let mut text: String = fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
    deb.extended_description.trim().lines().for_each(|line| text.push_str(&format!(" {line}\n")));
    text
}

/// With the glibc that the files need.
fn depends(said: &str, glibc: &str) -> String {
    let part = |part: &str| match part.trim() {
        libc if libc.starts_with("libc6 (>= ") => format!("libc6 (>= {glibc})"),
        other => other.to_owned(),
    };
    said.split(',').map(part).collect::<Vec<_>>().join(", ")
}

/// Of files in whole KiB, and of each directory one. Source: dpkg-gencontrol(1), Installed-Size.
fn size_kib(directory: &Path) -> io::Result<u64> {
    let mut sum = 1;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let found = entry.metadata()?;
        sum += if found.is_dir() { size_kib(&entry.path())? } else { found.len().div_ceil(1024) };
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_glibc_that_is_needed_is_asked_for_and_the_rest_stays() {
        assert_eq!(depends("libc6 (>= 2.34), libgcc-s1", "2.36"), "libc6 (>= 2.36), libgcc-s1");
        assert_eq!(depends("libc6 (>= 2.34),  init-system-helpers", "2.31"), "libc6 (>= 2.31), init-system-helpers");
    }
}
