//! `gpool overflow watch`: tells a program once when the host becomes short of room, and once when it is not any more.
//!
//! The supervisor knows how the host stands, and this command what it has told the program. Where the two differ the program is
//! told, so nothing is missed and nothing told twice, whichever of them was away. What begins and is over meanwhile is no news.

use super::PATH;
use super::program::{check, tell};
use super::told::{Known, Told};
use crate::arguments::WatchOptions;
use crate::exit::Failure;
use crate::follower::{LOOK_PERIOD, RETRY, Supervisor, follow, say};
use gpool_protocol::{Client, EventKind, OverflowView, format_seconds};
use std::time::{Duration, Instant};

/// A program that fails is run again after so long, then after twice as long each time.
const AGAIN_FIRST: Duration = Duration::from_secs(5);
/// After so long at most.
const AGAIN_MOST: Duration = Duration::from_secs(300);

/// Watches for ever.
///
/// # Errors
/// There is no such program, or nothing can be kept where it should be.
pub fn run(client: &Client, options: &WatchOptions) -> Result<(), Failure> {
    check(&options.command)?;
    let mut watch = Watch {
        told: Told::open(options.state.as_deref())?,
        timeout: Duration::from_secs(options.timeout),
        pause: AGAIN_FIRST,
        next_try: None,
        is_off: false,
    };
    let mut supervisor = Supervisor::new(follow(client));
    loop {
        let until = match client.get::<OverflowView>(PATH) {
            Ok(view) => {
                supervisor.note_back();
                watch.look(&view, options)
            }
            Err(error) => {
                supervisor.note_away(&error);
                Instant::now() + RETRY
            }
        };
        supervisor.until_there_is_news(|event| event.kind == EventKind::Overflow, until);
    }
}

struct Watch {
    told: Told,
    timeout: Duration,
    /// How long the next failure is waited after, and until when the last one is.
    pause: Duration,
    next_try: Option<Instant>,
    /// Whether it was said that nobody watches.
    is_off: bool,
}

impl Watch {
    /// Tells the program if it has to be, and says when to look again at the latest.
    fn look(&mut self, view: &OverflowView, options: &WatchOptions) -> Instant {
        let is_off = view.after_seconds == 0;
        if is_off && !std::mem::replace(&mut self.is_off, is_off) {
            say("gpool: [overflow] after_seconds in config.toml is 0, so the host is never short of room");
        }
        self.is_off = is_off;
        if !self.told.is_due(view.is_short) {
            (self.pause, self.next_try) = (AGAIN_FIRST, None);
            return Instant::now() + LOOK_PERIOD;
        }
        if let Some(later) = self.next_try.filter(|its| *its > Instant::now()) {
            return later.min(Instant::now() + LOOK_PERIOD);
        }
        let state = if view.is_short { "the host is short of room" } else { "the host is not short of room any more" };
        self.note(Known::Unknown);
        match tell(&options.command, view, self.timeout) {
            Ok(()) => {
                say(&format!("gpool: {state}, and {} was told", options.command[0].display()));
                self.note(if view.is_short { Known::Short } else { Known::NotShort });
                (self.pause, self.next_try) = (AGAIN_FIRST, None);
                // It took its time, in which the host may have changed.
                Instant::now()
            }
            Err(cause) => {
                let pause = self.pause;
                let again = format_seconds(pause.as_secs());
                say(&format!("gpool: {state}, but {cause}; it is run again in {again}"));
                self.pause = (pause * 2).min(AGAIN_MOST);
                let later = Instant::now() + pause;
                self.next_try = Some(later);
                later
            }
        }
    }

    fn note(&mut self, known: Known) {
        if let Err(cause) = self.told.note(known) {
            say(&format!("gpool: what the program was told cannot be written to --state: {cause}"));
        }
    }
}
