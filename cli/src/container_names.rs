//! Containers by the names that docker and podman have for them. gpool knows ids, and asks the engines for that of what
//! is not plainly one.

use gpool_protocol::{Client, ErrorBody, ErrorCode, LeaseView, WaitingView, lease_path};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Whose names are asked for, the first one that knows it.
const ENGINES: [&str; 2] = ["docker", "podman"];
/// An engine that hangs holds nobody up for longer; nor for as long where gpool knows an id that begins so.
const PATIENCE: Duration = Duration::from_secs(3);
const SHORT_PATIENCE: Duration = Duration::from_millis(500);
/// How often it is looked whether the engine has answered.
const LOOK_PERIOD: Duration = Duration::from_millis(5);
/// Of the id of a container, in hexadecimal digits, and of what tools print of it.
const ID_LETTERS: usize = 64;
const SHORT_ID_LETTERS: usize = 12;
/// Of a lease's own id, a ULID.
const LEASE_ID_LETTERS: usize = 26;

/// Puts the id of the container in the place of each name of one. What is an id, or the beginning of one, stays; whether a short one is the
/// name of another container as well, the engines are asked.
///
/// # Errors
/// Nobody answers on the supervisor's socket, or it is the name of one container and the id of another.
pub fn replace<'a>(client: &Client, ids: impl IntoIterator<Item = &'a mut String>) -> Result<(), ErrorBody> {
    for id in ids.into_iter().filter(|id| is_name(id) && !is_surely_an_id(id)) {
        let owner = owner_of(client, id)?;
        // What is an id whole is meant, whatever else is called so.
        if matches!(&owner, Owner::One(its) if its == id) {
            continue;
        }
        let patience = if matches!(owner, Owner::One(_)) { SHORT_PATIENCE } else { PATIENCE };
        let (mut named, mut silent) = (Vec::new(), None);
        for engine in ENGINES {
            match id_of(Command::new(engine), id, patience) {
                Answer::Is(found) => named.push(found),
                Answer::Silence => silent = Some(engine),
                Answer::Unknown => {}
            }
        }
        // One that has ended hides none of the other engine's that gpool knows.
        let known = named.iter().find(|found| owner_of(client, found).is_ok_and(|owner| owner != Owner::Nobody));
        match (&owner, known.or(named.first())) {
            (Owner::One(its), Some(_)) if known.is_some_and(|named| named != its) => {
                return Err(is_two(id, its, known.map_or("", String::as_str)));
            }
            (Owner::One(_), _) | (_, None) => {}
            (Owner::Nobody | Owner::Several, Some(named)) => *id = named.clone(),
        }
        if let Some(engine) = silent.filter(|_| owner == Owner::Nobody && id.len() < ID_LETTERS) {
            let seconds = PATIENCE.as_secs();
            eprintln!(
                "gpool: {engine} does not say within {seconds} s whether it has a container {id}; gpool ps and gpool queue ls have the ids"
            );
        }
    }
    Ok(())
}

/// Who has an id, or one that begins so.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    /// The container with this id.
    One(String),
    Several,
}

fn owner_of(client: &Client, id: &str) -> Result<Owner, ErrorBody> {
    let leased = match lease_path(id).and_then(|path| client.get::<LeaseView>(&path)) {
        // By the lease's own id nobody calls a container.
        Ok(lease) => Owner::One(lease.container_id.0),
        Err(refusal) if refusal.code == ErrorCode::LeaseUnknown => Owner::Nobody,
        Err(refusal) if refusal.code == ErrorCode::SupervisorAbsent => return Err(refusal),
        Err(_) => Owner::Several,
    };
    if leased != Owner::Nobody {
        return Ok(leased);
    }
    let waiting: Vec<WaitingView> = client.get("/v1/queue").unwrap_or_default();
    let mut its = waiting.into_iter().map(|one| one.container_id.0).filter(|its| its.starts_with(id));
    Ok(match (its.next(), its.next()) {
        (None, _) => Owner::Nobody,
        (Some(one), None) => Owner::One(one),
        (Some(_), Some(_)) => Owner::Several,
    })
}

fn is_two(text: &str, its: &str, named: &str) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::LeaseConflict,
        format!("{text:?} is the name of container {named}, and the id of {its} begins so"),
        "give more of the id that is meant, or the id of its lease",
    )
}

/// Whether this is so much of an id as tools print, or a lease's, which nobody calls a container.
fn is_surely_an_id(text: &str) -> bool {
    let is_lease_id = || {
        text.len() == LEASE_ID_LETTERS && text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
    };
    text.len() >= SHORT_ID_LETTERS && text.bytes().all(|byte| byte.is_ascii_hexdigit()) || is_lease_id()
}

/// The supervisor's refusal, where no lease and nobody who waits has this id.
///
/// # Errors
/// Nobody answers on the supervisor's socket.
pub fn nobody_has(client: &Client, id: &str) -> Result<Option<ErrorBody>, ErrorBody> {
    let refusal = match lease_path(id).and_then(|path| client.get::<LeaseView>(&path)) {
        Err(refusal) if refusal.code == ErrorCode::LeaseUnknown => refusal,
        Err(refusal) if refusal.code == ErrorCode::SupervisorAbsent => return Err(refusal),
        // Somebody has it, or several have; what else there is to say the verb is told itself.
        _ => return Ok(None),
    };
    let waiting: Vec<WaitingView> = client.get("/v1/queue").unwrap_or_default();
    let is_one_of_them = waiting.iter().any(|one| one.container_id.0.starts_with(id));
    Ok(Some(refusal).filter(|_| !is_one_of_them))
}

/// Whether a container can be called so; nothing else reaches an engine's command line.
fn is_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric()) && text.bytes().all(is_letter)
}

/// What an engine says of a name.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// It has a container of this id.
    Is(String),
    /// It has none, or is not there.
    Unknown,
    /// It does not answer in time.
    Silence,
}

/// The id of the container that `engine` knows by this name.
fn id_of(mut engine: Command, name: &str, patience: Duration) -> Answer {
    // Not by inspect, which docker answers no sooner than a container has started that waits for room.
    let asked = engine
        .args(["ps", "-aq", "--no-trunc", "--filter", &format!("name=^{}$", name.replace('.', "\\."))])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut asked) = asked else { return Answer::Unknown };
    let deadline = Instant::now() + patience;
    let status = loop {
        match asked.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_PERIOD),
            _ => {
                let _ = asked.kill();
                let _ = asked.wait();
                return Answer::Silence;
            }
        }
    };
    let mut said = String::new();
    let read = asked.stdout.take().map(|out| out.take(4 * ID_LETTERS as u64).read_to_string(&mut said));
    let id = said.trim();
    let is_id = id.len() == ID_LETTERS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    match status.success() && is_id && matches!(read, Some(Ok(_))) {
        true => Answer::Is(id.to_owned()),
        false => Answer::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENEROUS: Duration = Duration::from_secs(60);

    /// What does this in an engine's place.
    fn engine(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "engine"]);
        shell
    }

    #[test]
    fn an_engine_that_is_there_tells_the_id_of_a_name() {
        let id = "3f9a".repeat(16);
        let knows = || engine(&format!("[ \"$*\" = 'ps -aq --no-trunc --filter name=^web\\.1$' ] && echo {id}"));
        assert_eq!(id_of(knows(), "web.1", GENEROUS), Answer::Is(id.clone()));
        assert_eq!(id_of(knows(), "web-1", GENEROUS), Answer::Unknown, "it is told by the exit code");
        assert_eq!(
            id_of(engine(&format!("echo {id}; echo {id}")), "web", GENEROUS),
            Answer::Unknown,
            "there is one of a name"
        );
        assert_eq!(id_of(Command::new("/nonexistent/docker"), "web", GENEROUS), Answer::Unknown);
        for said in ["echo web", "echo", "printf '%0100d' 7", "printf '%064d' 7; exit 1"] {
            assert_eq!(id_of(engine(said), "web", GENEROUS), Answer::Unknown, "{said}");
        }
    }

    #[test]
    fn an_engine_that_hangs_is_not_waited_for() {
        assert_eq!(id_of(engine("exec sleep 600"), "web", Duration::from_millis(100)), Answer::Silence);
    }

    #[test]
    fn what_is_no_name_reaches_no_engine() {
        for name in ["web", "a", "3f9a", "my_app-1.2"] {
            assert!(is_name(name), "{name}");
        }
        for other in ["", "-f", "--help", ".web", "a/b", "a b", "a;b", "ä", "_a"] {
            assert!(!is_name(other), "{other}");
        }
        for id in ["33d1f6ef7a72", "01M8P4VZ6NSE4ZR4FWR9QF56X4"] {
            assert!(is_surely_an_id(id) && !is_surely_an_id(&id[1..]), "{id}");
        }
        assert!(!is_surely_an_id("run-33d1f6ef"));
    }
}
