//! How an error of gpool reaches the person who started the container.
//!
//! Engines read the last JSON line of `--log`, or what stands on stderr; so there is exactly one line in each,
//! and none after a success. Some engines replace messages that hold certain phrases by text of their own, so
//! those phrases never leave gpool.

use gpool_protocol::ErrorBody;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Phrases from which moby and podman conclude that the container's command is at fault, and what is said
/// in their place.
const REPLACED_PHRASES: [(&str, &str); 9] = [
    ("no such file or directory", "it is absent"),
    ("executable file not found", "the executable is absent"),
    ("permission denied", "access refused"),
    ("operation not permitted", "refused by the kernel"),
    ("not a directory", "no folder"),
    ("is a directory", "a folder"),
    ("open executable", "executable"),
    ("invalid config", "unusable config"),
    ("failed to run runc create/exec call", "failed in the low-level runtime"),
];

/// The text of `error` on one line, with nothing in it that an engine would turn into something else.
pub fn one_line(error: &ErrorBody) -> String {
    let mut text = error.to_string().split(char::is_control).map(str::trim).collect::<Vec<_>>().join(" ");
    for (phrase, instead) in REPLACED_PHRASES {
        // Each replacement is free of every phrase, so this ends.
        while let Some(at) = text.to_ascii_lowercase().find(phrase) {
            text.replace_range(at..at + phrase.len(), instead);
        }
    }
    text
}

/// Writes `error` to the engine's log, if it named one, and to stderr.
///
/// Nothing here can fail usefully: who cannot write to either place has nobody left to tell.
pub fn report(error: &ErrorBody, log: Option<&Path>) {
    let text = one_line(error);
    if let Some(log) = log {
        let line = json!({"level": "error", "msg": text, "time": jiff::Timestamp::now().to_string()});
        // Only the file itself is created: a path from the command line must not make directories as root.
        let file = OpenOptions::new().append(true).create(true).open(log);
        let _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    }
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Asserts that `error` reads as every message of gpool must.
#[cfg(test)]
pub(crate) fn assert_presentable(error: &ErrorBody) {
    let text = error.to_string();
    for (phrase, _) in REPLACED_PHRASES {
        assert!(!text.to_ascii_lowercase().contains(phrase), "{phrase:?} in {text}");
    }
    assert!(text.contains("[GPOOL-E"), "{text}");
    assert!(!text.contains('\n'), "{text}");
    assert!(error.message.starts_with(|c: char| !c.is_uppercase()), "{text}");
    assert!(!error.message.ends_with('.') && !error.remedy.ends_with('.'), "{text}");
    assert!(!error.remedy.is_empty(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::ErrorCode;

    #[test]
    fn phrases_of_others_are_replaced_in_any_case_and_order() {
        let message = "Permission denied\nno such file or directory\r\n is a directory, not a directory: \
                       invalid configuration executable file not found";
        let error = ErrorBody::new(ErrorCode::ConfigurationInvalid, message, "operation not permitted");
        let text = one_line(&error);
        for (phrase, _) in REPLACED_PHRASES {
            assert!(!text.to_ascii_lowercase().contains(phrase), "{phrase:?} in {text}");
        }
        assert!(!text.contains('\n') && text.contains("access refused"), "{text}");
    }

    #[test]
    fn the_log_gets_one_line_with_a_valid_time_and_no_directories() {
        let dir = tempfile::tempdir().unwrap();
        let error = ErrorBody::new(ErrorCode::NoGpu, "no gpu is free", "wait");
        let log = dir.path().join("log.json");
        report(&error, Some(&log));
        let text = std::fs::read_to_string(&log).unwrap();
        assert_eq!(text.lines().count(), 1);
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["level"], "error");
        assert_eq!(line["msg"], "gpool: no gpu is free; wait [GPOOL-E203]");
        assert!(line["time"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
        report(&error, Some(&dir.path().join("missing/log.json")));
        assert!(!dir.path().join("missing").exists());
    }
}
