//! The first row that matches and can be served.

use super::gates::is_open;
use super::serve::{Place, place};
use super::table::{RowId, TABLE};
use super::traps::{Finding, Severity, look};
use super::{Ask, Host, Mechanism, Mode};

/// What a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// By which row.
    pub row: RowId,
    /// How.
    pub mechanism: Mechanism,
    /// Where.
    pub place: Place,
    /// What else is to be known.
    pub note: &'static str,
}

/// What became of a row that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowOutcome {
    /// The row.
    pub row: RowId,
    /// Whether it is about the request.
    pub is_about_it: bool,
    /// Why it was not taken.
    pub why: String,
}

/// An answer, and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What the request gets; none: it is refused, for the reasons below.
    pub choice: Option<Choice>,
    /// The rows before it, in order.
    pub failed: Vec<RowOutcome>,
    /// Combinations that do not do what they seem to.
    pub findings: Vec<Finding>,
}

impl Decision {
    /// Why nothing was chosen: the findings that refuse, or else the rows that are about the request.
    #[must_use]
    pub fn causes(&self) -> Vec<String> {
        let refusing = self.findings.iter().filter(|finding| finding.severity == Severity::Refuse);
        let refusing: Vec<String> = refusing.map(|finding| finding.cause.clone()).collect();
        if !refusing.is_empty() || self.choice.is_some() {
            return refusing;
        }
        let about = self.failed.iter().filter(|outcome| outcome.is_about_it);
        let mut causes: Vec<String> = Vec::new();
        for outcome in about {
            if !causes.contains(&outcome.why) {
                causes.push(outcome.why.clone());
            }
        }
        causes
    }
}

/// Chooses a mechanism for `ask` on `host`. A pure function.
#[must_use]
pub fn choose(ask: &Ask, host: &Host) -> Decision {
    // What will not do is as if it were not there.
    let suitable = (!ask.suitable.is_any()).then(|| host.with_only(&ask.suitable));
    let host = suitable.as_ref().unwrap_or(host);
    let (choice, failed) = match ask.mode {
        Mode::Auto => by_table(ask, host),
        mode => by_mode(mode, ask, host),
    };
    let findings = look(ask, host, choice.as_ref());
    let is_refused = findings.iter().any(|finding| finding.severity == Severity::Refuse);
    Decision { choice: choice.filter(|_| !is_refused), failed, findings }
}

fn by_table(ask: &Ask, host: &Host) -> (Option<Choice>, Vec<RowOutcome>) {
    let mut failed = Vec::new();
    // Nothing weaker is given: by what is asked for, and by rows that were about it and could not be served.
    let mut floor = ask.floor();
    for row in &TABLE {
        if let Err(why) = row.matches(ask, host) {
            failed.push(RowOutcome { row: row.id, is_about_it: false, why });
            continue;
        }
        let mut why = Vec::new();
        for &mechanism in row.offers {
            match served(row.id, mechanism, floor, ask, host) {
                Ok(place) => return (Some(Choice { row: row.id, mechanism, place, note: row.note }), failed),
                Err(cause) => why.push(cause),
            }
        }
        let why = if why.is_empty() { row.when.to_owned() } else { why.join("; ") };
        failed.push(RowOutcome { row: row.id, is_about_it: true, why });
        match row.offers.iter().min() {
            None => return (None, failed),
            Some(weakest) if row.is_binding => floor = floor.max(*weakest),
            Some(_) => {}
        }
    }
    (None, failed)
}

fn served(row: RowId, mechanism: Mechanism, floor: Mechanism, ask: &Ask, host: &Host) -> Result<Place, String> {
    if mechanism < floor {
        return Err(format!("{mechanism} is weaker than {floor}, which is the least that will do"));
    }
    if !is_open(host.phase, row, mechanism) {
        let phase = host.phase.map_or("", |phase| phase.word());
        return Err(format!("{mechanism} is not open in the phase {phase}"));
    }
    place(mechanism, ask, host)
}

fn by_mode(mode: Mode, ask: &Ask, host: &Host) -> (Option<Choice>, Vec<RowOutcome>) {
    let nothing = &TABLE[0];
    if nothing.matches(ask, host).is_ok() {
        let outcome = RowOutcome { row: nothing.id, is_about_it: true, why: nothing.when.to_owned() };
        return (None, vec![outcome]);
    }
    let mechanism = match mode {
        Mode::Mps => Mechanism::Mps,
        Mode::Mig => Mechanism::Mig,
        Mode::Exclusive => Mechanism::Exclusive,
        Mode::TimeSlice => Mechanism::TimeSlice,
        Mode::Slice if ask.profile.is_some() => Mechanism::SlicesInMig,
        Mode::Auto | Mode::Slice => Mechanism::Slices,
    };
    match served(RowId::Asked, mechanism, ask.floor(), ask, host) {
        Ok(place) => (Some(Choice { row: RowId::Asked, mechanism, place, note: "as the request says" }), Vec::new()),
        Err(why) => (None, vec![RowOutcome { row: RowId::Asked, is_about_it: true, why }]),
    }
}
