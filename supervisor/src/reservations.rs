//! Reservations as the socket and the metrics show them, and what is told of them.

use crate::clock;
use crate::events::About;
use crate::lease::{Book, Kept, Leases};
use crate::state_file::StateFile;
use gpool_configuration::{LeastPriority, Phase, Reservation};
use gpool_protocol::{
    EventKind, Priority, ReservationSeat, ReservationState, ReservationView, format_bytes, format_gpus,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// In `[paths] state_dir`.
const NAME: &str = "reservations.json";

/// What is missing is told when so many looks in a row have found it: leases come and go.
const LOOKS: u8 = 3;

/// All of them, by name.
pub fn views(leases: &Leases, book: &Book) -> Vec<ReservationView> {
    let configuration = leases.configuration();
    if configuration.reservation.is_empty() {
        return Vec::new();
    }
    let gpus = leases.gpus_for_new();
    let scene = leases.scene(book, None, &gpus);
    let kept = scene.kept();
    let seat = |its: &gpool_policy::reservation::Seat| ReservationSeat {
        gpu_uuid: gpus[its.gpu].uuid.clone(),
        share_permille: its.whole.permille,
        memory_bytes: its.whole.bytes,
        kept_share_permille: its.kept.permille,
        kept_memory_bytes: its.kept.bytes,
        missing_share_permille: its.missing.permille,
        missing_memory_bytes: its.missing.bytes,
    };
    let view = |(name, reservation): (&String, &Reservation)| {
        let its = kept.iter().find(|kept: &&Kept<'_>| kept.name == name);
        let seats = its.map(|kept| kept.seats.iter().map(seat).collect());
        view(name, reservation, seats)
    };
    configuration.reservation.iter().map(view).collect()
}

/// One of them; without seats where nothing is kept.
fn view(name: &str, reservation: &Reservation, seats: Option<Vec<ReservationSeat>>) -> ReservationView {
    let at = clock::unix_s_of_local;
    let (state, begins_unix_s, ends_unix_s) = match reservation.phase(clock::local_now()) {
        Phase::Open(ends) => (ReservationState::Open, None, ends.map(at)),
        Phase::Closed(Some(begins)) if seats.is_some() => (ReservationState::Ahead, Some(at(begins)), None),
        Phase::Closed(Some(begins)) => (ReservationState::Closed, Some(at(begins)), None),
        Phase::Closed(None) => (ReservationState::Over, None, None),
    };
    ReservationView {
        name: name.to_owned(),
        teams: reservation.teams.clone(),
        users: reservation.users.clone(),
        priority: reservation.priority.map(|least| match least {
            LeastPriority::Guaranteed => Priority::Guaranteed,
            LeastPriority::Burst => Priority::Burst,
        }),
        gpus: reservation.gpus,
        share_permille: reservation.fraction.permille,
        memory_bytes: reservation.memory.map(|memory| memory.bytes),
        model: reservation.model.clone(),
        state,
        begins_unix_s,
        ends_unix_s,
        seats: seats.unwrap_or_default(),
    }
}

/// Tells what is new of them; to be called every few seconds.
pub fn tend(leases: &Leases, teller: &mut Teller) {
    let views = views(leases, &leases.book());
    for message in teller.news(&views) {
        leases.events.note(EventKind::Reservation, About::default(), message);
    }
}

/// Who tells of them: once, also across a restart of the supervisor.
#[derive(Debug)]
pub struct Teller {
    written: StateFile<Told>,
    told: Told,
}

impl Teller {
    /// Goes on from what was told in an earlier life, which is written down in this directory.
    pub fn open(state_dir: &Path) -> Self {
        let written = StateFile::<Told>::open(state_dir, NAME, "what stands of reservations is told again");
        let told = written.lock().clone();
        Self { written, told }
    }

    /// What is to be told that was not before, which is written down. Where that fails it is told all the same.
    fn news(&mut self, views: &[ReservationView]) -> Vec<String> {
        let news = self.told.news(views);
        if !news.is_empty()
            && let Err(cause) = self.written.change(|old| old.clone_from(&self.told))
        {
            log!("what was told of reservations cannot be written down: {cause}; after a restart it is told again");
        }
        news
    }
}

/// How each was when it was told of last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Told(BTreeMap<String, Standing>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Standing {
    is_open: bool,
    is_whole: bool,
    /// How many looks in a row have found it otherwise.
    #[serde(skip)]
    contrary: u8,
}

impl Told {
    /// What is to be told that was not before.
    fn news(&mut self, views: &[ReservationView]) -> Vec<String> {
        let is_there = |name: &String| views.iter().any(|view| view.name == *name);
        let gone = self.0.iter().filter(|(name, standing)| standing.is_open && !is_there(name));
        let mut news: Vec<String> = gone
            .map(|(name, _)| format!("reservation {name} is not configured any more; nothing is kept for it"))
            .collect();
        self.0.retain(|name, _| is_there(name));
        news.extend(views.iter().filter_map(|view| self.of_one(view)));
        news
    }

    fn of_one(&mut self, view: &ReservationView) -> Option<String> {
        let (name, is_open, is_whole) = (&view.name, view.state == ReservationState::Open, view.is_whole());
        let closed = Standing { is_open: false, is_whole: true, contrary: 0 };
        let standing = self.0.entry(name.clone()).or_insert(closed);
        if standing.is_open != is_open {
            *standing = Standing { is_open, is_whole, contrary: 0 };
            return Some(match (is_open, is_whole) {
                (true, true) => format!("reservation {name} has begun: {}", reserved(view)),
                (true, false) => format!("reservation {name} has begun: {}; {}", reserved(view), missing(view)),
                (false, _) if view.state == ReservationState::Ahead => {
                    format!("reservation {name} is over for now, and is kept for the next time")
                }
                (false, _) => format!("reservation {name} is over for now; nothing is kept for it"),
            });
        }
        let is_as_told = !is_open || standing.is_whole == is_whole;
        standing.contrary = if is_as_told { 0 } else { standing.contrary.saturating_add(1) };
        if standing.contrary < LOOKS {
            return None;
        }
        *standing = Standing { is_open, is_whole, contrary: 0 };
        Some(match is_whole {
            true => format!("reservation {name} has all of it: nothing of it is others' any more"),
            false => format!("reservation {name}: {}", missing(view)),
        })
    }
}

/// `1 GPU and 40GiB are kept`
fn reserved(view: &ReservationView) -> String {
    let (share, memory) = view.reserved();
    format!("{} of a GPU's share and {} are for those who may have it", format_gpus(share), format_bytes(memory))
}

fn missing(view: &ReservationView) -> String {
    let (share, memory) = view.missing();
    let others =
        format!("{} of a GPU's share and {} of it are others' still", format_gpus(share), format_bytes(memory));
    match view.missing_gpus() {
        0 => others,
        count => format!("{count} of its {} GPUs are not there; {others}", view.gpus),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::GpuUuid;

    fn view_with(state: ReservationState, missing_permille: u16) -> ReservationView {
        let seat = ReservationSeat {
            gpu_uuid: GpuUuid("GPU-1".into()),
            share_permille: 500,
            memory_bytes: 8 << 30,
            kept_share_permille: 500,
            kept_memory_bytes: 8 << 30,
            missing_share_permille: missing_permille,
            missing_memory_bytes: 0,
        };
        let reservation = Reservation { teams: vec!["vision".into()], ..Reservation::default() };
        ReservationView { state, ..view("serving", &reservation, Some(vec![seat])) }
    }

    #[test]
    fn what_was_told_is_not_told_again_by_the_next_supervisor() {
        let directory = tempfile::tempdir().unwrap();
        let open = [view_with(ReservationState::Open, 100)];
        assert!(Teller::open(directory.path()).news(&open)[0].contains("has begun"));
        let mut next = Teller::open(directory.path());
        assert!(next.news(&open).is_empty(), "it has been open for long");
        assert!(next.news(&[view_with(ReservationState::Closed, 0)])[0].contains("is over for now"));
        let mut next = Teller::open(directory.path());
        assert!(next.news(&[view_with(ReservationState::Closed, 0)]).is_empty());
        assert!(next.news(&open)[0].contains("has begun"), "that it began while nobody was there is news");
        assert!(Teller::open(directory.path()).news(&[])[0].contains("is not configured any more"));
    }

    #[test]
    fn the_begin_and_the_end_are_told_at_once_and_what_is_missing_when_it_stays_so() {
        let mut told = Told::default();
        let mut look = |state, missing| told.news(&[view_with(state, missing)]);
        assert!(look(ReservationState::Closed, 0).is_empty() && look(ReservationState::Ahead, 100).is_empty());
        let begun = look(ReservationState::Open, 100);
        assert_eq!(
            begun,
            ["reservation serving has begun: 0.5 of a GPU's share and 8GiB are for those who may have it; \
              0.1 of a GPU's share and 0B of it are others' still"]
        );
        assert!(look(ReservationState::Open, 0).is_empty() && look(ReservationState::Open, 100).is_empty());
        assert!(look(ReservationState::Open, 0).is_empty() && look(ReservationState::Open, 0).is_empty());
        assert!(look(ReservationState::Open, 0)[0].contains("has all of it"));
        for _ in 0..2 {
            assert!(look(ReservationState::Open, 200).is_empty());
        }
        assert!(look(ReservationState::Open, 200)[0].starts_with("reservation serving: 0.2 of a GPU's share"));
        assert!(look(ReservationState::Closed, 200)[0].contains("is over for now"));
        assert!(look(ReservationState::Open, 0)[0].contains("has begun"));
        assert!(look(ReservationState::Ahead, 0)[0].contains("is kept for the next time"));
        for _ in 0..300 {
            assert!(look(ReservationState::Ahead, 100).is_empty());
        }
        assert!(look(ReservationState::Open, 100)[0].contains("has begun"));
        assert!(told.news(&[])[0].contains("is not configured any more"));
        assert!(told.news(&[]).is_empty() && told.0.is_empty());
    }
}
