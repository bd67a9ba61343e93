//! A tenant that falls silent with its gate open does not keep the GPU: its time goes to the other, and it gets its
//! share back when it works again.

use super::{finish, wait_until_running};
use crate::failure::{Result, ensure};
use crate::host::{Container, Host};
use crate::measure;
use crate::meter::now_ns;
use crate::namespaces::Inside;
use crate::tenant::{PauseFile, Tenant};
use crate::trace::Recorder;
use std::time::Duration;

/// Silences one of two containers again and again.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = silence_one(&host);
    finish(host, outcome)
}

fn silence_one(host: &Host) -> Result<()> {
    let pause = PauseFile::new("/run/gpool-silent")?;
    let talker = Tenant { pause: Some(&pause), ..Tenant::greedy(700) };
    let talker = talker.run(host, "talker", &[("GPOOL_FRACTION", "0.7"), ("GPOOL_MEMORY", "2GiB")])?;
    let other = Tenant::greedy(1500).run(host, "other", &[("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB")])?;
    wait_until_running(host, &[talker.clone(), other.clone()])?;
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(2));
    let (mut silent, mut back) = (Vec::new(), Vec::new());
    // Wherever in its slice the tenant is when it falls silent.
    for round in 0..10 {
        pause.pause()?;
        let paused = now_ns();
        std::thread::sleep(Duration::from_millis(500 + 7 * round));
        silent.push((paused + 100_000_000, now_ns()));
        pause.resume()?;
        let resumed = now_ns();
        std::thread::sleep(Duration::from_millis(800));
        back.push((resumed + 200_000_000, now_ns()));
    }
    let trace = recorder.stop()?;
    let shares = |of: &Container, windows: &[(u64, u64)]| -> Vec<f64> {
        windows.iter().map(|(from, to)| trace.share(&of.id, *from, *to)).collect()
    };
    let lent = shares(&other, &silent);
    let (least, mean) = measure::least_and_mean(&lent);
    ensure(least >= 0.25 && mean >= 0.75, || format!("beside a silent tenant the other got {lent:.2?} of the GPU"))?;
    let (from, to) = (back[0].0, back[back.len() - 1].1);
    ensure(measure::first_run(&trace, &talker.id, from).is_some(), || "it never came back".to_owned())?;
    let had = shares(&talker, &back);
    let (least, mean) = measure::least_and_mean(&had);
    ensure(least >= 0.25 && (0.5..=0.9).contains(&mean), || format!("back at work it got {had:.2?} instead of 0.7"))?;
    ensure(trace.busy(from, to) > 0.75, || "the GPU stood idle while somebody had work".to_owned())
}
