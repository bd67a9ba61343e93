//! Whether the shims are what a program in the container will find.
//!
//! runc (tried: 1.1.5) runs createRuntime hooks after the container's mounts are made in its init's mount
//! namespace and before pivot_root. So the mount table of the init shows them below the path of the container's
//! root, and the files themselves can be compared: whatever has come to lie on top, there or on a folder above,
//! is what is seen. For a low-level runtime that runs these hooks before it mounts anything, the mounts that
//! config.json orders are judged instead, the last one at each place.

use crate::image::{Image, Inode};
use crate::libraries::{Copies, is_copy, is_of_driver};
use gpool_protocol::{ErrorBody, ErrorCode};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Libraries that a leased container may only have as shims.
const SHIMMED: [&str; 2] = ["libcuda.so", "libnvidia-ml.so"];
/// Where the shims themselves find the driver's own.
const REAL: &str = "/dev/gpool/real/";

/// Checks the container of `init_pid`, whose root is at `root` and whose config.json is `spec`.
pub fn check(init_pid: u32, root: &Path, spec: &Value, shims: &[PathBuf]) -> Result<(), ErrorBody> {
    let shims: BTreeMap<Inode, &Path> =
        shims.iter().map(|path| Ok((inode(path)?, path.as_path()))).collect::<Result<_, _>>()?;
    let mounts = spec["mounts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let root = root.canonicalize().map_err(|error| unreadable(root, &error))?;
    let table_path = PathBuf::from(format!("/proc/{init_pid}/mountinfo"));
    let table = std::fs::read(&table_path).map_err(|error| unreadable(&table_path, &error))?;
    let made = below(&table, &root);
    if made.is_empty() {
        let ordered = last_sources(mounts);
        let names = ordered.keys().cloned().collect::<Vec<_>>();
        return judge(&names, |place| inode(Path::new(ordered.get(place)?)).ok(), &shims);
    }
    let init_root = PathBuf::from(format!("/proc/{init_pid}/root"));
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let seen = open(&init_root, flags, Mode::empty()).and_then(|fd| Image::within(fd, &root.to_string_lossy()));
    let seen = seen.map_err(|errno| unreadable(&init_root, &errno.into()))?;
    judge(&made, |place| seen.file(place), &shims)?;
    // Volumes bring libraries that are in no image, in directories where nothing of gpool's is mounted.
    let copies = Copies::find(&seen, &spec["process"])?;
    let copies = SHIMMED.iter().flat_map(|stem| copies.of(stem)).filter(|path| seen.file(path).is_some());
    judge_places(&copies.collect::<Vec<_>>(), |place| seen.file(place), &shims)?;
    if root == Path::new("/") {
        // The root is the host's own and no image of a stranger.
        return Ok(());
    }
    judge_sources(&Image::open(&root)?, &root, mounts, |place| seen.file(place))
}

/// A library of the driver that comes from the image must be that file: a path is followed anew when it is mounted, and by
/// then somebody else might have made a part of it a link that leads out of the image. Other mounts from below the root
/// are whoever's who ordered them: an engine's own files, folders, volumes that lie there.
fn judge_sources(
    image: &Image,
    root: &Path,
    mounts: &[Value],
    visible: impl Fn(&str) -> Option<Inode>,
) -> Result<(), ErrorBody> {
    for mount in mounts {
        let (Some(source), Some(place)) = (mount["source"].as_str(), mount["destination"].as_str()) else { continue };
        let is_library = place.rsplit('/').next().is_some_and(is_of_driver);
        let Some(within) = Path::new(source).strip_prefix(root).ok().filter(|_| is_library) else { continue };
        let file = image.file(&format!("/{}", within.display()));
        if file.is_none() || visible(place) != file {
            return Err(not_on_top(&format!("{place} in the container is not the file {source} of its image")));
        }
    }
    Ok(())
}

/// Every library in `places` must be a shim as seen through `visible`, and every shim must be seen somewhere.
fn judge(
    places: &[String],
    visible: impl Fn(&str) -> Option<Inode>,
    shims: &BTreeMap<Inode, &Path>,
) -> Result<(), ErrorBody> {
    let places: Vec<String> = places.iter().filter(|place| must_be_shim(place)).cloned().collect();
    judge_places(&places, &visible, shims)?;
    let found: Vec<Inode> = places.iter().filter_map(|place| visible(place)).collect();
    match shims.iter().find(|(inode, _)| !found.contains(inode)) {
        None => Ok(()),
        Some((_, path)) => Err(not_on_top(&format!("the shim {} is not mounted in the container", path.display()))),
    }
}

fn judge_places(
    places: &[String],
    visible: impl Fn(&str) -> Option<Inode>,
    shims: &BTreeMap<Inode, &Path>,
) -> Result<(), ErrorBody> {
    let is_shim = |place: &&String| visible(place).is_some_and(|inode| shims.contains_key(&inode));
    match places.iter().find(|place| !is_shim(place)) {
        None => Ok(()),
        Some(place) => Err(not_on_top(&format!("{place} in the container is not gpool's shim but another library"))),
    }
}

fn must_be_shim(place: &str) -> bool {
    let name = place.rsplit('/').next().unwrap_or_default();
    SHIMMED.iter().any(|stem| is_copy(name, stem)) && !place.starts_with(REAL)
}

/// The mount points of `table` (proc_pid_mountinfo(5)) below `root`, as paths in the container.
pub fn below(table: &[u8], root: &Path) -> Vec<String> {
    let points = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let paths = points.map(|point| PathBuf::from(OsString::from_vec(unescape(point))));
    let inside = paths.filter_map(|path| path.strip_prefix(root).map(|rest| format!("/{}", rest.display())).ok());
    inside.filter(|path| path != "/").collect()
}

/// Undoes the kernel's `\040` for a blank and the like.
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

/// What config.json orders last for each place.
fn last_sources(mounts: &[Value]) -> BTreeMap<String, String> {
    let pair = |mount: &Value| {
        let place: PathBuf = Path::new(mount["destination"].as_str()?).components().collect();
        Some((place.to_str()?.to_owned(), mount["source"].as_str().unwrap_or_default().to_owned()))
    };
    mounts.iter().filter_map(pair).collect()
}

fn inode(path: &Path) -> Result<Inode, ErrorBody> {
    path.metadata().map(|found| (found.dev(), found.ino())).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &std::io::Error) -> ErrorBody {
    not_on_top(&format!("{} cannot be read ({})", path.display(), crate::low_level::cause(error)))
}

fn not_on_top(what: &str) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::ShimNotOnTop,
        format!("the start is refused because it could not be shown that the share would hold: {what}"),
        "start the container without --gpus, CDI devices and volumes that bring driver libraries",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;
    use serde_json::json;

    const SHIM: Inode = (1, 10);

    fn judged(places: &[(&str, Inode)]) -> Result<(), ErrorBody> {
        let names: Vec<String> = places.iter().map(|(name, _)| name.to_string()).collect();
        let visible = |place: &str| places.iter().find(|(name, _)| *name == place).map(|(_, inode)| *inode);
        judge(&names, visible, &BTreeMap::from([(SHIM, Path::new("/shim"))]))
    }

    #[test]
    fn only_shims_may_carry_the_names_of_driver_libraries() {
        let good = [("/usr/lib/libcuda.so.1", SHIM), ("/dev/gpool/real/libcuda.so.1", (1, 99)), ("/proc", (2, 1))];
        assert_eq!(judged(&good), Ok(()));
        for place in ["/usr/lib64/libcuda.so.580.1", "/x/libnvidia-ml.so", "/dev/gpool/libcuda.so.1"] {
            let error = judged(&[good[0], (place, (1, 99))]).unwrap_err();
            assert_presentable(&error);
            assert!(error.message.contains(place) && error.code == ErrorCode::ShimNotOnTop, "{error}");
        }
        assert_presentable(&judged(&[("/proc", (2, 1))]).unwrap_err());
    }

    #[test]
    fn a_file_that_is_not_the_image_s_own_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("own"), "o").unwrap();
        std::os::unix::fs::symlink("/etc/hostname", dir.path().join("link")).unwrap();
        let image = Image::open(dir.path()).unwrap();
        let judged = |name: &str, seen: Option<Inode>| {
            let mounts = [
                json!({"destination": "/data", "source": "/elsewhere"}),
                json!({"destination": "/etc/hosts", "source": dir.path().join("hosts")}),
                json!({"destination": "/folder", "source": dir.path()}),
                json!({"destination": "/dev/gpool/real/libcuda.so.1", "source": dir.path().join(name)}),
            ];
            judge_sources(&image, dir.path(), &mounts, |place| seen.filter(|_| place.ends_with("libcuda.so.1")))
        };
        let own = image.file("/own");
        assert_eq!(judged("own", own), Ok(()));
        for (name, seen) in [("own", Some((1, 99))), ("own", None), ("link", own), ("absent", None)] {
            let error = judged(name, seen).unwrap_err();
            assert_presentable(&error);
            assert_eq!(error.code, ErrorCode::ShimNotOnTop);
        }
    }

    #[test]
    fn the_mount_table_is_read_below_the_root_only() {
        let table = b"65 1 0:44 / / rw - ext4 x rw\n71 65 0:1 / /b/my\\040root rw - overlay o rw\n\
                      72 71 0:2 /a /b/my\\040root/usr/lib/x ro - ext4 d rw\n73 71 0:2 / /b/my\\040rootless rw - a b c\n\n";
        assert_eq!(below(table, Path::new("/b/my root")), ["/usr/lib/x"]);
        assert_eq!(unescape(br"a\134\04"), br"a\\04");
    }

    #[test]
    fn the_last_order_for_a_place_counts() {
        let mounts = [
            json!({"destination": "/a//b/", "source": "/one"}),
            json!({"destination": "/a/b", "source": "/two"}),
            json!({"destination": 3}),
        ];
        assert_eq!(last_sources(&mounts), BTreeMap::from([("/a/b".to_owned(), "/two".to_owned())]));
    }

    #[test]
    fn a_container_without_mounts_yet_is_judged_by_what_it_orders() {
        let dir = tempfile::tempdir().unwrap();
        let (shim, other) = (dir.path().join("shim.so"), dir.path().join("other.so"));
        std::fs::write(&shim, "s").unwrap();
        std::fs::write(&other, "o").unwrap();
        let order = |source: &Path| json!({"destination": "/usr/lib/libcuda.so.1", "source": source});
        let check = |mounts: &[Value]| {
            check(std::process::id(), dir.path(), &json!({"mounts": mounts}), std::slice::from_ref(&shim))
        };
        assert_eq!(check(&[order(&other), order(&shim)]), Ok(()));
        assert_presentable(&check(&[order(&shim), order(&other)]).unwrap_err());
        assert_presentable(&check(&[]).unwrap_err());
    }
}
