//! Stopping, when the service manager or somebody else says so (SIGTERM, SIGINT): what is in memory alone, of the ledger, the audit and
//! the log, is written down first. That takes a moment, and three seconds at most whatever hangs: the service manager waits for it, and
//! so does whoever starts a container. Leases, regions and gates are left as by a supervisor that is killed, and served until then.

use crate::lease::Leases;
use crate::ledger;
use crate::{log, service_manager};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What says that it is to end.
const SIGNALS: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];
/// For so long is waited for the ledger and the audit, both together.
const PATIENCE: Duration = Duration::from_secs(2);
/// And for each of the two that follow.
const REST: Duration = Duration::from_millis(400);

/// Counts the signals.
static BELL: OnceLock<OwnedFd> = OnceLock::new();
/// The last of them.
static SAID: AtomicI32 = AtomicI32::new(0);

/// Something that may hang.
type Job = Box<dyn FnOnce() + Send>;

/// Has the supervisor stop at such a signal from now on, by a thread of its own.
///
/// # Errors
/// No signal can be caught, or no thread be started.
pub fn watch(leases: &Arc<Leases>) -> io::Result<()> {
    catch()?;
    let leases = leases.clone();
    let stop = move || {
        let signal = wait();
        service_manager::stopping();
        finish(&leases);
        end_by(signal);
    };
    std::thread::Builder::new().name("stop".into()).spawn(stop).map(drop)
}

/// Writes down what is in memory alone, as far as that can be done now. Whoever ends the supervisor calls it first.
pub fn finish(leases: &Arc<Leases>) {
    let of = |what: fn(&Leases)| -> Job {
        let leases = leases.clone();
        Box::new(move || what(&leases))
    };
    within(PATIENCE, vec![of(ledger::finish), of(|leases| leases.audit.finish(&leases.events))]);
    // Behind that: what could be written is not lost.
    within(REST, vec![of(|leases| leases.audit.leave_mark(&leases.events, &leases.configuration().paths.run_dir))]);
    within(REST, vec![Box::new(log::finish)]);
}

/// Does all of it at the same time; whether that was done after so long.
fn within(patience: Duration, jobs: Vec<Job>) -> bool {
    let (deadline, (tell, told)) = (Instant::now() + patience, channel());
    for job in jobs {
        let tell = tell.clone();
        let run = move || {
            job();
            let _ = tell.send(());
        };
        // Without a thread it is left out.
        let _ = std::thread::Builder::new().name("stop-job".into()).spawn(run);
    }
    drop(tell);
    // Who is at none any more has let go of his end.
    loop {
        match told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(()) => {}
            Err(cause) => return cause == RecvTimeoutError::Disconnected,
        }
    }
}

/// Catches the signals. They are not blocked as SIGHUP is: what the supervisor starts would inherit that, and not end when the service
/// manager ends all that is in its cgroup.
fn catch() -> io::Result<()> {
    // It is done once.
    let _ = BELL.set(eventfd(0, EventfdFlags::CLOEXEC)?);
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
    for signal in SIGNALS {
        // SAFETY: the handler does nothing but what signal-safety(7) lets it do.
        let before = unsafe { sigaction(signal, &action) }?;
        if matches!(before.handler(), SigHandler::SigIgn) {
            // A shell starts what is to outlive its terminal so.
            // SAFETY: this is no handler.
            unsafe { sigaction(signal, &before) }?;
        }
    }
    Ok(())
}

extern "C" fn note(signal: nix::libc::c_int) {
    SAID.store(signal, Ordering::SeqCst);
    if let Some(bell) = BELL.get() {
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    }
}

/// Waits for one of the signals, which it gives.
fn wait() -> Signal {
    let mut count = [0u8; 8];
    loop {
        let rung = BELL.get().is_some_and(|bell| rustix::io::read(bell, &mut count).is_ok());
        match Signal::try_from(SAID.load(Ordering::SeqCst)) {
            Ok(signal) if rung => return signal,
            Ok(_) | Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Ends by the signal, as without this: at once, without what programs do at their exit, which may hang.
fn end_by(signal: Signal) {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: this is no handler.
    let _ = unsafe { sigaction(signal, &default) };
    let _ = raise(signal);
    // The first process of a container is spared by its own signals.
    std::process::exit(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, kill_process};
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::sync::atomic::AtomicBool;

    /// Says which of the two processes of the test below this one is.
    const CHILD: &str = "GPOOL_TEST_STOPPING_CHILD";

    /// In a process of its own, which ends.
    #[test]
    fn who_is_told_to_end_does_what_is_left_and_ends_by_the_signal() {
        if std::env::var_os(CHILD).is_some() {
            for signal in SIGNALS {
                // What runs in the background of a script ignores SIGINT, and what is ignored stays so.
                // SAFETY: the default needs no handler.
                unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) }.unwrap();
            }
            catch().unwrap();
            println!("it waits");
            let signal = wait();
            within(Duration::from_secs(30), vec![Box::new(|| println!("it has written all down"))]);
            end_by(signal);
        }
        let own = std::thread::current().name().unwrap().to_owned();
        for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", &own, "--nocapture", "--test-threads=1"]).env(CHILD, "1").stdout(Stdio::piped());
            let mut child = child.spawn().unwrap();
            let mut stdout = BufReader::new(child.stdout.take().unwrap());
            let mut said = String::new();
            while !said.contains("it waits") {
                assert!(stdout.read_line(&mut said).unwrap() > 0, "{said}");
            }
            kill_process(Pid::from_child(&child), signal).unwrap();
            stdout.read_to_string(&mut said).unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(signal.as_raw()), "{said}");
            assert!(said.contains("it has written all down"), "{said}");
        }
    }

    #[test]
    fn what_hangs_is_waited_for_no_longer_and_keeps_nothing_else_from_being_done() {
        let (let_go, held) = channel::<()>();
        let is_done = Arc::new(AtomicBool::new(false));
        let done = is_done.clone();
        let hangs: Job = Box::new(move || held.recv().unwrap_or_default());
        assert!(!within(Duration::from_secs(1), vec![hangs, Box::new(move || done.store(true, Ordering::SeqCst))]));
        assert!(is_done.load(Ordering::SeqCst));
        assert!(within(Duration::from_secs(30), vec![Box::new(|| {})]));
        drop(let_go);
    }
}
