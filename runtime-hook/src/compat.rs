//! A newer driver library that the image brings (CUDA forward compatibility), as the real one behind the shim.
//!
//! Images may carry libcuda of a newer driver, with what it loads, in `/usr/local/cuda*/compat`: so programs for a newer
//! CUDA run on the kernel module of an older driver. The shim covers these copies in any case. With
//! `[driver] compat = "image"` the newest of them takes the place of the host's libcuda behind the shim. NVML stays the
//! host's: it has to be of the kernel module's version.

use crate::image::Image;
use crate::libraries;
use gpool_protocol::Edit;
use std::path::Path;

/// Where the shim finds libcuda.
const REAL: &str = "/dev/gpool/real/libcuda.so.1";
/// Libraries that gpool covers, which are never taken from an image.
const SHIMMED: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// Takes libcuda, and what it loads on its own account, from the image where that has a newer one than the host.
///
/// The sources are paths below the image's root. Whoever could change the image until the container is made could lead
/// them elsewhere; the hook compares what has been mounted (see `mounted`).
pub fn prefer_image(edits: &mut [Edit], image: &Image) {
    let host = edits.iter().find_map(|edit| match edit {
        Edit::Mount { source, destination, .. } if destination == REAL => version(source),
        _ => None,
    });
    // Without a version nobody can say that another one is newer.
    let Some(host) = host else { return };
    let Some((directory, newest)) = newest(image).filter(|(_, copy)| copy.version > host) else { return };
    for edit in edits {
        match edit {
            Edit::Mount { source, destination, .. } if destination == REAL => source.clone_from(&newest.host_path),
            Edit::Library { source, file_name } if !SHIMMED.contains(&file_name.as_str()) => {
                if let Some(own) = image.host_path(&format!("{directory}/{file_name}")) {
                    *source = own.to_string_lossy().into_owned();
                }
            }
            _ => {}
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Copy {
    version: Vec<u32>,
    host_path: String,
}

/// The newest libcuda of the image's compat directories, with its directory.
fn newest(image: &Image) -> Option<(String, Copy)> {
    let copy = |directory: String| {
        let found = image.host_path(&format!("{directory}/libcuda.so.1"))?;
        let host_path = found.to_str()?.to_owned();
        Some((directory, Copy { version: version(&host_path)?, host_path }))
    };
    libraries::compat_directories(image).into_iter().filter_map(copy).max_by(|(_, a), (_, b)| a.cmp(b))
}

/// 550, 54, 14 of `libcuda.so.550.54.14`. A driver's version has two parts or more; `.so.1` is the interface's.
fn version(path: &str) -> Option<Vec<u32>> {
    let name = Path::new(path).file_name()?.to_str()?;
    let parts: Result<Vec<u32>, _> = name.strip_prefix("libcuda.so.")?.split('.').map(str::parse).collect();
    parts.ok().filter(|parts| parts.len() >= 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn image(files: &[&str]) -> (tempfile::TempDir, Image) {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "x").unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            if let Some((stem, _)) = name.split_once(".so.").filter(|(_, version)| *version != "1") {
                symlink(name, path.with_file_name(format!("{stem}.so.1"))).unwrap();
            }
        }
        let image = Image::open(dir.path()).unwrap();
        (dir, image)
    }

    /// Sources of the real libcuda, of a companion and of the shim.
    fn sources(host: &str, files: &[&str]) -> [String; 3] {
        let (dir, image) = image(files);
        let mut edits = [
            Edit::Mount { source: host.into(), destination: REAL.into(), options: vec![] },
            Edit::Library { source: "/host/jit".into(), file_name: "libnvidia-ptxjitcompiler.so.1".into() },
            Edit::Library { source: "/shim".into(), file_name: "libcuda.so.1".into() },
        ];
        prefer_image(&mut edits, &image);
        let root = dir.path().canonicalize().unwrap().display().to_string();
        edits.map(|edit| match edit {
            Edit::Mount { source, .. } | Edit::Library { source, .. } => source.replace(&root, "IMAGE"),
            other => format!("{other:?}"),
        })
    }

    const OLD: &str = "usr/local/cuda-12.2/compat/libcuda.so.535.261.03";
    const NEW: &str = "usr/local/cuda-12.10/compat/libcuda.so.575.9";
    const COMPANION: &str = "usr/local/cuda-12.10/compat/libnvidia-ptxjitcompiler.so.575.9";

    #[test]
    fn the_newest_copy_is_taken_with_its_companions_and_the_shim_stays() {
        let [real, companion, shim] = sources("/lib/libcuda.so.550.163.01", &[OLD, NEW, COMPANION]);
        assert_eq!((real, companion), (format!("IMAGE/{NEW}"), format!("IMAGE/{COMPANION}")));
        assert_eq!(shim, "/shim");
        let [real, companion, _] = sources("/lib/libcuda.so.470.9", &[OLD]);
        assert_eq!((real, companion), (format!("IMAGE/{OLD}"), "/host/jit".into()));
    }

    #[test]
    fn a_copy_that_is_not_newer_is_left_alone() {
        for host in ["/lib/libcuda.so.575.9", "/lib/libcuda.so.575.10", "/lib/libcuda.so.1", "/lib/other"] {
            assert_eq!(sources(host, &[OLD, NEW]), [host, "/host/jit", "/shim"], "{host}");
        }
        let unversioned = "usr/local/cuda/compat/libcuda.so.1";
        assert_eq!(
            sources("/lib/libcuda.so.535.1", &[unversioned, "usr/lib/libcuda.so.999.1"])[0],
            "/lib/libcuda.so.535.1"
        );
    }

    #[test]
    fn a_copy_outside_the_image_is_none() {
        let (dir, image) = image(&[]);
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("libcuda.so.999.1"), "x").unwrap();
        std::fs::create_dir_all(dir.path().join("usr/local/cuda/compat")).unwrap();
        let link = dir.path().join("usr/local/cuda/compat/libcuda.so.1");
        symlink(outside.path().join("libcuda.so.999.1"), link).unwrap();
        assert_eq!(newest(&image), None);
    }
}
