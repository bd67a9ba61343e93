//! The specification of an `.rpm` for `rpmbuild`, of a tree that is there already.

use crate::manifest::Manifest;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// Nothing of what rpmbuild does to files by itself.
const AS_THEY_ARE: &str = "%define debug_package %{nil}
%define _build_id_links none
%define __strip /bin/true
%define __os_install_post %{nil}
";

/// The text for the tree at `root`, which holds `files`; those of them that are `configured` an administrator changes.
///
/// # Errors
/// When a script cannot be read.
pub fn specification(
    manifest: &Manifest,
    version: &str,
    glibc: &str,
    root: &Path,
    (files, configured): (&[String], &[String]),
) -> io::Result<String> {
    let rpm = &manifest.metadata.generate_rpm;
    let mut text = AS_THEY_ARE.to_owned();
    let requires = rpm.requires.iter().map(|(name, asked)| match name.as_str() {
        "glibc" => format!("glibc >= {glibc}"),
        _ => wanted(name, asked),
    });
    let fields = [
        ("Name", rpm.name.clone()),
        ("Version", version.to_owned()),
        ("Release", rpm.release.clone()),
        ("Summary", manifest.description.clone()),
        ("License", manifest.license.clone()),
        ("ExclusiveArch", "x86_64".to_owned()),
        ("AutoReqProv", rpm.auto_req.clone()),
        ("Requires", requires.collect::<Vec<_>>().join(", ")),
        ("Recommends", rpm.recommends.iter().map(|(name, asked)| wanted(name, asked)).collect::<Vec<_>>().join(", ")),
    ];
    fields.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\n")));
    let described = manifest.metadata.deb.extended_description.trim();
    text.push_str(&format!("\n%description\n{described}\n"));
    text.push_str(&format!("\n%install\nmkdir -p %{{buildroot}}\ncp -a {}/. %{{buildroot}}/\n", root.display()));
    let scripts = [
        ("pre", &rpm.pre_install_script),
        ("post", &rpm.post_install_script),
        ("preun", &rpm.pre_uninstall_script),
        ("postun", &rpm.post_uninstall_script),
    ];
    for (section, path) in scripts {
        let script = fs::read_to_string(manifest.directory().join(path))?;
        text.push_str(&format!("\n%{section}\n{}\n", script.trim_end()));
    }
    text.push_str("\n%files\n");
    own_directories(files).iter().for_each(|directory| text.push_str(&format!("%dir {directory}\n")));
    for file in files {
        let config = if configured.contains(file) { "%config(noreplace) " } else { "" };
        text.push_str(&format!("{config}{file}\n"));
    }
    Ok(text)
}

/// `runc`, or `systemd >= 250`.
fn wanted(name: &str, asked: &str) -> String {
    if asked == "*" { name.to_owned() } else { format!("{name} {asked}") }
}

/// The directories that are there for these files alone: those called gpool, and all below them.
fn own_directories(files: &[String]) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for file in files {
        let ends = file.match_indices('/').map(|(end, _)| end).skip(1);
        found.extend(ends.map(|end| &file[..end]).filter(|directory| directory.split('/').any(|part| part == "gpool")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_too_is_not_owned() {
        let files = ["/etc/gpool/config.toml", "/usr/lib/gpool/535/libgpool-cuda.so", "/usr/bin/gpool"];
        let owned = own_directories(&files.map(String::from)).into_iter().map(String::from).collect::<Vec<_>>();
        assert_eq!(owned, ["/etc/gpool", "/usr/lib/gpool", "/usr/lib/gpool/535"]);
        assert_eq!((wanted("runc", "*").as_str(), wanted("glibc", ">= 2.34").as_str()), ("runc", "glibc >= 2.34"));
    }
}
