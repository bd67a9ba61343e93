//! `gpool-hook precreate`: podman's hook that may change config.json before any runtime sees it, so that a share
//! works under whatever runtime podman uses.
//!
//! config.json comes on stdin, and podman takes what stands on stdout for it. Of a hook that fails podman shows no
//! word, only its exit status; so a refusal is put into config.json as a limit of a type that does not exist, whose name is
//! the reason: runc, crun and youki refuse it before they make anything, and say its name. A hook that stops the start
//! stands beside it, for a low-level runtime that would pass over the limit. The system log has the reason as well.

use crate::bundle::CONFIG_LIMIT_BYTES;
use crate::fields::list;
use crate::journal;
use crate::leasing::{Applicant, lease_into};
use crate::podman;
use crate::report::one_line;
use crate::spec::{Described, may_hold_request};
use crate::wrapper::{Installation, unusable_configuration};
use gpool_protocol::{ErrorBody, ErrorCode};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;

/// The verb under which podman calls it.
pub const PRECREATE: &str = "precreate";
/// The verb under which this program says why a start is refused.
pub const REFUSE: &str = "refuse";

/// What podman shall have for the config.json in `stdin`: the same bytes if nothing is asked for.
///
/// # Errors
/// Input that is no config.json of podman's; podman then stops the start without a reason.
pub fn precreate(installation: &Installation, stdin: &mut impl Read) -> Result<Vec<u8>, ErrorBody> {
    let mut bytes = Vec::new();
    let invalid = |what: String| {
        ErrorBody::new(ErrorCode::BundleInvalid, what, "have this hook called by podman alone, in the stage precreate")
    };
    let read = stdin.take(CONFIG_LIMIT_BYTES + 1).read_to_end(&mut bytes);
    if read.is_err() || bytes.len() as u64 > CONFIG_LIMIT_BYTES {
        return Err(invalid("config.json on stdin cannot be read, or is larger than 16 MiB".into()));
    }
    if !may_hold_request(&bytes) {
        return Ok(bytes);
    }
    let spec: Value =
        serde_json::from_slice(&bytes).map_err(|error| invalid(format!("stdin is no config.json ({error})")))?;
    let described = Described::read(&spec);
    if !described.has_request() {
        return Ok(bytes);
    }
    let edited = lease(installation, spec.clone(), &described).or_else(|error| refusing(spec, &error))?;
    serde_json::to_vec(&edited).map_err(|error| invalid(format!("config.json cannot be written ({error})")))
}

fn lease(installation: &Installation, mut spec: Value, described: &Described) -> Result<Value, ErrorBody> {
    let container_id = podman::container_id(&spec).ok_or_else(|| {
        ErrorBody::new(
            ErrorCode::BundleInvalid,
            "config.json names no container of podman, in linux.cgroupsPath or in its mounts",
            "use --runtime gpool with this engine",
        )
    })?;
    let configuration = gpool_configuration::load(&installation.configuration).map_err(unusable_configuration)?;
    // Podman writes the root as an absolute path; the hook runs in no bundle.
    let applicant = Applicant {
        container_id,
        bundle: Path::new("/"),
        asked_for_parent: true,
        starts_once: false,
        is_command: false,
        asks_for_gpus: false,
        // Podman itself, which waits for its hooks.
        maker: String::new(),
        on_waiting: |_| (),
    };
    lease_into(&mut spec, described, &applicant, &configuration)?;
    Ok(spec)
}

/// config.json as it was, with a limit that no low-level runtime knows and a hook that lets no container start. Both come
/// first, before hooks that do something.
fn refusing(mut spec: Value, error: &ErrorBody) -> Result<Value, ErrorBody> {
    let text = one_line(error);
    journal::note(Path::new(journal::SYSTEM_LOG), &text);
    let program = std::env::current_exe().map_err(|_| error.clone())?;
    let hook = json!({
        "path": program.to_str().ok_or_else(|| error.clone())?,
        "args": ["gpool-hook", REFUSE, &text],
        "env": ["GPOOL_HOOK=1"],
    });
    list(&mut spec, &["hooks", "createRuntime"])?.insert(0, hook);
    list(&mut spec, &["process", "rlimits"])?.insert(0, json!({"type": text, "hard": 0, "soft": 0}));
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installation(dir: &Path) -> Installation {
        let configuration = dir.join("config.toml");
        std::fs::write(&configuration, format!("[socket]\npath = {:?}\n", dir.join("absent.sock"))).unwrap();
        Installation { configuration, low_level_link: dir.join("link") }
    }

    #[test]
    fn without_a_request_the_bytes_are_podmans_own() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["{ \"a\" : 1e3 }\n", "{\"annotations\":{\"x\":\"gpool.io\"}}", "no json"] {
            let out = precreate(&installation(dir.path()), &mut text.as_bytes()).unwrap();
            assert_eq!(out, text.as_bytes());
        }
    }

    #[test]
    fn a_refusal_stands_in_config_json_as_its_first_hook() {
        let dir = tempfile::tempdir().unwrap();
        let id = "0".repeat(64);
        let spec = json!({
            "annotations": {"gpool.io/fraction": "0.3"}, "process": {}, "root": {"path": dir.path()},
            "linux": {"cgroupsPath": format!("/p/libpod-{id}"), "namespaces": [{"type": "pid"}]},
            "hooks": {"createRuntime": [{"path": "/other"}]}, "future": u64::MAX,
        });
        let refused = |spec: &Value| {
            let out = precreate(&installation(dir.path()), &mut spec.to_string().as_bytes()).unwrap();
            let out: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(
                (&out["future"], &out["hooks"]["createRuntime"][1]["path"]),
                (&json!(u64::MAX), &json!("/other"))
            );
            let args = out["hooks"]["createRuntime"][0]["args"].clone();
            assert_eq!(args[1], REFUSE);
            assert_eq!(out["process"]["rlimits"][0]["type"], args[2]);
            args[2].as_str().unwrap().to_owned()
        };
        assert!(refused(&spec).contains("[GPOOL-E001]"));
        let mut typo = spec.clone();
        typo["annotations"] = json!({"gpool.io/fractoin": "0.3"});
        assert!(refused(&typo).contains("[GPOOL-E102]"));
        let mut nameless = spec.clone();
        nameless["linux"]["cgroupsPath"] = json!("/docker/x");
        assert!(refused(&nameless).contains("[GPOOL-E501]"));
        // NVIDIA's oci-nvidia-hook.json, for all containers, or docker's --gpus.
        let mut hooked = spec;
        hooked["hooks"]["prestart"] = json!([{"path": "/usr/bin/nvidia-container-toolkit"}]);
        assert!(refused(&hooked).contains("[GPOOL-E001]"), "its hook is left out");
        hooked["process"]["env"] = json!(["NVIDIA_VISIBLE_DEVICES=1,2", "GPOOL_GPUS=1"]);
        assert!(refused(&hooked).contains("deploy.resources.reservations.devices"));
        for manager in ["libpod", "cri-o"] {
            hooked["annotations"]["io.container.manager"] = json!(manager);
            assert!(refused(&hooked).contains("[GPOOL-E001]"), "nobody asked for GPUs in NVIDIA's way");
        }
    }
}
