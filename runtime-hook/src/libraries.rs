//! Where a library of the lease goes in the container.
//!
//! A shim only counts if no program finds another copy of the same library: not in the loader's directory, not
//! in a directory that the image adds, and not in one where an injector such as CDI has put the driver's own.

use crate::image::{Image, LISTING_LIMIT};
use crate::search_path::{self, Told, Unclear};
use gpool_protocol::{ErrorBody, ErrorCode};
use serde_json::Value;
use std::collections::BTreeSet;

/// Directories besides the loader's in which images and injectors keep copies of driver libraries.
const OTHER_DIRECTORIES: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
];
/// The names by which programs look for the libraries that gpool counts at. In a working directory nothing else is looked for: whoever
/// names a file of another name there means that one.
const SHIMMED: [&str; 4] = ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"];
/// Below each directory the loader prefers what is made for newer processors (glibc 2.33 and later).
const NEWER: &str = "glibc-hwcaps";
const PROCESSOR_DIRECTORIES: [&str; 3] = ["x86-64-v2", "x86-64-v3", "x86-64-v4"];
/// Before glibc 2.37 it looks into these as well, each below those before it or without them: `tls/haswell/x86_64`. The second
/// are platforms, of which a processor is one; the others are what it can (elf/dl-hwcaps.c, sysdeps/x86/dl-procinfo.c).
const OLDER_PROCESSOR_DIRECTORIES: [&[&str]; 4] =
    [&["tls"], &["haswell", "xeon_phi", "x86_64"], &["avx512_1"], &["x86_64"]];
/// An image that has a library in more places than this has been made to have it. Each place becomes a mount.
const PLACES_LIMIT: usize = 64;
/// The same of directories in which its loader looks.
const DIRECTORY_LIMIT: usize = 1024;
/// Folders for forward compatibility, one for each version of CUDA, and what lies in one: some twenty files.
const COMPAT_LIMIT: usize = 64;
const COMPAT_FILES_LIMIT: usize = 1024;
/// gpool's own directory in the container; the driver's libraries lie there under their own names.
const OWN_DIRECTORY: &str = "/dev/gpool/";

/// `libcuda.so` for `libcuda.so.1`; the name itself for one without a version.
pub fn unversioned(file_name: &str) -> &str {
    match file_name.find(".so.") {
        Some(at) => &file_name[..at + ".so".len()],
        None => file_name,
    }
}

/// Whether `name` is `stem`, with or without a version behind it.
pub fn is_copy(name: &str, stem: &str) -> bool {
    let version = |rest: &str| rest.starts_with('.') && rest.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit());
    name.strip_prefix(stem).is_some_and(|rest| rest.is_empty() || version(rest))
}

/// Whether a file of this name can be a library of the driver.
pub fn is_of_driver(name: &str) -> bool {
    ["libcuda", "libnvidia-"].iter().any(|prefix| name.starts_with(prefix)) && name.contains(".so")
}

/// Every library of the driver that a program in the container may find.
#[derive(Debug)]
pub struct Copies {
    /// Each directory once, by the first of its names, with the names of such files in it.
    directories: Vec<(String, Vec<String>)>,
    /// Where the lease's libraries have to be beside the loader's directory, because nobody can tell which that is.
    also: Vec<&'static str>,
}

impl Copies {
    /// Looks where loaders, images and injectors have libraries, and where this image and `process`, as config.json
    /// describes it, say that the loader shall look.
    ///
    /// # Errors
    /// More directories, or more in one of them, than can be looked at: a copy in what is left out would be no shim.
    pub fn find(image: &Image, process: &Value) -> Result<Self, ErrorBody> {
        let known = [image.library_directory()].into_iter().chain(OTHER_DIRECTORIES).map(str::to_owned);
        let Told { directories: told, relative } =
            search_path::directories(image, process).map_err(|unclear| match unclear {
                Unclear::TooManyFiles(file) => {
                    too_many("256 files that ld.so.conf includes", &file, "gpool reads no more")
                }
                Unclear::PerProgram(directory) => ErrorBody::new(
                    ErrorCode::ShimNotOnTop,
                    format!("the variable LD_LIBRARY_PATH has {directory:?}, which is another folder for each program"),
                    "name the folder itself, without $ORIGIN and with few other variables of the loader",
                ),
            })?;
        let (mut looked_at, mut inodes, mut directories) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let also = if image.loader_directory().is_none() { named_of(&OTHER_DIRECTORIES, &told) } else { Vec::new() };
        let listed = known.chain(compat_directories(image)?).chain(told).map(|directory| (directory, true));
        for (directory, is_listed) in listed.chain(relative.into_iter().map(|directory| (directory, false))) {
            if !looked_at.insert(directory.clone()) {
                continue;
            }
            if looked_at.len() > DIRECTORY_LIMIT {
                let what = format!("{DIRECTORY_LIMIT} directories in which libraries are looked for");
                return Err(too_many(&what, &directory, "gpool covers no more"));
            }
            // With a merged /usr several names lead to one directory, and what lies below has been looked at with it.
            let is_new =
                |inodes: &mut BTreeSet<_>, path: &str| image.directory(path).is_some_and(|inode| inodes.insert(inode));
            if !is_new(&mut inodes, &directory) {
                continue;
            }
            let below = below(image, &directory).into_iter().filter(|path| is_new(&mut inodes, path));
            for directory in std::iter::once(directory.clone()).chain(below.collect::<Vec<_>>()) {
                if !is_listed {
                    let is_there = |name: &&str| image.file(&format!("{directory}/{name}")).is_some();
                    let names = SHIMMED.into_iter().filter(is_there).map(str::to_owned).collect();
                    directories.push((directory, names));
                    continue;
                }
                let names = image.names(&directory);
                if names.len() >= LISTING_LIMIT {
                    let what = format!("{LISTING_LIMIT} files in a directory of libraries");
                    return Err(too_many(&what, &directory, "gpool looks at no more"));
                }
                let names = names.into_iter().filter_map(|name| name.into_string().ok());
                directories.push((directory, names.filter(|name| is_of_driver(name)).collect()));
            }
        }
        Ok(Self { directories, also })
    }

    /// The paths of all copies of `stem`, such as `libcuda.so`.
    pub fn of<'a>(&'a self, stem: &'a str) -> impl Iterator<Item = String> + 'a {
        self.directories.iter().flat_map(move |(directory, names)| {
            names.iter().filter(move |name| is_copy(name, stem)).map(move |name| format!("{directory}/{name}"))
        })
    }
}

/// Those of `known` that the loader is told of.
fn named_of(known: &[&'static str], told: &[String]) -> Vec<&'static str> {
    let is_told = |known: &&&str| told.iter().any(|told| told.trim_end_matches('/') == **known);
    known.iter().filter(is_told).copied().collect()
}

/// Directories below one that is there into which some loader looks.
fn below(image: &Image, directory: &str) -> Vec<String> {
    let newer = PROCESSOR_DIRECTORIES.map(|below| format!("{directory}/{NEWER}/{below}"));
    let mut all = vec![directory.to_owned()];
    for level in OLDER_PROCESSOR_DIRECTORIES {
        // Where there is no folder, nothing lies below it.
        let below = all.iter().flat_map(|above| level.iter().map(move |name| format!("{above}/{name}")));
        let there: Vec<String> = below.filter(|path| !all.contains(path) && image.directory(path).is_some()).collect();
        all.extend(there);
    }
    all.remove(0);
    if image.directory(&format!("{directory}/{NEWER}")).is_some() {
        all.extend(newer);
    }
    all
}

fn too_many(what: &str, place: &str, consequence: &str) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::ShimNotOnTop,
        format!("the image has more than {what} ({place}), and {consequence}"),
        "remove copies of driver libraries from the image, or folders from its library path",
    )
}

/// All paths in the container at which `file_name` has to be mounted: its place and its unversioned name's in
/// the loader's directory, or in those that may be it, and every copy that the image brings.
///
/// # Errors
/// More copies than any image has that was not made to have them.
pub fn destinations(image: &Image, copies: &Copies, file_name: &str) -> Result<Vec<String>, ErrorBody> {
    let stem = unversioned(file_name);
    let main = image.library_directory();
    let is_another = |other: &&str| image.directory(other).is_none_or(|other| image.directory(main) != Some(other));
    let mut places = Vec::new();
    for directory in [main].into_iter().chain(copies.also.iter().copied().filter(is_another)) {
        places.push(format!("{directory}/{file_name}"));
        if stem != file_name {
            places.push(format!("{directory}/{stem}"));
        }
    }
    let mut links = Vec::new();
    for (number, path) in copies.of(stem).enumerate() {
        if number == PLACES_LIMIT {
            let directory = path.rsplit_once('/').map_or("/", |(directory, _)| directory);
            return Err(too_many(&format!("{PLACES_LIMIT} copies of {stem}"), directory, "gpool covers no more"));
        }
        if image.file(&path).is_none() || places.contains(&path) {
            continue;
        }
        if image.is_link(&path) { links.push(path) } else { places.push(path) }
    }
    // A link to a file that is covered already needs nothing; the low-level runtime would follow it there.
    let mut covered: Vec<_> = places.iter().filter_map(|path| image.file(path)).collect();
    for path in links {
        if let Some(inode) = image.file(&path).filter(|inode| !covered.contains(inode)) {
            covered.push(inode);
            places.push(path);
        }
    }
    Ok(places)
}

/// Where CUDA images keep a driver library for forward compatibility: `/usr/local/cuda*/compat`, and the folders in it.
/// NVIDIA's images for frameworks have it in `lib.real` there; their entrypoint names that to the loader if the driver of the
/// host is too old, or makes it the `lib` that is named already and is not there.
///
/// # Errors
/// More of them, or more in one, than images have.
pub fn compat_directories(image: &Image) -> Result<Vec<String>, ErrorBody> {
    let names = |directory: &str| image.names(directory).into_iter().filter_map(|name| name.into_string().ok());
    let (mut all, mut homes) = (Vec::new(), BTreeSet::new());
    for name in names("/usr/local").filter(|name| name.starts_with("cuda")) {
        let home = format!("/usr/local/{name}/compat");
        // One of them is another's link, as a rule.
        if !image.directory(&home).is_some_and(|inode| homes.insert(inode)) {
            continue;
        }
        let below: Vec<String> = names(&home).map(|name| format!("{home}/{name}")).collect();
        if homes.len() > COMPAT_LIMIT || below.len() > COMPAT_FILES_LIMIT {
            let what =
                format!("{COMPAT_LIMIT} folders for forward compatibility, or {COMPAT_FILES_LIMIT} files in one");
            return Err(too_many(&what, &home, "gpool covers no more"));
        }
        all.push(home);
        all.extend(below.into_iter().filter(|path| image.directory(path).is_some()));
    }
    Ok(all)
}

/// The destinations in `mounts` at which somebody else has mounted a copy of `file_name`.
pub fn foreign_mounts(mounts: &[Value], file_name: &str) -> Vec<String> {
    let stem = unversioned(file_name);
    let destinations = mounts.iter().filter_map(|mount| mount["destination"].as_str());
    let copies = destinations.filter(|path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        is_copy(name, stem) && !path.starts_with(OWN_DIRECTORY)
    });
    copies.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;
    use serde_json::json;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_of_copies_are_told_from_names_of_others() {
        for name in ["libcuda.so", "libcuda.so.1", "libcuda.so.535.54.03"] {
            assert!(is_copy(name, unversioned("libcuda.so.1")), "{name}");
        }
        for name in ["libcudart.so", "libcuda.so.debug", "libcuda.soo", "libcudadebugger.so.1", "libcuda.a"] {
            assert!(!is_copy(name, "libcuda.so"), "{name}");
        }
    }

    #[test]
    fn every_copy_of_the_image_is_covered_once() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        };
        put("usr/lib/x86_64-linux-gnu/libc.so.6");
        put("usr/lib/x86_64-linux-gnu/libcuda.so.535.54.03");
        symlink("libcuda.so.535.54.03", dir.path().join("usr/lib/x86_64-linux-gnu/libcuda.so.1")).unwrap();
        symlink("usr/lib", dir.path().join("lib")).unwrap();
        put("usr/local/cuda-12.4/compat/libcuda.so.550.54.14");
        symlink("cuda-12.4", dir.path().join("usr/local/cuda")).unwrap();
        symlink("libcuda.so.550.54.14", dir.path().join("usr/local/cuda-12.4/compat/libcuda.so.1")).unwrap();
        put("usr/local/nvidia/lib64/libcuda.so.1");
        put("odd/libcuda.so");
        put("odd/glibc-hwcaps/x86-64-v3/libcuda.so.1");
        put("opt/real/libcuda.so.1");
        symlink("/opt/real/libcuda.so.1", dir.path().join("usr/lib/libcuda.so.1")).unwrap();
        symlink("/nowhere", dir.path().join("usr/lib/libcuda.so")).unwrap();
        let image = Image::open(dir.path()).unwrap();
        let process = json!({"env": ["LD_LIBRARY_PATH=/odd"]});
        assert_eq!(
            destinations(&image, &Copies::find(&image, &process).unwrap(), "libcuda.so.1").unwrap(),
            [
                "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                "/usr/lib/x86_64-linux-gnu/libcuda.so",
                "/usr/lib/x86_64-linux-gnu/libcuda.so.535.54.03",
                "/usr/local/nvidia/lib64/libcuda.so.1",
                "/usr/local/cuda/compat/libcuda.so.550.54.14",
                "/odd/libcuda.so",
                "/odd/glibc-hwcaps/x86-64-v3/libcuda.so.1",
                "/usr/lib/libcuda.so.1",
            ]
        );
    }

    #[test]
    fn a_driver_that_an_entrypoint_may_turn_on_is_covered() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("usr/local/cuda-13.1/compat/lib.real");
        std::fs::create_dir_all(&real).unwrap();
        std::fs::write(real.join("libcuda.so.590.48.01"), "x").unwrap();
        symlink("libcuda.so.590.48.01", real.join("libcuda.so.1")).unwrap();
        let image = Image::open(dir.path()).unwrap();
        // NVIDIA's images name a folder that is not there yet.
        let process = json!({"env": ["LD_LIBRARY_PATH=/usr/local/cuda-13.1/compat/lib"]});
        let places = destinations(&image, &Copies::find(&image, &process).unwrap(), "libcuda.so.1").unwrap();
        assert_eq!(places.last().unwrap(), "/usr/local/cuda-13.1/compat/lib.real/libcuda.so.590.48.01", "{places:?}");
        assert_eq!(compat_directories(&image).unwrap().len(), 2);
        symlink("cuda-13.1", dir.path().join("usr/local/cuda")).unwrap();
        assert_eq!(compat_directories(&image).unwrap().len(), 2, "a link is no other one");
        for number in 0..COMPAT_FILES_LIMIT {
            std::fs::write(real.join(format!("../{number}")), "").unwrap();
        }
        let error = Copies::find(&image, &process).unwrap_err();
        assert_presentable(&error);
        assert!(error.message.contains("/usr/local/cuda/compat"), "{error}");
    }

    #[test]
    fn folders_for_processors_are_looked_into_as_loaders_old_and_new_do() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        };
        let found = [
            "lib64/libcuda.so.1",
            "lib64/tls/libcuda.so.1",
            "lib64/tls/haswell/avx512_1/x86_64/libcuda.so.1",
            "lib64/tls/x86_64/x86_64/libcuda.so.1",
            "lib64/xeon_phi/libcuda.so.1",
            "lib64/avx512_1/x86_64/libcuda.so.1",
            "lib64/x86_64/libcuda.so.1",
            "lib64/glibc-hwcaps/x86-64-v2/libcuda.so.1",
        ];
        found.into_iter().for_each(put);
        // No loader goes this way.
        ["lib64/haswell/tls/libcuda.so.1", "lib64/haswell/xeon_phi/libcuda.so.1"].into_iter().for_each(put);
        let copies = Copies::find(&Image::open(dir.path()).unwrap(), &Value::Null).unwrap();
        let seen: BTreeSet<String> = copies.of("libcuda.so").collect();
        assert_eq!(seen, found.map(|path| format!("/{path}")).into());
    }

    #[test]
    fn what_another_program_decides_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for list in ["/a:$ORIGIN/../lib", "${ORIGIN}", "/$LIB/$LIB/$LIB/$LIB/$LIB"] {
            let process = json!({"env": [format!("LD_LIBRARY_PATH={list}")]});
            let error = Copies::find(&Image::open(dir.path()).unwrap(), &process).unwrap_err();
            assert_presentable(&error);
            assert!(error.code == ErrorCode::ShimNotOnTop && error.message.contains("LD_LIBRARY_PATH"), "{error}");
        }
    }

    #[test]
    fn a_working_directory_is_looked_into_for_four_names_alone() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir_all(work.join("glibc-hwcaps/x86-64-v3")).unwrap();
        for name in ["libcuda.so.1", "libcuda.so.580.1", "glibc-hwcaps/x86-64-v3/libnvidia-ml.so"] {
            std::fs::write(work.join(name), "x").unwrap();
        }
        let image = Image::open(dir.path()).unwrap();
        let found = |process: Value| {
            let copies = Copies::find(&image, &process).unwrap();
            let of = |stem| copies.of(stem).collect::<Vec<_>>();
            [of("libcuda.so"), of("libnvidia-ml.so")].concat().join(" ").replace("//", "/")
        };
        let both = "/work/libcuda.so.1 /work/glibc-hwcaps/x86-64-v3/libnvidia-ml.so";
        assert_eq!(found(json!({"cwd": "/work", "env": ["LD_LIBRARY_PATH=/opt::"]})), both);
        let named = found(json!({"cwd": "/work", "env": ["LD_LIBRARY_PATH=/work::"]}));
        assert!(named.contains("/work/libcuda.so.580.1"), "{named}");
        assert_eq!(found(json!({"cwd": "/work", "env": ["LD_LIBRARY_PATH="]})), "", "an empty list is none");
    }

    #[test]
    fn where_nobody_can_tell_the_loader_s_directory_those_that_it_is_told_of_have_it_too() {
        let dir = tempfile::tempdir().unwrap();
        let image = Image::open(dir.path()).unwrap();
        let process = json!({"env": ["LD_LIBRARY_PATH=/usr/lib64/:/opt/own:/usr/local/nvidia/lib64"]});
        let places = || destinations(&image, &Copies::find(&image, &process).unwrap(), "libcuda.so.1").unwrap();
        let all = ["/usr/lib", "/usr/lib64", "/usr/local/nvidia/lib64"];
        let both = |directory: &str| [format!("{directory}/libcuda.so.1"), format!("{directory}/libcuda.so")];
        assert_eq!(places(), all.map(both).concat());
        std::fs::create_dir_all(dir.path().join("usr/lib")).unwrap();
        symlink("lib", dir.path().join("usr/lib64")).unwrap();
        assert_eq!(places(), [all[0], all[2]].map(both).concat(), "one directory under two names");
        std::fs::create_dir_all(dir.path().join("lib64")).unwrap();
        std::fs::write(dir.path().join("lib64/ld-linux-x86-64.so.2"), "x").unwrap();
        assert_eq!(places(), both("/usr/lib64"));
    }

    #[test]
    fn an_image_made_of_copies_is_refused_by_the_name_of_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("usr/lib/many");
        std::fs::create_dir_all(&folder).unwrap();
        let process = json!({"env": ["LD_LIBRARY_PATH=/usr/lib/many"]});
        let places = |count: usize| {
            (0..count).for_each(|number| std::fs::write(folder.join(format!("libcuda.so.{number}")), "x").unwrap());
            let image = Image::open(dir.path()).unwrap();
            destinations(&image, &Copies::find(&image, &process).unwrap(), "libcuda.so.1")
        };
        assert_eq!(places(PLACES_LIMIT).unwrap().len(), PLACES_LIMIT + 2);
        let error = places(PLACES_LIMIT + 1).unwrap_err();
        assert_presentable(&error);
        assert!(error.message.contains("/usr/lib/many") && error.message.contains("libcuda.so"), "{error}");
        let all: Vec<String> = (0..DIRECTORY_LIMIT).map(|number| format!("/usr/lib/many/{number}")).collect();
        let process = json!({"env": [format!("LD_LIBRARY_PATH={}", all.join(":"))]});
        let error = Copies::find(&Image::open(dir.path()).unwrap(), &process).unwrap_err();
        assert_presentable(&error);
        assert!(error.message.contains("/usr/lib/many/"), "{error}");
    }

    #[test]
    fn mounts_of_others_are_found_but_not_our_own() {
        let mounts = [
            json!({"destination": "/usr/lib64/libcuda.so.580.1"}),
            json!({"destination": "/dev/gpool/real/libcuda.so.1"}),
            json!({"destination": "/x/libcuda.so"}),
            json!({"destination": null}),
        ];
        assert_eq!(foreign_mounts(&mounts, "libcuda.so.1"), ["/usr/lib64/libcuda.so.580.1", "/x/libcuda.so"]);
    }
}
