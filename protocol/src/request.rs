//! The request grammar: which keys a container may carry, and what their values mean.

mod counted;
mod deadline;
mod keys;
mod links;
mod promise;

pub use deadline::Deadline;
pub use keys::{RequestSource, request_keys};
pub use promise::{check_p99, parse_p99};

use crate::class::{Class, Priority};
use crate::counted::CountedResource;
use crate::error::{ErrorBody, ErrorCode};
use crate::mechanism::{Isolation, Mode};
use crate::quantity::{
    LEAST_BYTES, LONGEST_SECONDS, MemoryCap, format_permille, parse_bytes, parse_permille, parse_time,
};
use crate::seal::Seal;
use counted::take_counted;
use keys::{Entry, collect, explain_replacing};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Annotations that gpool reads start with this.
pub const ANNOTATION_PREFIX: &str = "gpool.io/";
/// Environment variables that gpool reads start with this.
pub const ENV_PREFIX: &str = "GPOOL_";

/// GPUs that one container can have.
pub const GPUS_LIMIT: u16 = 16;
/// A MIG profile's name is no longer, in bytes.
const PROFILE_LENGTH: usize = 32;
/// Models that a request names.
const MODELS_LIMIT: usize = 8;
/// The name of a GPU is no longer, in bytes: that of NVML is `GPU-` and 36 letters.
const DEVICE_LENGTH: usize = 40;
/// The name of one is no longer, in bytes.
const MODEL_LENGTH: usize = 64;
/// A team's name is no longer, in bytes.
const NAME_LENGTH: usize = 63;

/// A refused request; its text names the key, the value and the remedy.
pub type RequestError = ErrorBody;

/// What a container asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Share of each of its GPUs' compute, in permille (10 to 1000), or of the instance's that a profile names; 1000 for
    /// whole GPUs, 0 for the driver's time slices as they are and for a MIG instance of which only the profile or the memory matters.
    pub fraction_permille: u16,
    /// How it is to get that.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Mode,
    /// The profile of its MIG instance, of which it gets a share with mode=slice; absent: the smallest that has the share
    /// and the memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<String>,
    /// What has to keep its neighbours apart; absent: anything will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// The most that it may have of each GPU, in permille, not below the fraction; absent: idle time may be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_permille: Option<u16>,
    /// Cap on the memory of each GPU, contexts included; absent: fraction x the GPU's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryCap>,
    /// How much of what it allocates beyond that may lie in the host's memory, in bytes, of all its GPUs together; absent: nothing, and it
    /// is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill_bytes: Option<u64>,
    /// Number of GPUs, 1 to 16, all or none.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub gpus: u16,
    /// Which GPUs will do, each by its number or the beginning of its UUID as `nvidia-smi -L` has them; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Which models of GPUs will do, by words of their product names; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// How much memory each GPU has at least, in bytes, whoever holds that; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_memory_bytes: Option<u64>,
    /// How it uses the GPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub class: Class,
    /// How long 99 of 100 of its requests are to take at most, in nanoseconds, with `class` latency; absent: nobody watches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<u64>,
    /// Before whom it is served.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Who pays, and whose debts count as its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// For which project, which the ledger keeps apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// On whose bill; absent: that of the team, where the host knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_center: Option<String>,
    /// How long it waits for room if there is none, in seconds; absent: it is refused at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<u64>,
    /// For how long it has its GPUs at most, in seconds from when it is granted; absent: for as long as its container runs, or as its
    /// host says for the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_seconds: Option<u64>,
    /// By when it has to be through; absent: nobody plans for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Deadline>,
    /// What a cluster has counted for it, which the other fields already say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<CountedResource>,
    /// By what the host's device plugin is known that says so. The supervisor takes it out, so that it is nowhere kept or shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<Seal>,
}

fn one() -> u16 {
    1
}

fn is_one(gpus: &u16) -> bool {
    *gpus == 1
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Request {
    /// Reads the request of a container, or none when no key is for it.
    ///
    /// # Errors
    /// An unknown key, a key whose feature has not landed, a key that the environment may not set, or a
    /// value outside its range. Nothing is guessed: a mistyped key must not silently give another share.
    pub fn read(source: RequestSource<'_>) -> Result<Option<Self>, RequestError> {
        let mut entries = collect(source)?;
        if entries.is_empty() {
            return Ok(None);
        }
        let (resource, seal) = take_counted(&mut entries)?.unzip();
        let isolation =
            entries.get("isolation").map(|entry| told(entry, Isolation::parse(&entry.value))).transpose()?;
        // Without either it is a share, as it always was; isolation is for the table to find a mechanism for.
        let unnamed = match isolation {
            _ if entries.contains_key("mig-profile") => Mode::Mig,
            Some(_) => Mode::Auto,
            None => Mode::Slice,
        };
        let mode = entries.get("mode").map_or(Ok(unnamed), |entry| told(entry, Mode::parse(&entry.value)))?;
        let fraction_permille = match (entries.get("fraction"), mode) {
            (Some(fraction), _) => permille(fraction)?,
            (None, Mode::Exclusive) => 1000,
            (None, Mode::TimeSlice) => 0,
            (None, Mode::Mig) if entries.contains_key("mig-profile") || entries.contains_key("memory") => 0,
            (None, Mode::Mig) => {
                return Err(ErrorBody::new(
                    ErrorCode::RequestInvalid,
                    "mode=mig given, but not how large an instance",
                    "add mig-profile, for example 1g.10gb, or memory, or a fraction of the GPU",
                ));
            }
            (None, Mode::Auto | Mode::Slice | Mode::Mps) => {
                let present: Vec<&str> = entries.values().map(|entry| entry.written_as.as_str()).collect();
                let others = source.container_name.map_or(String::new(), keys::for_another);
                return Err(ErrorBody::new(
                    ErrorCode::RequestInvalid,
                    format!("{} given, but no fraction", present.join(", ")),
                    format!(
                        "add a fraction, for example 0.3: GPOOL_FRACTION, the annotation gpool.io/fraction or gpool run --fraction{others}"
                    ),
                ));
            }
        };
        let request = Self {
            fraction_permille,
            mode,
            mig_profile: entries
                .get("mig-profile")
                .map(|entry| told(entry, parse_profile(&entry.value)))
                .transpose()?,
            isolation,
            limit_permille: entries.get("limit").map(permille).transpose()?,
            memory: entries.get("memory").map(|entry| told(entry, MemoryCap::parse(&entry.value))).transpose()?,
            spill_bytes: entries.get("spill").map(|entry| told(entry, parse_bytes(&entry.value))).transpose()?,
            gpus: entries.get("gpus").map_or(Ok(1), |entry| told(entry, parse_gpus(&entry.value)))?,
            devices: entries.get("device").map_or(Ok(Vec::new()), |entry| told(entry, parse_devices(&entry.value)))?,
            models: entries.get("model").map_or(Ok(Vec::new()), |entry| told(entry, parse_models(&entry.value)))?,
            min_memory_bytes: entries
                .get("min-memory")
                .map(|entry| told(entry, parse_bytes(&entry.value)))
                .transpose()?,
            class: entries
                .get("class")
                .map_or(Ok(Class::default()), |entry| told(entry, Class::parse(&entry.value)))?,
            p99_ns: entries.get("p99").map(|entry| told(entry, parse_p99(&entry.value))).transpose()?,
            priority: entries
                .get("priority")
                .map_or(Ok(Priority::default()), |entry| told(entry, Priority::parse(&entry.value)))?,
            team: payer(&entries, "team", "a team")?,
            project: payer(&entries, "project", "a project")?,
            cost_center: payer(&entries, "cost-center", "a cost center")?,
            wait_seconds: entries
                .get("wait")
                .map(|entry| told(entry, parse_time(&entry.value)))
                .transpose()?
                .filter(|seconds| *seconds > 0),
            run_seconds: entries.get("run-time").map(|entry| told(entry, parse_run_time(&entry.value))).transpose()?,
            deadline: entries.get("deadline").map(|entry| told(entry, Deadline::parse(&entry.value))).transpose()?,
            resource,
            seal: seal.flatten(),
        };
        request.check().map_err(|error| explain_replacing(error, &entries, source.container_name))?;
        Ok(Some(request))
    }

    /// Whether the values go together and lie in their ranges: what came over the socket may not have come from
    /// [`Request::read`].
    ///
    /// # Errors
    /// Names the first value that does not, and what it may be.
    pub fn check(&self) -> Result<(), RequestError> {
        let wrong = |message: String, remedy: &str| Err(ErrorBody::new(ErrorCode::RequestInvalid, message, remedy));
        self.check_unbounded()?;
        self.check_spill()?;
        self.check_promise()?;
        self.check_deadline()?;
        let has_no_share = matches!(self.mode, Mode::TimeSlice | Mode::Mig) && self.fraction_permille == 0;
        if !has_no_share && !(10..=1000).contains(&self.fraction_permille) {
            return wrong(
                format!("a fraction of {} cannot be", format_permille(self.fraction_permille.into())),
                "ask for a share between 0.01 and 1",
            );
        }
        check_limit(self.fraction_permille, self.limit_permille)?;
        if self.wait_seconds.is_some_and(|seconds| seconds > LONGEST_SECONDS) {
            return wrong("wait is longer than a year".into(), "ask for 365d or less");
        }
        if self.run_seconds.is_some_and(|seconds| !(1..=LONGEST_SECONDS).contains(&seconds)) {
            return wrong("run-time lies between a second and a year".into(), "ask for 1s to 365d, or leave it out");
        }
        if self.devices.len() > usize::from(GPUS_LIMIT) || !self.devices.iter().all(|name| is_device(name)) {
            return wrong("the names of GPUs cannot be".into(), "give up to 16 numbers or UUIDs of GPUs");
        }
        if self.models.len() > MODELS_LIMIT || !self.models.iter().all(|name| is_model(name)) {
            return wrong(
                "the names of models cannot be".into(),
                "give up to 8 names of letters, digits, spaces and dashes",
            );
        }
        if !(1..=GPUS_LIMIT).contains(&self.gpus) {
            return wrong(format!("gpus={} cannot be", self.gpus), "ask for 1 to 16 GPUs");
        }
        if let Some(profile) = &self.mig_profile {
            if !matches!(self.mode, Mode::Mig | Mode::Slice) {
                return wrong(
                    format!("mig-profile does not go with mode={}", self.mode.text()),
                    "leave mode out for a whole instance, or ask for mode=slice for a share of one",
                );
            }
            if self.gpus != 1 {
                return wrong("gpus does not go with mig-profile, which is one instance".into(), "leave gpus out");
            }
            if let Err(cause) = parse_profile(profile) {
                return wrong("the MIG profile's name is not valid".into(), &cause);
            }
        }
        for (what, name) in [("a team", &self.team), ("a project", &self.project), ("a cost center", &self.cost_center)]
        {
            if let Some(Err(cause)) = name.as_deref().map(|name| parse_payer(name, what)) {
                return wrong(format!("the name of {what} is not valid"), &cause);
            }
        }
        Ok(())
    }
}

impl Request {
    /// An instance is one, and all of it its container's.
    fn check_instance(&self) -> Result<(), RequestError> {
        let key = match self {
            _ if self.limit_permille.is_some() => "limit",
            _ if self.priority != Priority::Guaranteed => "priority",
            _ if self.gpus != 1 => "gpus",
            _ if self.isolation == Some(Isolation::Exclusive) => "isolation=exclusive",
            _ if matches!(self.memory, Some(MemoryCap::Permille(_))) => "a memory in per cent",
            _ => return Ok(()),
        };
        Err(ErrorBody::new(
            ErrorCode::RequestInvalid,
            format!("{key} does not go with mode=mig, which is one whole instance"),
            format!("leave {key} out, or ask for mode=slice or mode=exclusive"),
        ))
    }

    /// A server of one team: it has no turns to bound and nobody to be served before, and keeps nobody apart.
    fn check_mps(&self) -> Result<(), RequestError> {
        let key = match self {
            _ if self.limit_permille.is_some() => "limit",
            _ if self.priority != Priority::Guaranteed => "priority",
            _ if self.isolation.is_some_and(|isolation| isolation > Isolation::Shared) => "isolation",
            _ if self.team.is_none() => {
                return Err(ErrorBody::new(
                    ErrorCode::RequestInvalid,
                    "mode=mps given, but no team: containers under one MPS server share its faults",
                    "add the annotation gpool.io/team, or ask for mode=slice",
                ));
            }
            _ => return Ok(()),
        };
        Err(ErrorBody::new(
            ErrorCode::RequestInvalid,
            format!("{key} does not go with mode=mps"),
            format!("leave {key} out, or ask for mode=slice"),
        ))
    }

    /// The shims alone have memory go to the host's, and only a share has them.
    fn check_spill(&self) -> Result<(), RequestError> {
        let Some(bytes) = self.spill_bytes else { return Ok(()) };
        if !matches!(self.mode, Mode::Auto | Mode::Slice) {
            return Err(ErrorBody::new(
                ErrorCode::RequestInvalid,
                format!(
                    "spill does not go with mode={}, in which nothing is between a program and the driver",
                    self.mode.text()
                ),
                "leave spill out, or ask for mode=slice, with fraction=1 for all of a GPU's time",
            ));
        }
        if bytes < LEAST_BYTES {
            return Err(ErrorBody::new(
                ErrorCode::RequestInvalid,
                "spill is at least 1MiB",
                "ask for more, for example 8GiB, or leave spill out",
            ));
        }
        Ok(())
    }

    /// Nothing bounds who has whole GPUs: there is nothing to ask for. Who takes part in the driver's time slices has what the hardware
    /// and the driver keep, which the host knows.
    fn check_unbounded(&self) -> Result<(), RequestError> {
        let whole = match self.mode {
            Mode::Auto | Mode::Slice => return Ok(()),
            Mode::Mig => return self.check_instance(),
            Mode::Mps => return self.check_mps(),
            Mode::Exclusive => 1000,
            Mode::TimeSlice => 0,
        };
        let key = match self {
            // Whether the hardware keeps a fraction of time slices, and the driver a cap, the host says.
            _ if self.fraction_permille != whole && self.mode != Mode::TimeSlice => "fraction",
            _ if self.mode == Mode::TimeSlice && self.fraction_permille > 0 && self.gpus != 1 => "gpus with a fraction",
            _ if self.limit_permille.is_some() => "limit",
            _ if self.memory.is_some() && self.mode != Mode::TimeSlice => "memory",
            _ if self.priority != Priority::Guaranteed => "priority",
            _ if self.mode == Mode::TimeSlice
                && self.isolation.is_some_and(|isolation| isolation > Isolation::Shared) =>
            {
                "isolation"
            }
            _ => return Ok(()),
        };
        Err(ErrorBody::new(
            ErrorCode::RequestInvalid,
            format!("{key} does not go with mode={}, which has no cap", self.mode.text()),
            format!("leave {key} out, or ask for mode=slice"),
        ))
    }
}

/// Whether a ceiling goes with a share.
///
/// # Errors
/// Names both when the ceiling is below the share or above the whole GPU.
pub fn check_limit(fraction_permille: u16, limit_permille: Option<u16>) -> Result<(), RequestError> {
    let Some(limit) = limit_permille else { return Ok(()) };
    if (fraction_permille..=1000).contains(&limit) {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::RequestInvalid,
        format!(
            "a limit of {} does not go with a fraction of {}",
            format_permille(limit.into()),
            format_permille(fraction_permille.into())
        ),
        "give a limit between the fraction and 1, or none",
    ))
}

fn permille(entry: &Entry) -> Result<u16, RequestError> {
    told(entry, parse_permille(&entry.value))
}

fn told<T, E: ToString>(entry: &Entry, parsed: Result<T, E>) -> Result<T, RequestError> {
    parsed.map_err(|cause| invalid(entry, &cause.to_string()))
}

/// A time of which there is some.
fn parse_run_time(text: &str) -> Result<u64, String> {
    let seconds = parse_time(text).map_err(|error| error.to_string())?;
    let is_one = seconds > 0;
    is_one.then_some(seconds).ok_or_else(|| "a run time is 1s at least; leave it out to run without an end".to_owned())
}

/// A plain number of GPUs.
fn parse_gpus(text: &str) -> Result<u16, String> {
    let text = text.trim();
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = text.parse().ok().filter(|gpus| digits && (1..=GPUS_LIMIT).contains(gpus));
    parsed.ok_or_else(|| "a number of GPUs lies between 1 and 16".to_owned())
}

/// Letters, digits, dots, plus signs and dashes, a letter or digit first: `1g.10gb+me`, and `1g.24gb-me` of newer boards.
fn parse_profile(text: &str) -> Result<String, String> {
    let text = text.trim();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-');
    let starts_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let is_one = starts_well && text.len() <= PROFILE_LENGTH && text.bytes().all(plain);
    is_one.then(|| text.to_owned()).ok_or_else(|| "a profile is named like 1g.10gb or 3g.40gb".to_owned())
}

/// Numbers or UUIDs of GPUs with commas between them.
fn parse_devices(text: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if names.iter().all(|name| is_device(name)) && names.len() <= usize::from(GPUS_LIMIT) {
        return Ok(names);
    }
    let of_instance = names.iter().any(|name| name.starts_with("MIG-"));
    Err(match of_instance {
        true => "an instance of MIG is asked for with mig-profile; device names the GPU that has it".into(),
        false => format!(
            "write the number or the UUID of a GPU as nvidia-smi -L has it, up to {GPUS_LIMIT} with commas between them; how many \
             of them one gets is for gpus to say"
        ),
    })
}

/// The number of a GPU, or its UUID or the beginning of that, in which no two GPUs of a host agree for long.
fn is_device(name: &str) -> bool {
    let is_number = !name.is_empty() && name.len() <= 3 && name.bytes().all(|byte| byte.is_ascii_digit());
    let is_of_uuid = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_number || (name.len() <= DEVICE_LENGTH && name.strip_prefix("GPU-").is_some_and(is_of_uuid))
}

/// Names of models with commas between them.
fn parse_models(text: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if names.iter().all(|name| is_model(name)) && names.len() <= MODELS_LIMIT {
        return Ok(names);
    }
    Err(format!("write words of a GPU's name, for example H100, up to {MODELS_LIMIT} with commas between them"))
}

/// Words of a product's name.
fn is_model(name: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, ' ' | '-' | '.' | '_' | '/' | '+');
    name.len() <= MODEL_LENGTH
        && name.chars().all(plain)
        && name.contains(|letter: char| letter.is_ascii_alphanumeric())
}

/// Who pays, by one of the keys that say so.
fn payer(entries: &BTreeMap<String, Entry>, key: &str, what: &str) -> Result<Option<String>, RequestError> {
    entries.get(key).map(|entry| told(entry, parse_payer(&entry.value, what))).transpose()
}

/// A plain identifier, so that it can stand in file names, labels and tables as it is; the error says `what` it is of.
pub(crate) fn parse_payer(text: &str, what: &str) -> Result<String, String> {
    let text = text.trim();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let starts_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if starts_well && text.len() <= NAME_LENGTH && text.bytes().all(plain) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{what} is at most {NAME_LENGTH} letters, digits, dots, dashes and underscores, a letter or digit first"
    ))
}

fn invalid(entry: &Entry, expected: &str) -> RequestError {
    ErrorBody::new(ErrorCode::RequestInvalid, format!("{}={:?} is not valid", entry.written_as, entry.value), expected)
}

#[cfg(test)]
mod tests;
