//! The fields of a scenario file, as they are written. Times are whole numbers in the unit that the field's name says.

use serde::Deserialize;
use toml::Spanned;

/// A value and where it stands.
pub(super) type At<T> = Spanned<T>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioFile {
    pub(super) duration_ms: At<u64>,
    pub(super) seeds: At<[u64; 2]>,
    pub(super) device: DeviceFields,
    pub(super) delays: DelaysFields,
    #[serde(default, rename = "tenant")]
    pub(super) tenants: Vec<At<TenantFields>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceFields {
    pub(super) time_slice_us: At<u64>,
    pub(super) switch_cost_us: At<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DelaysFields {
    pub(super) gate: At<DelayFields>,
    pub(super) ring: At<DelayFields>,
    pub(super) timer: At<DelayFields>,
    pub(super) wake: At<DelayFields>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DelayFields {
    pub(super) least_us: u64,
    pub(super) most_us: u64,
    pub(super) late_permille: u16,
    pub(super) late_us: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantFields {
    pub(super) name: At<String>,
    pub(super) fraction: At<f64>,
    pub(super) limit: Option<At<f64>>,
    pub(super) class: At<String>,
    pub(super) priority: At<String>,
    pub(super) kernels: At<KernelFields>,
    pub(super) requests: Option<At<RequestFields>>,
    pub(super) on_off: Option<At<OnOffFields>>,
    pub(super) steps: Option<At<StepFields>>,
    #[serde(default)]
    pub(super) start_ms: u64,
    pub(super) stop_ms: Option<At<u64>>,
}

/// Exactly one distribution: `fixed_us`, `uniform_us`, or `median_us` with `sigma`, `least_us` and `most_us`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KernelFields {
    pub(super) fixed_us: Option<u64>,
    pub(super) uniform_us: Option<[u64; 2]>,
    pub(super) median_us: Option<u64>,
    pub(super) sigma: Option<f64>,
    pub(super) least_us: Option<u64>,
    pub(super) most_us: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestFields {
    pub(super) rate_per_second: f64,
    pub(super) work_us: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StepFields {
    pub(super) work_us: u64,
    pub(super) rest_us: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OnOffFields {
    pub(super) on_ms: u64,
    pub(super) off_ms: u64,
}
