//! `[default_request]`: what a container has that names no share itself.

use crate::keys::ClassName;
use crate::quantity::MemoryAmount;
use crate::rates::Part;
use serde::{Deserialize, Serialize};

/// The least share that a request may name, in thousandths.
const LEAST_PERMILLE: u16 = 10;

/// `[default_request]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DefaultRequest {
    /// The share of a GPU; absent: whoever names none has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<Part>,
    /// The cap of memory; absent: the share's part of the GPU's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryAmount>,
    /// How it uses the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<ClassName>,
    /// Before whom it is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<DefaultPriority>,
    /// Whether a container that says nothing of gpool has that, too, if it asks for GPUs as NVIDIA's runtime has it.
    pub visible_devices: bool,
}

/// A priority of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DefaultPriority {
    /// Has what it was promised.
    Guaranteed,
    /// Has what guaranteed ones leave.
    Burst,
    /// Has what nobody else wants.
    Scavenger,
}

impl DefaultPriority {
    fn text(self) -> &'static str {
        match self {
            Self::Guaranteed => "guaranteed",
            Self::Burst => "burst",
            Self::Scavenger => "scavenger",
        }
    }
}

impl DefaultRequest {
    /// The keys of a request with their values, the share first; none where there is no default.
    #[must_use]
    pub fn keys(&self) -> Vec<(&'static str, String)> {
        let Some(fraction) = self.fraction else { return Vec::new() };
        let memory = self.memory.map(|memory| ("memory", String::from(memory)));
        let class = self.class.map(|class| ("class", class.text().to_owned()));
        let priority = self.priority.map(|priority| ("priority", priority.text().to_owned()));
        [("fraction", String::from(fraction))]
            .into_iter()
            .chain([memory, class, priority].into_iter().flatten())
            .collect()
    }

    /// The first key that is out of range, and what to write.
    pub(crate) fn out_of_range(&self) -> Option<(&'static str, String)> {
        let fraction = self.fraction.filter(|fraction| fraction.permille < LEAST_PERMILLE)?;
        let cause = format!("{:?} is out of range; write \"0.01\" to \"1\"", String::from(fraction));
        Some(("default_request.fraction", cause))
    }

    /// The first key that says something of a share that nobody has, and what to write.
    pub(crate) fn for_nothing(&self) -> Option<(&'static str, String)> {
        let given = [
            ("default_request.memory", self.memory.is_some()),
            ("default_request.class", self.class.is_some()),
            ("default_request.priority", self.priority.is_some()),
            ("default_request.visible_devices", self.visible_devices),
        ];
        let (key, _) = given.into_iter().find(|(_, is_given)| *is_given && self.fraction.is_none())?;
        Some((key, format!("{key} is for nothing without default_request.fraction; write one, or leave {key} out")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::REQUEST_KEYS;

    #[test]
    fn it_is_a_request_once_it_has_a_share() {
        let of = |text: &str| toml::from_str::<DefaultRequest>(text).unwrap().keys();
        assert!(of("memory = \"8GiB\"").is_empty());
        let all = of("fraction = \"0.25\"\nmemory = \"8GiB\"\nclass = \"notebook\"\npriority = \"burst\"");
        let text = |key: &'static str, value: &str| (key, value.to_owned());
        assert_eq!(
            all,
            [text("fraction", "0.25"), text("memory", "8GiB"), text("class", "notebook"), text("priority", "burst")]
        );
        assert!(all.iter().all(|(key, _)| REQUEST_KEYS.contains(key)));
    }
}
