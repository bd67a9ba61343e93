//! A newer driver library that the image brings (CUDA forward compatibility), as the real one behind the shim, or in the
//! host's place where there is no shim.
//!
//! Images may carry libcuda of a newer driver, with what it loads, in `/usr/local/cuda*/compat` or a folder there: so programs
//! for a newer CUDA run on the kernel module of an older driver. The lease's library covers these copies in any case. With
//! `[driver] compat = "image"` the newest of them takes the place of the host's libcuda. NVML stays the host's: it has to be
//! of the kernel module's version.

use crate::image::Image;
use crate::libraries::{self, is_copy, is_of_driver, unversioned};
use gpool_protocol::{Edit, Mechanism};
use std::path::Path;

/// Where the shim finds libcuda.
const REAL: &str = "/dev/gpool/real/libcuda.so.1";
/// What programs load.
const FOUND: &str = "libcuda.so.1";
/// Libraries that gpool covers, which are never taken from an image.
const SHIMMED: [&str; 2] = ["libcuda.so", "libnvidia-ml.so"];

/// Takes libcuda, and what it loads on its own account, from the image where that has a newer one than the host. That may be
/// more than the host has, and some of it has the driver's version for its name.
///
/// The sources are paths below the image's root. Whoever could change the image until the container is made could lead
/// them elsewhere; the hook compares what has been mounted (see `mounted`).
pub fn prefer_image(edits: &mut Vec<Edit>, image: &Image, mechanism: Mechanism) {
    // The server is of the host's driver. Nobody has tried clients of another one.
    if mechanism == Mechanism::Mps {
        return;
    }
    let Some(own) = libcuda(edits) else { return };
    // Without a version nobody can say that another one is newer.
    let Some(host) = version(own) else { return };
    let Some((directory, newest)) = newest(image).filter(|(_, copy)| copy.version > host) else { return };
    let own = std::mem::replace(own, newest.host_path.clone());
    for edit in edits.iter_mut() {
        // Without shims the hook sees to it that libcuda is this one everywhere.
        if let Edit::Hook { args, .. } = edit {
            args.iter_mut().filter(|word| **word == own).for_each(|word| word.clone_from(&newest.host_path));
        }
    }
    // Behind the host's: where both have a place, the last one lies there.
    for (file_name, path) in companions(image, &directory) {
        let known = edits.iter_mut().find_map(|edit| match edit {
            Edit::Library { source, file_name: its } if *its == file_name => Some(source),
            _ => None,
        });
        match known {
            Some(source) => *source = path,
            None => edits.push(Edit::Library { source: path, file_name }),
        }
    }
}

/// The source of the driver's own libcuda: behind the shim, or of what programs find where there is none.
fn libcuda(edits: &mut [Edit]) -> Option<&mut String> {
    let is_behind = |edit: &Edit| matches!(edit, Edit::Mount { destination, .. } if destination == REAL);
    let is_found = |edit: &Edit| matches!(edit, Edit::Library { file_name, .. } if file_name == FOUND);
    let place = edits.iter().position(is_behind).or_else(|| edits.iter().position(is_found))?;
    match &mut edits[place] {
        Edit::Mount { source, .. } | Edit::Library { source, .. } => Some(source),
        Edit::Device { .. } | Edit::Env { .. } | Edit::Hook { .. } => None,
    }
}

/// Libraries of the driver in `directory` that programs and libcuda load by a name with a version: the name, and where the
/// file is on the host.
fn companions(image: &Image, directory: &str) -> Vec<(String, String)> {
    let names = image.names(directory).into_iter().filter_map(|name| name.into_string().ok());
    let is_loaded = |name: &str| name.contains(".so.") && is_copy(name, unversioned(name)) && !is_shimmed(name);
    let loaded = names.filter(|name| is_of_driver(name) && is_loaded(name));
    let found = loaded.filter_map(|name| {
        let path = image.host_path(&format!("{directory}/{name}"))?.to_str()?.to_owned();
        Some((name, path))
    });
    found.collect()
}

fn is_shimmed(file_name: &str) -> bool {
    SHIMMED.contains(&unversioned(file_name))
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
    libraries::compat_directories(image).ok()?.into_iter().filter_map(copy).max_by(|(_, a), (_, b)| a.cmp(b))
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
        let mut edits = vec![
            Edit::Mount { source: host.into(), destination: REAL.into(), options: vec![] },
            Edit::Library { source: "/host/jit".into(), file_name: "libnvidia-ptxjitcompiler.so.1".into() },
            Edit::Library { source: "/shim".into(), file_name: "libcuda.so.1".into() },
        ];
        prefer_image(&mut edits, &image, Mechanism::Slice);
        let root = dir.path().canonicalize().unwrap().display().to_string();
        let source = |edit: &Edit| match edit {
            Edit::Mount { source, .. } | Edit::Library { source, .. } => source.replace(&root, "IMAGE"),
            other => format!("{other:?}"),
        };
        [0, 1, 2].map(|at| source(&edits[at]))
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
    fn what_only_the_newer_driver_loads_comes_along() {
        let compat = "usr/local/cuda-13/compat/lib.real";
        let files =
            ["libcuda.so", "libnvidia-gpucomp.so", "libnvidia-nvvm70.so", "libnvidia-ml.so", "libcudadebugger.so"];
        let files = files.map(|name| format!("{compat}/{name}.590.48.01"));
        let (dir, image) = image(&files.each_ref().map(String::as_str));
        for name in ["libcuda.so.590.48.01.bak", "libnvidia-nvvm70.so.old"] {
            std::fs::write(dir.path().join(compat).join(name), "x").unwrap();
        }
        let library = |source: &str, name: &str| Edit::Library { source: source.into(), file_name: name.into() };
        let real = |source: String| Edit::Mount { source, destination: REAL.into(), options: vec![] };
        let mut edits = vec![
            real("/lib/libcuda.so.580.95.05".into()),
            library("/host/gpucomp", "libnvidia-gpucomp.so.580.95.05"),
            library("/host/jit", "libnvidia-ptxjitcompiler.so.1"),
            library("/shim", "libcuda.so.1"),
        ];
        prefer_image(&mut edits, &image, Mechanism::Slice);
        let at = |name: &str| format!("{}/{compat}/{name}.590.48.01", dir.path().canonicalize().unwrap().display());
        let mut want = vec![
            real(at("libcuda.so")),
            library("/host/gpucomp", "libnvidia-gpucomp.so.580.95.05"),
            library("/host/jit", "libnvidia-ptxjitcompiler.so.1"),
            library("/shim", "libcuda.so.1"),
        ];
        for stem in ["libcudadebugger.so", "libnvidia-gpucomp.so", "libnvidia-nvvm70.so"] {
            want.extend(["1", "590.48.01"].map(|version| library(&at(stem), &format!("{stem}.{version}"))));
        }
        assert_eq!(edits, want);
    }

    #[test]
    fn without_shims_it_is_the_images_that_the_hook_looks_for_but_under_an_mps_server() {
        let (dir, image) = image(&[NEW]);
        let root = dir.path().canonicalize().unwrap().display().to_string();
        let found = |mechanism: Mechanism| {
            let hook = |path: &str| Edit::Hook {
                path: "/hook".into(),
                args: ["create-runtime", "--shim", path, "--shim", "/lib/libnvidia-ml.so.550.9"]
                    .map(String::from)
                    .to_vec(),
                env: vec![],
            };
            let library = |path: &str| Edit::Library { source: path.into(), file_name: FOUND.into() };
            let mut edits = vec![library("/lib/libcuda.so.550.9"), hook("/lib/libcuda.so.550.9")];
            prefer_image(&mut edits, &image, mechanism);
            let newer = format!("{root}/{NEW}");
            edits == [library(&newer), hook(&newer)]
        };
        for mechanism in [Mechanism::Exclusive, Mechanism::Mig, Mechanism::TimeSlice] {
            assert!(found(mechanism), "{mechanism}");
        }
        assert!(!found(Mechanism::Mps));
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
