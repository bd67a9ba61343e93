//! `gpool-hook`: run by the low-level runtime on the host, as the edits of a lease order it.
//!
//! ```text
//! gpool-hook create-runtime LEASE_ID --socket PATH --shim PATH [--shim PATH ...]
//! gpool-hook poststop LEASE_ID --socket PATH
//! gpool-hook precreate
//! gpool-hook refuse TEXT
//! ```
//!
//! It reads the container's state on stdin, or config.json for `precreate`, and nothing from its environment.

use crate::mounted;
use crate::precreate::{PRECREATE, REFUSE, precreate};
use crate::report::one_line;
use crate::waiting::LOOK;
use crate::wrapper::Installation;
use gpool_protocol::{BindRequest, CallError, Client, ErrorBody, ErrorCode, HostPid, LeaseId};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// No state comes near this.
const STATE_LIMIT_BYTES: u64 = 1 << 20;
/// How long the supervisor may be silent before it is read how long it may.
const BIND_PATIENCE: Duration = Duration::from_secs(4);
/// How long the end of a container may be held up for a hint.
const HINT_PATIENCE: Duration = Duration::from_millis(500);

/// What the hook was called for.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    verb: Verb,
    lease: LeaseId,
    socket: PathBuf,
    shims: Vec<PathBuf>,
}

#[derive(Debug, PartialEq, Eq)]
enum Verb {
    CreateRuntime,
    Poststop,
}

impl Call {
    fn read(arguments: &[OsString]) -> Result<Self, ErrorBody> {
        let wrong = |what: String| {
            ErrorBody::new(
                ErrorCode::MessageInvalid,
                what,
                "update gpool-hook and gpool-supervisor to the same release",
            )
        };
        let mut words = arguments.iter().map(|argument| argument.to_str().unwrap_or_default());
        let verb = match words.next() {
            Some("create-runtime") => Verb::CreateRuntime,
            Some("poststop") => Verb::Poststop,
            other => {
                return Err(wrong(format!(
                    "the hook was called for {:?}, which it does not know",
                    other.unwrap_or("")
                )));
            }
        };
        // The id goes into a path of the socket's protocol.
        let plain =
            |id: &&str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        let lease = words.next().filter(plain).ok_or_else(|| wrong("the hook was called without a lease id".into()))?;
        let mut call = Call { verb, lease: LeaseId(lease.to_owned()), socket: PathBuf::new(), shims: Vec::new() };
        while let Some(flag) = words.next() {
            let value = words.next().filter(|value| !value.is_empty()).map(PathBuf::from);
            match (flag, value) {
                ("--socket", Some(path)) => call.socket = path,
                ("--shim", Some(path)) => call.shims.push(path),
                (flag, _) => return Err(wrong(format!("the hook was called with {flag:?}, which it cannot use"))),
            }
        }
        if call.socket.as_os_str().is_empty() || (call.verb == Verb::CreateRuntime && call.shims.is_empty()) {
            return Err(wrong("the hook was called without --socket or --shim".into()));
        }
        Ok(call)
    }
}

/// Runs the hook with `arguments` (the program's name left out) and what the engine writes to `stdin`; why it refuses goes
/// to `stderr`. Returns its exit status: 1 stops the container's start, and nothing stops its end.
pub fn run_hook(arguments: &[OsString], stdin: &mut impl Read, stdout: &mut impl Write, stderr: &mut impl Write) -> u8 {
    if arguments.first().is_some_and(|verb| verb == PRECREATE) {
        return run_precreate(stdin, stdout, stderr);
    }
    let mut state = Vec::new();
    // Drained in any case: a low-level runtime may take a closed pipe for a failure of the hook.
    let drained = stdin.take(STATE_LIMIT_BYTES).read_to_end(&mut state);
    if let [verb, text] = arguments
        && verb == REFUSE
    {
        let _ = writeln!(stderr, "{}", text.display());
        return 1;
    }
    let outcome = Call::read(arguments).and_then(|call| match call.verb {
        Verb::CreateRuntime => create_runtime(&call, &state),
        Verb::Poststop => {
            poststop(&call);
            Ok(())
        }
    });
    match outcome {
        Ok(()) => 0,
        Err(_) if arguments.first().is_some_and(|verb| verb == "poststop") => 0,
        Err(error) => {
            drop(drained);
            let _ = writeln!(stderr, "{}", one_line(&error));
            1
        }
    }
}

fn run_precreate(stdin: &mut impl Read, stdout: &mut impl Write, stderr: &mut impl Write) -> u8 {
    match precreate(&Installation::default(), stdin) {
        Ok(config) => stdout.write_all(&config).and_then(|()| stdout.flush()).is_err().into(),
        Err(error) => {
            let _ = writeln!(stderr, "{}", one_line(&error));
            1
        }
    }
}

fn create_runtime(call: &Call, state: &[u8]) -> Result<(), ErrorBody> {
    let invalid = |what: &str| {
        ErrorBody::new(
            ErrorCode::BundleInvalid,
            format!("the low-level runtime told the hook no usable state ({what})"),
            "use a low-level runtime that follows the OCI specification",
        )
    };
    let state: Value = serde_json::from_slice(state).map_err(|_| invalid("no JSON"))?;
    let pid = state["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 1);
    let pid = pid.ok_or_else(|| invalid("no pid"))?;
    let bundle = state["bundle"].as_str().or(state["bundlePath"].as_str()).ok_or_else(|| invalid("no bundle"))?;
    let spec = read_spec(Path::new(bundle));
    // crun says where the root is; under user namespaces config.json may be unreadable.
    let root = state["root"].as_str().or(spec["root"]["path"].as_str()).ok_or_else(|| invalid("no root"))?;
    check_and_bind(call, HostPid(pid), &Path::new(bundle).join(root), &spec)
}

fn check_and_bind(call: &Call, init_pid: HostPid, root: &Path, spec: &Value) -> Result<(), ErrorBody> {
    // Before the lease is bound: a container that does not start needs none.
    mounted::check(init_pid.0, root, spec, &call.shims)?;
    bind(call, init_pid, configured_patience)
}

/// Binds the lease, and says so once more as long as nobody answers: it was granted a moment ago, so there is a supervisor, which
/// may just be starting again. Said twice, it changes nothing.
fn bind(call: &Call, init_pid: HostPid, patience: impl Fn() -> Duration) -> Result<(), ErrorBody> {
    let (client, path) = (Client::new(&call.socket), format!("/v1/leases/{}/bind", call.lease));
    let (begun, mut known) = (Instant::now(), None);
    loop {
        let left = known.unwrap_or(BIND_PATIENCE).saturating_sub(begun.elapsed());
        let answer = client.clone().with_timeout(left).try_post::<_, Value>(&path, &BindRequest { init_pid });
        let error = match answer {
            Ok(_) => return Ok(()),
            Err(CallError::Refused(error)) => return Err(error),
            Err(error) => error,
        };
        // Not before: most are answered at once.
        let patience = *known.get_or_insert_with(&patience);
        if begun.elapsed() + LOOK >= patience {
            return Err(error.into_body());
        }
        std::thread::sleep(LOOK);
    }
}

/// That of `[runtime] supervisor_patience_seconds`.
fn configured_patience() -> Duration {
    let configuration = gpool_configuration::load(&Installation::default().configuration);
    configuration.map_or(BIND_PATIENCE, |its| Duration::from_secs(its.runtime.supervisor_patience_seconds))
}

/// Does for a command of the host what the hook in `spec` does for a container.
///
/// # Errors
/// A shim is not on top, or the supervisor refuses.
pub fn bind_command(spec: &Value, init_pid: HostPid) -> Result<(), ErrorBody> {
    let hooks = spec["hooks"]["createRuntime"].as_array().into_iter().flatten();
    let words = hooks.flat_map(|hook| hook["args"].as_array().into_iter().flatten().skip(1));
    let words: Vec<OsString> = words.filter_map(|word| word.as_str().map(OsString::from)).collect();
    check_and_bind(&Call::read(&words)?, init_pid, Path::new("/"), spec)
}

/// config.json of the bundle, or null if it cannot be read.
fn read_spec(bundle: &Path) -> Value {
    let bytes = crate::bundle::Bundle::open(bundle).ok().and_then(|bundle| bundle.read().ok().flatten());
    bytes.and_then(|config| serde_json::from_slice(&config.bytes).ok()).unwrap_or_default()
}

/// A hint; the supervisor sees the end by itself.
fn poststop(call: &Call) {
    let client = Client::new(&call.socket).with_timeout(HINT_PATIENCE);
    let _ = client.post::<_, Value>(&format!("/v1/leases/{}/ended", call.lease), &json!({}));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;
    use std::os::unix::net::UnixListener;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn calls_are_read_and_wrong_ones_refused() {
        let call = Call::read(&words("create-runtime 01ABC --socket /s --shim /a --shim /b")).unwrap();
        assert_eq!((call.lease, call.socket), (LeaseId("01ABC".into()), "/s".into()));
        assert_eq!(call.shims, [PathBuf::from("/a"), "/b".into()]);
        for line in [
            "",
            "frob",
            "create-runtime",
            "create-runtime a/b --socket /s --shim /a",
            "create-runtime L --socket /s",
            "create-runtime L --shim /a",
            "create-runtime L --socket",
            "create-runtime L --socket /s --shim /a --x y",
        ] {
            assert_presentable(&Call::read(&words(line)).unwrap_err());
            let mut said = Vec::new();
            assert_eq!(run_hook(&words(line), &mut &b"{}"[..], &mut std::io::sink(), &mut said), 1, "{line}");
            let said = String::from_utf8(said).unwrap();
            assert!(said.contains("[GPOOL-E003]") && said.lines().count() == 1, "{line}: {said}");
        }
    }

    #[test]
    fn a_state_that_names_no_container_stops_the_start() {
        let call = Call::read(&words("create-runtime L --socket /proc/no/socket --shim /etc/hostname")).unwrap();
        for state in ["", "[]", "{}", r#"{"pid":0,"bundle":"/"}"#, r#"{"pid":99}"#, r#"{"pid":99,"bundle":"/proc"}"#] {
            assert_presentable(&create_runtime(&call, state.as_bytes()).unwrap_err());
        }
    }

    #[test]
    fn poststop_never_fails_and_never_waits_long() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        // Accepts nothing, so that an answer never comes.
        let _listener = UnixListener::bind(&socket).unwrap();
        let begun = Instant::now();
        for line in
            [format!("poststop L --socket {}", socket.display()), "poststop L --socket /no".into(), "poststop".into()]
        {
            let mut said = Vec::new();
            assert_eq!(run_hook(&words(&line), &mut &b"{}"[..], &mut std::io::sink(), &mut said), 0, "{line}");
            assert!(said.is_empty(), "{line}");
        }
        assert!(begun.elapsed() < Duration::from_secs(3));
    }

    #[test]
    fn a_supervisor_that_is_restarted_meanwhile_is_told_once_more() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let call = Call::read(&words(&format!("create-runtime L --socket {} --shim /a", socket.display()))).unwrap();
        let patience = || Duration::from_secs(60);
        let answer = |listener: &UnixListener, words: &str| {
            let mut stream = listener.accept().unwrap().0;
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(words.as_bytes()).unwrap();
        };
        let first = UnixListener::bind(&socket).unwrap();
        let served = std::thread::spawn(move || {
            // It ends with the call in its hands, and for a while there is none.
            answer(&first, "");
            std::fs::remove_file(&socket).unwrap();
            drop(first);
            std::thread::sleep(LOOK);
            let second = UnixListener::bind(&socket).unwrap();
            answer(&second, "HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n");
            answer(&second, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        });
        assert_eq!(bind(&call, HostPid(2), patience), Ok(()));
        served.join().unwrap();
    }
}
