//! A ledger that is read, beside who writes it.

use super::baseline;
use super::charges;
use super::history;
use super::names::{self, Present};
use super::pricing::Pricing;
use super::question::{BaselineQuestion, EnoughQuestion, Question, Scope};
use super::savings;
use super::sizes;
use super::store::remedy;
use super::sums;
use super::there::Memories;
use gpool_configuration::Rates;
use gpool_protocol::{Baseline, Charges, ErrorBody, ErrorCode, History, Savings, Sizes, Usage};
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::time::{Duration, Instant};

/// An answer has no more rows.
pub const ROWS: usize = 10_000;
/// How long it may take: whoever asks waits for ten seconds.
const PATIENCE: Duration = Duration::from_secs(7);
/// After so many steps of SQLite's machine it is looked at the clock.
const STEPS: i32 = 100_000;
/// What to do where it takes longer: all lines of the time are looked at, whosever they are.
const SLOW: &str = "ask for less time";

/// The file, to be read alone.
///
/// # Errors
/// It cannot be opened.
pub fn read_only(path: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

/// A ledger that is only read, and what it is priced by.
#[derive(Debug)]
pub struct Reader<'a> {
    connection: Connection,
    rates: &'a Rates,
}

impl<'a> Reader<'a> {
    /// Opens it, for one question.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path, rates: &'a Rates) -> Result<Self, ErrorBody> {
        let connection = read_only(path).map_err(|cause| unreadable(&cause))?;
        Ok(Self { connection, rates })
    }

    /// Sees that what a question names is known.
    ///
    /// # Errors
    /// It is not, or SQLite cannot read.
    pub fn check(&self, scope: &Scope, present: &Present) -> Result<(), ErrorBody> {
        names::unknown(&self.connection, scope, present).map_err(|cause| unreadable(&cause))?.map_or(Ok(()), Err)
    }

    /// Adds up.
    ///
    /// # Errors
    /// SQLite cannot read, or the answer would be too long, or take too long.
    pub fn usage(&mut self, question: &Question) -> Result<Usage, ErrorBody> {
        let remedy = "ask for less time, for one team, or by something else";
        let sums = |all: &Connection, pricing: Option<Pricing>| sums::sums(all, question, pricing);
        let mut usage = self.answer(sums, |usage| usage.rows.len(), (remedy, SLOW))?;
        usage.currency = self.currency();
        Ok(usage)
    }

    /// What each lease is charged, day by day.
    ///
    /// # Errors
    /// As [`Reader::usage`].
    pub fn charges(&mut self, scope: &Scope) -> Result<Charges, ErrorBody> {
        let begins = super::question::moment(scope.since_unix_s);
        let remedy = format!("from {begins} on ask for less of the day, with since and until, or for one team");
        let rows = |all: &Connection, pricing: Option<Pricing>| charges::charges(all, scope, pricing);
        let slow = format!("from {begins} on ask for less of the day, with since and until");
        let mut charges = self.answer(rows, |all| all.rows.len(), (&remedy, &slow))?;
        charges.currency = self.currency();
        Ok(charges)
    }

    /// What ran.
    ///
    /// # Errors
    /// As [`Reader::usage`].
    pub fn history(&mut self, scope: &Scope) -> Result<History, ErrorBody> {
        let leases = |all: &Connection, _: Option<Pricing>| history::history(all, scope);
        self.answer(leases, |all| all.leases.len(), ("ask for less time, for one team or for one container", SLOW))
    }

    /// How many GPUs would have been enough; `memories` is what those have that are there.
    ///
    /// # Errors
    /// As [`Reader::usage`].
    pub fn savings(&mut self, question: &EnoughQuestion, memories: &Memories) -> Result<Savings, ErrorBody> {
        let remedy = "ask for less time, or for one team";
        let add_up = |all: &Connection, _: Option<Pricing>| savings::savings(all, question, memories);
        self.answer(add_up, |savings| savings.owners.len(), (remedy, SLOW))
    }

    /// What would have been enough of what leases asked for; `memories` is what the GPUs have that are there.
    ///
    /// # Errors
    /// As [`Reader::usage`].
    pub fn sizes(&mut self, question: &EnoughQuestion, memories: &Memories) -> Result<Sizes, ErrorBody> {
        let add_up = |all: &Connection, _: Option<Pricing>| sizes::sizes(all, question, memories);
        let rows = |(sizes, containers): &(Sizes, usize)| {
            if *containers > sizes::CONTAINERS { *containers } else { sizes.rows.len() }
        };
        self.answer(add_up, rows, ("ask for less time, for one team, or by team", SLOW)).map(|(sizes, _)| sizes)
    }

    /// What those used who have no lease; `memories` is what the GPUs have that are there.
    ///
    /// # Errors
    /// As [`Reader::usage`].
    pub fn baseline(&mut self, question: &BaselineQuestion, memories: &Memories) -> Result<Baseline, ErrorBody> {
        let add_up = |all: &Connection, _: Option<Pricing>| baseline::baseline(all, question, memories);
        let remedy = "ask for less time, for one user or for one GPU";
        self.answer(add_up, |baseline| baseline.users.len(), (remedy, SLOW))
    }

    fn currency(&self) -> Option<String> {
        (!self.rates.is_empty()).then(|| self.rates.currency.0.clone())
    }

    /// In one transaction: what is written meanwhile is in none of the sums. The remedies are for too many rows, and for too long a
    /// time.
    fn answer<A>(
        &mut self,
        add_up: impl FnOnce(&Connection, Option<Pricing>) -> rusqlite::Result<A>,
        rows: impl FnOnce(&A) -> usize,
        (fewer, faster): (&str, &str),
    ) -> Result<A, ErrorBody> {
        let deadline = Instant::now() + PATIENCE;
        let watched = self.connection.progress_handler(STEPS, Some(move || Instant::now() > deadline));
        let narrower = |message: String, remedy| ErrorBody::new(ErrorCode::MessageInvalid, message, remedy);
        let pricing = Pricing::new(self.rates);
        let summed = watched.and_then(|()| self.connection.transaction()).and_then(|all| add_up(&all, pricing));
        match summed {
            Ok(answer) if rows(&answer) > ROWS => Err(narrower(format!("that is more than {ROWS} rows"), fewer)),
            Ok(answer) => Ok(answer),
            Err(rusqlite::Error::SqliteFailure(error, _))
                if error.code == rusqlite::ErrorCode::OperationInterrupted =>
            {
                Err(narrower(format!("adding that up takes longer than {} s", PATIENCE.as_secs()), faster))
            }
            Err(cause) => Err(unreadable(&cause)),
        }
    }
}

fn unreadable(cause: &rusqlite::Error) -> ErrorBody {
    ErrorBody::new(ErrorCode::SupervisorFailed, format!("the ledger cannot be read: {cause}"), remedy(cause))
}
