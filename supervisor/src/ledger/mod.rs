//! The ledger: who was promised what of which GPU and had it, written down for months in one file that outlives the supervisor
//! and the boot. It is written every ten seconds and when a lease ends, by a thread of its own, for which nothing waits: what
//! cannot be written, on a full disk, stays in memory and is written later.

mod balance;
mod baseline;
mod charges;
mod enough;
mod history;
mod lines;
mod lives;
mod names;
mod pricing;
mod question;
mod reader;
mod retention;
mod savings;
mod sizes;
mod spent;
mod store;
mod sums;
mod tables;
mod teams;
#[cfg(test)]
mod tests;
mod there;
mod unleased;

pub use question::{BaselineQuestion, EnoughQuestion, Question, Scope, moment};
pub use retention::DAY_S;
pub use spent::Spent;
pub use unleased::{GpuSighting, Sighting};

use crate::clock;
use crate::device::{Gpu, Kind};
use crate::faults::Faults;
use crate::lease::{Leases, ReadAhead, Statement, statements};
use balance::{Balance, Energies, Moment, SPAN_NS};
use gpool_policy::mig::Model;
use gpool_protocol::{Baseline, Charges, ErrorBody, ErrorCode, GpuUuid, History, Savings, Sizes, Usage};
use names::Present;
use reader::Reader;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use store::{FileName, GpuFacts, LedgerError, Store};
use teams::Teams;
use there::Memories;
use unleased::Unwritten;

/// Not more often than this, however often leases end or somebody asks.
const LEAST_PERIOD: Duration = Duration::from_secs(1);
/// After a failure it is not tried again for so long, whoever asks: a file that somebody else holds is waited for each time.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// How often what is old is merged and taken out, for the first time when the supervisor has run for so long: its clock may
/// be wrong when a host has just booted.
const FORGET_PERIOD: Duration = Duration::from_secs(3600);
/// Ended leases that are kept in memory while they cannot be written; the oldest go first.
const ENDED: usize = 5000;
/// How long a question waits for its turn. With what an answer may take it is what clients wait.
const TURN: Duration = Duration::from_secs(2);
/// How much of that for what is new to be written.
const NEWS: Duration = Duration::from_secs(1);
/// So soon behind its end a span is over: charges are looked at once a second.
const LOOK_NS: u64 = 1_000_000_000;

/// The ledger of this host.
#[derive(Debug, Default)]
pub struct Ledger {
    inner: Mutex<Inner>,
    /// Held by who adds up: one at a time, since it takes a processor.
    asking: Mutex<()>,
    /// The same of those who may change everything, whom nobody else keeps waiting.
    administrator_asking: Mutex<()>,
    /// When it was written last, Unix seconds; 0 while it was not.
    written_unix_s: AtomicU64,
    /// What was seen of those who have no lease, and is not written. Held by nobody who waits.
    unwritten: Mutex<Unwritten>,
    /// What was promised to whom; none while there are no budgets, or that could not be read yet. Held by nobody who waits.
    spent: Mutex<Option<Arc<Spent>>>,
    /// Whether it was tried to find that out, or there was nothing to be found out.
    has_looked: AtomicBool,
    /// Until when that is, CLOCK_MONOTONIC.
    spent_until_ns: AtomicU64,
    /// What teams were promised and had in this life. Held by nobody who waits.
    teams: Mutex<Teams>,
}

#[derive(Debug, Default)]
struct Inner {
    store: Option<Store>,
    balance: Balance,
    /// In which file the balance is.
    file: Option<FileName>,
    /// Leases that have ended in the span that is not over, or could not be written since.
    ended: Vec<Statement>,
    faults: Faults<&'static str>,
    /// When it was tried for the first time, CLOCK_MONOTONIC.
    begun_ns: Option<u64>,
    written: Option<Instant>,
    /// When it could not be written, and why; none since it could.
    failed: Option<(Instant, String)>,
    forgotten: Option<Instant>,
    /// What the time is as far as forgetting goes, Unix seconds: at most a day further each time, whatever the clock says.
    forget_unix_s: Option<u64>,
    /// From which day on it is known what was promised before, for budgets.
    spent_since: Option<u64>,
    /// What was written since that is read, while it is.
    spent_meanwhile: Option<Spent>,
    /// Up to when it was entered last, CLOCK_MONOTONIC.
    entered_ns: u64,
}

/// Writes for ever; runs on its own thread.
pub fn keep(leases: &Leases) {
    let begun = Instant::now();
    leases.ledger.know_spent_before(leases);
    loop {
        let closes_ns = {
            let mut inner = leases.ledger.lock();
            inner.write(leases);
            if begun.elapsed() >= FORGET_PERIOD {
                let outcome = inner.forget(leases);
                inner.faults.note("what is old cannot be taken out", &outcome);
            }
            inner.balance.closes_ns()
        };
        leases.ledger.know_spent(leases);
        // Whatever came of it.
        leases.ledger.has_looked.store(true, Ordering::Relaxed);
        std::thread::sleep(LEAST_PERIOD);
        let is_failing = leases.ledger.lock().failed.is_some();
        let left_ns = closes_ns.saturating_add(LOOK_NS).saturating_sub(clock::now_ns());
        let patience = if is_failing { SPAN_NS } else { left_ns };
        // Behind the pause: what ended in it is found now, and what ends from here on rings.
        let book = leases.book();
        if book.ended.is_empty() {
            drop(leases.ended.wait_timeout(book, Duration::from_nanos(patience)));
        }
    }
}

/// Writes what there is up to this moment, for the last time: the supervisor is about to end. Nothing before anything was written in
/// this life: as long as leases are being taken over, those that are not yet would be entered as ended.
pub fn finish(leases: &Leases) {
    let mut inner = leases.ledger.lock();
    if leases.configuration().ledger.is_kept() && inner.balance.has_begun() {
        inner.write(leases);
    }
}

/// Answers `question`, up to this moment.
///
/// # Errors
/// There is no ledger, or it cannot be read.
pub fn usage(leases: &Leases, question: &Question, is_administrator: bool) -> Result<Usage, ErrorBody> {
    let asked = |reader: &mut Reader<'_>, scope| reader.usage(&Question { scope, ..question.clone() });
    ask(leases, is_administrator, &question.scope, asked)
}

/// What each lease is charged, up to this moment.
///
/// # Errors
/// As [`usage`].
pub fn charges(leases: &Leases, scope: &Scope, is_administrator: bool) -> Result<Charges, ErrorBody> {
    ask(leases, is_administrator, scope, |reader, scope| reader.charges(&scope))
}

/// What ran, up to this moment.
///
/// # Errors
/// As [`usage`].
pub fn history(leases: &Leases, scope: &Scope, is_administrator: bool) -> Result<History, ErrorBody> {
    ask(leases, is_administrator, scope, |reader, scope| reader.history(&scope))
}

/// How many GPUs would have been enough without sharing and with it, up to this moment.
///
/// # Errors
/// As [`usage`].
pub fn savings(leases: &Leases, question: &EnoughQuestion, is_administrator: bool) -> Result<Savings, ErrorBody> {
    let memories = memories(leases);
    let asked =
        |reader: &mut Reader<'_>, scope| reader.savings(&EnoughQuestion { scope, ..question.clone() }, &memories);
    ask(leases, is_administrator, &question.scope, asked)
}

/// What leases used of what they had asked for, and what would have been enough, up to this moment.
///
/// # Errors
/// As [`usage`].
pub fn sizes(leases: &Leases, question: &EnoughQuestion, is_administrator: bool) -> Result<Sizes, ErrorBody> {
    let memories = memories(leases);
    let asked = |reader: &mut Reader<'_>, scope| reader.sizes(&EnoughQuestion { scope, ..question.clone() }, &memories);
    ask(leases, is_administrator, &question.scope, asked)
}

/// What those used who have no lease, and what would have been enough for each, up to this moment.
///
/// # Errors
/// As [`usage`].
pub fn baseline(leases: &Leases, question: &BaselineQuestion, is_administrator: bool) -> Result<Baseline, ErrorBody> {
    let memories = memories(leases);
    let asked =
        |reader: &mut Reader<'_>, scope| reader.baseline(&BaselineQuestion { scope, ..question.clone() }, &memories);
    ask(leases, is_administrator, &question.scope, asked)
}

/// What the GPUs have that are there, instances as much as their boards.
fn memories(leases: &Leases) -> Memories {
    let gpus = leases.gpus();
    let board_of = |instance: &Gpu| gpus.iter().find(|its| its.kind == Kind::Divided && its.index == instance.index);
    let memory_of = |gpu: &Gpu| match gpu.kind {
        Kind::Instance(_) => board_of(gpu).map_or(0, |board| board.memory_total_bytes),
        _ => gpu.memory_total_bytes,
    };
    gpus.iter().map(|gpu| (gpu.uuid.0.clone(), memory_of(gpu))).collect()
}

fn ask<A>(
    leases: &Leases,
    is_administrator: bool,
    scope: &Scope,
    question: impl FnOnce(&mut Reader<'_>, Scope) -> Result<A, ErrorBody>,
) -> Result<A, ErrorBody> {
    let configuration = leases.configuration();
    let configured = &configuration.ledger;
    if !configured.is_kept() {
        let remedy = "name a file in [ledger] path of config.toml and restart the supervisor";
        return Err(ErrorBody::new(ErrorCode::RequestNotAllowed, "this host keeps no ledger", remedy));
    }
    let present = Present::of(leases);
    let scope = present.numbered(scope)?;
    let begun = Instant::now();
    leases.ledger.bring_up_to_date(leases, begun);
    let _turn = leases.ledger.turn(is_administrator, begun + TURN)?;
    // One that cannot be written now may be read, as it was written last.
    let opened = Reader::open(&configured.path, &configuration.rates);
    let answer = opened.and_then(|mut reader| {
        reader.check(&scope, &present)?;
        question(&mut reader, scope)
    });
    leases.ledger.note_read(&answer);
    answer.map_err(|error| {
        let inner = within(&leases.ledger.inner, Instant::now());
        let failed = inner.and_then(|inner| inner.failed.as_ref().map(|(_, cause)| cause.clone()));
        match failed.filter(|_| error.code == ErrorCode::SupervisorFailed) {
            Some(cause) => {
                let message = format!("there is no ledger to read: {cause}");
                let remedy = "it is tried again every ten seconds; what leases have meanwhile is kept in memory";
                ErrorBody::new(ErrorCode::SupervisorFailed, message, remedy)
            }
            None => error,
        }
    })
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unwritten(&self) -> MutexGuard<'_, Unwritten> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_unwritten(&self) -> Unwritten {
        std::mem::take(&mut *self.unwritten())
    }

    /// What was seen of those without a lease in a look, at so many seconds of Unix time.
    pub fn note_unleased(&self, unix_s: u64, look: Vec<GpuSighting>) {
        self.unwritten().note(unix_s, look);
    }

    /// What was promised to whom, up to ten seconds ago, if that is known.
    pub fn spent(&self) -> Option<Arc<Spent>> {
        self.spent_now().clone()
    }

    /// Whether it is known by now what was promised to whom, or that it cannot be read. Before that the supervisor is just starting.
    pub fn has_looked(&self) -> bool {
        self.has_looked.load(Ordering::Relaxed)
    }

    /// What each team was promised and had since the supervisor started, nanoseconds.
    pub fn teams(&self) -> Vec<(String, [u64; 2])> {
        self.teams.lock().unwrap_or_else(PoisonError::into_inner).figures()
    }

    /// Until when that is, CLOCK_MONOTONIC.
    pub fn spent_until_ns(&self) -> u64 {
        self.spent_until_ns.load(Ordering::Relaxed)
    }

    fn spent_now(&self) -> MutexGuard<'_, Option<Arc<Spent>>> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else adds up of those who may change everything, or of the others.
    fn turn(&self, is_administrator: bool, deadline: Instant) -> Result<MutexGuard<'_, ()>, ErrorBody> {
        let asking = if is_administrator { &self.administrator_asking } else { &self.asking };
        within(asking, deadline).ok_or_else(|| {
            let message = "others are asking the ledger all the time";
            ErrorBody::new(ErrorCode::SupervisorFailed, message, "ask again later")
        })
    }

    /// Writes what is new for a question of the moment `begun`, unless that has just been done; what has ended since, as soon as may be
    /// written again. It is not waited for somebody who writes for longer.
    fn bring_up_to_date(&self, leases: &Leases, begun: Instant) {
        while let Some(mut inner) = within(&self.inner, begun + NEWS) {
            let since = inner.written.map(|written| written.elapsed()).filter(|since| *since < LEAST_PERIOD);
            match since {
                None => return inner.write(leases),
                Some(_) if inner.written >= Some(begun) || leases.book().ended.is_empty() => return,
                Some(since) => {
                    drop(inner);
                    std::thread::sleep(LEAST_PERIOD - since);
                }
            }
        }
    }

    /// Says a line of the log when it cannot be read, and none for each try. Waits for nobody: whoever asks has waited.
    fn note_read<A>(&self, answer: &Result<A, ErrorBody>) {
        let is_fault = |error: &&ErrorBody| error.code == ErrorCode::SupervisorFailed;
        let outcome = answer.as_ref().err().filter(is_fault).map_or(Ok(()), |error| Err(error.sentence()));
        if let Ok(mut inner) = self.inner.try_lock() {
            inner.faults.note("not read", &outcome);
        }
    }

    /// When it was written last, Unix seconds; none while it was not. Waits for nobody.
    pub fn written_unix_s(&self) -> Option<u64> {
        Some(self.written_unix_s.load(Ordering::Relaxed)).filter(|unix_s| *unix_s > 0)
    }
}

/// Waits for it until `deadline`.
fn within<T>(mutex: &Mutex<T>, deadline: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

impl Inner {
    /// Writes what is new. What is wrong is a line of the log when it begins, and none for each try.
    fn write(&mut self, leases: &Leases) {
        if self.failed.as_ref().is_some_and(|(when, _)| when.elapsed() < AFTER_FAILURE) {
            return;
        }
        let outcome = self.enter(leases);
        self.failed = outcome.as_ref().err().map(|cause| (Instant::now(), cause.to_string()));
        let told = outcome.map_err(|error| format!("the ledger is not written, and kept in memory meanwhile: {error}"));
        self.faults.note("not written", &told);
    }

    /// Writes what is new.
    fn enter(&mut self, leases: &Leases) -> Result<(), LedgerError> {
        let gpus = leases.gpus();
        let ahead = ReadAhead::of(&leases.book);
        let (moment, running, drawn) = {
            let mut book = leases.book();
            let now = Moment { now_ns: clock::now_ns(), unix_ms: clock::unix_ms() };
            let moment = now.of_charges(book.charged_until_ns.max(self.entered_ns));
            let (running, ended) = statements(&mut book, moment.now_ns, &ahead);
            self.ended.extend(ended);
            let of = |(place, gpu): (usize, &Gpu)| Some((gpu.uuid.clone(), *book.energy_millijoules.get(&place)?));
            let drawn: Energies = gpus.iter().enumerate().filter_map(of).collect();
            (moment, running, drawn)
        };
        let begun_ns = *self.begun_ns.get_or_insert(moment.now_ns);
        let over = self.ended.len().saturating_sub(ENDED);
        self.ended.drain(..over);
        let mut store = self.opened(leases, begun_ns)?;
        let all: Vec<&Statement> = running.iter().chain(&self.ended).collect();
        let present: Vec<GpuUuid> = gpus.iter().filter(|gpu| is_there(gpu)).map(|gpu| gpu.uuid.clone()).collect();
        let (batch, next) = self.balance.next(moment, (&present, &drawn), &all);
        let facts: Vec<GpuFacts> = gpus.iter().filter(|gpu| gpu.kind != Kind::Gone).map(facts).collect();
        // The board of an instance that came and went says how many slices it has.
        let product = gpus.first().map_or("", |gpu| gpu.name.as_str());
        // A file that cannot be written is opened anew the next time: it may be another one by then.
        let unwritten = leases.ledger.take_unwritten();
        let written = store.write((&batch, &unwritten), (&facts, product), moment, &leases.boot_id);
        if let Err(error) = written {
            leases.ledger.unwritten().take_back(unwritten);
            return Err(error);
        }
        if let Some(spent) = leases.ledger.spent_now().as_mut() {
            Arc::make_mut(spent).note(&batch, (&facts, product));
            leases.ledger.spent_until_ns.store(moment.now_ns, Ordering::Relaxed);
        }
        if let Some(spent) = &mut self.spent_meanwhile {
            spent.note(&batch, (&facts, product));
        }
        self.entered_ns = moment.now_ns;
        leases.ledger.teams.lock().unwrap_or_else(PoisonError::into_inner).note(&batch, (&facts, product));
        if next.closes_ns() != self.balance.closes_ns() {
            self.ended.clear();
        }
        self.balance = next;
        self.store = Some(store);
        self.written = Some(Instant::now());
        leases.ledger.written_unix_s.store(clock::unix_ms() / 1000, Ordering::Relaxed);
        Ok(())
    }

    /// The file, opened where it is not, or is not the one any more that has its name.
    fn opened(&mut self, leases: &Leases, begun_ns: u64) -> Result<Store, LedgerError> {
        if let Some(store) = self.store.take().filter(Store::is_in_place) {
            return Ok(store);
        }
        let (store, before) = Store::open(&leases.configuration().ledger.path, &leases.boot_id)?;
        if !self.balance.has_begun() {
            let last_unix_s = before.entered_unix_ms.map(|ms| ms / 1000);
            self.forget_unix_s = Some(last_unix_s.unwrap_or_else(|| clock::unix_ms() / 1000));
            self.balance = Balance::new(before, begun_ns);
        } else if self.file != Some(store.file()) {
            self.balance.is_in_another_file();
        }
        self.file = Some(store.file());
        Ok(store)
    }

    /// Takes out what is old, once an hour.
    fn forget(&mut self, leases: &Leases) -> Result<(), LedgerError> {
        if self.forgotten.is_some_and(|forgotten| forgotten.elapsed() < FORGET_PERIOD) {
            return Ok(());
        }
        let (Some(store), Some(last_s)) = (&mut self.store, self.forget_unix_s) else { return Ok(()) };
        self.forgotten = Some(Instant::now());
        let unix_s = (clock::unix_ms() / 1000).min(last_s + DAY_S);
        self.forget_unix_s = Some(unix_s.max(last_s));
        store.forget(&leases.configuration().ledger, unix_s)
    }
}

/// Whether its time counts: that of a divided board is its instances'.
fn is_there(gpu: &Gpu) -> bool {
    matches!(gpu.kind, Kind::Whole | Kind::Instance(_))
}

fn facts(gpu: &Gpu) -> GpuFacts {
    let profile = gpu.instance().map(|instance| instance.profile.clone());
    let slices = parts(&gpu.name, profile.as_deref());
    GpuFacts { uuid: gpu.uuid.clone(), name: gpu.name.clone(), profile, slices }
}

/// Compute slices of an instance, whose profile begins with their number (`3g.40gb`, or `1c.3g.40gb` of a part of one), and how
/// many its board has: seven but for those that the table of models says otherwise of.
pub fn parts(product: &str, profile: Option<&str>) -> (u8, u8) {
    let whole = Model::compute_slices_of(product).unwrap_or(7);
    let digits: String = profile.into_iter().flat_map(str::chars).take_while(char::is_ascii_digit).collect();
    (digits.parse().unwrap_or(whole).clamp(1, whole), whole)
}
