//! The command as an engine would describe a container: config.json of a container whose root is the host's.

use super::order::Order;
use super::rights;
use crate::spec::Described;
use gpool_configuration::DefaultRequest;
use gpool_protocol::{ContainerId, ENV_PREFIX, ErrorBody, ErrorCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;

/// Who runs the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// For `USER`.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Main group.
    pub gid: u32,
    /// All groups, the main one among them.
    pub groups: Vec<u32>,
    /// For `HOME`.
    pub home: PathBuf,
}

impl Person {
    /// Looks the user up by name or number, wherever this host keeps its users. By programs, because a static one cannot
    /// load what the C library asks for them.
    ///
    /// # Errors
    /// There is none.
    pub fn find(name: &str) -> Result<Self, ErrorBody> {
        Self::look_up(name).ok_or_else(|| {
            ErrorBody::new(
                ErrorCode::RequestInvalid,
                format!("--user: this host knows no user {name:?}"),
                "name one that getent passwd shows",
            )
        })
    }

    fn look_up(name: &str) -> Option<Self> {
        let line = said("getent", &["passwd", "--", name])?;
        // passwd(5)
        let fields: Vec<&str> = line.trim_end().split(':').collect();
        let [name, _, uid, gid, _, home, _] = fields.as_slice() else { return None };
        let groups = said("id", &["-G", "--", name])?;
        Some(Self {
            name: (*name).to_owned(),
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            groups: groups.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?,
            home: home.into(),
        })
    }
}

/// What one of the system's programs prints, if it ends well.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).env("PATH", "/usr/bin:/bin").output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).ok())?
}

/// The longest name, so that what is printed of an id stays readable.
const NAME_BYTES: usize = 63;
/// What the id of a command begins with that nobody has named.
const UNNAMED: &str = "run";

/// An id for a command that no engine has named: `name`, and digits of [`fresh_digits`]. It is never used again, so no place is kept
/// under it.
///
/// # Errors
/// The name could not be the beginning of an id.
pub fn id_of(name: Option<&str>, digits: &str) -> Result<ContainerId, ErrorBody> {
    let refused = || {
        ErrorBody::new(
            ErrorCode::RequestInvalid,
            format!("--name: {name:?} cannot be the beginning of an id", name = name.unwrap_or_default()),
            format!("give 1 to {NAME_BYTES} of the characters A-Z, a-z, 0-9, _, +, . and -"),
        )
    };
    let is_fit = |name: &str| name.len() <= NAME_BYTES && ContainerId(name.to_owned()).check().is_ok();
    name.is_none_or(is_fit).then_some(()).ok_or_else(refused)?;
    Ok(ContainerId(format!("{}-{digits}", name.unwrap_or(UNNAMED))))
}

/// The pid of this process, and twelve digits that nobody has had or will have.
pub fn fresh_digits() -> String {
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let digits: String = random.chars().filter(char::is_ascii_hexdigit).collect();
    // A process id is unique while this process lives, should there be no random number.
    format!("{}{}", std::process::id(), digits.get(..12).unwrap_or_default())
}

/// The caller's environment, as far as it is text.
fn caller_env() -> impl Iterator<Item = String> {
    let text = |(name, value): (OsString, OsString)| {
        Some(format!("{}={}", name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text)
}

/// Variables that in a container would ask for something. Here only options ask; the command has them as any other.
pub fn kept_from_the_request() -> impl Iterator<Item = String> {
    caller_env().filter(|entry| entry.starts_with(ENV_PREFIX))
}

/// Variables by which a program chooses among the host's GPUs, or finds an MPS server of the host. The caller's mean other
/// GPUs than the lease's, which adds its own.
const ABOUT_GPUS: [&str; 3] = ["CUDA_VISIBLE_DEVICES=", "NVIDIA_VISIBLE_DEVICES=", "CUDA_MPS_"];
/// What is the user's own.
const ABOUT_PERSON: [&str; 3] = ["HOME=", "USER=", "LOGNAME="];

/// The command's environment, as far as it is the caller's or the user's.
fn environment(caller: impl Iterator<Item = String>, person: Option<&Person>) -> Vec<String> {
    let begins_with = |entry: &str, names: &[&str]| names.iter().any(|name| entry.starts_with(name));
    let own = person.into_iter().flat_map(|person| {
        let name = &person.name;
        [format!("HOME={}", person.home.display()), format!("USER={name}"), format!("LOGNAME={name}")]
    });
    caller
        .filter(|entry| !entry.starts_with(ENV_PREFIX) && !begins_with(entry, &ABOUT_GPUS))
        .filter(|entry| person.is_none() || !begins_with(entry, &ABOUT_PERSON))
        .chain(own)
        .collect()
}

/// The caller's variables that are no UTF-8, and so in no description.
pub fn env_without_text() -> impl Iterator<Item = (OsString, OsString)> {
    let is_text = |name: &OsString, value: &OsString| name.to_str().is_some() && value.to_str().is_some();
    std::env::vars_os().filter(move |(name, value)| !is_text(name, value) && !is_about_gpus(name))
}

/// Whether a variable of this name is the lease's to say.
pub fn is_about_gpus(name: &OsStr) -> bool {
    let begin = format!("{}=", name.to_string_lossy());
    ABOUT_GPUS.iter().any(|about| begin.starts_with(about))
}

/// The caller's own environment for a command that `person` runs, without anything that would be a lease's.
pub fn of_caller(person: &Person) -> impl Iterator<Item = (OsString, OsString)> {
    let pair = |entry: String| entry.split_once('=').map(|(name, value)| (name.into(), value.into()));
    env_without_text().chain(environment(caller_env(), Some(person)).into_iter().filter_map(pair))
}

/// The caller's working directory.
///
/// # Errors
/// It has been removed, or its name is no UTF-8: it goes through JSON.
pub fn working_directory() -> Result<String, ErrorBody> {
    let refused = |what: &str| {
        ErrorBody::new(
            ErrorCode::CommandNotPrepared,
            format!("the command was not started: the working directory {what}"),
            "call gpool run in a directory that is there, with a name in UTF-8",
        )
    };
    let directory = std::env::current_dir().map_err(|_| refused("has been removed"))?;
    directory.into_os_string().into_string().map_err(|name| refused(&format!("{name:?} is no UTF-8")))
}

/// Describes `order`, with the caller's environment and in `directory`.
pub fn describe(order: &Order, person: Option<&Person>, directory: &str) -> Value {
    let capabilities = rights::names();
    json!({
        "ociVersion": "1.0.2",
        "root": {"path": "/"},
        "process": {
            "args": order.command,
            "user": user(person),
            "cwd": directory,
            "env": environment(caller_env(), person),
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
        },
        "annotations": order.annotations,
        // True in effect: the command's /dev holds no other GPU, and it cannot make a node.
        "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}],
                  "resources": {"devices": [{"allow": false, "access": "rwm"}]}},
    })
}

/// As config.json has it. By it the supervisor tells whose MPS server a command comes under.
fn user(person: Option<&Person>) -> Value {
    match person {
        Some(person) => json!({"uid": person.uid, "gid": person.gid, "additionalGids": person.groups}),
        // Only root comes this far.
        None => json!({"uid": 0, "gid": 0}),
    }
}

/// Refuses a command that asks for nothing, where the host has nothing for those either: it would run as any other, and who types
/// `gpool run` wants a share.
pub fn check_asks(described: &Described, default: &DefaultRequest) -> Result<(), ErrorBody> {
    if described.has_request() || !default.keys().is_empty() {
        return Ok(());
    }
    Err(nothing_asked())
}

/// What who asks for nothing is told.
pub fn nothing_asked() -> ErrorBody {
    ErrorBody::new(
        ErrorCode::RequestInvalid,
        "gpool run: no share is asked for",
        "say which, for example gpool run --fraction 0.3 -- COMMAND, or give the host a [default_request]",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confinement::{host_uid, is_unenforced};
    use crate::report::assert_presentable;

    fn order(key: &str) -> Order {
        Order {
            annotations: [(key.to_owned(), "0.3".to_owned())].into(),
            user: None,
            name: None,
            lock: None,
            command: vec!["true".into()],
        }
    }

    #[test]
    fn a_described_command_asks_and_is_confined() {
        let spec = describe(&order("gpool.io/fraction"), None, "/");
        assert_eq!(check_asks(&Described::read(&spec), &DefaultRequest::default()), Ok(()));
        assert_eq!(is_unenforced(&spec, &Default::default()), Ok(false));
        assert_eq!(crate::edits::check(&spec), Ok(()));
    }

    #[test]
    fn a_command_without_a_share_and_a_user_that_is_not_there_are_refused() {
        assert_presentable(
            &check_asks(&Described::read(&describe(&order("other"), None, "/")), &DefaultRequest::default())
                .unwrap_err(),
        );
        assert_presentable(&Person::find("no such user").unwrap_err());
        assert_eq!(Person::find("0").unwrap().name, "root");
    }

    #[test]
    fn another_user_has_its_own_home() {
        let root = Person::find("root").unwrap();
        let spec = describe(&order("gpool.io/fraction"), Some(&root), "/");
        let env = spec["process"]["env"].as_array().unwrap();
        let homes: Vec<_> = env.iter().filter(|entry| entry.as_str().unwrap().starts_with("HOME=")).collect();
        assert_eq!(homes, [&json!(format!("HOME={}", root.home.display()))]);
        let fresh_id = |name| id_of(name, &fresh_digits());
        let [named, again] = [0; 2].map(|_| fresh_id(Some("job-4711")).unwrap());
        assert!(named != again && named.0.starts_with("job-4711-") && named.check() == Ok(()), "{named}");
        assert!(fresh_id(None).unwrap().0.starts_with("run-"));
        for wrong in ["", "a b", "a/b", "a\nb", &"a".repeat(NAME_BYTES + 1)] {
            assert_presentable(&fresh_id(Some(wrong)).unwrap_err());
        }
    }

    #[test]
    fn what_the_caller_says_about_gpus_stays_with_the_caller() {
        let caller = [
            "PATH=/bin",
            "CUDA_VISIBLE_DEVICES=1",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "NVIDIA_VISIBLE_DEVICES=all",
            "CUDA_MPS_PIPE_DIRECTORY=/tmp/mps",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=10",
            "GPOOL_FRACTION=1",
            "HOME=/root",
        ];
        let kept = environment(caller.map(String::from).into_iter(), None);
        assert_eq!(kept, ["PATH=/bin", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "HOME=/root"]);
        let is_the_lease_s = |name: &str| is_about_gpus(OsStr::new(name));
        assert!(is_the_lease_s("CUDA_VISIBLE_DEVICES") && is_the_lease_s("CUDA_MPS_PIPE_DIRECTORY"));
        assert!(!is_the_lease_s("CUDA_DEVICE_ORDER") && !is_the_lease_s("PATH"));
    }

    #[test]
    fn a_command_is_known_as_its_user_s() {
        let name = "alice".to_owned();
        let alice = Person { name, uid: 1000, gid: 100, groups: vec![100, 44], home: "/home/alice".into() };
        let spec = describe(&order("gpool.io/fraction"), Some(&alice), "/");
        assert_eq!(host_uid(&spec), 1000);
        assert_eq!(spec["process"]["user"], json!({"uid": 1000, "gid": 100, "additionalGids": [100, 44]}));
        assert_eq!(host_uid(&describe(&order("gpool.io/fraction"), None, "/")), 0);
    }
}
