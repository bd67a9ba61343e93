//! The summary: each promise with the figure that was measured.

use super::window::TOO_MUCH;
use std::time::Duration;

/// What was promised, what was measured and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Promise {
    what: String,
    figure: String,
    aim: String,
    /// None for a figure that is only shown beside its aim.
    holds: Option<bool>,
}

/// How strictly shares are judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The most that a share may be off, in points of a hundred.
    pub share_points: f64,
    /// Whether time in which the GPU did nothing counts as an error of the shares, where the processors were there, and not only
    /// against what follows.
    pub idle_is_error: bool,
    /// How much of the time the GPU must be used, in percent.
    pub used_percent: f64,
    /// How many windows are tried while other machines take much of the processors' time.
    pub tries: u32,
}

impl Bounds {
    /// What is promised, for a machine that does nothing else.
    pub const PROMISED: Self = Self { share_points: 1.0, idle_is_error: true, used_percent: 95.0, tries: 3 };
    /// What holds on a machine that does a lot else, unless something is broken.
    pub const UNBROKEN: Self = Self { share_points: 5.0, idle_is_error: false, used_percent: 80.0, tries: 1 };
}

/// All of them, in the order of the demo.
#[derive(Debug)]
pub struct Promises {
    /// What shares are held against.
    pub bounds: Bounds,
    promises: Vec<Promise>,
    /// The most of the processors' time, 0 to 1, that went to other machines while a share was judged.
    stolen: f64,
}

impl Promises {
    /// None yet.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, promises: Vec::new(), stolen: 0.0 }
    }

    /// Adds one that decides the exit status.
    pub fn judge(&mut self, what: &str, figure: &str, aim: &str, holds: bool) {
        self.promises.push(Promise { what: what.into(), figure: figure.into(), aim: aim.into(), holds: Some(holds) });
    }

    /// Adds a speed, which a noisy machine may miss: shown here, judged by the benchmarks.
    pub fn show_speed(&mut self, what: &str, measured: Option<Duration>, aim: &str) {
        let figure = measured.map_or("not seen".to_owned(), |time| format!("{:.1} ms", time.as_secs_f64() * 1e3));
        self.show(what, &figure, aim);
    }

    /// Adds a figure that decides nothing.
    pub fn show(&mut self, what: &str, figure: &str, aim: &str) {
        self.promises.push(Promise { what: what.into(), figure: figure.into(), aim: aim.into(), holds: None });
    }

    /// A hypervisor gave this part of the processors' time, 0 to 1, to other machines while a share was judged.
    pub fn note_stolen(&mut self, part: f64) {
        self.stolen = self.stolen.max(part);
    }

    /// Shows the most of that.
    pub fn show_stolen(&mut self) {
        let (figure, most) = (format!("{:.1} %", self.stolen * 100.0), format!("below {:.1} %", TOO_MUCH * 100.0));
        self.show("processor time that other machines took", &figure, &most);
    }

    /// Whether every judged promise holds.
    pub fn all_hold(&self) -> bool {
        self.promises.iter().all(|promise| promise.holds != Some(false))
    }

    /// The table, and a last line that says how it went.
    pub fn summary(&self) -> String {
        let width =
            |cell: fn(&Promise) -> &String| self.promises.iter().map(|promise| cell(promise).chars().count()).max();
        let (what, figure, aim) = (width(|p| &p.what), width(|p| &p.figure), width(|p| &p.aim));
        let (what, figure, aim) = (what.unwrap_or(0).max(7), figure.unwrap_or(0).max(8), aim.unwrap_or(0).max(3));
        let line = |a: &str, b: &str, c: &str, d: &str| format!("{a:what$}  {b:>figure$}  {c:>aim$}  {d}\n");
        let mut text = format!("\n{}", line("PROMISE", "MEASURED", "AIM", "VERDICT"));
        for promise in &self.promises {
            let verdict = match promise.holds {
                Some(true) => "pass",
                Some(false) => "FAIL",
                None => "shown",
            };
            text += &line(&promise.what, &promise.figure, &promise.aim, verdict);
        }
        let failed = self.promises.iter().filter(|promise| promise.holds == Some(false)).count();
        let judged = self.promises.iter().filter(|promise| promise.holds.is_some()).count();
        text += &format!("\n{} of {judged} promises hold\n", judged - failed);
        if failed > 0 && self.stolen >= TOO_MUCH {
            text += &format!(
                "The simulated GPU runs on this machine's processors, and other machines took {:.1} % of their time: what \
                 failed may say more of that than of gpool. Run it again when they are quiet.\n",
                self.stolen * 100.0
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_do_not_decide() {
        let mut promises = Promises::new(Bounds::PROMISED);
        promises.judge("share", "0.2 points", "1 point", true);
        promises.show_speed("update seen", None, "1 s");
        assert!(promises.all_hold());
        promises.judge("cap", "1 byte", "0 bytes", false);
        assert!(!promises.all_hold());
        let want = "
PROMISE        MEASURED      AIM  VERDICT
share        0.2 points  1 point  pass
update seen    not seen      1 s  shown
cap              1 byte  0 bytes  FAIL

1 of 2 promises hold
";
        assert_eq!(promises.summary(), want);
    }

    #[test]
    fn what_other_machines_took_is_said_and_makes_nothing_hold() {
        let mut promises = Promises::new(Bounds::PROMISED);
        promises.note_stolen(0.08);
        promises.note_stolen(0.001);
        promises.show_stolen();
        assert!(promises.all_hold() && !promises.summary().contains("Run it again"), "nothing has failed");
        promises.judge("share", "4 points", "1 point", false);
        let summary = promises.summary();
        assert!(
            !promises.all_hold() && summary.contains("took 8.0 %") && summary.contains("Run it again"),
            "{summary}"
        );
        promises.stolen = 0.001;
        assert!(!promises.summary().contains("Run it again"), "that is no reason");
    }
}
