//! A host as a file describes it, so that people can plan without it.

use gpool_policy::mechanism::{ComputeMode, Gpu, Host, MigInstance, MigState, Phase, Pool};
use gpool_policy::mig::{Instance, Layout, Model, StartChoice};
use gpool_protocol::parse_bytes;
use serde::Deserialize;
use std::path::Path;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostFile {
    #[serde(default)]
    maintenance: bool,
    phase: Option<String>,
    pool: Option<String>,
    #[serde(default)]
    vgpu: bool,
    vgpu_licence: Option<String>,
    #[serde(default)]
    mps: bool,
    #[serde(default)]
    spill: bool,
    #[serde(default)]
    window_open: bool,
    #[serde(default, rename = "gpu")]
    gpus: Vec<GpuFields>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuFields {
    model: String,
    memory: Option<String>,
    #[serde(default = "one")]
    count: u16,
    #[serde(default = "yes")]
    healthy: bool,
    #[serde(default)]
    leases: u16,
    #[serde(default)]
    share_leased: f64,
    memory_leased: Option<String>,
    #[serde(default)]
    teams: Vec<String>,
    longest_kernel_ms: Option<u64>,
    island: Option<u16>,
    processor: Option<u16>,
    #[serde(default)]
    mig: bool,
    mig_owner: Option<String>,
    #[serde(default, rename = "instance")]
    instances: Vec<InstanceFields>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InstanceFields {
    profile: String,
    start: Option<u8>,
    team: Option<String>,
    #[serde(default)]
    leases: u16,
    #[serde(default)]
    share_leased: f64,
    memory_leased: Option<String>,
    #[serde(default)]
    whole: bool,
}

fn one() -> u16 {
    1
}

fn yes() -> bool {
    true
}

/// A host does not have more.
const GPUS_MOST: u16 = 64;

/// Reads the file at `path`.
///
/// # Errors
/// The path with the line, or with the field, and what is wrong there.
pub fn load(path: &Path) -> Result<Host, String> {
    let wrong = |cause: String| format!("{}: {cause}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read ({})", error.kind())))?;
    parse(&text).map_err(wrong)
}

fn parse(text: &str) -> Result<Host, String> {
    let file: HostFile = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    let mut gpus = Vec::new();
    for (place, fields) in file.gpus.iter().enumerate() {
        let at = format!("gpu {}", place + 1);
        if !(1..=GPUS_MOST).contains(&fields.count) {
            return Err(format!("{at}: count = {} is out of range; write 1 to {GPUS_MOST}", fields.count));
        }
        for _ in 0..fields.count {
            gpus.push(gpu(fields, &at, gpus.len())?);
        }
    }
    let phase = file.phase.map(|word| Phase::parse(&word).map_err(|cause| format!("phase = {word:?}: {cause}")));
    let pool = file.pool.map(|word| Pool::parse(&word).map_err(|cause| format!("pool = {word:?}: {cause}")));
    Ok(Host {
        in_maintenance: file.maintenance,
        phase: phase.transpose()?,
        pool: pool.transpose()?.unwrap_or(Pool::Any),
        is_vgpu_guest: file.vgpu,
        vgpu_licence: file.vgpu_licence,
        has_mps: file.mps,
        has_spill: file.spill,
        window_is_open: file.window_open,
        gpus,
    })
}

fn gpu(fields: &GpuFields, at: &str, index: usize) -> Result<Gpu, String> {
    let model = Model::named(&fields.model);
    let size =
        |field: &str, text: &str| parse_bytes(text).map_err(|cause| format!("{at}: {field} = {text:?}: {cause}"));
    let memory_bytes = match (&fields.memory, model) {
        (Some(text), _) => size("memory", text)?,
        (None, Some(model)) => u64::from(model.memory_mib) << 20,
        (None, None) => {
            let names: Vec<&str> = gpool_policy::mig::MODELS.iter().map(|model| model.name).collect();
            return Err(format!(
                "{at}: model = {:?} is not known; add memory, or write one of {}",
                fields.model,
                names.join(", ")
            ));
        }
    };
    let leased = match &fields.memory_leased {
        Some(text) => size("memory_leased", text)?,
        None => 0,
    };
    Ok(Gpu {
        key: format!("gpu{index}"),
        product: fields.model.clone(),
        model,
        memory_bytes,
        is_healthy: fields.healthy,
        compute_mode: ComputeMode::Default,
        share_free_permille: 1000 - permille(&format!("{at}: share_leased"), fields.share_leased)?,
        memory_free_bytes: memory_bytes.saturating_sub(leased),
        leases: fields.leases,
        teams: fields.teams.iter().cloned().collect(),
        longest_burst_us: fields.longest_kernel_ms.map(|ms| ms.saturating_mul(1000)),
        island: fields.island,
        processor: fields.processor,
        mig: mig(fields, at, model)?,
    })
}

/// Instances lie where the file says, or else as high as they can.
fn mig(fields: &GpuFields, at: &str, model: Option<&'static Model>) -> Result<MigState, String> {
    if !fields.mig {
        return match fields.instances.is_empty() {
            true => Ok(MigState { is_on: false, owner: fields.mig_owner.clone(), instances: Vec::new() }),
            false => Err(format!("{at}: instances are listed and MIG is off; add mig = true")),
        };
    }
    let model = model.filter(|model| model.has_mig());
    let model = model.ok_or_else(|| format!("{at}: {} has no MIG; take mig = true out", fields.model))?;
    let mut layout = Layout::default();
    let mut instances = Vec::new();
    for (place, one) in fields.instances.iter().enumerate() {
        let at = format!("{at}, instance {}", place + 1);
        let profile = model.profile(&one.profile).ok_or_else(|| {
            let names: Vec<&str> = model.profiles.iter().map(|profile| profile.name).collect();
            format!("{at}: profile = {:?} is not one of {}", one.profile, names.join(", "))
        })?;
        let no_room = || format!("{at}: {profile} does not fit beside {layout}; gpool mig plan says what does");
        let (larger, placement) = match one.start {
            Some(start) => {
                let possible = layout.possible(model, profile).into_iter().find(|placement| placement.start == start);
                let placement = possible.ok_or_else(no_room)?;
                (layout.with(model, profile, start).ok_or_else(no_room)?, placement)
            }
            None => {
                let mut larger = layout.clone();
                let placement = larger.add(model, profile, StartChoice::Highest).ok_or_else(no_room)?;
                (larger, placement)
            }
        };
        layout = larger;
        let free = MigInstance::free(Instance { placement, profile });
        let leased = match &one.memory_leased {
            Some(text) => parse_bytes(text).map_err(|cause| format!("{at}: memory_leased = {text:?}: {cause}"))?,
            None => 0,
        };
        instances.push(MigInstance {
            share_free_permille: 1000 - permille(&format!("{at}: share_leased"), one.share_leased)?,
            memory_free_bytes: free.memory_bytes.saturating_sub(leased),
            is_whole: one.whole,
            team: one.team.clone(),
            leases: one.leases.max(one.whole.into()),
            ..free
        });
    }
    Ok(MigState { is_on: true, owner: fields.mig_owner.clone(), instances })
}

fn permille(field: &str, share: f64) -> Result<u16, String> {
    if (0.0..=1.0).contains(&share) {
        return Ok((share * 1000.0).round() as u16);
    }
    Err(format!("{field} = {share} is out of range; write a part of 1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn the_shipped_examples_are_read() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../configs/hosts");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let host = load(&entry.unwrap().path()).unwrap();
            assert!(!host.gpus.is_empty());
            count += 1;
        }
        assert!(count >= 3, "{count}");
    }

    #[test]
    fn gpus_alike_are_written_once_and_instances_lie_as_high_as_they_can() {
        let text = "phase = \"batch\"\n[[gpu]]\nmodel = \"A100-80GB\"\ncount = 2\nmig = true\n\
                    [[gpu.instance]]\nprofile = \"3g.40gb\"\nteam = \"vision\"\nshare_leased = 0.25\nleases = 1\n\
                    [[gpu.instance]]\nprofile = \"1g.10gb\"\nstart = 0\nwhole = true\nmemory_leased = \"1GiB\"\n\
                    [[gpu]]\nmodel = \"Other\"\nmemory = \"24GiB\"\nmemory_leased = \"4GiB\"\nshare_leased = 0.3\n";
        let host = parse(text).unwrap();
        let keys: Vec<&str> = host.gpus.iter().map(|gpu| gpu.key.as_str()).collect();
        assert_eq!((keys.as_slice(), host.phase), (["gpu0", "gpu1", "gpu2"].as_slice(), Some(Phase::Batch)));
        let [first, second] = &host.gpus[1].mig.instances[..] else { panic!("two instances") };
        assert_eq!((first.instance.placement.start, second.instance.placement.start), (4, 0));
        assert_eq!((first.share_free_permille, second.share_free_permille), (750, 1000));
        assert_eq!((first.is_whole, second.is_whole, second.leases), (false, true, 1));
        assert_eq!((second.memory_bytes - second.memory_free_bytes) >> 30, 1);
        assert_eq!((host.gpus[2].share_free_permille, host.gpus[2].memory_free_bytes >> 30), (700, 20));
    }

    #[test]
    fn what_is_wrong_names_the_field() {
        for (text, part) in [
            ("[[gpu]]\nmodel = \"RTX\"\n", "model = \"RTX\" is not known; add memory"),
            ("[[gpu]]\nmodel = \"T4\"\nmig = true\n", "gpu 1: T4 has no MIG"),
            ("[[gpu]]\nmodel = \"A30\"\n[[gpu.instance]]\nprofile = \"1g.6gb\"\n", "add mig = true"),
            ("[[gpu]]\nmodel = \"A30\"\nmig = true\n[[gpu.instance]]\nprofile = \"1g.5gb\"\n", "instance 1"),
            ("[[gpu]]\nmodel = \"T4\"\nshare_leased = 1.5\n", "share_leased = 1.5"),
            ("[[gpu]]\nmodel = \"T4\"\ncount = 0\n", "count = 0"),
            ("phase = \"later\"\n", "dev, batch"),
            ("colour = \"red\"\n", "line 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error} lacks {part}");
        }
        let crowded = "[[gpu]]\nmodel = \"A100-80GB\"\nmig = true\n\
                       [[gpu.instance]]\nprofile = \"4g.40gb\"\n[[gpu.instance]]\nprofile = \"1g.10gb\"\nstart = 3\n";
        assert!(parse(crowded).unwrap_err().contains("does not fit beside 4g.40gb at 0"));
    }
}
