//! Where the image's loader looks for libraries beyond its own directory: what ld.so.conf and ld.so.cache name, and
//! LD_LIBRARY_PATH as the container's process is started with.

use crate::image::Image;
use crate::loader_cache;
use serde_json::Value;

/// A longer file of its configuration is none that a person has written.
const FILE_LIMIT_BYTES: usize = 1 << 20;
/// Files may include each other: so many are read, each time that one is included.
const FILE_LIMIT: usize = 256;
/// Files may include others this deep.
const INCLUDE_DEPTH: u32 = 4;

/// What the loader puts for a variable of its own in LD_LIBRARY_PATH (ld.so(8)): by how the distribution has built it, and by
/// the processor.
const LOADER_VARIABLES: [(&str, [&str; 3]); 2] =
    [("LIB", ["lib", "lib64", "lib/x86_64-linux-gnu"]), ("PLATFORM", ["x86_64", "haswell", "xeon_phi"])];
/// Its variable for the directory of the program, whichever that is.
const PROGRAM_VARIABLE: &str = "ORIGIN";
/// Such variables in one directory, each of which makes three of it.
const VARIABLE_LIMIT: u32 = 4;

/// Why it cannot be told where the loader looks.
#[derive(Debug, PartialEq, Eq)]
pub enum Unclear {
    /// More files than are read, the last of them by name.
    TooManyFiles(String),
    /// A directory of LD_LIBRARY_PATH that each program has elsewhere, or that can be too many.
    PerProgram(String),
}

/// All these directories in no order that matters, with repetitions.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Those that are named as such.
    pub directories: Vec<String>,
    /// Those that are meant by the working directory, itself among them where LD_LIBRARY_PATH has an empty part: as a rule no folders of
    /// libraries, and full of other things.
    pub relative: Vec<String>,
}

/// What has been found so far, and how many files were read for it.
struct Found {
    directories: Vec<String>,
    files: usize,
}

/// Finds them.
///
/// # Errors
/// An image whose ld.so.conf includes more files than are read, or an LD_LIBRARY_PATH that depends on the program.
pub fn directories(image: &Image, process: &Value) -> Result<Told, Unclear> {
    let Told { directories, relative } = from_env(process)?;
    let mut found = Found { directories, files: 0 };
    from_configuration(image, "/etc/ld.so.conf", INCLUDE_DEPTH, &mut found)?;
    let mut directories = found.directories;
    directories.extend(from_cache(&image.read("/etc/ld.so.cache", loader_cache::LIMIT_BYTES).unwrap_or_default()));
    Ok(Told { directories, relative })
}

/// LD_LIBRARY_PATH, relative to the process's working directory as the loader takes it.
fn from_env(process: &Value) -> Result<Told, Unclear> {
    let env = process["env"].as_array().into_iter().flatten().filter_map(Value::as_str);
    // Where one name stands twice, programs differ in which they take.
    let lists = env.filter_map(|entry| entry.strip_prefix("LD_LIBRARY_PATH="));
    let cwd = process["cwd"].as_str().unwrap_or("/");
    let mut told = Told::default();
    for directory in lists.filter(|list| !list.is_empty()).flat_map(|list| list.split([':', ';'])) {
        let unclear = || Unclear::PerProgram(directory.to_owned());
        let meant = expanded(directory, VARIABLE_LIMIT).ok_or_else(unclear)?;
        for meant in meant {
            match meant.starts_with('/') {
                true => told.directories.push(meant),
                false => told.relative.push(format!("{cwd}/{meant}")),
            }
        }
    }
    Ok(told)
}

/// All that `directory` can be when the loader has put something for its variables; none if that cannot be told, or if there
/// are more than `limit` of them. A dollar before anything else is one.
fn expanded(directory: &str, limit: u32) -> Option<Vec<String>> {
    for (at, _) in directory.match_indices('$') {
        let (before, behind) = (&directory[..at], &directory[at + 1..]);
        let (name, after) = match behind.strip_prefix('{') {
            Some(braced) => braced.split_once('}').unwrap_or(("", behind)),
            None => behind.split_at(
                behind.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(behind.len()),
            ),
        };
        if name == PROGRAM_VARIABLE {
            return None;
        }
        let Some((_, values)) = LOADER_VARIABLES.iter().find(|(known, _)| *known == name) else { continue };
        let rest = expanded(after, limit.checked_sub(1)?)?;
        let all = values.iter().flat_map(|value| rest.iter().map(move |rest| format!("{before}{value}{rest}")));
        return Some(all.collect());
    }
    Some(vec![directory.to_owned()])
}

/// Directories that ldconfig is told to look into: it may be run in the container.
fn from_configuration(image: &Image, path: &str, depth: u32, found: &mut Found) -> Result<(), Unclear> {
    found.files += 1;
    if found.files > FILE_LIMIT {
        return Err(Unclear::TooManyFiles(path.to_owned()));
    }
    let text = image.read(path, FILE_LIMIT_BYTES).unwrap_or_default();
    for line in String::from_utf8_lossy(&text).lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let mut words = line.split_whitespace();
        match words.next() {
            Some("include") if depth > 0 => {
                for file in words.flat_map(|pattern| matching(image, pattern)) {
                    from_configuration(image, &file, depth - 1, found)?;
                }
            }
            Some("include" | "hwcap") | None => {}
            // Several may stand on a line, and each may say its type behind an equals sign.
            Some(_) => {
                let names = line.split([' ', '\t', ',', ':']).map(|word| word.split('=').next().unwrap_or_default());
                found.directories.extend(names.filter(|name| name.starts_with('/')).map(str::to_owned));
            }
        }
    }
    Ok(())
}

/// The files of a pattern such as `/etc/ld.so.conf.d/*.conf`, with one star in its last part at most.
fn matching(image: &Image, pattern: &str) -> Vec<String> {
    let pattern = if pattern.starts_with('/') { pattern.to_owned() } else { format!("/etc/{pattern}") };
    let (directory, name) = pattern.rsplit_once('/').unwrap_or(("", &pattern));
    let Some((before, after)) = name.split_once('*') else { return vec![pattern] };
    let names = image.names(directory).into_iter().filter_map(|name| name.into_string().ok());
    let fits =
        |name: &String| name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after);
    names.filter(fits).map(|name| format!("{directory}/{name}")).collect()
}

/// Directories in which the cache has a library of the driver. Whatever its format, paths stand in it as text that
/// ends with a zero.
fn from_cache(cache: &[u8]) -> Vec<String> {
    let directory = |text: &[u8]| {
        let path = std::str::from_utf8(text.get(text.iter().position(|byte| *byte == b'/')?..)?).ok()?;
        let (directory, name) = path.rsplit_once('/')?;
        crate::libraries::is_of_driver(name).then(|| directory.to_owned())
    };
    cache.split(|byte| *byte == 0).filter_map(directory).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_directory_that_the_loader_is_told_of_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &[u8]| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("etc/ld.so.conf", b"include ld.so.conf.d/*.conf\n/opt/a/lib # one\n/opt/b=libc6 /opt/c\n");
        put("etc/ld.so.conf.d/one.conf", b"/opt/d\ninclude /etc/ld.so.conf\n");
        put("etc/ld.so.conf.d/two.txt", b"/opt/not\n");
        let cache =
            b"glibc-ld.so.cache1.1\0\x02\0\x40\x01/opt/e/libcuda.so.1\0libc.so.6\0/lib/libc.so.6\0/x/libcuda.so\0";
        put("etc/ld.so.cache", cache);
        let process = json!({"cwd": "/home/me", "env": ["A=1", "LD_LIBRARY_PATH=/opt/f:rel;", "LD_LIBRARY_PATH="]});
        let Told { directories: found, relative } = directories(&Image::open(dir.path()).unwrap(), &process).unwrap();
        assert_eq!(relative, ["/home/me/rel", "/home/me/"]);
        let text = found.join(" ");
        assert!(text.starts_with("/opt/f "), "{text}");
        assert!(text.ends_with(" /opt/e /x"), "{text}");
        for want in ["/opt/a/lib", "/opt/b", "/opt/c", "/opt/d"] {
            assert!(found.iter().any(|directory| directory == want), "{want} in {text}");
        }
        assert!(!text.contains("/opt/not") && !text.contains("/lib/libc"), "{text}");
    }

    #[test]
    fn the_loaders_own_variables_are_all_that_they_can_be() {
        let of = |directory: &str| expanded(directory, VARIABLE_LIMIT);
        let texts = |texts: &[&str]| Some(texts.iter().map(|text| text.to_string()).collect::<Vec<_>>());
        assert_eq!(of("/opt/$LIB"), texts(&["/opt/lib", "/opt/lib64", "/opt/lib/x86_64-linux-gnu"]));
        assert_eq!(of("/${PLATFORM}/x"), texts(&["/x86_64/x", "/haswell/x", "/xeon_phi/x"]));
        assert_eq!(of("/$LIB/a$PLATFORM").unwrap().len(), 9);
        assert!(of("/$LIB/a$PLATFORM").unwrap().contains(&"/lib64/ahaswell".to_owned()));
        for plain in ["/opt", "/a$LIBS", "/a$", "/${LIB", "/$HOME", "/a$$b"] {
            assert_eq!(of(plain), texts(&[plain]), "{plain}");
        }
        for unclear in ["$ORIGIN", "/x/${ORIGIN}/lib", "/$HOME/$ORIGIN", "/$LIB/$ORIGIN", "$LIB$LIB$LIB$LIB$LIB"] {
            assert_eq!(of(unclear), None, "{unclear}");
        }
        let process = json!({"env": ["LD_LIBRARY_PATH=/a:$LIB"], "cwd": "/w"});
        let told = from_env(&process).unwrap();
        assert_eq!(told.directories, ["/a"]);
        assert_eq!(told.relative, ["/w/lib", "/w/lib64", "/w/lib/x86_64-linux-gnu"]);
    }

    #[test]
    fn nothing_is_found_where_nothing_is_said() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(directories(&Image::open(dir.path()).unwrap(), &Value::Null).unwrap(), Told::default());
        assert!(from_cache(&[0xff; 40]).is_empty());
    }

    #[test]
    fn files_that_include_each_other_end_somewhere() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("etc/ld.so.conf.d");
        std::fs::create_dir_all(&folder).unwrap();
        for name in 0..100 {
            std::fs::write(folder.join(format!("{name}.conf")), "include /etc/ld.so.conf.d/*.conf\n/a\n").unwrap();
        }
        std::fs::write(dir.path().join("etc/ld.so.conf"), "include ld.so.conf.d/*.conf\n").unwrap();
        let found = directories(&Image::open(dir.path()).unwrap(), &Value::Null);
        assert!(
            matches!(&found, Err(Unclear::TooManyFiles(path)) if path.starts_with("/etc/ld.so.conf.d/")),
            "{found:?}"
        );
    }
}
