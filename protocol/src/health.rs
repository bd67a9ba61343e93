//! What is wrong with a GPU by its own figures.

use serde::{Deserialize, Serialize};

/// Something that a GPU's own figures show to be wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthFinding {
    /// Its name: `remap-failure`, `remap-pending`, `ecc-uncorrected`, `thermal`, `pcie-replay`, `pcie-width` or `test-failed`; of a newer supervisor perhaps another.
    pub kind: String,
    /// Since when it is found, Unix time in milliseconds; one that was there before the supervisor, since that read it first.
    pub since_unix_ms: u64,
    /// What it means, with what was read, as the end of a sentence.
    pub cause: String,
    /// What to do about it.
    pub remedy: String,
    /// The GPU was opened again in spite of it, and is not drained for it until it becomes more or comes back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accepted: bool,
}

/// `ok`, or the names of what was found; `-` where nothing is known.
#[must_use]
pub fn health_words(health: Option<&[HealthFinding]>) -> String {
    match health {
        None => "-".to_owned(),
        Some([]) => "ok".to_owned(),
        Some(found) => found.iter().map(|finding| finding.kind.as_str()).collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_of_which_nothing_is_known_is_not_ok() {
        let finding = |kind: &str| HealthFinding {
            kind: kind.into(),
            since_unix_ms: 1,
            cause: "its clocks are held down".into(),
            remedy: "look at its fans".into(),
            accepted: false,
        };
        assert_eq!([health_words(None), health_words(Some(&[]))], ["-", "ok"]);
        assert_eq!(health_words(Some(&[finding("remap-pending"), finding("thermal")])), "remap-pending thermal");
        let text = serde_json::to_string(&finding("thermal")).unwrap();
        assert!(
            !text.contains("accepted") && serde_json::from_str::<HealthFinding>(&text).unwrap() == finding("thermal")
        );
    }
}
