//! The interface through which a kubelet has containerd make pods (CRI v1), spoken as a kubelet does: gRPC on containerd's
//! socket. The numbers are those of Kubernetes' `runtime/v1/api.proto`. `curl` carries the messages, since HTTP/2 is not
//! what is tested.

use super::protobuf::{Message, bytes_in, in_map, number_in, text_in};
use crate::failure::{Context, Failure, Result, ensure};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// `NamespaceMode.NODE`: the host's, so that a pod needs no network plugin.
const OF_THE_NODE: u64 = 2;
/// The namespace of all pods.
pub const NAMESPACE: &str = "default";
/// Bytes in front of a gRPC message: one for compression, four for the length.
const FRAME_HEAD: usize = 5;
/// How long the plugin may take to see that a container has ended.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(10);

/// A containerd that makes pods.
#[derive(Debug, Clone, Copy)]
pub struct Cri<'a> {
    /// Its socket.
    pub socket: &'a str,
    /// The cgroup below which pods go.
    pub cgroup_parent: &'a str,
}

/// What a container of a pod has beside its command.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extras<'a> {
    /// Of its environment, by name.
    pub env: &'a [(&'a str, &'a str)],
    /// Paths of the container and of the host that are mounted there, for reading.
    pub mounts: &'a [(&'a str, &'a str)],
}

/// A pod's sandbox, and what its containers are told of it.
#[derive(Debug)]
pub struct Pod {
    /// containerd's id of the sandbox.
    pub id: String,
    settings: Message,
}

impl Cri<'_> {
    /// Makes a pod with these annotations whose containers get the runtime `handler`.
    pub fn run_pod(self, name: &str, handler: &str, annotations: &[(&str, &str)]) -> Result<Pod> {
        let metadata = Message::new().text(1, name).text(2, &format!("uid-of-{name}")).text(3, NAMESPACE);
        let context = Message::new().message(1, &Message::new().number(1, OF_THE_NODE));
        let linux = Message::new().text(1, &format!("/{}", self.cgroup_parent)).message(2, &context);
        let settings = Message::new().message(1, &metadata).map(7, annotations).message(8, &linux);
        let asked = Message::new().message(1, &settings).text(2, handler);
        let answer = self.call("RunPodSandbox", &asked)?;
        let id = text_in(&answer, 1).ok_or_else(|| Failure::new("a pod without an id"))?;
        Ok(Pod { id, settings })
    }

    /// Makes and starts a container of the pod. Its id.
    ///
    /// # Errors
    /// containerd's own sentence.
    pub fn start(self, pod: &Pod, name: &str, image: &str, command: &[&str]) -> Result<String> {
        self.start_with(pod, name, image, command, Extras::default())
    }

    /// The same with more than its command.
    pub fn start_with(
        self,
        pod: &Pod,
        name: &str,
        image: &str,
        command: &[&str],
        extras: Extras<'_>,
    ) -> Result<String> {
        let context = Message::new().message(3, &Message::new().number(1, OF_THE_NODE));
        // The image names no path.
        let env = [("PATH", "/bin")].into_iter().chain(extras.env.iter().copied());
        let settings = Message::new()
            .message(1, &Message::new().text(1, name))
            .message(2, &Message::new().text(1, image))
            .texts(3, command);
        let settings =
            env.fold(settings, |all, (name, value)| all.message(6, &Message::new().text(1, name).text(2, value)));
        let mounted = |all: Message, (path, source): &(&str, &str)| {
            all.message(7, &Message::new().text(1, path).text(2, source).number(3, 1))
        };
        let settings = extras.mounts.iter().fold(settings, mounted);
        let settings = settings.message(15, &Message::new().message(2, &context));
        let asked = Message::new().text(1, &pod.id).message(2, &settings).message(3, &pod.settings);
        let answer = self.call("CreateContainer", &asked)?;
        let id = text_in(&answer, 1).ok_or_else(|| Failure::new("a container without an id"))?;
        match self.call("StartContainer", &Message::new().text(1, &id)) {
            Ok(_) => Ok(id),
            Err(failure) => {
                self.remove(&id)?;
                Err(failure)
            }
        }
    }

    /// The container's first process.
    pub fn init_pid(self, container: &str) -> Result<u32> {
        let answer = self.call("ContainerStatus", &Message::new().text(1, container).number(2, 1))?;
        let info = in_map(&answer, 2, "info").unwrap_or_default();
        let info: serde_json::Value = serde_json::from_str(&info).context("a container's status")?;
        let pid = info["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.ok_or_else(|| Failure::new(format!("no pid in {info}")))
    }

    /// Runs a program in the container; what it wrote to stdout.
    pub fn exec(self, container: &str, command: &[&str]) -> Result<String> {
        let asked = Message::new().text(1, container).texts(2, command).number(3, 60);
        let answer = self.call("ExecSync", &asked)?;
        let said = |field| String::from_utf8_lossy(bytes_in(&answer, field).unwrap_or_default()).into_owned();
        ensure(number_in(&answer, 3) == 0, || format!("{command:?} in the pod: {}", said(2)))?;
        Ok(said(1))
    }

    /// Stops the container, without grace. A plugin that asks the shim of one that has ended while that goes away fails; it is asked
    /// again, as a kubelet does.
    pub fn stop(self, container: &str) -> Result<()> {
        self.until_it_does("StopContainer", container, "ttrpc: closed")
    }

    /// Removes the container. A plugin that has not yet seen its end refuses; it is asked again, as a kubelet does.
    pub fn remove(self, container: &str) -> Result<()> {
        self.until_it_does("RemoveContainer", container, "still running")
    }

    /// Asks again for a while if the answer is `not_yet`.
    fn until_it_does(self, method: &str, container: &str, not_yet: &str) -> Result<()> {
        let deadline = Instant::now() + REMOVAL_PATIENCE;
        loop {
            match self.call(method, &Message::new().text(1, container)) {
                Err(refusal) if refusal.to_string().contains(not_yet) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                other => return other.map(drop),
            }
        }
    }

    /// Stops and removes the pod with all its containers.
    pub fn remove_pod(self, pod: &Pod) -> Result<()> {
        let its = Message::new().text(1, &pod.id);
        self.call("StopPodSandbox", &its)?;
        self.call("RemovePodSandbox", &its).map(drop)
    }

    fn call(self, method: &str, message: &Message) -> Result<Vec<u8>> {
        let mut frame = vec![0];
        frame.extend((message.bytes().len() as u32).to_be_bytes());
        frame.extend_from_slice(message.bytes());
        let mut curl = Command::new("/usr/bin/curl");
        curl.args(["--silent", "--show-error", "--max-time", "90", "--http2-prior-knowledge"]);
        curl.args(["--unix-socket", self.socket, "--data-binary", "@-", "--dump-header", "/dev/stderr"]);
        curl.args(["--header", "content-type: application/grpc", "--header", "te: trailers"]);
        curl.arg(format!("http://localhost/runtime.v1.RuntimeService/{method}"));
        let mut process =
            curl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("curl")?;
        if let Some(mut stdin) = process.stdin.take() {
            stdin.write_all(&frame).context("curl")?;
        }
        let output = process.wait_with_output().context("curl")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let trailer =
            |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_owned());
        match trailer("grpc-status:").as_deref() {
            Some("0") => Ok(output.stdout.get(FRAME_HEAD..).unwrap_or_default().to_vec()),
            Some(_) => {
                let sentence = decoded(&trailer("grpc-message:").unwrap_or_default());
                Err(Failure::new(format!("{method}: {sentence}")))
            }
            None => Err(Failure::new(format!("{method}: no answer: {said}"))),
        }
    }
}

/// A `grpc-message`, in which bytes may stand as `%XX` (gRPC over HTTP/2, "Responses").
fn decoded(message: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = message.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_grpc_is_decoded() {
        assert_eq!(decoded("20 %25 free%3B a%2"), "20 % free; a%2");
    }
}
