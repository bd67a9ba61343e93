//! A server, and processes that it suspends: this one, which may always name itself, and others, which needs root.

use super::{Devices, ProcessState, Refusal, Requests, Verb, ask};
use crate::gate::Unmovable;
use crate::handshake::Connection;
use crate::layout::Layout;
use crate::server::{attend, listen};
use crate::store::Store;
use gpool_device_model::{ContextId, Device, DeviceParameters};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const GIB: u64 = 1 << 30;
const NO_TIMEOUT: Verb = Verb::Lock { timeout_ms: 0 };
/// Where the state lies that the helper below is to use.
const HELPER_ROOT: &str = "GPOOL_TEST_CHECKPOINT_ROOT";

/// A server that attends until it is dropped.
struct Host {
    layout: Layout,
    _directory: tempfile::TempDir,
    stop: Option<std::io::PipeWriter>,
    server: Option<JoinHandle<()>>,
}

impl Host {
    /// With one device of 8 GiB, whose contexts take 256 MiB.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let parameters =
            DeviceParameters { memory_bytes: 8 * GIB, context_bytes: GIB / 4, ..DeviceParameters::standard(0) };
        let stores = vec![Store::create(layout.root(), parameters).unwrap()];
        let paths = [layout.socket(), layout.pids_socket(), layout.checkpoint_socket()];
        let [listener, curious, suspending] = paths.map(|path| listen(&path).unwrap());
        let (until, stop) = std::io::pipe().unwrap();
        let of_server = layout.clone();
        let server = thread::spawn(move || {
            let devices = Devices { layout: &of_server, stores: &stores };
            let mut requests = Requests::new(suspending);
            attend(devices, [&listener, &curious], &mut requests, std::os::fd::AsFd::as_fd(&until)).unwrap();
        });
        Self { layout, _directory: directory, stop: Some(stop), server: Some(server) }
    }

    fn store(&self) -> Store {
        Store::open(self.layout.root()).unwrap()
    }

    fn ask(&self, pid: u32, verb: Verb) -> Result<ProcessState, Refusal> {
        ask(&self.layout, pid as i32, verb)
    }

    /// Asks for all of these, which are done.
    fn go(&self, pid: u32, verbs: &[Verb]) {
        for verb in verbs {
            self.ask(pid, *verb).unwrap_or_else(|refusal| panic!("{verb:?}: {refusal:?}"));
        }
    }

    fn is_running(&self, pid: u32) -> bool {
        self.ask(pid, Verb::State) == Ok(ProcessState::Running)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.take();
        self.server.take().map(JoinHandle::join);
    }
}

/// This process with a context and 4 GiB in it.
fn tenant(host: &Host) -> (Connection, Store, ContextId) {
    let (connection, store) = (Connection::open(&host.layout).unwrap(), host.store());
    let own = connection.identity().host_pid;
    let context = store.update(|device, now_ns| {
        let context = device.create_context(now_ns, own, "/own").unwrap();
        device.allocate(now_ns, context, 4 * GIB).unwrap();
        context
    });
    (connection, store, context.unwrap())
}

fn used(store: &Store) -> u64 {
    store.read(Device::memory_used).unwrap()
}

#[test]
fn each_step_leads_from_one_state_alone() {
    let host = Host::new();
    let (connection, store, context) = tenant(&host);
    let own = connection.identity().host_pid;
    let steps = [
        (NO_TIMEOUT, ProcessState::Running, ProcessState::Locked),
        (Verb::Checkpoint, ProcessState::Locked, ProcessState::Checkpointed),
        (Verb::Restore, ProcessState::Checkpointed, ProcessState::Locked),
        (Verb::Unlock, ProcessState::Locked, ProcessState::Running),
    ];
    for _ in 0..2 {
        for (verb, from, to) in steps {
            assert_eq!(host.ask(own, Verb::State), Ok(from));
            for (other, other_from, _) in steps {
                if other_from != from {
                    assert_eq!(host.ask(own, other), Err(Refusal::WrongState), "{other:?} of {from:?}");
                }
            }
            assert_eq!(host.ask(own, verb), Ok(to));
            let is_gone = to == ProcessState::Checkpointed;
            assert_eq!(used(&store), if is_gone { 0 } else { 4 * GIB + GIB / 4 });
            let seen = store.snapshot().unwrap();
            assert_eq!((seen.processes().is_empty(), seen.has_context(context)), (is_gone, !is_gone));
        }
    }
    assert_eq!(ask(&host.layout, -1, Verb::State), Err(Refusal::NoProcess));
}

#[test]
fn calls_wait_from_lock_to_unlock_in_every_thread() {
    let host = Host::new();
    let (connection, ..) = tenant(&host);
    let own = connection.identity().host_pid;
    drop(connection.gate().enter());
    host.go(own, &[NO_TIMEOUT]);
    thread::scope(|scope| {
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(|| drop(connection.gate().enter()))).collect();
        host.go(own, &[Verb::Checkpoint]);
        thread::sleep(Duration::from_millis(50));
        host.go(own, &[Verb::Restore]);
        thread::sleep(Duration::from_millis(50));
        assert!(calls.iter().all(|call| !call.is_finished()));
        host.go(own, &[Verb::Unlock]);
    });
}

#[test]
fn a_lock_waits_for_calls_and_for_work_and_no_longer_than_it_is_told() {
    let host = Host::new();
    let (connection, store, context) = tenant(&host);
    let own = connection.identity().host_pid;
    let inside = connection.gate().enter();
    assert_eq!(host.ask(own, Verb::Lock { timeout_ms: 30 }), Err(Refusal::NotReady));
    drop(inside);
    // Nobody wants it locked any more: calls go on.
    assert!(host.is_running(own));
    drop(connection.gate().enter());
    let begun = Instant::now();
    store.update(|device, now_ns| device.submit_kernel(now_ns, context, 200_000_000)).unwrap();
    assert_eq!(host.ask(own, Verb::Lock { timeout_ms: 30 }), Err(Refusal::NotReady));
    assert!(host.is_running(own));
    host.go(own, &[NO_TIMEOUT]);
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert!(!store.snapshot().unwrap().has_work(own));
    host.go(own, &[Verb::Unlock]);
}

#[test]
fn who_goes_away_while_a_lock_waits_leaves_no_lock() {
    let host = Host::new();
    let (connection, ..) = tenant(&host);
    let own = connection.identity().host_pid;
    let inside = connection.gate().enter();
    let asker = std::os::unix::net::UnixStream::connect(host.layout.checkpoint_socket()).unwrap();
    crate::credentials::send(&asker, NO_TIMEOUT.to_bytes(), own).unwrap();
    // Until the server has closed the gate for it.
    let (knocked, entered) = mpsc::channel();
    thread::scope(|scope| {
        let gate = connection.gate();
        scope.spawn(move || {
            loop {
                drop(gate.enter());
                if knocked.send(()).is_err() {
                    break;
                }
            }
        });
        while entered.recv_timeout(Duration::from_millis(100)).is_ok() {}
        drop(asker);
        entered.recv_timeout(Duration::from_secs(10)).unwrap();
        drop(entered);
    });
    drop(inside);
    assert!(host.is_running(own));
}

#[test]
fn freed_memory_is_anothers_meanwhile_and_without_room_the_process_has_failed() {
    let host = Host::new();
    let (connection, store, context) = tenant(&host);
    let own = connection.identity().host_pid;
    host.go(own, &[NO_TIMEOUT, Verb::Checkpoint]);
    let other = store.update(|device, now_ns| {
        let other = device.create_context(now_ns, 1, "/other").unwrap();
        device.allocate(now_ns, other, 7 * GIB).unwrap();
        other
    });
    let other = other.unwrap();
    assert_eq!(host.ask(own, Verb::Restore), Err(Refusal::OutOfMemory));
    assert_eq!(host.ask(own, Verb::State), Ok(ProcessState::Failed));
    store.update(|device, now_ns| device.free(now_ns, other, 7 * GIB)).unwrap();
    for verb in [Verb::Restore, Verb::Unlock, NO_TIMEOUT, Verb::Checkpoint] {
        assert_eq!(host.ask(own, verb), Err(Refusal::WrongState));
    }
    let seen = store.snapshot().unwrap();
    assert!(!seen.has_context(context));
    assert_eq!(seen.processes(), [(1, GIB / 4)]);
}

#[test]
fn what_cannot_leave_the_device_keeps_its_process_there() {
    let host = Host::new();
    let (connection, store, _) = tenant(&host);
    let own = connection.identity().host_pid;
    host.go(own, &[NO_TIMEOUT]);
    let managed = Unmovable::new(connection.gate());
    assert_eq!(host.ask(own, Verb::Checkpoint), Err(Refusal::NotSupported));
    drop(managed);
    let share = store.update(|device, now_ns| {
        device.allocate_physical(now_ns, own, "/own", GIB).unwrap();
        device.share(now_ns, own, GIB).unwrap()
    });
    assert_eq!(host.ask(own, Verb::Checkpoint), Err(Refusal::NotSupported));
    assert_eq!(host.ask(own, Verb::State), Ok(ProcessState::Locked));
    let share = share.unwrap();
    store.update(|device, now_ns| device.leave_share(now_ns, share, own)).unwrap();
    host.go(own, &[Verb::Checkpoint, Verb::Restore, Verb::Unlock]);
    connection.gate().bar();
    assert_eq!(host.ask(own, NO_TIMEOUT), Err(Refusal::NotSupported));
    assert!(host.is_running(own));
}

#[test]
fn what_was_on_an_instance_that_is_gone_does_not_come_back() {
    let host = Host::new();
    let (connection, ..) = tenant(&host);
    let own = connection.identity().host_pid;
    let instance = Store::create_instance(host.layout.root(), (0, 1), DeviceParameters::standard(0)).unwrap();
    instance.update(|device, now_ns| device.create_context(now_ns, own, "/own").unwrap()).unwrap();
    host.go(own, &[NO_TIMEOUT, Verb::Checkpoint]);
    assert_eq!(used(&instance), 0);
    std::fs::remove_file(host.layout.instance(0, 1)).unwrap();
    assert_eq!(host.ask(own, Verb::Restore), Err(Refusal::Failed));
    assert_eq!(host.ask(own, Verb::State), Ok(ProcessState::Failed));
    assert_eq!(used(&host.store()), 0);
}

/// Another process with a context and 4 GiB. None without root, which may name others.
struct Other {
    process: Child,
    pid: u32,
}

impl Other {
    fn start(host: &Host) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let name = "checkpoint::tests::helper_is_another_process";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--ignored", "--nocapture"]).env(HELPER_ROOT, host.layout.root());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("ready")));
        let pid = process.id();
        Some(Self { process, pid })
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.process), signal).unwrap();
    }

    /// Kills it and waits until nothing of it is left.
    fn end(mut self, host: &Host) {
        self.process.kill().unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        let is_left = || host.ask(self.pid, Verb::State) != Err(Refusal::NoProcess) || used(&host.store()) > 0;
        while is_left() {
            assert!(Instant::now() < until, "something is left of a process that was killed");
            thread::sleep(Duration::from_millis(5));
        }
        self.process.wait().unwrap();
        let resumed = host.store().update(|device, now_ns| device.resume(now_ns, self.pid)).unwrap();
        assert_eq!(resumed, Ok(false));
    }
}

/// No test: the process that others start.
#[test]
#[ignore = "the other process of tests here"]
fn helper_is_another_process() {
    let Some(root) = std::env::var_os(HELPER_ROOT) else { return };
    let layout = Layout::new(root);
    let connection = Connection::open(&layout).unwrap();
    let identity = connection.identity();
    let store = Store::open(layout.root()).unwrap();
    store
        .update(|device, now_ns| {
            let context = device.create_context(now_ns, identity.host_pid, &identity.owner).unwrap();
            device.allocate(now_ns, context, 4 * GIB).unwrap();
        })
        .unwrap();
    let mut output = std::io::stdout();
    writeln!(output, "ready").and_then(|()| output.flush()).unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_process_that_is_killed_leaves_nothing_in_any_state() {
    let host = Host::new();
    for steps in 0..=3 {
        let Some(other) = Other::start(&host) else { return };
        host.go(other.pid, &[NO_TIMEOUT, Verb::Checkpoint, Verb::Restore][..steps]);
        other.end(&host);
    }
}

#[test]
fn a_stopped_process_takes_no_step_until_it_goes_on() {
    let host = Host::new();
    let Some(other) = Other::start(&host) else { return };
    other.signal(rustix::process::Signal::STOP);
    while !super::progress::is_stopped(other.pid) {
        thread::yield_now();
    }
    assert_eq!(host.ask(other.pid, Verb::Lock { timeout_ms: 30 }), Err(Refusal::NotReady));
    thread::scope(|scope| {
        let locking = scope.spawn(|| host.ask(other.pid, NO_TIMEOUT));
        thread::sleep(Duration::from_millis(30));
        assert!(!locking.is_finished());
        other.signal(rustix::process::Signal::CONT);
        assert_eq!(locking.join().unwrap(), Ok(ProcessState::Locked));
    });
    other.end(&host);
}

#[test]
fn a_process_without_the_driver_and_one_that_is_not_there_are_told() {
    let host = Host::new();
    // This process has not connected.
    assert_eq!(host.ask(std::process::id(), Verb::State), Err(Refusal::NoProcess));
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let expected = if rustix::process::geteuid().is_root() { Refusal::NoProcess } else { Refusal::NotPermitted };
    assert_eq!(host.ask(ended.id(), NO_TIMEOUT), Err(expected));
}
