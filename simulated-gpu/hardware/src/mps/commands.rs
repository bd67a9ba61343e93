//! What a person can type, as nvidia-cuda-mps-control(1) has it.

use super::Answer;
use super::daemon::Daemon;
use super::limits::{bytes_of, percentage_of};
use std::fmt::Write;
use std::time::{Duration, Instant};

fn said(text: impl Into<String>) -> Answer {
    Answer::Said(text.into(), true)
}

fn wrong(text: impl Into<String>) -> Answer {
    Answer::Said(text.into(), false)
}

impl Daemon {
    /// Does what one line says.
    pub(super) fn command(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] => said(""),
            ["get_server_list"] => {
                said(self.server.as_ref().map(|(server, _)| server.pid.to_string()).unwrap_or_default())
            }
            ["start_server", "-uid", uid] => self.start_server(uid),
            ["get_server_status", pid] => {
                self.of_server(pid, |daemon| said(if daemon.is_recovering() { "FAULT" } else { "ACTIVE" }))
            }
            ["get_client_list", pid] => self.of_server(pid, |daemon| said(daemon.client_list())),
            ["get_device_client_list"] => said(self.device_client_list()),
            ["ps"] => said(self.table()),
            ["set_default_active_thread_percentage", percent] => match percentage_of(percent) {
                Some(percent) => {
                    self.defaults.percent = percent;
                    said(format!("{percent}.0"))
                }
                None => wrong(format!("{percent} is no percentage")),
            },
            ["get_default_active_thread_percentage"] => said(format!("{}.0", self.defaults.percent)),
            ["set_active_thread_percentage", pid, percent] => match percentage_of(percent) {
                Some(percent) => self.of_server(pid, |daemon| {
                    if let Some((_, limits)) = &mut daemon.server {
                        limits.percent = percent;
                    }
                    said(format!("{percent}.0"))
                }),
                None => wrong(format!("{percent} is no percentage")),
            },
            ["get_active_thread_percentage", pid] => self.of_server(pid, |daemon| {
                said(daemon.server.as_ref().map(|(_, limits)| format!("{}.0", limits.percent)).unwrap_or_default())
            }),
            ["set_default_device_pinned_mem_limit", device, size] => match (device.parse(), bytes_of(size)) {
                (Ok(device), Some(bytes)) => {
                    self.defaults.memory_bytes.insert(device, bytes);
                    said("")
                }
                _ => wrong(format!("{device} {size} is no limit of a device")),
            },
            ["get_default_device_pinned_mem_limit", device] => {
                let limits = &self.defaults.memory_bytes;
                said(device.parse().ok().and_then(|device: usize| limits.get(&device)).map_or(String::new(), megabytes))
            }
            ["set_device_pinned_mem_limit", pid, device, size] => match (device.parse(), bytes_of(size)) {
                (Ok(device), Some(bytes)) => self.of_server(pid, |daemon| {
                    if let Some((_, limits)) = &mut daemon.server {
                        limits.memory_bytes.insert(device, bytes);
                    }
                    said("")
                }),
                _ => wrong(format!("{device} {size} is no limit of a device")),
            },
            ["get_device_pinned_mem_limit", pid, device] => {
                let device = device.parse().unwrap_or(usize::MAX);
                self.of_server(pid, |daemon| {
                    let limit = daemon.server.as_ref().and_then(|(_, limits)| limits.memory_bytes.get(&device));
                    said(limit.map_or(String::new(), megabytes))
                })
            }
            ["terminate_client", pid, client] => {
                let client = client.parse().unwrap_or(0);
                self.of_server(pid, |daemon| daemon.terminate(client))
            }
            ["shutdown_server", pid] | ["shutdown_server", pid, "-f"] => {
                let is_forced = words.len() == 3;
                self.of_server(pid, |daemon| match is_forced || daemon.clients.is_empty() {
                    true => {
                        daemon.end_server();
                        said("")
                    }
                    false => wrong("the server has clients; -f ends it all the same"),
                })
            }
            ["quit"] => self.quit(None),
            ["quit", "-f"] => self.quit(Some("0")),
            ["quit", "-t", seconds] => self.quit(Some(seconds)),
            _ => wrong(format!("the simulated daemon does not know {line:?}")),
        }
    }

    /// Does something with the server if `pid` is its.
    fn of_server(&mut self, pid: &str, work: impl FnOnce(&mut Self) -> Answer) -> Answer {
        match self.server.as_ref().is_some_and(|(server, _)| server.pid.to_string() == pid) {
            true => work(self),
            false => wrong(format!("Server {pid} not found")),
        }
    }

    fn start_server(&mut self, uid: &str) -> Answer {
        let Ok(uid) = uid.parse() else { return wrong(format!("{uid} is no user's number")) };
        match self.ensure_server(uid) {
            Ok(()) => said(""),
            Err(cause) => wrong(format!("the server cannot be started ({cause})")),
        }
    }

    fn terminate(&mut self, client: u32) -> Answer {
        if !self.clients.iter().any(|one| one.pid == client) {
            return wrong(format!("Client {client} not found"));
        }
        for (_, store) in &self.devices {
            if let Err(cause) = store.update(|device, now_ns| device.terminate_client(now_ns, client)) {
                return wrong(cause.to_string());
            }
        }
        said("")
    }

    fn quit(&mut self, seconds: Option<&str>) -> Answer {
        let patience = seconds.map(str::parse).transpose();
        let Ok(patience) = patience else { return wrong("the time is no number of seconds") };
        self.ends_at = Some(patience.map(|seconds| Instant::now() + Duration::from_secs(seconds)));
        said("")
    }

    fn client_list(&self) -> String {
        self.clients.iter().map(|client| client.pid.to_string()).collect::<Vec<_>>().join("\n")
    }

    fn device_client_list(&self) -> String {
        let Some((server, _)) = &self.server else { return String::new() };
        let mut text = String::new();
        for (uuid, store) in &self.devices {
            for pid in store.read(|device| device.clients_of(server.pid)).unwrap_or_default() {
                let _ = writeln!(text, "{uuid} {pid}");
            }
        }
        text.trim_end().to_owned()
    }

    fn table(&self) -> String {
        let mut text = "PID       ID    SERVER    DEVICE               COMMAND".to_owned();
        let Some((server, _)) = &self.server else { return text };
        for (uuid, store) in &self.devices {
            for pid in store.read(|device| device.clients_of(server.pid)).unwrap_or_default() {
                let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                let short = uuid.get(..20).unwrap_or(uuid);
                let _ = write!(text, "\n{pid:<9} 0     {:<9} {short} {}", server.pid, command.trim());
            }
        }
        text
    }
}

fn megabytes(bytes: &u64) -> String {
    format!("{}M", bytes >> 20)
}
