//! What the scheduler of a cluster counts: what it may give out of this host, and what it has counted for a container.

use crate::request::GPUS_LIMIT;
use crate::seal::Seal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Hundredths of a GPU that a whole one is worth in the resource `gpool.io/percent`.
pub const PERCENT_OF_A_GPU: u16 = 100;

/// The annotation by which gpool's device plugin says how many hundredths the kubelet has counted for a container, under its
/// [`Seal`]. No person writes it.
pub const PERCENT_ANNOTATION: &str = "gpool.io/resource";
/// The same of a MIG instance: another one, so that a container which has both is seen to have both. Behind it stand a dot and the
/// profile, see [`instance_annotation`]; older plugins wrote it as it is.
pub const INSTANCE_ANNOTATION: &str = "gpool.io/resource-mig";

/// The annotation that says that an instance of `profile` was counted: one for each, since an engine keeps one value of a key, and a
/// container which has two is to be seen to have two. A dot stands for the plus sign, as in the name of the resource.
#[must_use]
pub fn instance_annotation(profile: &str) -> String {
    format!("{INSTANCE_ANNOTATION}.{}", profile.replace('+', "."))
}

/// Whether an annotation says what a cluster has counted.
#[must_use]
pub fn is_counted_annotation(key: &str) -> bool {
    let of_instance =
        || key.strip_prefix(INSTANCE_ANNOTATION).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    key == PERCENT_ANNOTATION || of_instance()
}

/// What a cluster has counted for a container: `percent=30`, `mig=1g.10gb`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CountedResource {
    /// So many hundredths of a GPU, on all its GPUs together, 1 to 1600.
    Percent(u16),
    /// A MIG instance of this profile.
    Instance(String),
}

impl CountedResource {
    /// Reads it as [`fmt::Display`] writes it; none for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once('=')? {
            ("percent", number) => {
                let digits = number.bytes().all(|byte| byte.is_ascii_digit());
                let number = number.parse().ok().filter(|_| digits);
                let is_possible = |percent: &u16| (1..=PERCENT_OF_A_GPU * GPUS_LIMIT).contains(percent);
                number.filter(is_possible).map(CountedResource::Percent)
            }
            ("mig", profile) => {
                (!profile.is_empty() && !profile.contains('*')).then(|| CountedResource::Instance(profile.to_owned()))
            }
            _ => None,
        }
    }
}

impl fmt::Display for CountedResource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CountedResource::Percent(percent) => write!(formatter, "percent={percent}"),
            CountedResource::Instance(profile) => write!(formatter, "mig={profile}"),
        }
    }
}

impl From<CountedResource> for String {
    fn from(resource: CountedResource) -> String {
        resource.to_string()
    }
}

impl TryFrom<String> for CountedResource {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is nothing that a cluster counts"))
    }
}

/// How many there are of something, and how many of them a cluster may have given out: what its own containers have, and what is
/// free. What others have on this host is in the first number alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Countable {
    /// All.
    pub all: u32,
    /// What it may give out, what it has given out included.
    pub available: u32,
}

/// What a cluster may count on here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Hundredths of GPUs that are not divided with MIG.
    pub percent: Countable,
    /// MIG instances, by profile.
    #[serde(default)]
    pub instances: Vec<InstanceCount>,
    /// What says of a container that it was counted on this host; told to nobody but who administers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<Seal>,
}

/// MIG instances of one profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceCount {
    /// NVIDIA's name.
    pub profile: String,
    /// How many.
    #[serde(flatten)]
    pub count: Countable,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_read_as_it_is_written() {
        for resource in [CountedResource::Percent(30), CountedResource::Instance("1g.10gb+me".into())] {
            assert_eq!(CountedResource::parse(&resource.to_string()), Some(resource.clone()));
            let json = serde_json::to_string(&resource).unwrap();
            assert_eq!(serde_json::from_str::<CountedResource>(&json).unwrap(), resource);
        }
        for wrong in [
            "",
            "percent",
            "percent=",
            "percent=0",
            "percent=1601",
            "percent=+3",
            "percent=3.5",
            "mig=",
            "mig=1g.10gb*2",
            "x=1",
        ] {
            assert_eq!(CountedResource::parse(wrong), None, "{wrong}");
        }
        assert!(serde_json::from_str::<CountedResource>(r#""percent=0""#).is_err());
    }

    #[test]
    fn annotations_of_the_plugin_are_known_by_their_beginning() {
        for key in [PERCENT_ANNOTATION, INSTANCE_ANNOTATION, &instance_annotation("1g.10gb+me")] {
            assert!(is_counted_annotation(key), "{key}");
        }
        for key in ["gpool.io/resource.web", "gpool.io/resource-migs", "gpool.io/fraction", "resource"] {
            assert!(!is_counted_annotation(key), "{key}");
        }
    }

    #[test]
    fn counts_are_plain_numbers() {
        let count = Countable { all: 7, available: 5 };
        let counts =
            Counts { percent: count, instances: vec![InstanceCount { profile: "1g.10gb".into(), count }], seal: None };
        let json = serde_json::to_value(&counts).unwrap();
        let want = serde_json::json!({"percent": {"all": 7, "available": 5},
            "instances": [{"profile": "1g.10gb", "all": 7, "available": 5}]});
        assert_eq!(json, want);
        assert_eq!(serde_json::from_value::<Counts>(json).unwrap(), counts);
    }
}
