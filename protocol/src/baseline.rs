//! What containers and programs without a lease used of the GPUs, and the request that would be enough for each.

use serde::{Deserialize, Serialize};

/// What keeps users of a GPU apart that have no lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnleasedKind {
    /// A container, by its id.
    Container,
    /// A job of Slurm, by its number.
    Job,
    /// A service of systemd, by its unit.
    Service,
    /// Programs of one name and user.
    Program,
    /// All that were too many to be kept apart, as one.
    #[default]
    Others,
}

impl UnleasedKind {
    /// All of them, the most exact first.
    pub const ALL: [Self; 5] = [Self::Container, Self::Job, Self::Service, Self::Program, Self::Others];

    /// As it is written.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Job => "job",
            Self::Service => "service",
            Self::Program => "program",
            Self::Others => "others",
        }
    }

    /// The one that is written so.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// Who uses a GPU without a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Unleased {
    /// What it is.
    pub kind: UnleasedKind,
    /// A container's id, a job's number, a service's unit, or the name of programs as the kernel has it; empty for others.
    pub name: String,
    /// Whose job, service or programs, and whose container where that is known: of an engine of a user's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// A request that would have been enough.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnoughRequest {
    /// GPUs that it used at once.
    pub gpus: u64,
    /// Its share of each, in thousandths. None where that is not known: it worked in MIG instances alone, or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction_permille: Option<u64>,
    /// Memory of each.
    pub memory_bytes: u64,
    /// Whether it had better have whole GPUs.
    pub is_whole: bool,
}

/// What one of them used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnleasedUse {
    /// Who.
    pub user: Unleased,
    /// The name of a program of it that used a GPU, as the kernel has it.
    pub command: String,
    /// The pod of Kubernetes that the container is of, `NAMESPACE/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// When it was seen first in that time, Unix seconds, where a minute or hour begins.
    pub first_unix_s: u64,
    /// When the last minute or hour ends in which it was.
    pub last_unix_s: u64,
    /// For how long it had a context on a GPU, summed over GPUs.
    pub held_gpu_ns: u64,
    /// For how long of that nobody could see its work, as in MIG instances.
    pub unmetered_gpu_ns: u64,
    /// For how long it kept a GPU at work.
    pub busy_gpu_ns: u64,
    /// For how long it had a context in minutes in which others kept the GPU from it, so that it may have wanted more.
    pub crowded_gpu_ns: u64,
    /// Its share of one GPU that was enough in that part of the time in which it worked, in thousandths.
    pub work_permille: u64,
    /// The most memory of one GPU that it was seen to hold.
    pub memory_peak_bytes: u64,
    /// What would have been enough; none for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enough: Option<EnoughRequest>,
}

/// The answer to `GET /v1/baseline`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// From when on, Unix seconds, where a minute begins.
    pub since_unix_s: u64,
    /// Until when, where one ends.
    pub until_unix_s: u64,
    /// From when on anybody has looked at all, where a minute or hour begins; none while nobody has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_unix_s: Option<u64>,
    /// Until when hours alone are known, over which shares are means; none where all minutes are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours_until_unix_s: Option<u64>,
    /// For which part of the time it is enough, percent.
    pub percent: u8,
    /// For how much of it somebody looked, nanoseconds.
    pub known_ns: u64,
    /// Who used GPUs without a lease; who kept them at work for longest comes first.
    pub users: Vec<UnleasedUse>,
    /// GPUs that would have been enough if each of them had whole ones.
    pub gpus_for_each: u64,
    /// If each had the request that would have been enough for it, beside each other.
    pub gpus_with_requests: u64,
    /// Shared by all of them, so that work and memory are all that counts.
    pub gpus_shared: u64,
    /// How many there were, at most at once, in thousandths: MIG instances count by their compute slices.
    pub there_permille: u64,
    /// GPUs and instances whose memory is not known any more, as they are gone: what was held of them is not counted.
    pub unknown_gpus: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_as_it_is_written() {
        for kind in UnleasedKind::ALL {
            assert_eq!(UnleasedKind::of(kind.word()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.word());
        }
        assert_eq!(UnleasedKind::of("pod"), None);
    }
}
