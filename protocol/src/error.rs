//! Refusals and failures as they travel over the socket.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A stable code that programs may match on and that documentation explains.
///
/// `E0xx` reaching the supervisor, `E1xx` the request, `E2xx` admission, `E3xx` leases, `E4xx` authority,
/// `E5xx` the bundle and the low-level runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the text of each code is its documentation
pub enum ErrorCode {
    #[serde(rename = "GPOOL-E001")]
    SupervisorAbsent,
    #[serde(rename = "GPOOL-E002")]
    SupervisorFailed,
    #[serde(rename = "GPOOL-E003")]
    MessageInvalid,
    #[serde(rename = "GPOOL-E004")]
    ConfigurationInvalid,
    #[serde(rename = "GPOOL-E101")]
    RequestInvalid,
    #[serde(rename = "GPOOL-E102")]
    RequestKeyUnknown,
    #[serde(rename = "GPOOL-E103")]
    RequestFeatureMissing,
    #[serde(rename = "GPOOL-E104")]
    RequestNotAllowedFromEnv,
    #[serde(rename = "GPOOL-E105")]
    RequestNotAllowed,
    #[serde(rename = "GPOOL-E106")]
    LayoutNotPossible,
    #[serde(rename = "GPOOL-E107")]
    LayoutFixed,
    #[serde(rename = "GPOOL-E201")]
    ShareNotFree,
    #[serde(rename = "GPOOL-E202")]
    MemoryNotFree,
    #[serde(rename = "GPOOL-E203")]
    NoGpu,
    #[serde(rename = "GPOOL-E204")]
    NoMechanism,
    #[serde(rename = "GPOOL-E205")]
    TakenOutOfQueue,
    #[serde(rename = "GPOOL-E206")]
    QuotaReached,
    #[serde(rename = "GPOOL-E207")]
    DeadlineNotMet,
    #[serde(rename = "GPOOL-E301")]
    LeaseUnknown,
    #[serde(rename = "GPOOL-E302")]
    LeaseConflict,
    #[serde(rename = "GPOOL-E303")]
    ShimNotOnTop,
    #[serde(rename = "GPOOL-E401")]
    NotPermitted,
    #[serde(rename = "GPOOL-E501")]
    BundleInvalid,
    #[serde(rename = "GPOOL-E502")]
    LowLevelRuntimeAbsent,
    #[serde(rename = "GPOOL-E503")]
    EngineConfiguration,
    #[serde(rename = "GPOOL-E511")]
    CommandNotPrepared,
}

impl ErrorCode {
    /// All of them.
    pub const ALL: [ErrorCode; 26] = [
        ErrorCode::SupervisorAbsent,
        ErrorCode::SupervisorFailed,
        ErrorCode::MessageInvalid,
        ErrorCode::ConfigurationInvalid,
        ErrorCode::RequestInvalid,
        ErrorCode::RequestKeyUnknown,
        ErrorCode::RequestFeatureMissing,
        ErrorCode::RequestNotAllowedFromEnv,
        ErrorCode::RequestNotAllowed,
        ErrorCode::LayoutNotPossible,
        ErrorCode::LayoutFixed,
        ErrorCode::ShareNotFree,
        ErrorCode::MemoryNotFree,
        ErrorCode::NoGpu,
        ErrorCode::NoMechanism,
        ErrorCode::TakenOutOfQueue,
        ErrorCode::QuotaReached,
        ErrorCode::DeadlineNotMet,
        ErrorCode::LeaseUnknown,
        ErrorCode::LeaseConflict,
        ErrorCode::ShimNotOnTop,
        ErrorCode::NotPermitted,
        ErrorCode::BundleInvalid,
        ErrorCode::LowLevelRuntimeAbsent,
        ErrorCode::EngineConfiguration,
        ErrorCode::CommandNotPrepared,
    ];

    /// The code as people see it, `GPOOL-E201`.
    pub fn text(self) -> &'static str {
        match self {
            ErrorCode::SupervisorAbsent => "GPOOL-E001",
            ErrorCode::SupervisorFailed => "GPOOL-E002",
            ErrorCode::MessageInvalid => "GPOOL-E003",
            ErrorCode::ConfigurationInvalid => "GPOOL-E004",
            ErrorCode::RequestInvalid => "GPOOL-E101",
            ErrorCode::RequestKeyUnknown => "GPOOL-E102",
            ErrorCode::RequestFeatureMissing => "GPOOL-E103",
            ErrorCode::RequestNotAllowedFromEnv => "GPOOL-E104",
            ErrorCode::RequestNotAllowed => "GPOOL-E105",
            ErrorCode::LayoutNotPossible => "GPOOL-E106",
            ErrorCode::LayoutFixed => "GPOOL-E107",
            ErrorCode::ShareNotFree => "GPOOL-E201",
            ErrorCode::MemoryNotFree => "GPOOL-E202",
            ErrorCode::NoGpu => "GPOOL-E203",
            ErrorCode::NoMechanism => "GPOOL-E204",
            ErrorCode::TakenOutOfQueue => "GPOOL-E205",
            ErrorCode::QuotaReached => "GPOOL-E206",
            ErrorCode::DeadlineNotMet => "GPOOL-E207",
            ErrorCode::LeaseUnknown => "GPOOL-E301",
            ErrorCode::LeaseConflict => "GPOOL-E302",
            ErrorCode::ShimNotOnTop => "GPOOL-E303",
            ErrorCode::NotPermitted => "GPOOL-E401",
            ErrorCode::BundleInvalid => "GPOOL-E501",
            ErrorCode::LowLevelRuntimeAbsent => "GPOOL-E502",
            ErrorCode::EngineConfiguration => "GPOOL-E503",
            ErrorCode::CommandNotPrepared => "GPOOL-E511",
        }
    }
}

/// A refusal: what happened, with the value and the cause, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The stable code.
    pub code: ErrorCode,
    /// Lower case, no full stop, with the path or value and the cause.
    pub message: String,
    /// What the person can do now.
    pub remedy: String,
}

impl ErrorBody {
    /// A refusal with its three parts.
    pub fn new(code: ErrorCode, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { code, message: message.into(), remedy: remedy.into() }
    }

    /// All of it in one sentence, without gpool's name: for what is told under that name already.
    pub fn sentence(&self) -> String {
        format!("{}; {} [{}]", self.message, self.remedy, self.code.text())
    }
}

impl fmt::Display for ErrorBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gpool: {}", self.sentence())
    }
}

impl std::error::Error for ErrorBody {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_on_the_wire_is_the_code_that_people_see() {
        // A variant that is not in the list would be in no table of the manual that is checked by it.
        let declared = include_str!("error.rs").lines().filter(|line| line.trim().starts_with("#[serde(rename"));
        assert_eq!(ErrorCode::ALL.len(), declared.count());
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_string(&code).unwrap(), format!("\"{}\"", code.text()));
        }
    }
}
