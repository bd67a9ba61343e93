//! From the fields of a file to a scenario that makes sense.

use std::ops::Range;

use gpool_policy::slice::{Class, Priority, Share};

use super::error::ScenarioError;
use super::file::{At, DelayFields, KernelFields, ScenarioFile, TenantFields};
use super::{Demand, Scenario, TenantPlan};
use crate::delays::{Delay, Delays};
use crate::random::Lengths;

const MS: u64 = 1_000_000;
const US: u64 = 1_000;
/// A day; longer times are typing mistakes, and sums of shorter ones fit.
const LONGEST_NS: u64 = 86_400_000 * MS;
/// More tenants than this on one GPU say nothing about a scheduler.
const TENANTS: usize = 64;

/// Where the values of one file stand.
struct Place<'a> {
    file: &'a str,
    text: &'a str,
}

impl Place<'_> {
    fn wrong<T>(&self, span: Range<usize>, message: String) -> Result<T, ScenarioError> {
        let line = 1 + self.text[..span.start.min(self.text.len())].matches('\n').count();
        Err(ScenarioError { file: self.file.to_owned(), line: Some(line), message })
    }

    /// A time that is given in units of `unit_ns`.
    fn time<T>(&self, at: &At<T>, field: &str, value: u64, unit_ns: u64, least: u64) -> Result<u64, ScenarioError> {
        match value.checked_mul(unit_ns).filter(|&ns| ns <= LONGEST_NS && value >= least) {
            Some(ns) => Ok(ns),
            None => {
                let most = LONGEST_NS / unit_ns;
                self.wrong(at.span(), format!("{field}: {value} is not possible; write {least} to {most}"))
            }
        }
    }
}

pub(super) fn scenario(file: &str, text: &str) -> Result<Scenario, ScenarioError> {
    let place = Place { file, text };
    let fields: ScenarioFile = toml::from_str(text).or_else(|error| {
        let span = error.span();
        let message = error.message().to_owned();
        match span {
            Some(span) => place.wrong(span, message),
            None => Err(ScenarioError { file: file.to_owned(), line: None, message }),
        }
    })?;
    let duration_ns = place.time(&fields.duration_ms, "duration_ms", *fields.duration_ms.get_ref(), MS, 1)?;
    let [first, last] = *fields.seeds.get_ref();
    if first > last || last - first >= 10_000 {
        return place.wrong(fields.seeds.span(), "seeds: write [first, last], at most 10000 of them".into());
    }
    let device = &fields.device;
    let time_slice_ns =
        place.time(&device.time_slice_us, "device.time_slice_us", *device.time_slice_us.get_ref(), US, 1)?;
    let switch_cost_ns =
        place.time(&device.switch_cost_us, "device.switch_cost_us", *device.switch_cost_us.get_ref(), US, 0)?;
    let delays = Delays {
        gate: delay(&place, &fields.delays.gate, "delays.gate")?,
        ring: delay(&place, &fields.delays.ring, "delays.ring")?,
        timer: delay(&place, &fields.delays.timer, "delays.timer")?,
        wake: delay(&place, &fields.delays.wake, "delays.wake")?,
    };
    let tenants = tenants(&place, &fields.tenants)?;
    let stem = std::path::Path::new(file).file_stem().map_or_else(|| file.into(), |stem| stem.to_string_lossy());
    let (name, seeds) = (stem.into_owned(), (first, last));
    Ok(Scenario { name, duration_ns, seeds, time_slice_ns, switch_cost_ns, delays, tenants })
}

fn delay(place: &Place, at: &At<DelayFields>, field: &str) -> Result<Delay, ScenarioError> {
    let fields = at.get_ref();
    let least_ns = place.time(at, &format!("{field}.least_us"), fields.least_us, US, 0)?;
    let most_ns = place.time(at, &format!("{field}.most_us"), fields.most_us, US, 0)?;
    let late_ns = place.time(at, &format!("{field}.late_us"), fields.late_us, US, 0)?;
    if least_ns > most_ns {
        return place.wrong(at.span(), format!("{field}: least_us is above most_us; write the smaller one first"));
    }
    if fields.late_permille > 1000 {
        let message = format!("{field}.late_permille: {} is more than all; write 0 to 1000", fields.late_permille);
        return place.wrong(at.span(), message);
    }
    Ok(Delay { least_ns, most_ns, late_permille: fields.late_permille, late_ns })
}

fn tenants(place: &Place, tenants: &[At<TenantFields>]) -> Result<Vec<TenantPlan>, ScenarioError> {
    if tenants.is_empty() || tenants.len() > TENANTS {
        let message = format!("tenant: there are {}; write 1 to {TENANTS} [[tenant]] tables", tenants.len());
        return place.wrong(0..0, message);
    }
    let mut plans: Vec<TenantPlan> = Vec::new();
    for at in tenants {
        let plan = tenant(place, at.get_ref())?;
        if plans.iter().any(|other| other.name == plan.name) {
            let message = format!("tenant.name: \"{}\" is there twice; give each tenant a name of its own", plan.name);
            return place.wrong(at.get_ref().name.span(), message);
        }
        plans.push(plan);
    }
    for (plan, at) in plans.iter().zip(tenants) {
        let sum = guaranteed_permille(&plans, plan.start_ns);
        if sum > 1000 {
            let message = format!(
                "tenant.fraction: guaranteed fractions sum to {sum} permille from {} ms on; at most 1000 can be kept",
                plan.start_ns / MS
            );
            return place.wrong(at.get_ref().fraction.span(), message);
        }
    }
    Ok(plans)
}

/// What those who are there at a moment are guaranteed together: it grows only when a lease begins.
fn guaranteed_permille(plans: &[TenantPlan], at_ns: u64) -> u32 {
    let is_there = |plan: &&TenantPlan| plan.start_ns <= at_ns && plan.stop_ns.is_none_or(|stop_ns| at_ns < stop_ns);
    let guaranteed = plans.iter().filter(|plan| plan.share.priority == Priority::Guaranteed).filter(is_there);
    guaranteed.map(|plan| u32::from(plan.share.weight_permille)).sum()
}

fn tenant(place: &Place, fields: &TenantFields) -> Result<TenantPlan, ScenarioError> {
    let name = fields.name.get_ref().clone();
    if name.is_empty() || name.len() > 32 || name.chars().any(|sign| sign.is_control()) {
        return place.wrong(fields.name.span(), "tenant.name: write 1 to 32 printable characters".into());
    }
    let fraction_permille = permille(place, &fields.fraction, "tenant.fraction")?;
    let limit_permille = fields.limit.as_ref().map(|at| permille(place, at, "tenant.limit")).transpose()?;
    if let (Some(limit), Some(at)) = (limit_permille, &fields.limit)
        && limit < fraction_permille
    {
        let message = "tenant.limit: it is below the fraction; raise it to the fraction or leave it out".into();
        return place.wrong(at.span(), message);
    }
    let class = match fields.class.get_ref().as_str() {
        "latency" => Class::Latency,
        "batch" => Class::Batch,
        "notebook" => Class::Notebook,
        "train" => Class::Train,
        other => {
            let message = format!("tenant.class: \"{other}\" is none; write latency, batch, notebook or train");
            return place.wrong(fields.class.span(), message);
        }
    };
    let priority = match fields.priority.get_ref().as_str() {
        "guaranteed" => Priority::Guaranteed,
        "burst" => Priority::Burst,
        "scavenger" => Priority::Scavenger,
        other => {
            let message = format!("tenant.priority: \"{other}\" is none; write guaranteed, burst or scavenger");
            return place.wrong(fields.priority.span(), message);
        }
    };
    let start_ns = place.time(&fields.name, "tenant.start_ms", fields.start_ms, MS, 0)?;
    let stop = fields.stop_ms.as_ref();
    let stop_ns = stop.map(|at| place.time(at, "tenant.stop_ms", *at.get_ref(), MS, 1)).transpose()?;
    if let Some(at) = stop.filter(|at| *at.get_ref() <= fields.start_ms) {
        return place.wrong(at.span(), "tenant.stop_ms: it is not after start_ms; write a later time".into());
    }
    let share = Share { limit_permille, class, priority, ..Share::of(fraction_permille) };
    let lengths = lengths(place, &fields.kernels)?;
    Ok(TenantPlan { name, share, lengths, demand: demand(place, fields)?, start_ns, stop_ns })
}

/// A share in permille, from a number with at most three decimals.
fn permille(place: &Place, at: &At<f64>, field: &str) -> Result<u16, ScenarioError> {
    let value = *at.get_ref();
    let permille = (value * 1000.0).round();
    if !(1.0..=1000.0).contains(&permille) || (value * 1000.0 - permille).abs() > 1e-6 {
        let message = format!("{field}: {value} is no share; write 0.001 to 1 with at most three decimals");
        return place.wrong(at.span(), message);
    }
    Ok(permille as u16)
}

fn lengths(place: &Place, at: &At<KernelFields>) -> Result<Lengths, ScenarioError> {
    let fields = at.get_ref();
    let time = |field: &str, value| place.time(at, &format!("tenant.kernels.{field}"), value, US, 1);
    let KernelFields { fixed_us, uniform_us, median_us, sigma, least_us, most_us } = *fields;
    match (fixed_us, uniform_us, median_us, sigma, least_us, most_us) {
        (Some(fixed), None, None, None, None, None) => Ok(Lengths::Fixed { ns: time("fixed_us", fixed)? }),
        (None, Some([least, most]), None, None, None, None) if least <= most => {
            Ok(Lengths::Uniform { least_ns: time("uniform_us", least)?, most_ns: time("uniform_us", most)? })
        }
        (None, None, Some(median), Some(sigma), Some(least), Some(most))
            if (least..=most).contains(&median) && sigma.is_finite() && (0.0..=4.0).contains(&sigma) =>
        {
            let (least_ns, most_ns) = (time("least_us", least)?, time("most_us", most)?);
            Ok(Lengths::Lognormal { median_ns: time("median_us", median)?, sigma, least_ns, most_ns })
        }
        _ => place.wrong(
            at.span(),
            "tenant.kernels: write fixed_us, or uniform_us = [least, most], or median_us with sigma (0 to 4) and the \
             cut-offs least_us and most_us around the median"
                .into(),
        ),
    }
}

fn demand(place: &Place, fields: &TenantFields) -> Result<Demand, ScenarioError> {
    match (&fields.requests, &fields.on_off, &fields.steps) {
        (None, None, None) => Ok(Demand::Backlog),
        (None, Some(at), None) => {
            let time = |field: &str, value| place.time(at, field, value, MS, 1);
            let on_ns = time("tenant.on_off.on_ms", at.get_ref().on_ms)?;
            Ok(Demand::OnOff { on_ns, off_ns: time("tenant.on_off.off_ms", at.get_ref().off_ms)? })
        }
        (None, None, Some(at)) => {
            let time = |field: &str, value| place.time(at, field, value, US, 1);
            let work_ns = time("tenant.steps.work_us", at.get_ref().work_us)?;
            Ok(Demand::Steps { work_ns, rest_ns: time("tenant.steps.rest_us", at.get_ref().rest_us)? })
        }
        (Some(at), None, None) => {
            let rate_per_second = at.get_ref().rate_per_second;
            if !rate_per_second.is_finite() || !(0.001..=100_000.0).contains(&rate_per_second) {
                let field = "tenant.requests.rate_per_second";
                let message = format!("{field}: {rate_per_second} is not possible; write 0.001 to 100000");
                return place.wrong(at.span(), message);
            }
            let work_ns = place.time(at, "tenant.requests.work_us", at.get_ref().work_us, US, 1)?;
            Ok(Demand::Poisson { rate_per_second, work_ns })
        }
        (_, Some(at), None) => {
            place.wrong(at.span(), "tenant.on_off: not together with requests; leave one of them out".into())
        }
        (_, _, Some(at)) => {
            place.wrong(at.span(), "tenant.steps: not together with requests or on_off; leave all but one out".into())
        }
    }
}
