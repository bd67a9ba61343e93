//! A server: a process of the clients' user that the devices know, and nothing more. It ends with its daemon.

use crate::{Connection, Layout, Store, is_visible, selected};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

/// What the program is called as a server; by this name it knows what it is to be.
pub(super) const SERVER_NAME: &str = "nvidia-cuda-mps-server";

/// A server as its daemon holds it.
#[derive(Debug)]
pub(super) struct Server {
    process: Child,
    /// Closed, it tells the server to end.
    _life: Option<ChildStdin>,
    /// Its pid, as the devices know it.
    pub(super) pid: u32,
    pub(super) uid: u32,
}

impl Server {
    /// Starts a server of the user `uid` and waits until its devices know it.
    pub(super) fn start(uid: u32) -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(SERVER_NAME).stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: getuid cannot fail and touches nothing.
        if unsafe { libc::getuid() } != uid {
            command.uid(uid).gid(uid);
        }
        let mut process = command.spawn()?;
        let mut line = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let life = process.stdin.take();
        let pid = line.trim().parse().ok();
        let mut server = Self { process, _life: life, pid: pid.unwrap_or(0), uid };
        if pid.is_some() {
            return Ok(server);
        }
        server.stop();
        Err(io::Error::other("the server did not start"))
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Ends it now.
    pub(super) fn stop(&mut self) {
        // One that has ended already needs no ending.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The devices that this process may use, in the order in which CUDA numbers them, with their UUIDs.
pub(super) fn devices(layout: &Layout) -> Vec<(String, Store)> {
    let open = |index: u32| {
        let store = Store::open_device(layout.root(), index).ok()?;
        let uuid = store.read(|device| device.parameters().uuid.clone()).ok()?;
        Some(Some((uuid, store)))
    };
    let visible = (0..layout.device_count()).filter(|index| is_visible(layout, *index));
    let mut all: Vec<Option<(String, Store)>> = visible.filter_map(open).collect();
    let uuids: Vec<String> = all.iter().flatten().map(|(uuid, _)| uuid.clone()).collect();
    let uuids: Vec<&str> = uuids.iter().map(String::as_str).collect();
    let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let chosen = selected(&uuids, variable.as_deref());
    chosen.into_iter().filter_map(|index| all[index].take()).collect()
}

/// Is a server until its daemon closes the pipe to it.
pub(super) fn serve() -> io::Result<()> {
    let layout = Layout::default();
    let connection = Connection::open(&layout)?;
    let identity = connection.identity();
    connection.gate().bar();
    for (_, store) in devices(&layout) {
        let started = store.update(|device, now_ns| device.start_server(now_ns, identity.host_pid, &identity.owner));
        started.map_err(io::Error::other)?.map_err(io::Error::other)?;
    }
    writeln!(io::stdout(), "{}", identity.host_pid)?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
