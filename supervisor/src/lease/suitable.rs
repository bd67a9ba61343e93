//! Which GPUs of this host will do for a request that says what they have to be.

use super::grant::Leases;
use crate::device::{Gpu, Kind};
use gpool_policy::mechanism::Suitable;
use gpool_protocol::{ErrorBody, ErrorCode, LeaseRequest, MemoryCap, Request, format_bytes};
use std::collections::BTreeSet;

/// What a request says of its GPUs, which of `gpus` it names with it.
pub fn suitable_for(request: &Request, gpus: &[Gpu]) -> Suitable {
    Suitable {
        keys: Suitable::keys_of(&request.devices, boards(gpus).map(|gpu| (gpu.index, gpu.uuid.0.as_str()))),
        models: request.models.clone(),
        least_memory_bytes: request.min_memory_bytes.unwrap_or(0),
    }
}

/// The GPUs themselves, without the instances of those that are divided.
fn boards(gpus: &[Gpu]) -> impl Iterator<Item = &Gpu> + Clone {
    gpus.iter().filter(|gpu| matches!(gpu.kind, Kind::Whole | Kind::Divided))
}

/// Whether this host has enough such GPUs, whoever is on them.
///
/// # Errors
/// It has not; names those that it has.
pub fn check_suitable(request: &Request, gpus: &[Gpu]) -> Result<(), ErrorBody> {
    let suitable = suitable_for(request, gpus);
    if suitable.is_any() {
        return Ok(());
    }
    let count = boards(gpus).filter(|gpu| has(&suitable, gpu)).count();
    let wanted = usize::from(request.gpus.max(1));
    if count >= wanted {
        return Ok(());
    }
    let shown = |gpu: &Gpu| {
        let what = format!("{} with {}", gpu.name, format_bytes(gpu.memory_total_bytes));
        if request.devices.is_empty() { what } else { format!("{} ({}, {what})", gpu.index, gpu.uuid) }
    };
    let there: BTreeSet<String> = boards(gpus).map(shown).collect();
    let there = if there.is_empty() { "no GPU".to_owned() } else { there.into_iter().collect::<Vec<_>>().join(", ") };
    let how_many = match (wanted, count) {
        (1, _) => "no GPU".to_owned(),
        (wanted, count) => format!("{count} and not {wanted} GPUs"),
    };
    Err(ErrorBody::new(
        ErrorCode::NoGpu,
        format!(
            "{how_many} that gpool serves {} what is asked for ({}): there is {there}",
            if wanted == 1 { "is" } else { "are" },
            described(request)
        ),
        match request.devices.is_empty() {
            true => "name a model that is there, or leave model and min-memory out (gpool gpu ls lists the GPUs)",
            false => {
                "name a GPU that is there, or leave device out; one that is on this host and not among them does not answer, or is \
                 left out by [driver] gpus or min_memory (gpool gpu ls)"
            }
        },
    ))
}

/// Those of the `open` GPUs that will do.
///
/// # Errors
/// The others that would are not to be had as a whole.
pub fn only_suitable(request: &Request, open: Vec<usize>, gpus: &[Gpu]) -> Result<Vec<usize>, ErrorBody> {
    let suitable = suitable_for(request, gpus);
    let (had, mut open) = (open.len(), open);
    open.retain(|gpu| has(&suitable, &gpus[*gpu]));
    // With none but suitable ones others say what is missing.
    if open.len() == had || open.len() >= usize::from(request.gpus.max(1)) {
        return Ok(open);
    }
    Err(ErrorBody::new(
        ErrorCode::NoMechanism,
        format!("GPUs that are what is asked for ({}) are divided with MIG, or about to be", described(request)),
        "name another one, or add mig-profile for an instance (gpool mig show lists them)",
    ))
}

/// Those of the `open` GPUs that keep a fraction by time slices.
///
/// # Errors
/// None of them does: others of this host do, which will not do.
pub fn only_kept(open: Vec<usize>, keeps: impl Fn(usize) -> bool) -> Result<Vec<usize>, ErrorBody> {
    let kept: Vec<usize> = open.iter().copied().filter(|gpu| keeps(*gpu)).collect();
    if kept.is_empty() && !open.is_empty() {
        return Err(ErrorBody::new(
            ErrorCode::NoMechanism,
            "no GPU that will do is known to keep a fraction by time slices",
            "ask for mode=slice, leave fraction out, or name another GPU; gpool doctor says what was tried",
        ));
    }
    Ok(kept)
}

impl Leases {
    /// Takes what drivers keep for themselves out of memory that was counted in all that NVML shows.
    pub fn without_reserved(&self, asked: &mut LeaseRequest) {
        if asked.memory_of_all {
            take_out_reserved(&mut asked.request, &self.gpus());
        }
    }
}

/// So that parts which come to all of a GPU fit on it. Of several GPUs that will do the one counts that has least left.
fn take_out_reserved(request: &mut Request, gpus: &[Gpu]) {
    let Some(MemoryCap::Bytes(bytes)) = request.memory else { return };
    let suitable = suitable_for(request, gpus);
    let left = |gpu: &Gpu| {
        let all = u128::from(gpu.memory_all_bytes());
        u128::from(bytes) * u128::from(gpu.memory_total_bytes) / all.max(1)
    };
    let least = boards(gpus).filter(|gpu| has(&suitable, gpu)).map(left).min();
    if let Some(least) = least.and_then(|least| u64::try_from(least).ok()) {
        request.memory = Some(MemoryCap::Bytes(least));
    }
}

fn has(suitable: &Suitable, gpu: &Gpu) -> bool {
    suitable.has(&gpu.uuid.0, &gpu.name, gpu.memory_total_bytes)
}

fn described(request: &Request) -> String {
    let devices = (!request.devices.is_empty()).then(|| format!("device={}", request.devices.join(",")));
    let models = (!request.models.is_empty()).then(|| format!("model={}", request.models.join(",")));
    let memory = request.min_memory_bytes.map(|bytes| format!("min-memory={}", format_bytes(bytes)));
    devices.into_iter().chain(models).chain(memory).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &str) -> Request {
        serde_json::from_str(&format!(r#"{{"fraction_permille":300{fields}}}"#)).unwrap()
    }

    #[test]
    fn parts_of_all_that_nvml_shows_fit_on_what_can_be_had() {
        let mut gpus = [Gpu::sample(0), Gpu::sample(1)];
        (gpus[0].memory_total_bytes, gpus[0].memory_reserved_bytes) = (143 << 30, 1 << 30);
        let fitted = |gib: u64, device: u32, gpus: &[Gpu]| {
            let fields = format!(r#","memory":{{"bytes":{}}},"devices":["{device}"]"#, gib << 30);
            let mut asked = request(&fields);
            take_out_reserved(&mut asked, gpus);
            asked.memory
        };
        assert_eq!(fitted(144, 0, &gpus), Some(MemoryCap::Bytes(143 << 30)), "all of it");
        assert_eq!(fitted(72, 0, &gpus), Some(MemoryCap::Bytes((143 << 30) / 2)), "two halves");
        assert_eq!(fitted(12, 1, &gpus), Some(MemoryCap::Bytes(12 << 30)), "this driver keeps nothing");
        assert_eq!(fitted(12, 7, &gpus), Some(MemoryCap::Bytes(12 << 30)), "such a GPU is refused later");
        let mut part = request(r#","memory":{"permille":500}"#);
        take_out_reserved(&mut part, &gpus);
        assert_eq!(part.memory, Some(MemoryCap::Permille(500)));
    }

    #[test]
    fn a_gpu_that_is_not_there_is_refused_with_those_that_are() {
        let mut gpus = [Gpu::sample(0), Gpu::sample(1)];
        (gpus[0].name, gpus[1].name) = ("NVIDIA H100 80GB HBM3".into(), "NVIDIA L4".into());
        let judged = |fields: &str| check_suitable(&request(fields), &gpus);
        assert_eq!(judged(""), Ok(()));
        assert_eq!(judged(r#","models":["H100"]"#), Ok(()));
        assert_eq!(judged(r#","models":["H100","L4"],"gpus":2"#), Ok(()));
        for (fields, parts) in [
            (r#","models":["H200"]"#, ["no GPU that gpool serves is", "model=H200", "NVIDIA L4 with"]),
            (r#","models":["H100"],"gpus":2"#, ["1 and not 2 GPUs", "model=H100", "NVIDIA H100 80GB HBM3 with"]),
            (
                r#","min_memory_bytes":1099511627776"#,
                ["no GPU that gpool serves is", "min-memory=1TiB", "NVIDIA L4 with"],
            ),
            (r#","devices":["2"]"#, ["no GPU that gpool serves is", "device=2", "1 (GPU-1, NVIDIA L4 with"]),
            (
                r#","devices":["0"],"models":["L4"]"#,
                ["no GPU that gpool serves is", "device=0, model=L4", "0 (GPU-0, "],
            ),
            (r#","devices":["0","GPU-7"],"gpus":2"#, ["1 and not 2 GPUs", "device=0,GPU-7", "0 (GPU-0, "]),
        ] {
            let error = judged(fields).unwrap_err();
            assert_eq!(error.code, ErrorCode::NoGpu);
            parts.iter().for_each(|part| assert!(error.message.contains(part), "{error} lacks {part}"));
        }
        // The H100 is divided, and the other one is not what is asked for.
        let asked = request(r#","models":["H100"]"#);
        assert_eq!(only_suitable(&asked, vec![0, 1], &gpus), Ok(vec![0]));
        assert_eq!(only_suitable(&asked, vec![1], &gpus).unwrap_err().code, ErrorCode::NoMechanism);
        assert_eq!(only_suitable(&request(""), vec![1], &gpus), Ok(vec![1]));
        assert_eq!(only_kept(vec![0, 1], |gpu| gpu == 1), Ok(vec![1]));
        assert_eq!(only_kept(vec![0], |gpu| gpu == 1).unwrap_err().code, ErrorCode::NoMechanism);
        assert_eq!(only_kept(Vec::new(), |_| false), Ok(Vec::new()), "others say what is missing");
        assert_eq!(only_suitable(&request(r#","devices":["1"]"#), vec![0, 1], &gpus), Ok(vec![1]));
        assert_eq!(
            only_suitable(&request(r#","devices":["1"]"#), vec![0], &gpus).unwrap_err().code,
            ErrorCode::NoMechanism
        );
    }
}
