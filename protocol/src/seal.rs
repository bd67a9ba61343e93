//! The word by which a host knows its own device plugin.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Stands between what was counted and the seal in the plugin's annotation.
const BEFORE_SEAL: &str = ";seal=";

/// What `gpool-device-plugin` puts beside what a cluster has counted for a container. Who writes pods does not know it, so what has
/// it was counted. It is root's to know: nothing shows it, `Debug` included.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seal(String);

impl Seal {
    /// One of these random bytes.
    #[must_use]
    pub fn of(random: u128) -> Self {
        Self(format!("{random:032x}"))
    }

    /// Reads it as [`Seal::text`] gives it; none for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (text.len() == 32 && text.bytes().all(is_digit)).then(|| Self(text.to_owned()))
    }

    /// The seal itself: not for any eye.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// What was counted, with this seal, as it stands in the annotation.
    #[must_use]
    pub fn put_on(&self, counted: &str) -> String {
        format!("{counted}{BEFORE_SEAL}{}", self.0)
    }

    /// What stands in the annotation before the seal, and the seal. What is written wrongly is no part of the first either: nobody
    /// should be shown it.
    #[must_use]
    pub fn taken_off(annotation: &str) -> (&str, Option<Self>) {
        match annotation.split_once(BEFORE_SEAL) {
            Some((counted, seal)) => (counted, Self::parse(seal)),
            None => (annotation, None),
        }
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Seal(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_read_again_and_the_seal_is_not_shown() {
        let seal = Seal::of(0x51);
        assert_eq!(seal.text(), format!("{}51", "0".repeat(30)));
        let annotation = seal.put_on("percent=30");
        assert_eq!(Seal::taken_off(&annotation), ("percent=30", Some(seal.clone())));
        assert_eq!(Seal::taken_off("percent=30"), ("percent=30", None));
        for wrong in ["", "51", &"0".repeat(31), &"0".repeat(33), &"G".repeat(32), &"A".repeat(32)] {
            assert_eq!(Seal::taken_off(&format!("percent=30;seal={wrong}")), ("percent=30", None), "{wrong}");
        }
        assert!(!format!("{seal:?}").contains("51"));
        let json = serde_json::to_string(&seal).unwrap();
        assert_eq!(serde_json::from_str::<Seal>(&json).unwrap(), seal);
    }
}
