//! Identities that must not be confused with one another.

use crate::error::{ErrorBody, ErrorCode};
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! text_identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_identity!(
    /// The id that the container engine gave the container.
    ContainerId
);
text_identity!(
    /// A lease: one share granted to one container. Sorts by time of creation.
    LeaseId
);
text_identity!(
    /// A GPU as NVML names it (`GPU-…`), never its index, which changes after a reboot.
    GpuUuid
);

text_identity!(
    /// Which build of a library a file is: its GNU build id, in hexadecimal digits.
    BuildId
);

/// The longest id of a container. Low-level runtimes name directories by it, so none comes near.
const CONTAINER_ID_BYTES: usize = 1024;

/// What to do about an id that is no lease's. Names are the engines' own, whom `gpool` has asked before it says so.
pub const LEASE_UNKNOWN_REMEDY: &str = "gpool ps lists those that there are, by id, and gpool queue ls those that wait for \
     room; docker and podman tell the id of a name: gpool explain \"$(docker inspect -f '{{.Id}}' NAME)\"";

/// Whether a text could be an id.
fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'+' | b'-' | b'.');
    (1..=CONTAINER_ID_BYTES).contains(&text.len()) && text.bytes().all(plain)
}

/// The path, on the supervisor's socket, of the lease that a person named by its id or its container's, or the beginning of
/// one. What passes means nothing else in a path, so that nothing has to be escaped.
///
/// # Errors
/// What cannot be an id is no lease's: [`ErrorCode::LeaseUnknown`].
pub fn lease_path(id: &str) -> Result<String, ErrorBody> {
    if is_plain(id) {
        return Ok(format!("/v1/leases/{id}"));
    }
    Err(ErrorBody::new(
        ErrorCode::LeaseUnknown,
        format!("no lease or container has the id {id:?}: ids are of the characters A-Z, a-z, 0-9, _, +, - and ."),
        LEASE_UNKNOWN_REMEDY,
    ))
}

/// The path of a container that waits for room, named by its id or the beginning of it.
///
/// # Errors
/// As [`lease_path`].
pub fn waiting_path(id: &str) -> Result<String, ErrorBody> {
    if is_plain(id) {
        return Ok(format!("/v1/queue/{id}"));
    }
    Err(ErrorBody::new(
        ErrorCode::LeaseUnknown,
        format!("no container with the id {id:?} waits: ids are of the characters A-Z, a-z, 0-9, _, +, - and ."),
        "gpool queue ls shows those that do",
    ))
}

/// The path of a GPU, named by its index, its UUID or the beginning of that.
///
/// # Errors
/// What cannot be either is no GPU's: [`ErrorCode::RequestInvalid`].
pub fn gpu_path(gpu: &str) -> Result<String, ErrorBody> {
    if is_plain(gpu) {
        return Ok(format!("/v1/gpus/{gpu}"));
    }
    Err(ErrorBody::new(
        ErrorCode::RequestInvalid,
        format!("no GPU is called {gpu:?}"),
        "name it by its index or by its UUID, as gpool gpu ls --format wide shows them",
    ))
}

/// What the cgroups of `gpool run` are called: behind it stand the pid of their maker and twelve more digits.
pub const RUN_CGROUP: &str = "gpool-run-";
/// Those behind the pid.
const RUN_CGROUP_DIGITS: usize = 12;

/// The pid, in digits, of the `gpool run` that has made a cgroup of this name; none of what is called otherwise.
pub fn maker_of_run_cgroup(name: &str) -> Option<&str> {
    let rest = name.strip_prefix(RUN_CGROUP)?;
    let (pid, digits) = rest.split_at_checked(rest.len().checked_sub(RUN_CGROUP_DIGITS)?)?;
    let are_digits =
        digits.bytes().all(|byte| byte.is_ascii_hexdigit()) && pid.bytes().all(|byte| byte.is_ascii_digit());
    (are_digits && !pid.is_empty()).then_some(pid)
}

impl ContainerId {
    /// Whether it is an id as low-level runtimes take them: it is kept in records and events, and shown in logs.
    ///
    /// # Errors
    /// Names the field. The id itself is not repeated.
    pub fn check(&self) -> Result<(), ErrorBody> {
        check_plain("container_id", &self.0)
    }

    /// As people are shown it: of an engine's digits the first twelve, as docker does; of one that has a name in it, all.
    pub fn short(&self) -> &str {
        let is_an_engines = self.0.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.0.get(..12).filter(|_| is_an_engines).unwrap_or(&self.0)
    }
}

fn check_plain(field: &str, text: &str) -> Result<(), ErrorBody> {
    if is_plain(text) {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::MessageInvalid,
        format!("{field} is no id of a container ({} bytes)", text.len()),
        format!("give 1 to {CONTAINER_ID_BYTES} of the characters A-Z, a-z, 0-9, _, +, - and ."),
    ))
}

/// Which container of a pod one is. Each attempt at it has a container id of its own, and these two stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPlace {
    /// The id of the pod's sandbox.
    pub sandbox_id: String,
    /// The container's name in the pod.
    pub container_name: String,
}

impl PodPlace {
    /// Whether both are such names as engines give: they are kept in records.
    ///
    /// # Errors
    /// Names the field. What stands in it is not repeated.
    pub fn check(&self) -> Result<(), ErrorBody> {
        check_plain("in_pod.sandbox_id", &self.sandbox_id)?;
        check_plain("in_pod.container_name", &self.container_name)
    }
}

/// A container of a pod as people call it, by its engine's word. Only for who looks: nothing is decided by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodName {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name in it.
    pub container: String,
}

impl PodName {
    /// Whether these are such names as Kubernetes has: they are kept in records and shown.
    ///
    /// # Errors
    /// Names the field. What stands in it is not repeated.
    pub fn check(&self) -> Result<(), ErrorBody> {
        check_plain("pod.namespace", &self.namespace)?;
        check_plain("pod.pod", &self.pod)?;
        check_plain("pod.container", &self.container)
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

/// A process id in the host's own PID namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostPid(pub u32);

impl fmt::Display for HostPid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_id_is_no_path() {
        assert_eq!(lease_path("9b2117a1dc85"), Ok("/v1/leases/9b2117a1dc85".to_owned()));
        for wrong in ["", " ", "a b", "a/b", "/", "../info", "a?x", "a%2fb", "a#b", "a\r\nX: y", "\u{e9}"] {
            let refused = lease_path(wrong).unwrap_err();
            assert_eq!(refused.code, ErrorCode::LeaseUnknown, "{wrong}");
            assert!(refused.message.contains(&format!("{wrong:?}")) && !refused.message.contains('\n'), "{refused}");
        }
    }

    #[test]
    fn a_cgroup_of_gpool_run_is_known_by_its_name() {
        assert_eq!(maker_of_run_cgroup("gpool-run-4711aaaaaaaaaaaa"), Some("4711"));
        let long = format!("gpool-run-{}", "7".repeat(13));
        assert_eq!(maker_of_run_cgroup(&long), Some("7"));
        for other in [
            "gpool-run-",
            "gpool-run-x",
            "gpool-run-aaaaaaaaaaaa",
            "gpool-run-7aaaaaaaaaa\u{e9}",
            "gpool-run-7aaaaaaaaaax.",
            "run-7aaaaaaaaaaaa",
        ] {
            assert_eq!(maker_of_run_cgroup(other), None, "{other}");
        }
    }

    #[test]
    fn a_container_s_id_is_what_low_level_runtimes_take() {
        let check = |text: &str| ContainerId(text.to_owned()).check();
        let longest = "a".repeat(CONTAINER_ID_BYTES);
        for id in [&"9b2117a1dc85".repeat(5), "x", "run-81f3", "k8s_POD.web+1-0_default", &longest] {
            assert_eq!(check(id), Ok(()), "{id}");
        }
        for id in ["", "a b", "a/b", "a\ngpool-supervisor: ended", "\u{e9}", &format!("{longest}a")] {
            let refused = check(id).unwrap_err();
            assert!(refused.message.contains("container_id") && refused.code == ErrorCode::MessageInvalid, "{refused}");
            assert!(!refused.message.contains('\n') && refused.message.len() < 100, "{refused}");
            let place = PodPlace { sandbox_id: "9b2117a1dc85".into(), container_name: id.to_owned() };
            assert!(place.check().unwrap_err().message.starts_with("in_pod.container_name "));
        }
    }
}
