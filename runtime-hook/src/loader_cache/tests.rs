use super::*;
use crate::image::Image;
use proptest::prelude::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

fn lease() -> LeaseId {
    LeaseId("L".into())
}

fn put(root: &Path, path: &str, bytes: &[u8]) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// What ldconfig, the host's, prints of a cache.
fn printed(root: &Path) -> String {
    let output = Command::new("/sbin/ldconfig").arg("-p").arg("-C").arg(root.join("etc/ld.so.cache")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A library of no content under `path`, with its file's name in it as ldconfig reads it.
fn library(root: &Path, path: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let name = format!("-Wl,-soname,{}", path.file_name().unwrap().to_str().unwrap());
    let made =
        Command::new("cc").args(["-shared", "-nostdlib", &name, "-x", "c", "/dev/null", "-o"]).arg(path).status();
    assert!(made.unwrap().success());
}

/// A cache that the host's ldconfig makes of a folder with libraries under names of all kinds.
fn made_by_ldconfig(root: &Path, options: &[&str]) {
    for name in ["libc.so.6", "libcuda.so.1", "libcudart.so.12", "libcudart.so.9", "liba.so", "libz.so.1.2"] {
        library(root, &format!("opt/lib/{name}"));
    }
    library(root, "opt/lib/glibc-hwcaps/x86-64-v2/libc.so.6");
    put(root, "etc/ld.so.conf", b"/opt/lib\n");
    let made = Command::new("/sbin/ldconfig").arg("-X").args(options).arg("-r").arg(root).status().unwrap();
    assert!(made.success());
}

fn image(root: &Path) -> Image {
    std::fs::create_dir_all(root.join("usr/lib/x86_64-linux-gnu")).unwrap();
    Image::open(root).unwrap()
}

/// Lines of libraries as ldconfig prints them, in its order, which is that of the file.
fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.contains("=>")).map(str::trim).collect()
}

#[test]
fn ldconfig_lists_the_libraries_first_of_their_names_and_all_others_as_before() {
    for options in [&[][..], &["-c", "compat"]] {
        let root = tempfile::tempdir().unwrap();
        made_by_ldconfig(root.path(), options);
        // Of a file with the older table in front glibc 2.36 prints no name here.
        let before = printed(root.path()).replace("hwcap: \"\"", "hwcap: \"x86-64-v2\"");
        enter(&image(root.path()), &LIBRARIES, &lease());
        let after = printed(root.path());
        let directory = "/usr/lib/x86_64-linux-gnu";
        let ours: Vec<String> = ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"]
            .map(|name| format!("{name} (libc6,x86-64) => {directory}/{name}"))
            .into();
        let (others, added): (Vec<&str>, Vec<&str>) = lines(&after).iter().partition(|line| !line.contains(directory));
        assert_eq!(others, lines(&before), "{options:?}");
        assert_eq!(added.iter().rev().collect::<Vec<_>>(), ours.iter().collect::<Vec<_>>(), "{options:?}");
        let first = lines(&after).into_iter().find(|line| line.starts_with("libcuda.so.1 ")).unwrap();
        assert!(first.ends_with("/usr/lib/x86_64-linux-gnu/libcuda.so.1"), "{after}");
        assert!(before.contains("libcuda.so.1 (libc6,x86-64) => /opt/lib/libcuda.so.1"), "{before}");
        // Who wrote the file is still told.
        let writer = |text: &str| text.lines().find(|line| line.starts_with("Cache generated")).map(str::to_owned);
        assert_eq!(writer(&after), writer(&before));
    }
}

#[test]
fn the_loader_finds_what_has_been_entered() {
    let root = tempfile::tempdir().unwrap();
    made_by_ldconfig(root.path(), &[]);
    enter(&image(root.path()), &LIBRARIES, &lease());
    // The loader binds its search to /etc of its own root, so the whole of it is looked at as the loader searches.
    let bytes = std::fs::read(root.path().join("etc/ld.so.cache")).unwrap();
    let cache = LoaderCache::read(&bytes).unwrap();
    for name in ["libcuda.so.1", "libcuda.so", "libc.so.6", "libcudart.so.9", "libcudart.so.12", "liba.so"] {
        let path = cache.found(name).unwrap_or_else(|| panic!("{name} is not found"));
        assert_eq!(path.starts_with("/usr/lib/"), name.starts_with("libcuda.so"), "{name} is {path}");
    }
    assert_eq!(cache.found("libcudart.so.10"), None);
}

#[test]
fn what_is_entered_is_entered_once_and_the_files_rights_stay() {
    let root = tempfile::tempdir().unwrap();
    made_by_ldconfig(root.path(), &[]);
    let file = root.path().join("etc/ld.so.cache");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let about = |path: &Path| path.metadata().map(|found| (found.mode() & 0o7777, found.uid(), found.ino())).unwrap();
    let (rights, owner, inode) = about(&file);
    enter(&image(root.path()), &LIBRARIES, &lease());
    let entered = about(&file);
    assert_eq!((entered.0, entered.1), (rights, owner));
    assert_ne!(entered.2, inode, "replaced as a whole");
    enter(&image(root.path()), &LIBRARIES, &lease());
    assert_eq!(about(&file), entered, "a restart writes nothing");
    let left: Vec<_> =
        std::fs::read_dir(root.path().join("etc")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn an_image_that_has_no_cache_gets_one_if_somebody_can_ask_it() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("etc/ld.so.cache");
    std::fs::create_dir_all(root.path().join("etc")).unwrap();
    enter(&image(root.path()), &LIBRARIES, &lease());
    assert!(!file.exists(), "nobody reads it there");
    put(root.path(), "sbin/ldconfig", b"");
    put(root.path(), "lib64/ld-linux-x86-64.so.2", b"");
    enter(&image(root.path()), &LIBRARIES, &lease());
    assert_eq!(lines(&printed(root.path())).len(), 4);
    // One with nothing in it, as after a loss of power, is none either.
    std::fs::write(&file, b"").unwrap();
    enter(&image(root.path()), &LIBRARIES, &lease());
    assert_eq!(lines(&printed(root.path())).len(), 4);
}

#[test]
fn what_ldconfig_has_not_written_stays_and_nothing_outside_is_touched() {
    let outside = tempfile::tempdir().unwrap();
    made_by_ldconfig(outside.path(), &[]);
    let theirs = std::fs::read(outside.path().join("etc/ld.so.cache")).unwrap();
    for bytes in [&b""[..], b"glibc-ld.so.cache1.1", b"something else", &[0; 100]] {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "etc/ld.so.cache", bytes);
        enter(&image(root.path()), &LIBRARIES, &lease());
        assert_eq!(std::fs::read(root.path().join("etc/ld.so.cache")).unwrap(), bytes);
    }
    let linked = tempfile::tempdir().unwrap();
    symlink(outside.path().join("etc"), linked.path().join("etc")).unwrap();
    enter(&image(linked.path()), &LIBRARIES, &lease());
    let linked = tempfile::tempdir().unwrap();
    put(linked.path(), "etc/other", &theirs);
    symlink("other", linked.path().join("etc/ld.so.cache")).unwrap();
    enter(&image(linked.path()), &LIBRARIES, &lease());
    assert_eq!(std::fs::read(linked.path().join("etc/other")).unwrap(), theirs, "a link is no file of ldconfig's");
    assert_eq!(std::fs::read(outside.path().join("etc/ld.so.cache")).unwrap(), theirs);
    // Whatever cannot be read is not absent.
    let nowhere = tempfile::tempdir().unwrap();
    put(nowhere.path(), "sbin/ldconfig", b"");
    put(nowhere.path(), "lib64/ld-linux-x86-64.so.2", b"");
    std::fs::create_dir_all(nowhere.path().join("etc")).unwrap();
    let file = nowhere.path().join("etc/ld.so.cache");
    symlink("/run/absent", &file).unwrap();
    enter(&image(nowhere.path()), &LIBRARIES, &lease());
    assert!(file.is_symlink(), "a link that leads nowhere yet");
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, vec![0; LIMIT_BYTES + 1]).unwrap();
    enter(&image(nowhere.path()), &LIBRARIES, &lease());
    assert_eq!(file.metadata().unwrap().len(), LIMIT_BYTES as u64 + 1);
    let host = Image::open(Path::new("/")).unwrap();
    assert!(host.is_hosts_own() && !image(linked.path()).is_hosts_own());
}

/// A cache of `entries` positions of one string, which any number of them may be.
fn overlapping(count: u32, string: usize) -> Vec<u8> {
    let start = 48 + 24 * count;
    let mut file = b"glibc-ld.so.cache1.1".to_vec();
    [count, string as u32 + 1, 2].iter().for_each(|number| file.extend(number.to_le_bytes()));
    file.resize(48, 0);
    for _ in 0..count {
        [0x303, start, start, 0, 0, 0].iter().for_each(|number: &u32| file.extend(number.to_le_bytes()));
    }
    file.resize(file.len() + string, b'a');
    file.push(0);
    file
}

#[test]
fn a_cache_that_was_made_to_be_large_is_not_read() {
    assert!(LoaderCache::read(&overlapping(1, 4096)).is_some());
    assert_eq!(LoaderCache::read(&overlapping(1, 4097)), None, "no path is as long");
    assert_eq!(LoaderCache::read(&overlapping(1000, 4096)), None, "8 MB of 28 KiB");
    let mut unsorted = LoaderCache::default();
    ["a", "b"].iter().for_each(|name| assert!(unsorted.enter(name, name)));
    let mut bytes = unsorted.write();
    let (first, second) = (48..72, 72..96);
    let entry = bytes[first.clone()].to_vec();
    bytes.copy_within(second.clone(), first.start);
    bytes[second].copy_from_slice(&entry);
    assert_eq!(LoaderCache::read(&bytes), None, "the loader would not find what is in it");
}

proptest! {
    #[test]
    fn no_bytes_break_the_reader(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut cache = LoaderCache::default();
        for name in ["libb.so.2", "libb.so.10", "liba.so", "libcuda.so.1"] {
            cache.enter(name, &format!("/l/{name}"));
        }
        let mut bytes = cache.write();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        if let Some(mut read) = LoaderCache::read(&bytes) {
            read.enter("libcuda.so.1", "/usr/lib/libcuda.so.1");
            prop_assert_eq!(read.first("libcuda.so.1"), Some("/usr/lib/libcuda.so.1"));
            prop_assert_eq!(LoaderCache::read(&read.write()), Some(read));
        }
    }
}
