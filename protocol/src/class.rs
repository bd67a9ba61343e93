//! The words for how a container uses its GPU and before whom it is served.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How a container uses the GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Short requests that somebody waits for.
    Latency,
    /// Works for as long as it gets.
    #[default]
    Batch,
    /// Works when a person has pressed a key.
    Notebook,
    /// A training job.
    Train,
}

impl Class {
    /// All classes, as they are listed to people.
    pub const ALL: [Class; 4] = [Class::Latency, Class::Batch, Class::Notebook, Class::Train];

    /// The class as it is written.
    pub fn text(self) -> &'static str {
        match self {
            Class::Latency => "latency",
            Class::Batch => "batch",
            Class::Notebook => "notebook",
            Class::Train => "train",
        }
    }

    /// Reads a class.
    ///
    /// # Errors
    /// The words there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        word(text, &Self::ALL, Self::text)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Before whom a container is served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// Has a share that was promised.
    #[default]
    Guaranteed,
    /// Runs while no guaranteed container wants the GPU.
    Burst,
    /// Runs while nobody else wants the GPU.
    Scavenger,
}

impl Priority {
    /// All priorities, as they are listed to people.
    pub const ALL: [Priority; 3] = [Priority::Guaranteed, Priority::Burst, Priority::Scavenger];

    /// The priority as it is written.
    pub fn text(self) -> &'static str {
        match self {
            Priority::Guaranteed => "guaranteed",
            Priority::Burst => "burst",
            Priority::Scavenger => "scavenger",
        }
    }

    /// Reads a priority.
    ///
    /// # Errors
    /// The words there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        word(text, &Self::ALL, Self::text)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

pub(crate) fn word<T: Copy>(text: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, String> {
    let found = all.iter().copied().find(|one| name(*one) == text.trim());
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|one| name(*one)).collect();
        format!("it is one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_that_is_read_is_the_word_on_the_wire() {
        for class in Class::ALL {
            assert_eq!(Class::parse(class.text()), Ok(class));
            assert_eq!(serde_json::to_string(&class).unwrap(), format!("\"{class}\""));
        }
        for priority in Priority::ALL {
            assert_eq!(Priority::parse(priority.text()), Ok(priority));
            assert_eq!(serde_json::to_string(&priority).unwrap(), format!("\"{priority}\""));
        }
        assert_eq!(Class::parse("Batch").unwrap_err(), "it is one of latency, batch, notebook, train");
    }
}
