//! How long one decision of the slice scheduler takes, by the number of tenants that want.

use super::sheet::Sheet;
use crate::failure::{Failure, Result};
use gpool_policy::TenantId;
use gpool_policy::slice::{Command, Input, Parameters, Share, SliceScheduler};
use std::time::Instant;

/// Decisions in one round.
const DECISIONS: u64 = 20_000;
/// The last opening's tenant and end.
type Opened = Option<(TenantId, u64)>;

/// Adds one round.
pub fn measure(sheet: &mut Sheet) -> Result<()> {
    let mut times = Vec::new();
    for (name, tenants) in [("decide.2", 2), ("decide.16", 16), ("decide.128", 128), ("decide.1000", 1000)] {
        let time = per_decision_ns(tenants)?;
        sheet.add(name, &[time], &[])?;
        times.push(time);
    }
    sheet.add("decide.growth", &[times[3] / times[0]], &[])
}

/// Nanoseconds of host time for one slice: its measured burst, its announcement, and the choice of the next tenant.
fn per_decision_ns(tenants: u64) -> Result<f64> {
    let mut scheduler = SliceScheduler::new(Parameters::default(), 0);
    let mut commands = Vec::new();
    let weight_permille = u16::try_from(1000 / tenants).unwrap_or(1).max(1);
    for tenant in (1..=tenants).map(TenantId) {
        scheduler.handle(0, Input::Join { tenant, share: Share::of(weight_permille), debt_ns: 0 }, &mut commands);
        scheduler.handle(0, Input::Wants { tenant }, &mut commands);
    }
    let (mut now_ns, mut switches) = (0, 0);
    let mut opened = last_opened(&mut commands);
    let start = Instant::now();
    for _ in 0..DECISIONS {
        let (tenant, until_ns) = opened.ok_or_else(|| Failure::new("nobody was chosen although all want"))?;
        let burst = Input::Burst { tenant, context: 0, start_ns: now_ns, end_ns: until_ns };
        now_ns = until_ns;
        scheduler.handle(now_ns, burst, &mut commands);
        scheduler.handle(now_ns, Input::Announced { tenant, estimated_end_ns: until_ns }, &mut commands);
        scheduler.handle(now_ns, Input::Pass, &mut commands);
        opened = last_opened(&mut commands);
        switches += u64::from(opened.is_some_and(|(next, _)| next != tenant));
    }
    let elapsed_ns = start.elapsed().as_nanos() as f64;
    if switches < DECISIONS / 2 {
        return Err(Failure::new(format!("{switches} of {DECISIONS} decisions chose another tenant")));
    }
    Ok(elapsed_ns / DECISIONS as f64)
}

fn last_opened(commands: &mut Vec<Command>) -> Opened {
    let opened = commands.iter().rev().find_map(|command| match command {
        Command::Open { tenant, until_ns, .. } => Some((*tenant, *until_ns)),
        Command::Close { .. } | Command::Hung { .. } => None,
    });
    commands.clear();
    opened
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenant_is_served_in_turn() {
        assert!(per_decision_ns(16).unwrap() > 0.0);
    }
}
