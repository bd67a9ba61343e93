//! What the scheduler of a cluster has given a container that it has placed on a GPU itself, in gpool's own keys.
//!
//! KAI Scheduler's binder writes variables (pkg/binder/common/gpu_access.go): the part of each GPU, of its memory in KAI's own
//! words, and the GPUs; where its NRI plugin hands devices on, these are an annotation (plugins/gpusharing/gpu_sharing.go). Run:ai,
//! of which KAI was a part, writes the older one of the two names. HAMi's device plugin
//! (pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go), and Volcano's, which is made from it, writes for each GPU how much
//! memory, and for all how many hundredths of their cores.

use crate::defaults::VISIBLE;
use gpool_configuration::Placer;
use gpool_protocol::{ANNOTATION_PREFIX, ENV_PREFIX, ErrorBody, ErrorCode, is_counted_annotation};
use std::collections::BTreeMap;

const PORTIONS: [&str; 2] = ["GPU_PORTION", "RUNAI_NUM_OF_GPUS"];
/// The annotation by which KAI has its NRI plugin give GPUs to a container begins with this, and ends with the container's name.
const OF_NRI: &str = "nvidia.cdi.k8s.io/container.";
const MEMORY: &str = "CUDA_DEVICE_MEMORY_LIMIT";
const CORES: &str = "CUDA_DEVICE_SM_LIMIT";
/// Whether HAMi's hundredths are a ceiling as well.
const CORES_POLICY: &str = "GPU_CORE_UTILIZATION_POLICY";
/// The fraction of one who was given memory and no cores: HAMi does not bound it, and beside who was given some it should not stand
/// still. As burst it would for as long as those have work.
const WITHOUT_CORES: &str = "0.01";
/// Keys that say where a container is and what it has: nobody's but the scheduler's.
const SAID_BY_PLACER: [&str; 9] =
    ["fraction", "memory", "gpus", "device", "model", "min-memory", "mode", "mig-profile", "isolation"];

/// Variables of which a container has one if any of these schedulers has placed it, or what its name begins with.
pub fn marks() -> impl Iterator<Item = &'static str> {
    PORTIONS.into_iter().chain([MEMORY, CORES])
}

/// Whether a variable is one of [`marks`].
pub fn is_mark(entry: &str) -> bool {
    let name = entry.split_once('=').map_or("", |(name, _)| name);
    PORTIONS.contains(&name) || name == CORES || name == MEMORY || is_numbered(name)
}

/// Whether it is HAMi's name for the memory of one of several GPUs.
fn is_numbered(name: &str) -> bool {
    let number = name.strip_prefix(MEMORY).and_then(|rest| rest.strip_prefix('_'));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// What a container was given, by key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    keys: BTreeMap<&'static str, String>,
    by: Placer,
}

/// What `placer` has given a container with that environment and those annotations, which `container` is called in its pod; none if
/// it has not placed it.
///
/// # Errors
/// It has, and does not say where or with how much.
pub fn given(
    placer: Placer,
    env: &[String],
    annotations: &BTreeMap<String, String>,
    container: Option<&str>,
) -> Result<Option<Given>, ErrorBody> {
    match placer {
        Placer::Gpool => Ok(None),
        Placer::Kai => {
            let of_nri = container.and_then(|name| annotations.get(&format!("{OF_NRI}{name}")));
            by_kai(env, of_nri.map(String::as_str))
        }
        Placer::Hami => by_hami(env),
    }
}

fn by_kai(env: &[String], of_nri: Option<&str>) -> Result<Option<Given>, ErrorBody> {
    let by = Placer::Kai;
    let mut said = PORTIONS.iter().filter_map(|name| Some((name, variable(env, name).transpose()?)));
    let Some((name, portion)) = said.next() else { return Ok(None) };
    let portion = portion?;
    if let Some((other, differs)) = said.next()
        && differs? != portion
    {
        return Err(contradicts(name, other));
    }
    let told = variable(env, VISIBLE)?;
    // Beside the annotation the variable is an image's own, which says `all` or the like, or somebody's who names another GPU.
    let named = told.and_then(gpus_in).filter(|_| of_nri.is_some());
    let Some(gpus) = gpus(of_nri.or(told), by)? else { return Ok(None) };
    if named.is_some_and(|named| named != gpus) {
        return Err(contradicts(VISIBLE, &format!("the annotation {OF_NRI}*")));
    }
    let permille = thousandths(portion).ok_or_else(|| {
        refused(
            format!("the container has {name}={portion:?} of a GPU from KAI, which is no share from 0.01 to 1"),
            "ask KAI for a gpu-fraction of at least 0.01, or for more gpu-memory",
        )
    })?;
    let mut keys = on(&gpus);
    keys.insert("fraction", format!("{}.{:03}", permille / 1000, permille % 1000));
    keys.insert("memory", format!("{}.{}%", permille / 10, permille % 10));
    Ok(Some(Given { keys, by }))
}

fn by_hami(env: &[String]) -> Result<Option<Given>, ErrorBody> {
    let by = Placer::Hami;
    let cores = variable(env, CORES)?;
    let has_caps = env.iter().any(|entry| entry.starts_with(MEMORY) && is_mark(entry));
    if !has_caps && cores.is_none() {
        return Ok(None);
    }
    let Some(gpus) = gpus(variable(env, VISIBLE)?, by)? else { return Ok(None) };
    let mut keys = on(&gpus);
    // One for each GPU; older ones have one for all. Others are not HAMi's.
    let numbered = (0..gpus.len()).map(|number| format!("{MEMORY}_{number}"));
    let mut caps = Vec::new();
    for name in numbered {
        caps.extend(variable(env, &name)?.map(|value| (name, value)));
    }
    if caps.is_empty() {
        caps.extend(variable(env, MEMORY)?.map(|value| (MEMORY.to_owned(), value)));
    }
    let bytes_of = |(name, value): &(String, &str)| {
        bytes_of(value).ok_or_else(|| {
            refused(
                format!("the container has {name}={value:?} from HAMi, which is no amount of memory"),
                "ask for nvidia.com/gpumem in MiB",
            )
        })
    };
    // On several GPUs it may be given another part of each, of which the least was given of all.
    let caps: Vec<u64> = caps.iter().map(bytes_of).collect::<Result<_, _>>()?;
    if let Some(bytes) = caps.iter().min() {
        keys.insert("memory", bytes.to_string());
    }
    match cores.unwrap_or("0").trim().parse() {
        Ok(0) => {
            keys.insert("fraction", WITHOUT_CORES.to_owned());
        }
        Ok(cores @ 1..=100) => {
            let fraction = format!("{}.{:02}", cores / 100, cores % 100);
            if variable(env, CORES_POLICY)? == Some("force") {
                keys.insert("limit", fraction.clone());
            }
            keys.insert("fraction", fraction);
        }
        Ok(_) | Err(_) => {
            return Err(refused(
                format!(
                    "the container has {CORES}={:?} from HAMi, which is no number of hundredths",
                    cores.unwrap_or_default()
                ),
                "ask for 0 to 100 of nvidia.com/gpucores",
            ));
        }
    }
    Ok(Some(Given { keys, by }))
}

impl Given {
    /// A container's annotations and environment, with what it was given in them, and gpool's keys for the rest.
    ///
    /// # Errors
    /// An annotation asks for what is the scheduler's to give. What the environment asks for of that may be the image's, and counts
    /// for nothing.
    pub fn laid_over(
        &self,
        annotations: &BTreeMap<String, String>,
        env: &[String],
        container: Option<&str>,
    ) -> Result<(BTreeMap<String, String>, Vec<String>), ErrorBody> {
        let mut annotations = annotations.clone();
        if annotations.keys().any(|key| is_counted_annotation(key)) {
            return Err(refused(
                format!(
                    "the container has a resource of gpool's in its limits, and {} has placed it as well",
                    self.by.name()
                ),
                "leave gpool.io/percent and gpool.io/mig-PROFILE out of the limits, and gpool-device-plugin off nodes with \
                 [policy] placed_by",
            ));
        }
        let is_given = |key: &str| SAID_BY_PLACER.contains(&key) || self.keys.contains_key(key);
        for key in SAID_BY_PLACER.into_iter().chain(self.keys.keys().copied()) {
            let whole = format!("{ANNOTATION_PREFIX}{key}");
            let own = container.map(|name| format!("{whole}.{name}"));
            for written in own.into_iter().chain([whole]) {
                let Some(value) = annotations.remove(&written) else { continue };
                let is_the_same = value.trim().is_empty() || (key == "mode" && value.trim() == "slice");
                if !is_the_same {
                    return Err(refused(
                        format!("{written} is {value:?}, and {self} to the container"),
                        format!(
                            "leave the annotation out: where a container is, and with how much, {} says",
                            self.by.name()
                        ),
                    ));
                }
            }
        }
        let asks_for_it = |entry: &String| {
            let name = entry.split_once('=').and_then(|(name, _)| name.strip_prefix(ENV_PREFIX));
            name.is_some_and(|name| is_given(&name.to_ascii_lowercase().replace('_', "-")))
        };
        let env = env.iter().filter(|entry| !asks_for_it(entry)).cloned().collect();
        let given = self.keys.iter().map(|(key, value)| (format!("{ANNOTATION_PREFIX}{key}"), value.clone()));
        annotations.extend(given);
        Ok((annotations, env))
    }
}

/// `KAI has given fraction=0.500, ...`, in errors.
impl std::fmt::Display for Given {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys: Vec<String> = self.keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        write!(formatter, "{} has given {}", self.by.name(), keys.join(", "))
    }
}

/// What the variable of that name says. What a device plugin says stands before what a pod's author does, and programs see only
/// one of both.
///
/// # Errors
/// There are several, and they differ.
fn variable<'a>(env: &'a [String], name: &str) -> Result<Option<&'a str>, ErrorBody> {
    let mut said = env.iter().filter_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
    let first = said.next();
    match said.find(|other| Some(*other) != first) {
        None => Ok(first),
        Some(_) => Err(contradicts(name, "itself")),
    }
}

fn contradicts(name: &str, other: &str) -> ErrorBody {
    refused(
        format!("the container's {name} contradicts {other}, so that what its scheduler has given it is not known"),
        format!("leave {name} and the other variables of the scheduler out of the pod and its image"),
    )
}

fn on(gpus: &[&str]) -> BTreeMap<&'static str, String> {
    [("device", gpus.join(",")), ("gpus", gpus.len().to_string())].into()
}

/// The GPUs that `told` names; none where the container is to have none.
fn gpus(told: Option<&str>, by: Placer) -> Result<Option<Vec<&str>>, ErrorBody> {
    let told = told.map_or("", str::trim);
    if matches!(told, "void" | "none") {
        return Ok(None);
    }
    gpus_in(told).map(Some).ok_or_else(|| {
        let name = by.name();
        let remedy = match by {
            Placer::Kai => {
                "where its NRI plugin hands GPUs on, let annotations nvidia.cdi.k8s.io/* of pods through to the handler"
            }
            Placer::Hami | Placer::Gpool => "its device plugin writes it with the device list strategy envvar",
        };
        refused(
            format!("the container has a part of a GPU from {name}, and {VISIBLE}={told:?} does not say of which"),
            format!("leave {VISIBLE} to {name}; {remedy}"),
        )
    })
}

/// GPUs by number or UUID, also as CDI devices; none if it is no list of such.
pub fn gpus_in(told: &str) -> Option<Vec<&str>> {
    fn name(device: &str) -> &str {
        device.rsplit_once('=').map_or(device, |(_, name)| name).trim()
    }
    let is_gpu =
        |name: &&str| name.starts_with("GPU-") || (!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()));
    let names: Vec<&str> = told.split(',').map(name).collect();
    names.iter().all(is_gpu).then_some(names)
}

/// A decimal from 0.01 to 1 in thousandths, cut off and not rounded: nobody has more than was counted.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, digits) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(digits) {
        return None;
    }
    let digits: String = digits.chars().chain("000".chars()).take(3).collect();
    let permille = whole.parse::<u16>().ok()?.checked_mul(1000)?.checked_add(digits.parse().ok()?)?;
    (10..=1000).contains(&permille).then_some(permille)
}

/// `3000m`, `3g` or bytes, as HAMi's library reads them.
fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let shift = match text.bytes().last()? {
        b'k' | b'K' => 10,
        b'm' | b'M' => 20,
        b'g' | b'G' => 30,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    let number: u64 = digits.parse().ok().filter(|number| *number > 0)?;
    number.checked_mul(1 << shift)
}

fn refused(message: String, remedy: impl Into<String>) -> ErrorBody {
    ErrorBody::new(ErrorCode::RequestInvalid, message, remedy.into())
}

#[cfg(test)]
#[path = "placed_tests.rs"]
mod tests;
