//! GPUs that take no new leases because somebody said so.

use crate::error::{ErrorBody, ErrorCode};
use crate::identity::GpuUuid;
use serde::{Deserialize, Serialize};

/// The longest reason, in characters.
pub const REASON_CHARACTERS: usize = 200;

/// Since when a GPU takes no new leases, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Unix time, milliseconds.
    pub since_unix_ms: u64,
    /// The user who said so; none where the supervisor did by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// In that user's words, which may be none.
    #[serde(default)]
    pub reason: String,
    /// The fault of its own that the supervisor has found, also on a GPU that was drained already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

impl Drain {
    /// Who said so and why, as a sentence's end: `by user 0: new power supply`.
    #[must_use]
    pub fn cause(&self) -> String {
        let said = self.uid.map(|uid| match self.reason.as_str() {
            "" => format!("by user {uid}"),
            reason => format!("by user {uid}: {reason}"),
        });
        let found = self.fault.as_ref().map(|fault| format!("by the supervisor: {fault}"));
        said.into_iter().chain(found).collect::<Vec<_>>().join("; ")
    }

    /// The command that ends it.
    #[must_use]
    pub fn ended_by(&self) -> &'static str {
        if self.fault.is_some() { "gpool gpu undrain --fault" } else { "gpool gpu undrain" }
    }
}

/// Asks that a GPU takes no new leases. Those that it has go on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// Why, for all who are refused; may be empty.
    #[serde(default)]
    pub reason: String,
}

impl DrainRequest {
    /// Whether its reason can be shown in a line.
    ///
    /// # Errors
    /// It is too long, or has control characters. It is not repeated.
    pub fn check(&self) -> Result<(), ErrorBody> {
        let wrong =
            |what: String| Err(ErrorBody::new(ErrorCode::RequestInvalid, what, "give a reason of one short line"));
        if self.reason.chars().any(char::is_control) {
            return wrong("reason has control characters".to_owned());
        }
        match self.reason.chars().count() {
            0..=REASON_CHARACTERS => Ok(()),
            count => wrong(format!("reason has {count} characters, and {REASON_CHARACTERS} at most are kept")),
        }
    }
}

/// Asks that a GPU takes leases again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UndrainRequest {
    /// Also if it was drained for a fault of its own: whoever says so knows of that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fault: bool,
}

/// A GPU that takes no new leases: a whole one or a divided one, with all of its instances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainedGpu {
    /// Stable identity.
    pub uuid: GpuUuid,
    /// NVML's index; none of one that is not there now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Since when, and why.
    #[serde(flatten)]
    pub drain: Drain,
    /// Leases that are still on it or on its instances, kept places not among them.
    pub leases: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_short_line() {
        let check = |reason: &str| DrainRequest { reason: reason.to_owned() }.check();
        assert!(check("").is_ok() && check(&"\u{e9}".repeat(REASON_CHARACTERS)).is_ok());
        assert!(check(&"x".repeat(REASON_CHARACTERS + 1)).unwrap_err().message.contains("201 characters"));
        assert!(check("new\nline").unwrap_err().message.contains("control characters"));
    }

    #[test]
    fn who_said_so_is_told_with_the_reason_if_there_is_one() {
        let drain = Drain { since_unix_ms: 1, uid: Some(1000), reason: "new power supply".into(), fault: None };
        assert_eq!(drain.cause(), "by user 1000: new power supply");
        assert_eq!(Drain { reason: String::new(), ..drain.clone() }.cause(), "by user 1000");
        let fault = Some("Xid 95".to_owned());
        let both = Drain { fault: fault.clone(), ..drain.clone() };
        assert_eq!(both.cause(), "by user 1000: new power supply; by the supervisor: Xid 95");
        assert_eq!((drain.ended_by(), both.ended_by()), ("gpool gpu undrain", "gpool gpu undrain --fault"));
        let alone = Drain { uid: None, reason: String::new(), fault, ..drain.clone() };
        assert_eq!(alone.cause(), "by the supervisor: Xid 95");
        let gpu = DrainedGpu { uuid: GpuUuid("GPU-1".into()), index: None, drain, leases: 2 };
        let text = serde_json::to_string(&gpu).unwrap();
        assert_eq!(text, r#"{"uuid":"GPU-1","since_unix_ms":1,"uid":1000,"reason":"new power supply","leases":2}"#);
        assert_eq!(serde_json::from_str::<DrainedGpu>(&text).unwrap(), gpu);
    }
}
