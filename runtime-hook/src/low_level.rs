//! Which low-level runtime does the work.
//!
//! It is the same for every verb of a container: `create`, `run` and `restore` take it from the configuration
//! and record it as a symbolic link; all other verbs follow the link and read nothing else. While there is no link, as
//! after a boot, they take it from the configuration, too, or from the built-in list if that cannot be read. Nothing in the
//! environment has a say, because engines clear it for some verbs and because what root executes is not for the caller to choose.

use crate::privilege::is_host_root;
use gpool_configuration::Runtime;
use gpool_protocol::{ErrorBody, ErrorCode};
use nix::unistd::geteuid;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A low-level runtime, about to be executed in place of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The low-level runtime; also its `argv[0]`, from which crun chooses its behaviour.
    pub program: PathBuf,
    /// The engine's arguments, untouched.
    pub arguments: Vec<OsString>,
}

impl Launch {
    /// Replaces this process: same pid, same environment, same descriptors. Returns only when that failed.
    pub fn exec(self) -> ErrorBody {
        // The standard library also gives SIGPIPE, which it ignores itself, its default action back.
        let error = Command::new(&self.program).args(&self.arguments).exec();
        ErrorBody::new(
            ErrorCode::LowLevelRuntimeAbsent,
            format!("{} cannot be executed ({})", self.program.display(), cause(&error)),
            "reinstall it, or name another in [runtime] low_level of /etc/gpool/config.toml",
        )
    }
}

/// What `error` means, in words that no engine takes for a fault of the container's command.
pub(crate) fn cause(error: &Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "it or its loader is absent".into(),
        ErrorKind::PermissionDenied => "access refused".into(),
        ErrorKind::NotADirectory => "a part of the path is no folder".into(),
        ErrorKind::IsADirectory => "it is a folder".into(),
        _ => error.raw_os_error().map_or_else(|| error.kind().to_string(), |errno| format!("errno {errno}")),
    }
}

/// The runtime for verbs that make no container: what `link` records, else the first of what `configuration` names, or of
/// the built-in list if it cannot be read.
pub fn recorded(link: &Path, configuration: &Path) -> Result<PathBuf, ErrorBody> {
    match recorded_link(link) {
        Some(target) if usable(&target).is_ok() => Ok(target),
        _ => first_usable(&gpool_configuration::load(configuration).unwrap_or_default().runtime.low_level),
    }
}

/// The runtime for `create`, `run` and `restore` under the configured list, recorded at `link` for the other
/// verbs: containers that run are another runtime's, whatever is installed or configured meanwhile. Someone without root
/// cannot record it and gets the runtime that the other verbs will use.
pub fn configured(candidates: &[PathBuf], link: &Path) -> Result<PathBuf, ErrorBody> {
    let recorded = recorded_link(link).filter(|target| usable(target).is_ok());
    if !is_host_root() {
        return recorded.map_or_else(|| first_usable(candidates), Ok);
    }
    let (builtin, mark) = (Runtime::default().low_level, mark_of(link));
    let taken = recorded.as_ref().filter(|_| mark.exists());
    let chosen = chosen_of(candidates, &builtin, taken)?;
    let is_marked = candidates == builtin;
    if recorded.as_ref() != Some(&chosen) || mark.exists() != is_marked {
        let outcome = record(link, &chosen).and_then(|()| set_mark(&mark, is_marked));
        // Without a record the other verbs choose by the same list.
        outcome.or_else(|error| if recorded.is_none() { Ok(()) } else { Err(error) }).map_err(|error| {
            ErrorBody::new(
                ErrorCode::LowLevelRuntimeAbsent,
                format!(
                    "the choice of {} cannot be recorded at {} ({})",
                    chosen.display(),
                    link.display(),
                    cause(&error)
                ),
                "make the folder of that link writable for root",
            )
        })?;
    }
    Ok(chosen)
}

/// The file beside `link` that says that nobody chose what it names: it was taken of the built-in list.
fn mark_of(link: &Path) -> PathBuf {
    link.with_extension("taken")
}

fn set_mark(mark: &Path, is_set: bool) -> std::io::Result<()> {
    if is_set {
        return std::fs::write(mark, "");
    }
    match std::fs::remove_file(mark) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The first of `candidates` that can be used. Where they are the `builtin` ones, nobody has chosen among them: what was
/// `taken` of them before stays, also when one that stands before it is installed.
fn chosen_of(candidates: &[PathBuf], builtin: &[PathBuf], taken: Option<&PathBuf>) -> Result<PathBuf, ErrorBody> {
    match taken.filter(|its| candidates == builtin && candidates.contains(its)) {
        Some(taken) => Ok(taken.clone()),
        None => first_usable(candidates),
    }
}

fn recorded_link(link: &Path) -> Option<PathBuf> {
    let owner = std::fs::symlink_metadata(link).ok()?.uid();
    let target = std::fs::read_link(link).ok()?;
    // In a user namespace the host's root has no number; there only the caller's own rights are at stake.
    let is_trusted = owner == 0 || owner == geteuid().as_raw() || (geteuid().is_root() && !is_host_root());
    (target.is_absolute() && is_trusted).then_some(target)
}

fn record(link: &Path, target: &Path) -> std::io::Result<()> {
    let temporary = link.with_extension(format!("new.{}", std::process::id()));
    match std::os::unix::fs::symlink(target, &temporary) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // Before the supervisor's first start there is no run directory.
            std::fs::create_dir(link.parent().unwrap_or(Path::new("/")))?;
            std::os::unix::fs::symlink(target, &temporary)?;
        }
        other => other?,
    }
    std::fs::rename(&temporary, link).inspect_err(|_| drop(std::fs::remove_file(&temporary)))
}

fn first_usable(candidates: &[PathBuf]) -> Result<PathBuf, ErrorBody> {
    let mut reasons = Vec::new();
    for candidate in candidates {
        match usable(candidate) {
            Ok(()) => return Ok(candidate.clone()),
            Err(reason) => reasons.push(format!("{} {reason}", candidate.display())),
        }
    }
    Err(ErrorBody::new(
        ErrorCode::LowLevelRuntimeAbsent,
        format!("no low-level runtime can be used: {}", reasons.join(", ")),
        "install runc or crun, or name one in [runtime] low_level of /etc/gpool/config.toml",
    ))
}

fn usable(candidate: &Path) -> Result<(), &'static str> {
    let Ok(found) = std::fs::metadata(candidate) else { return Err("is absent") };
    let ourselves =
        std::fs::metadata("/proc/self/exe").is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()));
    judge(&found, ourselves, is_host_root())
}

/// Why what `found` describes may not be executed as low-level runtime, if it may not.
fn judge(found: &Metadata, ourselves: bool, as_root: bool) -> Result<(), &'static str> {
    if ourselves {
        Err("is gpool-runtime itself")
    } else if !found.is_file() || found.mode() & 0o111 == 0 {
        Err("is no program")
    } else if as_root && found.uid() != 0 {
        Err("does not belong to root")
    } else if as_root && found.mode() & 0o022 != 0 {
        Err("can be written by others than root")
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;
    use std::os::unix::fs::PermissionsExt;

    fn program(dir: &Path, name: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn candidates_that_root_must_not_execute_are_passed_over_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let open = program(dir.path(), "open", 0o777);
        let data = program(dir.path(), "data", 0o644);
        let good = program(dir.path(), "good", 0o755);
        assert_eq!(judge(&open.metadata().unwrap(), false, false), Ok(()));
        assert!(judge(&good.metadata().unwrap(), true, false).is_err());
        let ourselves = std::env::current_exe().unwrap();
        let bad = vec![dir.path().join("absent"), data, dir.path().to_owned(), ourselves];
        let error = first_usable(&bad).unwrap_err();
        assert_presentable(&error);
        assert!(error.message.contains("gpool-runtime itself"), "{error}");
        let mut candidates = bad.clone();
        if is_host_root() {
            assert!(judge(&open.metadata().unwrap(), false, true).is_err());
            candidates.push(open);
        }
        candidates.push(good.clone());
        assert_eq!(first_usable(&candidates), Ok(good));
    }

    #[test]
    fn the_choice_of_create_is_recorded_for_the_other_verbs() {
        if !is_host_root() {
            println!("skipped: only root records the low-level runtime");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("run/low-level-runtime");
        let (one, two) = (program(dir.path(), "one", 0o755), program(dir.path(), "two", 0o755));
        for chosen in [&one, &two, &two] {
            assert_eq!(configured(std::slice::from_ref(chosen), &link).as_ref(), Ok(chosen));
            assert_eq!(recorded(&link, &dir.path().join("absent.toml")).as_ref(), Ok(chosen));
        }
        assert_eq!(std::fs::read_dir(link.parent().unwrap()).unwrap().count(), 1, "no temporary link stays");
        let builtin = Runtime::default().low_level;
        if let Ok(first) = first_usable(&builtin) {
            assert_eq!(configured(&builtin, &link), Ok(first), "whoever takes his choice back has none any more");
            assert!(mark_of(&link).exists());
            assert_eq!(configured(std::slice::from_ref(&two), &link).as_ref(), Ok(&two));
            assert!(!mark_of(&link).exists());
        }
        std::fs::remove_file(&two).unwrap();
        assert_ne!(recorded(&link, &dir.path().join("absent.toml")).ok(), Some(two));
    }

    #[test]
    fn what_was_taken_of_the_built_in_list_stays_and_a_configured_order_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let list = ["runc", "crun"].map(|name| dir.path().join(name));
        let crun = program(dir.path(), "crun", 0o755);
        assert_eq!(chosen_of(&list, &list, None).as_ref(), Ok(&crun));
        let runc = program(dir.path(), "runc", 0o755);
        assert_eq!(chosen_of(&list, &list, Some(&crun)).as_ref(), Ok(&crun), "containers run under it");
        assert_eq!(chosen_of(&list, &[], Some(&crun)).as_ref(), Ok(&runc), "somebody says so");
        assert_eq!(chosen_of(&list, &list, Some(&dir.path().join("other"))).as_ref(), Ok(&runc));
    }

    #[test]
    fn before_the_first_container_of_a_boot_every_verb_takes_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let (own, link) = (program(dir.path(), "own", 0o755), dir.path().join("low-level-runtime"));
        let configuration = dir.path().join("config.toml");
        std::fs::write(&configuration, format!("[runtime]\nlow_level = [{own:?}]\n")).unwrap();
        assert_eq!(recorded(&link, &configuration), Ok(own));
        std::fs::write(&configuration, "[runtime\n").unwrap();
        assert_eq!(recorded(&link, &configuration), first_usable(&Runtime::default().low_level));
    }

    #[test]
    fn a_failed_exec_is_told_without_the_phrases_of_others() {
        for path in ["/proc/no/such/runtime", "/etc", "/etc/hostname/x"] {
            let error = Launch { program: path.into(), arguments: Vec::new() }.exec();
            assert_presentable(&error);
        }
    }
}
