//! What tenants receive of what they are entitled to: one of 10 % beside one of 90 %, seven at once, and one alone under
//! a limit.

use super::containers::{Way, start};
use super::phases::EVERY;
use super::sheet::Sheet;
use crate::failure::{Failure, Result};
use crate::host::{Container, Host};
use crate::measure::{Entitled, worst_error_points};
use crate::meter::now_ns;
use crate::scenarios::{seven_tenants, wait_until_running};
use crate::tenant::Tenant;
use crate::trace::{Recorder, Trace};
use std::thread::sleep;
use std::time::Duration;

/// How long tenants run before they are watched, and how long they are watched.
#[derive(Clone, Copy)]
struct Times {
    settle: Duration,
    watch: Duration,
}

const LEASED: Times = Times { settle: Duration::from_secs(1), watch: Duration::from_secs(10) };
/// Two take turns more often than seven.
const LEASED_PAIR: Times = Times { watch: Duration::from_secs(8), ..LEASED };
/// A tenant alone under a limit is served as regularly in less time.
const LIMITED_ALONE: Times = Times { watch: Duration::from_secs(3), ..LEASED };
/// Plain tenants take turns of some 2 ms, so that a short look shows as much as a long one.
const PLAIN: Times = Times { settle: Duration::from_millis(300), watch: Duration::from_secs(1) };
/// Of every tenant, in plain containers too, where nothing caps it.
const ALLOCATE_MIB: u64 = 256;

/// A tenant that always has work.
struct Role {
    name: &'static str,
    fraction: &'static str,
    limit: Option<&'static str>,
    kernel_us: u64,
    options: &'static [&'static str],
}

impl Role {
    const fn new(name: &'static str, fraction: &'static str, kernel_us: u64) -> Self {
        Self { name, fraction, limit: None, kernel_us, options: &[] }
    }

    fn start(&self, host: &Host, way: Way) -> Result<Container> {
        let mut request = vec![("GPOOL_FRACTION", self.fraction), ("GPOOL_MEMORY", "1GiB")];
        request.extend(self.limit.map(|limit| ("GPOOL_LIMIT", limit)));
        let tenant = Tenant { allocate_mib: Some(ALLOCATE_MIB), ..Tenant::greedy(self.kernel_us) };
        start(host, way, self.name, &tenant, &request, self.options)
    }

    fn permille(&self) -> Result<u16> {
        let share: f64 = self.fraction.parse().map_err(|cause| Failure::new(format!("{}: {cause}", self.fraction)))?;
        Ok((share * 1000.0).round() as u16)
    }
}

const TEN_AND_NINETY: [Role; 2] = [Role::new("ten", "0.1", 1000), Role::new("ninety", "0.9", 1000)];
const LIMITED: Role = Role { limit: Some("0.3"), ..Role::new("limited", "0.3", 500) };
const LIMITED_GRAPHS: Role =
    Role { limit: Some("0.5"), options: &["--graph", "20"], ..Role::new("limited-graphs", "0.2", 250) };

/// Adds one round.
pub fn measure(host: &Host, sheet: &mut Sheet) -> Result<()> {
    let ten_ninety = beside_plain(host, &TEN_AND_NINETY, LEASED_PAIR, |shares| ninefold(&shares.received()))?;
    sheet.add("share.ten_ninety", &[ten_ninety.leased], &[ten_ninety.plain])?;
    let alone = |shares: &Shares| shares.received()[0];
    for (name, role) in [("share.limit_030", LIMITED), ("share.graph_limit_050", LIMITED_GRAPHS)] {
        let limited = beside_plain(host, &[role], LIMITED_ALONE, alone)?;
        sheet.add(name, &[limited.leased], &[limited.plain])?;
    }
    let seven = seven_tenants::TENANTS.map(|(name, fraction, _, kernel_us)| Role::new(name, fraction, kernel_us));
    let error = beside_plain(host, &seven, LEASED, Shares::worst_error_points)?;
    sheet.add("share.seven_error_10s", &[error.leased], &[error.plain])
}

/// What the first received over what the second received, when nine times as much is due to the second: 1 at best.
fn ninefold(received: &[f64]) -> f64 {
    9.0 * received[0] / received[1]
}

/// The same figure both ways.
struct Pair {
    leased: f64,
    plain: f64,
}

fn beside_plain(host: &Host, roles: &[Role], times: Times, of: impl Fn(&Shares) -> f64) -> Result<Pair> {
    // Plain ones first: meanwhile the places of earlier leases run out.
    let plain = of(&Shares::of(host, Way::Plain, roles, PLAIN)?);
    let due: Result<Vec<u16>> = roles.iter().map(Role::permille).collect();
    super::wait_for_room(host, due?.iter().sum())?;
    Ok(Pair { plain, leased: of(&Shares::of(host, Way::Leased, roles, times)?) })
}

/// What tenants received while nothing changed.
struct Shares {
    trace: Trace,
    ids: Vec<String>,
    due: Vec<f64>,
    from_ns: u64,
    to_ns: u64,
}

impl Shares {
    /// Starts one tenant for each role, watches them and removes them.
    fn of(host: &Host, way: Way, roles: &[Role], times: Times) -> Result<Self> {
        let containers: Result<Vec<Container>> = roles.iter().map(|role| role.start(host, way)).collect();
        let containers = containers?;
        wait_until_running(host, &containers)?;
        sleep(times.settle);
        let recorder = Recorder::start(host.meter()?, EVERY);
        let from_ns = now_ns();
        sleep(times.watch);
        let to_ns = now_ns();
        let trace = recorder.stop()?;
        host.engine.remove_all_containers()?;
        let due: Result<Vec<f64>> = roles.iter().map(|role| Ok(f64::from(role.permille()?) / 1000.0)).collect();
        let ids = containers.into_iter().map(|container| container.id).collect();
        Ok(Self { trace, ids, due: due?, from_ns, to_ns })
    }

    fn received(&self) -> Vec<f64> {
        self.ids.iter().map(|id| self.trace.share(id, self.from_ns, self.to_ns)).collect()
    }

    fn worst_error_points(&self) -> f64 {
        let entitled: Vec<Entitled> = self.ids.iter().map(String::as_str).zip(self.due.iter().copied()).collect();
        worst_error_points(&self.trace, &entitled, self.from_ns, self.to_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::tests::traced;

    fn shares(trace: Trace, due: &[f64]) -> Shares {
        let ids = vec!["a".to_owned(), "b".to_owned()];
        Shares { trace, ids, due: due.to_vec(), from_ns: 0, to_ns: 1_000_000_000 }
    }

    #[test]
    fn a_tenth_of_what_is_due_is_one_and_an_equal_part_is_nine() {
        let fair = shares(traced(1000, |ms| vec![("a", ms * 100_000), ("b", ms * 900_000)]), &[0.1, 0.9]);
        assert!((ninefold(&fair.received()) - 1.0).abs() < 1e-9);
        let equal = shares(traced(1000, |ms| vec![("a", ms * 490_000), ("b", ms * 490_000)]), &[0.1, 0.9]);
        assert!((ninefold(&equal.received()) - 9.0).abs() < 1e-9);
        assert!((equal.worst_error_points() - 41.0).abs() < 1e-6);
    }

    #[test]
    fn the_seven_fill_the_gpu_with_kernels_of_the_promised_lengths() {
        let roles = seven_tenants::TENANTS.map(|(name, fraction, _, kernel_us)| Role::new(name, fraction, kernel_us));
        assert_eq!(roles.each_ref().map(|role| role.permille().unwrap()), [400, 150, 100, 100, 100, 100, 50]);
        assert!(roles.iter().all(|role| (300..=3000).contains(&role.kernel_us)));
    }
}
