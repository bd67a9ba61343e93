//! The program in front of a played kubelet and a played supervisor: what each of them is told, and what happens when one of them
//! goes away. A real kubelet is in the scenario `kubernetes`.

use gpool_kubernetes::kubelet::device_plugin_client::DevicePluginClient;
use gpool_kubernetes::kubelet::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use gpool_kubernetes::kubelet::registration_server::{Registration, RegistrationServer};
use gpool_kubernetes::kubelet::{
    AllocateRequest, ContainerDevices, ContainerRequest, ContainerResources, Devices, Empty, HEALTHY,
    ListResourcesRequest, PodResources, PodResourcesList, RegisterRequest, SOCKET, VERSION,
};
use gpool_protocol::Seal;
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixListener as BlockingListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// Longer than anything takes that is waited for here.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program, killed at the end.
struct Program(Child);

impl Program {
    fn start(directory: &Path) -> Self {
        Self::start_with_log(directory, Stdio::inherit())
    }

    fn start_with_log(directory: &Path, log: Stdio) -> Self {
        Self(Self::command(directory).stderr(log).spawn().unwrap())
    }

    /// Under a service manager that listens there.
    fn start_under(directory: &Path, manager: &str) -> Self {
        Self(Self::command(directory).env("NOTIFY_SOCKET", directory.join(manager)).spawn().unwrap())
    }

    fn command(directory: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpool-device-plugin"));
        command.arg("--kubelet").arg(directory).arg("--socket").arg(directory.join("gpool.sock"));
        command.arg("--pod-resources").arg(directory.join(RESOURCES));
        command
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Answers each question with what it says at that time.
#[derive(Clone, Default)]
struct Supervisor(Arc<Mutex<String>>);

impl Supervisor {
    fn start(directory: &Path, counts: &str) -> Self {
        let (this, listener) = (Self::default(), BlockingListener::bind(directory.join("gpool.sock")).unwrap());
        this.says(counts);
        let said = this.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut question = [0; 1024];
                let length = stream.read(&mut question).unwrap();
                assert!(question[..length].starts_with(b"GET /v1/counts "));
                let body = said.0.lock().unwrap().clone();
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        this
    }

    fn says(&self, counts: &str) {
        *self.0.lock().unwrap() = counts.to_owned();
    }
}

/// Where the played kubelet says who has what; as the supervisor's socket, elsewhere in truth.
const RESOURCES: &str = "resources.sock";
/// Where the program's log goes, where it is read.
const LOG: &str = "log";

/// Says that a container of another plugin's, and one of this one's, have these; not before `after` says so.
struct Held {
    has: Vec<String>,
    after: Option<watch::Receiver<bool>>,
}

#[tonic::async_trait]
impl PodResourcesLister for Held {
    async fn list(&self, _: Request<ListResourcesRequest>) -> Result<Response<PodResourcesList>, Status> {
        if let Some(mut after) = self.after.clone() {
            after.wait_for(|is_time| *is_time).await.map_err(|_| Status::unavailable("it ends"))?;
        }
        let of = |resource: &str, ids: &[String]| ContainerResources {
            devices: vec![ContainerDevices { resource_name: resource.to_owned(), device_ids: ids.to_vec() }],
        };
        let containers = vec![of("other.io/thing", &["1".to_owned()]), of("gpool.io/percent", &self.has)];
        Ok(Response::new(PodResourcesList { pods: vec![PodResources { containers }] }))
    }
}

/// Hands on who presents itself.
struct Registry(mpsc::Sender<RegisterRequest>);

#[tonic::async_trait]
impl Registration for Registry {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        self.0.send(request.into_inner()).await.map_err(|_| Status::unavailable("it ends"))?;
        Ok(Response::new(Empty {}))
    }
}

/// A kubelet, as far as a plugin sees one.
struct Kubelet {
    directory: PathBuf,
    registered: mpsc::Receiver<RegisterRequest>,
    serving: tokio::task::JoinHandle<()>,
}

impl Kubelet {
    /// A kubelet that starts removes every socket in its directory, but those that are elsewhere in truth.
    fn start(directory: &Path) -> Self {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            if !["gpool.sock", RESOURCES, LOG].iter().any(|other| entry.file_name() == *other) {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        let (sender, registered) = mpsc::channel(8);
        let connections = connections(&directory.join(SOCKET));
        let serving = tokio::spawn(async move {
            let service = RegistrationServer::new(Registry(sender));
            Server::builder().serve_with_incoming(service, connections).await.unwrap();
        });
        Self { directory: directory.to_owned(), registered, serving }
    }

    /// The next one that presents itself, as a client of its socket.
    async fn next(&mut self) -> (RegisterRequest, DevicePluginClient<Channel>) {
        let request = timeout(PATIENCE, self.registered.recv()).await.unwrap().unwrap();
        let path = self.directory.join(&request.endpoint);
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
        (request, DevicePluginClient::new(endpoint.connect().await.unwrap()))
    }
}

/// Who connects to a socket.
fn connections(path: &Path) -> ReceiverStream<std::io::Result<UnixStream>> {
    let (listener, (connected, connections)) = (UnixListener::bind(path).unwrap(), mpsc::channel(1));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if connected.send(Ok(stream)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(connections)
}

/// Those that may be given out.
fn healthy(list: &Devices) -> Vec<&str> {
    list.devices.iter().filter(|device| device.health == HEALTHY).map(|device| device.id.as_str()).collect()
}

/// All devices, and those that may be given out.
fn told(list: &Devices) -> (usize, usize) {
    let healthy = list.devices.iter().filter(|device| device.health == HEALTHY).count();
    (list.devices.len(), healthy)
}

async fn until(list: &mut tonic::Streaming<Devices>, want: (usize, usize)) {
    let waited = async {
        loop {
            let next = list.message().await.unwrap().expect("another list");
            if told(&next) == want {
                return;
            }
        }
    };
    timeout(PATIENCE, waited).await.unwrap_or_else(|_| panic!("waited in vain for {want:?}"));
}

fn give(ids: &[&str]) -> AllocateRequest {
    let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    AllocateRequest { containers: vec![ContainerRequest { device_ids }] }
}

#[tokio::test]
async fn a_kubelet_is_told_what_there_is_and_gives_it_out() {
    let directory = tempfile::tempdir().unwrap();
    let _program = Program::start(directory.path());
    // Neither of the two is there yet.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let seal = Seal::of(7);
    let sealed = |counts: &str| counts.replacen('{', &format!(r#"{{"seal": "{}", "#, seal.text()), 1);
    let counts = sealed(r#"{"percent": {"all": 200, "available": 170}}"#);
    let supervisor = Supervisor::start(directory.path(), &counts);
    let mut kubelet = Kubelet::start(directory.path());
    let (request, mut plugin) = kubelet.next().await;
    let presented = (request.version.as_str(), request.endpoint.as_str(), request.resource_name.as_str());
    assert_eq!(presented, (VERSION, "gpool-percent.sock", "gpool.io/percent"));
    let options = plugin.options(Empty {}).await.unwrap().into_inner();
    assert!(!options.pre_start_required && !options.get_preferred_allocation_available);

    let mut list = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert_eq!(told(&list.message().await.unwrap().unwrap()), (200, 170));
    supervisor.says(&sealed(r#"{"percent": {"all": 200, "available": 60}}"#));
    until(&mut list, (200, 60)).await;

    let answer = plugin.allocate(give(&["7", "3", "150"])).await.unwrap().into_inner();
    let annotations = &answer.containers[0].annotations;
    assert_eq!(annotations.get("gpool.io/resource"), Some(&seal.put_on("percent=3")));
    assert_eq!((answer.containers.len(), annotations.len()), (1, 1));

    // An instance is made: another resource. That no seal is told for once changes nothing.
    supervisor.says(
        r#"{"percent": {"all": 100, "available": 60}, "instances": [{"profile": "1g.10gb", "all": 2, "available": 1}]}"#,
    );
    let (request, mut instances) = kubelet.next().await;
    assert_eq!(request.resource_name, "gpool.io/mig-1g.10gb");
    let mut of_instances = instances.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert_eq!(told(&of_instances.message().await.unwrap().unwrap()), (2, 1));
    let answer = instances.allocate(give(&["0"])).await.unwrap().into_inner();
    assert_eq!(answer.containers[0].annotations["gpool.io/resource-mig.1g.10gb"], seal.put_on("mig=1g.10gb"));
    // Nobody can have that, which gpool-runtime says; refused here, the pod would have failed for good.
    let answer = instances.allocate(give(&["0", "1"])).await.unwrap().into_inner();
    assert_eq!(answer.containers[0].annotations["gpool.io/resource-mig.1g.10gb"], seal.put_on("mig=1g.10gb*2"));
    // And taken away again.
    supervisor.says(r#"{"percent": {"all": 200, "available": 200}}"#);
    until(&mut of_instances, (0, 0)).await;
    until(&mut list, (200, 200)).await;

    // What may be given out is less than what containers have, as of a drained GPU: that stays.
    supervisor.says(r#"{"percent": {"all": 200, "available": 0}}"#);
    until(&mut list, (200, 0)).await;
    let resources = connections(&directory.path().join(RESOURCES));
    let held = PodResourcesListerServer::new(Held { has: vec!["150".into(), "7".into()], after: None });
    tokio::spawn(async move { Server::builder().serve_with_incoming(held, resources).await });
    let last = timeout(PATIENCE, list.message()).await.unwrap().unwrap().unwrap();
    assert_eq!((last.devices.len(), healthy(&last)), (200, vec!["7", "150"]));
    // Without a supervisor there is nothing at all, so that no pod is ended to make room that is none.
    std::fs::remove_file(directory.path().join("gpool.sock")).unwrap();
    until(&mut list, (200, 0)).await;
    let _back = Supervisor::start(directory.path(), r#"{"percent": {"all": 200, "available": 170}}"#);
    let last = timeout(PATIENCE, list.message()).await.unwrap().unwrap().unwrap();
    assert!(told(&last) == (200, 170) && healthy(&last).contains(&"150"), "{last:?}");
    supervisor_is_stuck(directory.path(), &mut list).await;
}

/// One that takes connections and says nothing is as one that is away.
async fn supervisor_is_stuck(directory: &Path, list: &mut tonic::Streaming<Devices>) {
    std::fs::remove_file(directory.join("gpool.sock")).unwrap();
    let _silent = BlockingListener::bind(directory.join("gpool.sock")).unwrap();
    until(list, (200, 0)).await;
}

/// A kubelet that has just started ends pods whose plugin is not there yet: it hears of it before it is asked anything, and nothing of
/// who has what that is not so.
#[tokio::test]
async fn a_kubelet_is_told_first_and_asked_then() {
    let directory = tempfile::tempdir().unwrap();
    let _supervisor = Supervisor::start(directory.path(), r#"{"percent": {"all": 100, "available": 0}}"#);
    let mut kubelet = Kubelet::start(directory.path());
    let (told, after) = watch::channel(false);
    let held = PodResourcesListerServer::new(Held { has: vec!["7".into()], after: Some(after) });
    let resources = connections(&directory.path().join(RESOURCES));
    tokio::spawn(async move { Server::builder().serve_with_incoming(held, resources).await });
    let _program = Program::start(directory.path());
    let (_, mut plugin) = kubelet.next().await;
    told.send_replace(true);
    let mut list = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert_eq!(healthy(&list.message().await.unwrap().unwrap()), ["7"]);
}

/// A kubelet that systemd starts behind the program finds it with something to present, and no second late.
#[tokio::test]
async fn it_is_ready_when_the_supervisor_has_answered_and_asks_often_until_then() {
    const REFUSED: usize = 5;
    let directory = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(directory.path().join("manager.sock")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let (listener, (asked, times)) = (BlockingListener::bind(directory.path().join("gpool.sock")).unwrap(), channel());
    let _program = Program::start_under(directory.path(), "manager.sock");
    std::thread::spawn(move || {
        for (place, stream) in listener.incoming().enumerate() {
            let _ = asked.send(Instant::now());
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            // As one that systemd is about to start, of which nothing but the socket is there.
            if place >= REFUSED {
                let body = r#"{"percent": {"all": 100, "available": 100}}"#;
                let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            }
        }
    });
    let mut told = String::new();
    while !told.contains("READY=1") {
        let mut message = [0; 4096];
        let length = manager.recv(&mut message).unwrap();
        told += str::from_utf8(&message[..length]).unwrap();
    }
    let before = told.split("READY=1").next().unwrap();
    assert!(before.ends_with("STATUS=100 of 100 gpool.io/percent\n"), "{told}");
    let times: Vec<Instant> = (0..REFUSED + 2).map(|_| times.recv_timeout(PATIENCE).unwrap()).collect();
    let (refused, answered) = (times[REFUSED] - times[0], times[REFUSED + 1] - times[REFUSED]);
    assert!(refused < answered, "asked {REFUSED} times in vain in {refused:?}, and once more after {answered:?}");
}

/// After a boot the socket of the kubelet before it lies there, to which nobody listens.
#[tokio::test]
async fn a_socket_that_nobody_listens_to_is_no_kubelet() {
    let directory = tempfile::tempdir().unwrap();
    let _supervisor = Supervisor::start(directory.path(), r#"{"percent": {"all": 100, "available": 100}}"#);
    drop(BlockingListener::bind(directory.path().join(SOCKET)).unwrap());
    let log = directory.path().join(LOG);
    let _program = Program::start_with_log(directory.path(), std::fs::File::create_new(&log).unwrap().into());
    let waits = async {
        while !std::fs::read_to_string(&log).unwrap().contains("waiting for one") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, waits).await.expect("a kubelet that is waited for");
    let mut kubelet = Kubelet::start(directory.path());
    kubelet.next().await;
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(!said.contains("does not take"), "{said}");
}

#[tokio::test]
async fn another_kubelet_is_told_again_and_so_is_one_that_lost_the_connection() {
    let directory = tempfile::tempdir().unwrap();
    let _supervisor = Supervisor::start(directory.path(), r#"{"percent": {"all": 100, "available": 100}}"#);
    let mut kubelet = Kubelet::start(directory.path());
    let _program = Program::start(directory.path());
    let (_, mut plugin) = kubelet.next().await;
    let list = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();

    // It loses the connection, and does not come back by itself.
    drop((list, plugin));
    let (request, mut plugin) = kubelet.next().await;
    assert_eq!(request.resource_name, "gpool.io/percent");
    let mut list = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert_eq!(told(&list.message().await.unwrap().unwrap()), (100, 100));

    kubelet.serving.abort();
    let mut kubelet = Kubelet::start(directory.path());
    let (_, mut plugin) = kubelet.next().await;
    let mut list = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert_eq!(told(&list.message().await.unwrap().unwrap()), (100, 100));
}
