//! What a question names: a GPU, a team, a project, a cost center. One that nobody has ever had is a slip of the pen, and zeros are no
//! answer to that.

use super::question::Scope;
use crate::device::{Gpu, Kind};
use crate::lease::Leases;
use gpool_protocol::{ErrorBody, ErrorCode};
use rusqlite::Connection;
use std::collections::BTreeSet;

/// So many names are told of those that there are.
const TOLD: usize = 8;

/// What this host knows beside its ledger: who comes is written down a moment later.
#[derive(Debug, Default)]
pub struct Present {
    /// Boards by their numbers.
    boards: Vec<(u32, String)>,
    /// MIG instances by the numbers of their boards.
    instances: Vec<(u32, String)>,
    /// All that can be leased, and those.
    gpus: Vec<String>,
    teams: BTreeSet<String>,
    projects: BTreeSet<String>,
    cost_centers: BTreeSet<String>,
}

impl Present {
    /// GPUs that are there, and names of leases and of the configuration.
    pub fn of(leases: &Leases) -> Self {
        let mut present = Self::of_gpus(&leases.gpus());
        let configuration = leases.configuration();
        present.teams.extend(configuration.team.keys().cloned());
        present.cost_centers.extend(configuration.team.values().filter_map(|team| team.cost_center.clone()));
        present.teams.extend(configuration.quota.team.keys().cloned());
        present.teams.extend(configuration.rates.price.iter().filter_map(|price| price.team.clone()));
        present.teams.extend(configuration.reservation.values().flat_map(|its| its.teams.iter().cloned()));
        let book = leases.book();
        for waiter in book.queue.in_order() {
            let request = &waiter.asked.request;
            present.teams.extend(request.team.clone());
            present.projects.extend(request.project.clone());
            present.cost_centers.extend(request.cost_center.clone());
        }
        for lease in book.leases.values() {
            let record = &lease.record;
            present.teams.extend(record.team.clone());
            present.projects.extend(record.project.clone());
            present.cost_centers.extend(record.cost_center.clone());
        }
        present
    }

    fn of_gpus(gpus: &[Gpu]) -> Self {
        let is_board = |gpu: &&Gpu| matches!(gpu.kind, Kind::Whole | Kind::Divided);
        let is_instance = |gpu: &&Gpu| gpu.instance().is_some();
        let numbered = |gpu: &Gpu| (gpu.index, gpu.uuid.0.clone());
        Self {
            boards: gpus.iter().filter(is_board).map(numbered).collect(),
            instances: gpus.iter().filter(is_instance).map(numbered).collect(),
            gpus: gpus.iter().map(|gpu| gpu.uuid.0.clone()).collect(),
            ..Self::default()
        }
    }

    /// The same question, with the UUID of a GPU that is named by its number.
    ///
    /// # Errors
    /// There is none of that number, or it is divided: what was used is its instances'.
    pub fn numbered(&self, scope: &Scope) -> Result<Scope, ErrorBody> {
        let is_number = |name: &&String| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        let Some(number) = scope.gpu.as_ref().filter(is_number) else { return Ok(scope.clone()) };
        let its = self.boards.iter().find(|(index, _)| index.to_string() == *number);
        let own = |(index, _): &&(u32, String)| index.to_string() == *number;
        let parts: BTreeSet<String> = self.instances.iter().filter(own).map(|(_, uuid)| uuid.clone()).collect();
        if !parts.is_empty() {
            let message = format!("GPU {number} is divided with MIG, and its instances are GPUs of their own");
            return Err(ErrorBody::new(ErrorCode::MessageInvalid, message, told(parts)));
        }
        let Some((_, uuid)) = its else {
            let there = self.boards.iter().map(|(index, _)| index.to_string()).collect();
            let remedy = format!("{}; one that is gone is named by its UUID", told(there));
            return Err(ErrorBody::new(ErrorCode::MessageInvalid, format!("there is no GPU {number}"), remedy));
        };
        Ok(Scope { gpu: Some(uuid.clone()), ..scope.clone() })
    }
}

/// What is wrong with the names of a question, if anything is: what neither the ledger nor the host knows.
pub fn unknown(connection: &Connection, scope: &Scope, present: &Present) -> rusqlite::Result<Option<ErrorBody>> {
    let leases = [
        ("team", "team", &scope.team, &present.teams),
        ("project", "project", &scope.project, &present.projects),
        ("cost-center", "cost_center", &scope.cost_center, &present.cost_centers),
    ];
    for (what, column, name, known) in leases {
        // Empty means those that have none.
        let Some(name) = name.as_ref().filter(|name| !name.is_empty() && !known.contains(*name)) else { continue };
        let names = named(connection, &format!("SELECT DISTINCT {column} FROM lease WHERE {column} IS NOT NULL"))?;
        if !names.contains(name) {
            let message = format!("no lease has {what}={name}");
            let remedy = told(names.into_iter().chain(known.iter().cloned()).collect());
            return Ok(Some(ErrorBody::new(ErrorCode::MessageInvalid, message, remedy)));
        }
    }
    let Some(name) = &scope.gpu else { return Ok(None) };
    let mut gpus = named(connection, "SELECT uuid FROM gpu")?;
    gpus.extend(present.gpus.iter().cloned());
    if gpus.iter().any(|uuid| uuid.starts_with(name)) {
        return Ok(None);
    }
    let message = format!("the ledger has no GPU whose UUID begins with {name}");
    Ok(Some(ErrorBody::new(ErrorCode::MessageInvalid, message, told(gpus))))
}

fn named(connection: &Connection, query: &str) -> rusqlite::Result<BTreeSet<String>> {
    connection.prepare(query)?.query_map([], |row| row.get(0))?.collect()
}

/// Which there are.
fn told(names: BTreeSet<String>) -> String {
    let more = names.len().saturating_sub(TOLD);
    let shown: Vec<String> = names.into_iter().filter(|name| !name.is_empty()).take(TOLD).collect();
    match (shown.is_empty(), more) {
        (true, _) => "there is none".to_owned(),
        (false, 0) => format!("there are: {}", shown.join(", ")),
        (false, more) => format!("there are: {} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MigInstance;
    use gpool_protocol::GpuUuid;

    fn asked(query: &str) -> Scope {
        Scope::read(query, 1_000_000).unwrap()
    }

    #[test]
    fn a_number_is_that_of_a_board_and_others_are_told() {
        let present = Present::of_gpus(&[Gpu::sample(0), Gpu::sample(1)]);
        let of = |query: &str| present.numbered(&asked(query)).map(|scope| scope.gpu);
        assert_eq!(of("gpu=1").unwrap(), Some(Gpu::sample(1).uuid.0));
        assert_eq!((of("gpu=GPU-7").unwrap(), of("team=red").unwrap()), (Some("GPU-7".to_owned()), None));
        let refused = of("gpu=7").unwrap_err();
        assert!(refused.message.ends_with("no GPU 7") && refused.remedy.starts_with("there are: 0, 1;"), "{refused}");
    }

    #[test]
    fn a_divided_board_is_its_instances() {
        let instance = MigInstance {
            board: Gpu::sample(1).uuid,
            profile: "1g.10gb".into(),
            gpu_instance: 7,
            compute_instance: 0,
            start: 0,
            size: 1,
        };
        let uuid = GpuUuid("MIG-1".into());
        let divided = Gpu { kind: Kind::Divided, ..Gpu::sample(1) };
        let gpus = [Gpu::sample(0), divided, Gpu { uuid, kind: Kind::Instance(instance), ..Gpu::sample(1) }];
        let present = Present::of_gpus(&gpus);
        assert!(present.numbered(&asked("gpu=0")).is_ok());
        let refused = present.numbered(&asked("gpu=1")).unwrap_err();
        assert!(refused.message.contains("divided") && refused.remedy == "there are: MIG-1", "{refused}");
    }

    #[test]
    fn what_there_is_is_told_in_a_line() {
        let names = |count: usize| (0..count).map(|number| format!("t{number}")).collect();
        assert_eq!(told(names(0)), "there is none");
        assert_eq!(told(names(2)), "there are: t0, t1");
        assert!(told(names(11)).ends_with("t6 and 3 more"), "{}", told(names(11)));
    }
}
