//! A supervisor that is absent, hung or slow: one line within bounded time, whatever it does, and nothing touched.

#[allow(dead_code)] // of what it offers each file uses its own part
mod bundle;

use bundle::{TestBundle, command_line, low_level_or_skip};
use gpool_runtime_hook::{Installation, run};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// A person must hear within 5 s; a machine that is busy with other things is given more.
const GENEROUS: Duration = Duration::from_secs(30);

/// Starts the wrapper with a supervisor that does `act` with each connection. None where there is no runc.
fn told(name: &str, act: impl Fn(UnixStream) + Send + 'static) -> Option<(Value, Duration)> {
    let runc = low_level_or_skip()?;
    let bundle = TestBundle::new(name, "echo started");
    bundle.change(|spec| spec["annotations"] = json!({"gpool.io/fraction": "0.3"}));
    let socket = bundle.dir().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(act));
    let before = std::fs::read(bundle.config()).unwrap();
    let begun = Instant::now();
    assert_eq!(run(&installation(bundle.dir(), &socket, &runc), &command_line(&bundle)), 1);
    let elapsed = begun.elapsed();
    assert_eq!(std::fs::read(bundle.config()).unwrap(), before, "nothing is touched");
    let log = std::fs::read_to_string(bundle.log()).unwrap();
    assert_eq!(log.lines().count(), 1, "{log}");
    Some((serde_json::from_str(&log).unwrap(), elapsed))
}

fn installation(dir: &Path, socket: &Path, runc: &Path) -> Installation {
    let configuration = dir.join("config.toml");
    let text =
        format!("[socket]\npath = {socket:?}\n[runtime]\nlow_level = [{runc:?}]\nsupervisor_patience_seconds = 4\n");
    std::fs::write(&configuration, text).unwrap();
    Installation { configuration, low_level_link: dir.join("run/low-level-runtime") }
}

fn is_one_sentence(line: &Value, code: &str) {
    let message = line["msg"].as_str().unwrap();
    assert!(line["level"] == "error" && message.ends_with(&format!("[{code}]")), "{line}");
    assert!(message.contains("supervisor"), "{line}");
}

#[test]
fn a_silent_supervisor_is_told_within_bounded_time() {
    // Kept open: closing would be an answer.
    let silent = told("silent", std::mem::forget);
    let Some((line, elapsed)) = silent else { return };
    is_one_sentence(&line, "GPOOL-E001");
    assert!(elapsed < GENEROUS, "{elapsed:?}");
}

#[test]
fn a_supervisor_that_sends_byte_by_byte_is_told_within_bounded_time() {
    let slow = told("slow", |mut stream| {
        // One header without an end.
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let Some((line, elapsed)) = slow else { return };
    is_one_sentence(&line, "GPOOL-E002");
    assert!(elapsed < GENEROUS, "{elapsed:?}");
}

#[test]
fn answers_of_every_wrong_kind_are_one_line() {
    for (index, answer) in [
        "",
        "nonsense\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n{",
        "HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 999999999999999999999 OK\r\n\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let wrong = told(&format!("wrong-{index}"), move |mut stream| {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).and_then(|_| stream.write_all(answer.as_bytes()));
        });
        let Some((line, _)) = wrong else { return };
        is_one_sentence(&line, "GPOOL-E002");
    }
}

#[test]
fn a_refusal_that_holds_an_engines_phrases_is_told_without_them() {
    let refusal = json!({"code": "GPOOL-E002", "message": "supervisor: Permission denied (os error 13)\nno such file or \
        directory, invalid config", "remedy": "is a directory"});
    let text = refusal.to_string();
    let refused = told("phrases", move |mut stream| {
        let mut request = [0; 4096];
        let answer = format!("HTTP/1.1 500 no\r\nContent-Length: {}\r\n\r\n{text}", text.len());
        let _ = stream.read(&mut request).and_then(|_| stream.write_all(answer.as_bytes()));
    });
    let Some((line, _)) = refused else { return };
    is_one_sentence(&line, "GPOOL-E002");
    let message = line["msg"].as_str().unwrap().to_lowercase();
    for phrase in ["permission denied", "no such file or directory", "invalid config", "is a directory"] {
        assert!(!message.contains(phrase), "{message}");
    }
}
