//! Asking for a lease, again and again while the request waits for room.

use gpool_configuration::Queue;
use gpool_protocol::{
    CallError, Client, ErrorBody, ErrorCode, LeaseAnswer, LeaseGranted, LeaseRequest, LeaseWaiting, format_seconds,
};
use rustix::process::Pid;
use std::time::{Duration, Instant};

/// Who waits for room anyway waits for a supervisor that is away for so long, as it is while it is restarted or replaced.
const ABSENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether it is back.
pub const LOOK: Duration = Duration::from_millis(500);
/// Whatever the supervisor says, nobody asks more or less often than this.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// The supervisor ends a wait that is over; a client that still waits so long afterwards ends it itself.
const OVERDUE: Duration = Duration::from_secs(10);

/// Who makes containers for podman and CRI-O. Packages of the latter name it `crio-conmon`, or have `conmonrs` in its place.
const MONITORS: [&str; 3] = ["conmon", "crio-conmon", "conmonrs"];
/// They give a start up after 240 s (podman's `ContainerCreateTimeout`, CRI-O's `container_create_timeout`), and what they have
/// started goes on: who waited for longer would have room for a container that nobody makes any more.
const MONITOR_PATIENCE_SECONDS: u64 = 230;

/// Whether whoever makes the container, the program named `maker`, waits for as long as the request does.
///
/// # Errors
/// It does not.
pub fn check_patience(wait_seconds: Option<u64>, maker: &str) -> Result<(), ErrorBody> {
    let wait_seconds = wait_seconds.unwrap_or(0);
    if !MONITORS.contains(&maker) || wait_seconds <= MONITOR_PATIENCE_SECONDS {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::RequestNotAllowed,
        format!("wait={} is longer than podman or CRI-O wait for a start: four minutes", format_seconds(wait_seconds)),
        "ask for wait=230s or less, or have podman's hook ask for the lease, under which there is no such bound",
    ))
}

/// For how long anybody can wait here at most, in seconds; 0 where nobody does.
pub fn longest_seconds(queue: &Queue, maker: &str) -> u64 {
    let of_maker = if MONITORS.contains(&maker) { MONITOR_PATIENCE_SECONDS } else { u64::MAX };
    if queue.places == 0 { 0 } else { queue.longest_wait_seconds.min(of_maker) }
}

/// The name of the process that has started this one.
pub fn maker() -> String {
    let parent = rustix::process::getppid().map(|pid| format!("/proc/{}/comm", pid.as_raw_nonzero()));
    parent.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default().trim().to_owned()
}

/// Who has started this process. One whose parent has ended has another one, which nobody else's pid can hide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent(Option<Pid>);

impl Parent {
    /// The one of now.
    pub fn now() -> Self {
        Self(rustix::process::getppid())
    }

    /// Whether it has ended since.
    pub fn has_ended(self) -> bool {
        Self::now() != self
    }
}

/// Why there is no lease yet.
#[derive(Debug, Clone, Copy)]
pub enum NotYet<'a> {
    /// There is no room.
    NoRoom(&'a LeaseWaiting),
    /// Nobody answers, who waits for room is asked again.
    NoAnswer(&'a ErrorBody),
}

/// Asks until there is a lease, or nobody wants one any more; `on_waiting` is told once why there is none yet. Who waits for no
/// room waits `patience` for an answer, and asks once more where the supervisor ends meanwhile: it knows who asks, and what it has
/// granted him before it grants him again.
///
/// # Errors
/// The request is refused, also after it has waited; or nobody answers, or wants it.
pub fn ask(
    client: &Client,
    asked: &LeaseRequest,
    patience: Duration,
    is_wanted: impl Fn() -> bool,
    on_waiting: impl Fn(NotYet<'_>),
) -> Result<LeaseGranted, ErrorBody> {
    let (begun, mut asked) = (Instant::now(), asked.clone());
    let wait = asked.request.wait_seconds.map(Duration::from_secs);
    let (mut is_waiting, mut away_since, mut was_there, mut is_told) = (false, None, false, false);
    loop {
        if !is_wanted() {
            return Err(unwanted());
        }
        let left = if wait.is_some() { patience } else { patience.saturating_sub(begun.elapsed()) };
        let pause = match client.clone().with_timeout(left).try_post("/v1/leases", &asked) {
            Ok(LeaseAnswer::Granted(granted)) => return Ok(granted),
            Ok(LeaseAnswer::Waiting(answer)) => {
                if !is_waiting {
                    on_waiting(NotYet::NoRoom(&answer));
                }
                if wait.is_some_and(|wait| begun.elapsed() >= wait + OVERDUE) {
                    return Err(over(&answer));
                }
                (is_waiting, away_since) = (true, None);
                Duration::from_millis(answer.retry_ms).clamp(RETRY.0, RETRY.1)
            }
            // What the supervisor cannot do for a moment costs nobody his place, as long as his time is not over.
            Err(CallError::Refused(error))
                if is_waiting
                    && error.code == ErrorCode::SupervisorFailed
                    && wait.is_some_and(|wait| begun.elapsed() < wait) =>
            {
                if away_since.get_or_insert_with(Instant::now).elapsed() >= ABSENCE {
                    return Err(error);
                }
                LOOK
            }
            Err(CallError::Refused(error)) => return Err(error),
            Err(error) => {
                was_there |= matches!(error, CallError::BrokenOff(_) | CallError::Busy(_));
                let (since, longest) = match wait {
                    Some(_) if is_waiting => (*away_since.get_or_insert_with(Instant::now), ABSENCE),
                    Some(wait) => (begun, wait.min(ABSENCE).max(patience)),
                    None if was_there => (begun, patience),
                    // Where there is none at all, whoever asks hears of it at once.
                    None => return Err(error.into_body()),
                };
                if since.elapsed() + LOOK >= longest {
                    return Err(error.into_body());
                }
                if wait.is_some() && !is_waiting && !std::mem::replace(&mut is_told, true) {
                    on_waiting(NotYet::NoAnswer(&error.into_body()));
                }
                LOOK
            }
        };
        std::thread::sleep(pause);
        // For a supervisor that does not know it any more: the wait does not begin anew.
        asked.request.wait_seconds = wait.map(|wait| wait.saturating_sub(begun.elapsed()).as_secs().max(1));
    }
}

/// Nobody makes the container any more for which it is asked.
pub fn unwanted() -> ErrorBody {
    ErrorBody::new(
        ErrorCode::TakenOutOfQueue,
        "the program that starts the container has ended, and nobody waits for room any more",
        "start it again to wait again",
    )
}

fn over(answer: &LeaseWaiting) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::ShareNotFree,
        format!("the time to wait for room is over: {}", answer.waiting.cause),
        "start it again, ask for less, or wait for longer",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    const GRANTED: &str = r#"{"lease_id":"01","gpu_uuid":"GPU-1","edits":[]}"#;
    const WAITING: &str = r#"{"waiting":{"container_id":"c","place":1,"request":{"fraction_permille":300},
        "owner_uid":0,"since_unix_ms":1,"waited_ms":9,"cause":"no room"},"retry_ms":1}"#;
    const FAILED: &str = r#"{"code":"GPOOL-E002","message":"the disk is full","remedy":"make room"}"#;
    const REFUSED: &str = r#"{"code":"GPOOL-E201","message":"no room","remedy":"wait"}"#;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A supervisor that gives these answers, one a connection; without one it breaks the connection off.
    fn answering(answers: &'static [(u16, &'static str)]) -> (tempfile::TempDir, Client) {
        answering_after(Duration::ZERO, answers)
    }

    /// One that comes so much later.
    fn answering_after(away: Duration, answers: &'static [(u16, &'static str)]) -> (tempfile::TempDir, Client) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("gpool.sock");
        let client = Client::new(&socket);
        let listens = move || UnixListener::bind(&socket).unwrap();
        let listener = away.is_zero().then(&listens);
        std::thread::spawn(move || {
            std::thread::sleep(away);
            let listener = listener.unwrap_or_else(listens);
            for (status, body) in answers {
                let mut stream = listener.accept().unwrap().0;
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).unwrap();
                if *status > 0 {
                    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
                    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
                }
            }
        });
        (directory, client)
    }

    fn asked() -> LeaseRequest {
        serde_json::from_str(r#"{"container_id":"c","request":{"fraction_permille":300,"wait_seconds":60}}"#).unwrap()
    }

    /// The same of one that waits for no room.
    fn asked_at_once() -> LeaseRequest {
        let mut asked = asked();
        asked.request.wait_seconds = None;
        asked
    }

    #[test]
    fn nobody_waits_for_longer_than_the_host_or_the_engine_lets_him() {
        let queue = Queue { longest_wait_seconds: 600, ..Queue::default() };
        assert_eq!((longest_seconds(&queue, "dockerd"), longest_seconds(&queue, "crio-conmon")), (600, 230));
        assert_eq!(longest_seconds(&Queue { places: 0, ..queue }, "dockerd"), 0);
    }

    #[test]
    fn it_is_asked_until_there_is_room_and_told_once() {
        let answers = &[(200, WAITING), (0, ""), (200, WAITING), (200, GRANTED)];
        let (_directory, client) = answering(answers);
        let told = Cell::new(0);
        let granted = ask(&client, &asked(), PATIENCE, || true, |_| told.set(told.get() + 1)).unwrap();
        assert_eq!((granted.lease_id.0.as_str(), told.get()), ("01", 1), "a supervisor that breaks off is waited for");
    }

    #[test]
    fn nobody_waits_for_longer_than_who_makes_the_container() {
        assert_eq!((check_patience(Some(230), "conmon"), check_patience(None, "conmon")), (Ok(()), Ok(())));
        assert_eq!(check_patience(Some(86_400), "containerd-shim"), Ok(()));
        let error = check_patience(Some(600), "conmon").unwrap_err();
        assert!(error.message.contains("wait=10m") && error.remedy.contains("wait=230s"), "{error}");
        assert!(!maker().is_empty());
    }

    #[test]
    fn a_refusal_ends_it() {
        let (_directory, client) = answering(&[(200, WAITING), (409, REFUSED)]);
        assert_eq!(ask(&client, &asked(), PATIENCE, || true, |_| ()).unwrap_err().code, ErrorCode::ShareNotFree);
    }

    #[test]
    fn who_waits_for_room_waits_for_a_supervisor_from_the_first_call_on() {
        let (_directory, client) = answering_after(LOOK, &[(0, ""), (503, FAILED), (200, WAITING), (200, GRANTED)]);
        assert_eq!(ask(&client, &asked(), PATIENCE, || true, |_| ()).unwrap().lease_id.0, "01");
        // Not for longer than for room, as long as it has said nothing.
        let (_directory, client) = answering_after(PATIENCE, &[]);
        let (begun, mut brief) = (Instant::now(), asked());
        brief.request.wait_seconds = Some(1);
        let error = ask(&client, &brief, LOOK, || true, |_| ()).unwrap_err();
        assert!(error.code == ErrorCode::SupervisorAbsent && begun.elapsed() < ABSENCE / 2, "{error}");
    }

    #[test]
    fn who_waits_for_no_room_asks_again_only_where_the_supervisor_ends_meanwhile_or_has_no_time() {
        let (_directory, client) = answering(&[(0, ""), (503, FAILED), (0, ""), (200, GRANTED)]);
        assert_eq!(ask(&client, &asked_at_once(), PATIENCE, || true, |_| ()).unwrap().lease_id.0, "01");
        // None of these is asked a second time, whom it would be granted.
        for once in [&[(500, FAILED), (200, GRANTED)], &[(200, "{}"), (200, GRANTED)]] {
            let (_directory, client) = answering(once);
            let error = ask(&client, &asked_at_once(), PATIENCE, || true, |_| ()).unwrap_err();
            assert_eq!(error.code, ErrorCode::SupervisorFailed, "{error}");
        }
        let (_directory, client) = answering_after(LOOK, &[(200, GRANTED)]);
        let absent = ask(&client, &asked_at_once(), PATIENCE, || true, |_| ()).unwrap_err();
        assert_eq!(absent.code, ErrorCode::SupervisorAbsent);
        // All together are one patience.
        let (_directory, client) = answering(&[(0, ""), (0, ""), (0, ""), (0, ""), (0, ""), (0, ""), (0, ""), (0, "")]);
        let begun = Instant::now();
        assert!(ask(&client, &asked_at_once(), LOOK * 3, || true, |_| ()).is_err() && begun.elapsed() >= LOOK);
    }

    #[test]
    fn what_the_supervisor_cannot_do_for_a_moment_costs_nobody_his_place() {
        let (_directory, client) = answering(&[(200, WAITING), (500, FAILED), (200, GRANTED)]);
        assert_eq!(ask(&client, &asked(), PATIENCE, || true, |_| ()).unwrap().lease_id.0, "01");
        // Whose time is over is told what it failed for.
        let (_directory, client) = answering(&[(200, WAITING), (500, FAILED)]);
        let mut brief = asked();
        brief.request.wait_seconds = Some(0);
        assert_eq!(ask(&client, &brief, PATIENCE, || true, |_| ()).unwrap_err().message, "the disk is full");
        let (_directory, client) = answering(&[(500, FAILED)]);
        assert_eq!(ask(&client, &asked(), PATIENCE, || true, |_| ()).unwrap_err().code, ErrorCode::SupervisorFailed);
    }

    #[test]
    fn nobody_asks_on_for_a_program_that_has_ended() {
        let (_directory, client) = answering(&[(200, WAITING), (200, WAITING)]);
        let is_there = Cell::new(true);
        let error = ask(&client, &asked(), PATIENCE, || is_there.get(), |_| is_there.set(false)).unwrap_err();
        assert_eq!(error.code, ErrorCode::TakenOutOfQueue);
        assert!(!Parent::now().has_ended());
    }
}
