//! The GPUs that gpool serves, by their UUIDs.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// `[driver] gpus`: UUIDs of boards, each once; empty: all that there are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Gpus(Vec<String>);

/// Digits between the hyphens of a UUID.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

impl TryFrom<Vec<String>> for Gpus {
    type Error = String;

    fn try_from(uuids: Vec<String>) -> Result<Self, String> {
        if let Some(wrong) = uuids.iter().find(|uuid| !is_of_a_board(uuid)) {
            let remedy = match wrong.starts_with("MIG-") {
                true => "name the GPU that the MIG instance is on",
                false => "write it as nvidia-smi -L shows it",
            };
            return Err(format!(
                "{wrong:?} is no UUID of a GPU; {remedy}, for example \"GPU-51313131-0000-4000-8000-000000000000\""
            ));
        }
        let mut seen = BTreeSet::new();
        match uuids.iter().find(|uuid| !seen.insert(uuid.as_str())) {
            Some(twice) => Err(format!("{twice:?} is named twice; name each GPU once")),
            None => Ok(Self(uuids)),
        }
    }
}

impl From<Gpus> for Vec<String> {
    fn from(gpus: Gpus) -> Self {
        gpus.0
    }
}

impl Gpus {
    /// Those that are named.
    #[must_use]
    pub fn named(&self) -> &[String] {
        &self.0
    }

    /// Whether gpool serves the board with this UUID.
    #[must_use]
    pub fn serve(&self, uuid: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|named| named == uuid)
    }
}

/// `GPU-` and 32 lower-case hexadecimal digits in groups, as NVML prints them.
fn is_of_a_board(uuid: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let groups: Vec<&str> = uuid.strip_prefix("GPU-").unwrap_or_default().split('-').collect();
    groups.iter().map(|group| group.len()).eq(GROUPS) && groups.iter().all(|group| group.bytes().all(is_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "GPU-51313131-0000-4000-8000-000000000001";
    const OTHER: &str = "GPU-9a0c8f12-aa00-4b3c-8d1e-0123456789ab";

    fn read(uuids: &[&str]) -> Result<Gpus, String> {
        Gpus::try_from(uuids.iter().map(|uuid| (*uuid).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn only_what_is_named_is_served_and_without_names_everything() {
        let named = read(&[OTHER]).unwrap();
        assert!(named.serve(OTHER) && !named.serve(ONE));
        assert!(read(&[]).unwrap().serve(ONE));
        assert_eq!(read(&[ONE, OTHER]).unwrap().named(), [ONE, OTHER]);
    }

    #[test]
    fn what_names_no_board_or_one_twice_is_refused_with_what_to_write() {
        let upper = OTHER.to_uppercase();
        for wrong in ["0", "", "GPU-", "all", &ONE[4..], &ONE[..39], &upper, "GPU-51313131-0000-4000-8000-00000000000g"]
        {
            let error = read(&[ONE, wrong]).unwrap_err();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("nvidia-smi -L"), "{error}");
        }
        let error = read(&["MIG-51313131-0000-4000-8000-000000000001"]).unwrap_err();
        assert!(error.contains("the GPU that the MIG instance is on"), "{error}");
        let error = read(&[ONE, OTHER, ONE]).unwrap_err();
        assert!(error.contains(ONE) && error.contains("named twice"), "{error}");
    }
}
