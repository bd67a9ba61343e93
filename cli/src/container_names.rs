//! Containers by the names that docker and podman have for them. gpool knows ids, and asks the engines for that of a name where
//! nobody has an id like it.

use gpool_protocol::{Client, ErrorBody, ErrorCode, LeaseView, WaitingView, lease_path};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Whose names are asked for, the first one that knows it.
const ENGINES: [&str; 2] = ["docker", "podman"];
/// An engine that hangs holds nobody up for longer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often it is looked whether the engine has answered.
const LOOK_PERIOD: Duration = Duration::from_millis(5);
/// Of the id of a container, in hexadecimal digits.
const ID_LETTERS: usize = 64;

/// Puts the id of the container in the place of each name of one. What is an id, or the beginning of one, stays.
///
/// # Errors
/// Nobody answers on the supervisor's socket.
pub fn replace<'a>(client: &Client, ids: impl IntoIterator<Item = &'a mut String>) -> Result<(), ErrorBody> {
    for id in ids {
        if is_name(id)
            && nobody_has(client, id)?.is_some()
            && let Some(found) = ENGINES.iter().find_map(|engine| id_of(Command::new(engine), id, PATIENCE))
        {
            *id = found;
        }
    }
    Ok(())
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

/// The id of the container that `engine` knows by this name. None if it knows none, is not there or does not answer in time.
fn id_of(mut engine: Command, name: &str, patience: Duration) -> Option<String> {
    // Not by inspect, which docker answers no sooner than a container has started that waits for room.
    let mut asked = engine
        .args(["ps", "-aq", "--no-trunc", "--filter", &format!("name=^{}$", name.replace('.', "\\."))])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let deadline = Instant::now() + patience;
    let status = loop {
        match asked.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_PERIOD),
            _ => {
                let _ = asked.kill();
                let _ = asked.wait();
                return None;
            }
        }
    };
    let mut said = String::new();
    asked.stdout.take()?.take(4 * ID_LETTERS as u64).read_to_string(&mut said).ok()?;
    let id = said.trim();
    let is_id = id.len() == ID_LETTERS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (status.success() && is_id).then(|| id.to_owned())
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
        assert_eq!(id_of(knows(), "web.1", GENEROUS), Some(id.clone()));
        assert_eq!(id_of(knows(), "web-1", GENEROUS), None, "it is told by the exit code");
        assert_eq!(id_of(engine(&format!("echo {id}; echo {id}")), "web", GENEROUS), None, "there is one of a name");
        assert_eq!(id_of(Command::new("/nonexistent/docker"), "web", GENEROUS), None);
        for said in ["echo web", "echo", "printf '%0100d' 7", "printf '%064d' 7; exit 1"] {
            assert_eq!(id_of(engine(said), "web", GENEROUS), None, "{said}");
        }
    }

    #[test]
    fn an_engine_that_hangs_is_not_waited_for() {
        assert_eq!(id_of(engine("exec sleep 600"), "web", Duration::from_millis(100)), None);
    }

    #[test]
    fn what_is_no_name_reaches_no_engine() {
        for name in ["web", "a", "3f9a", "my_app-1.2"] {
            assert!(is_name(name), "{name}");
        }
        for other in ["", "-f", "--help", ".web", "a/b", "a b", "a;b", "ä", "_a"] {
            assert!(!is_name(other), "{other}");
        }
    }
}
