//! A whole host, private to one run: the simulated GPU, the supervisor and a Docker engine, as real processes.

pub mod cluster;
mod container;
mod containerd;
mod cri;
mod crio;
mod engine;
mod install;
mod podman;
mod program;
mod protobuf;
mod rootless;

pub use cluster::Cluster;
pub use container::Container;
pub use containerd::Containerd;
pub use cri::{Cri, Extras, NAMESPACE, Pod};
pub use crio::Crio;
pub use engine::Engine;
pub use install::{AUDIT, LEDGER, LIBRARIES as DRIVER_LIBRARIES, MPS_CONTROL, SIMULATED_GPU, STATE};
pub use podman::{FAILING, Podman, SLOW};
pub use program::Program;
pub use rootless::{GROUP, OTHER, RootlessPodman, USER, User, add_users};

use crate::census::Census;
use crate::downloads::Kubernetes;
use crate::failure::{Context, Failure, Result, ensure};
use crate::meter::MeterReader;
use crate::namespaces::{Inside, PATH};
use crate::stage::Stage;
use gpool_protocol::{Client, DEFAULT_SOCKET, Event, EventKind, GpuUuid, GpuView, LeaseView, SupervisorInfo};
use gpool_simulated_hardware::DriverVersion;
use rustix::io::{FdFlags, fcntl_setfd};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// How long any part may take to be ready.
const PATIENCE: Duration = Duration::from_secs(20);

/// An ended container's place is kept this long here; the default of ten seconds would only make runs longer.
pub const HOLD: Duration = Duration::from_secs(2);

/// Installs everything into the namespaces of a run and starts so many simulated GPUs, and nothing else.
pub fn start_simulated_gpus_alone(gpus: u32) -> Result<(Stage, Program)> {
    let stage = Stage::of_this_program()?.copy_to(Path::new(install::STAGE))?;
    install::write_configuration(&stage, "")?;
    let mut simulated_gpus = install::start_simulated_gpus(&stage, gpus, &[])?;
    simulated_gpus.wait_for_line("ready", PATIENCE)?;
    Ok((stage, simulated_gpus))
}

/// The parts of a host, running.
#[derive(Debug)]
pub struct Host {
    /// The run's own copy of the built files.
    pub stage: Stage,
    /// The Docker engine.
    pub engine: Engine,
    simulated_gpu: Program,
    supervisor: Option<Program>,
    before: Census,
    cgroup_parent: String,
}

impl Host {
    /// Installs everything into the namespaces of `inside` and starts it.
    ///
    /// # Errors
    /// When a part is not ready in time; the sentence holds the end of its log.
    pub fn start(inside: &Inside) -> Result<Self> {
        Self::start_with(inside, 1, "")
    }

    /// The same with so many GPUs and with more lines of configuration.
    pub fn start_with(inside: &Inside, gpus: u32, configuration: &str) -> Result<Self> {
        let mut host = Self::start_parts(inside, (gpus, &[]), configuration, &serde_json::json!({}))?;
        host.start_supervisor()?;
        Ok(host)
    }

    /// The same with so many GPUs of a model that has MIG.
    pub fn start_with_model(inside: &Inside, (gpus, model): (u32, &str), configuration: &str) -> Result<Self> {
        let mut host = Self::start_parts(inside, (gpus, &["--model", model]), configuration, &serde_json::json!({}))?;
        host.start_supervisor()?;
        Ok(host)
    }

    /// The same with so many GPUs, of which more is told to the simulator.
    pub fn start_with_gpus(inside: &Inside, (gpus, more): (u32, &[&str]), configuration: &str) -> Result<Self> {
        let mut host = Self::start_parts(inside, (gpus, more), configuration, &serde_json::json!({}))?;
        host.start_supervisor()?;
        Ok(host)
    }

    /// The same with one GPU, of which more is told to the simulator.
    pub fn start_with_gpu(inside: &Inside, more: &[&str]) -> Result<Self> {
        Self::start_with_gpus(inside, (1, more), "")
    }

    /// The same with one GPU and with more settings of dockerd.
    pub fn start_with_docker(inside: &Inside, settings: &serde_json::Value) -> Result<Self> {
        let mut host = Self::start_parts(inside, (1, &[]), "", settings)?;
        host.start_supervisor()?;
        Ok(host)
    }

    /// The same, with everything in its place but no supervisor running.
    pub fn start_without_supervisor(inside: &Inside, configuration: &str) -> Result<Self> {
        Self::start_parts(inside, (1, &[]), configuration, &serde_json::json!({}))
    }

    fn start_parts(
        inside: &Inside,
        (gpus, more): (u32, &[&str]),
        configuration: &str,
        docker: &serde_json::Value,
    ) -> Result<Self> {
        let before = Census::take(&inside.cgroup_parent);
        let stage = Stage::of_this_program()?.copy_to(Path::new(install::STAGE))?;
        install::write_configuration(&stage, configuration)?;
        let mut simulated_gpu = install::start_simulated_gpus(&stage, gpus, more)?;
        simulated_gpu.wait_for_line("ready", PATIENCE)?;
        let engine = Engine::start_with(&stage, &inside.cgroup_parent, docker)?;
        engine.import_image(&stage)?;
        let cgroup_parent = inside.cgroup_parent.clone();
        Ok(Self { stage, engine, simulated_gpu, supervisor: None, before, cgroup_parent })
    }

    /// A client of the supervisor's socket.
    pub fn client(&self) -> Client {
        Client::new(DEFAULT_SOCKET)
    }

    /// A podman of the host's own, with the engine's image.
    pub fn podman(&self) -> Result<Podman> {
        Podman::set_up(&self.engine, &self.stage, &self.cgroup_parent)
    }

    /// A containerd of the host's own, with the engine's image and gpool-runtime in runc's place.
    pub fn containerd(&self) -> Result<Containerd> {
        Containerd::start(&self.engine, self.stage.program("gpool-runtime"), &self.cgroup_parent)
    }

    /// A containerd of the host's own that makes pods, as `gpool runtime configure` sets it up.
    pub fn containerd_for_pods(&self) -> Result<Containerd> {
        Containerd::start_for_pods(&self.engine, &self.stage, &self.cgroup_parent, None)
    }

    /// The same, whose pods have a network of their own, with a cluster of Kubernetes in front.
    pub fn cluster(&self, kubernetes: &Kubernetes) -> Result<Cluster> {
        let plugins = kubernetes.network_plugins();
        let containerd = Containerd::start_for_pods(&self.engine, &self.stage, &self.cgroup_parent, Some(&plugins))?;
        Cluster::start(kubernetes, containerd, &self.cgroup_parent)
    }

    /// Every lease, as the supervisor sees it.
    pub fn leases(&self) -> Result<Vec<LeaseView>> {
        Ok(self.client().get("/v1/leases")?)
    }

    /// The lease of `container`.
    pub fn lease_of(&self, container: &Container) -> Result<LeaseView> {
        Ok(self.client().get(&format!("/v1/leases/{}", container.id))?)
    }

    /// NVML's index of a GPU.
    pub fn index_of(&self, uuid: &GpuUuid) -> Result<u32> {
        let gpus: Vec<GpuView> = self.client().get("/v1/gpus")?;
        let found = gpus.iter().find(|gpu| gpu.uuid == *uuid).map(|gpu| gpu.index);
        found.ok_or_else(|| Failure::new(format!("{uuid} is not among {gpus:?}")))
    }

    /// Every event of this life of the supervisor.
    pub fn events(&self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        self.client().stream("/v1/events?after=0", |line| {
            events.extend(serde_json::from_str::<Event>(line));
            true
        })?;
        Ok(events)
    }

    /// Those of one kind.
    pub fn events_of(&self, kind: EventKind) -> Result<Vec<Event>> {
        Ok(self.events()?.into_iter().filter(|event| event.kind == kind).collect())
    }

    /// Fails if the guard has found anything: for runs in which everybody came through the shims.
    pub fn nothing_found_by_the_guard(&self) -> Result<()> {
        let kinds = [EventKind::Bypass, EventKind::OverCap, EventKind::Outside];
        let found: Vec<Event> = self.events()?.into_iter().filter(|event| kinds.contains(&event.kind)).collect();
        ensure(found.is_empty(), || format!("the guard says of tenants that keep to the rules: {found:#?}"))
    }

    /// The simulated hardware's own meter.
    pub fn meter(&self) -> Result<MeterReader> {
        self.meter_of(0)
    }

    /// The meter of the GPU with this index.
    pub fn meter_of(&self, gpu: u32) -> Result<MeterReader> {
        MeterReader::open_device(Path::new(install::SIMULATED_GPU), gpu)
    }

    /// The meter of a MIG instance of the GPU with this index.
    pub fn meter_of_instance(&self, gpu: u32, instance: u32) -> Result<MeterReader> {
        MeterReader::open_instance(Path::new(install::SIMULATED_GPU), (gpu, instance))
    }

    /// Runs the command line tool.
    pub fn gpool(&self, arguments: &[&str]) -> Result<Output> {
        self.command("gpool").args(arguments).output().context("gpool cannot be started")
    }

    /// One of the programs, which finds the others by their names.
    pub fn command(&self, name: &str) -> Command {
        self.command_named(self.stage.program(name))
    }

    /// Somebody else's program, likewise.
    pub fn command_named(&self, program: impl AsRef<Path>) -> Command {
        let own = self.stage.program("gpool");
        let own = own.parent().map(|directory| directory.display().to_string()).unwrap_or_default();
        let mut command = Command::new(program.as_ref());
        command.env("PATH", format!("{own}:{PATH}"));
        command
    }

    /// Runs `docker` and returns what it said, whatever that is.
    pub fn docker(&self, arguments: &[&str]) -> Result<Output> {
        self.engine.docker(arguments)
    }

    /// `docker`, for who does something else meanwhile.
    pub fn docker_command(&self, arguments: &[&str]) -> Command {
        self.engine.command(arguments)
    }

    /// Starts a container with the runtime `gpool`, detached.
    ///
    /// # Errors
    /// When docker refuses; the sentence is docker's.
    pub fn run_container(
        &self,
        name: &str,
        env: &[(&str, &str)],
        options: &[&str],
        command: &[&str],
    ) -> Result<Container> {
        let output = self.try_run_container(name, env, options, command)?;
        ensure(output.status.success(), || format!("docker run {name}: {}", text(&output.stderr)))?;
        Container::inspect(&self.engine, name)
    }

    /// The same, for containers that may be refused.
    pub fn try_run_container(
        &self,
        name: &str,
        env: &[(&str, &str)],
        options: &[&str],
        command: &[&str],
    ) -> Result<Output> {
        let mut arguments: Vec<String> = ["run", "-d", "--runtime=gpool", "--name", name].map(String::from).to_vec();
        arguments.extend(env.iter().flat_map(|(key, value)| ["-e".to_owned(), format!("{key}={value}")]));
        arguments.extend(options.iter().chain(&[crate::image::NAME]).chain(command).map(|text| text.to_string()));
        self.docker(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Containers that start from now on get the libraries of another driver.
    pub fn replace_driver(&self, directory: &Path) -> Result<()> {
        install::replace_driver(directory)
    }

    /// Containers that start from now on get this `nvidia-smi`. The supervisor looks for such a program once, when it
    /// starts.
    pub fn replace_nvidia_smi(&self, program: &Path) -> Result<()> {
        install::replace_nvidia_smi(program)
    }

    /// The simulated driver has this version from now on, and CUDA's that goes with it.
    pub fn set_driver_version(&self, version: &DriverVersion) -> Result<()> {
        install::set_driver_version(version)
    }

    /// The simulated driver maps physical memory only as a whole in processes that start from now on.
    pub fn map_only_whole(&self) -> Result<()> {
        install::map_only_whole()
    }

    /// NVML loses the GPU with this index, or finds it again.
    pub fn set_lost(&self, gpu: u32, is_lost: bool) -> Result<()> {
        install::set_lost(gpu, is_lost)
    }

    /// NVML hangs when it is asked of the GPU with this index, or comes back.
    pub fn set_hung(&self, gpu: u32, is_hung: bool) -> Result<()> {
        install::set_hung(gpu, is_hung)
    }

    /// Has the driver tell of an Xid of that GPU.
    pub fn note_xid(&self, gpu: u32, number: u64) -> Result<()> {
        install::note_xid(gpu, number)
    }

    /// The GPU with this index has this compute mode from now on, a number of NVML's (`nvmlComputeMode_t`).
    pub fn set_compute_mode(&self, gpu: u32, mode: u32) -> Result<()> {
        install::set_compute_mode(gpu, mode)
    }

    /// Kills the supervisor with SIGKILL.
    pub fn kill_supervisor(&mut self) -> Result<()> {
        self.supervisor.take().map_or(Ok(()), Program::kill)
    }

    /// Ends the supervisor as systemd does.
    pub fn stop_supervisor(&mut self) -> Result<()> {
        self.supervisor.take().map_or(Ok(()), |supervisor| supervisor.stop(PATIENCE))
    }

    /// Starts the supervisor, for the first time or after it was stopped or killed.
    pub fn start_supervisor(&mut self) -> Result<()> {
        let mut command = Command::new(self.stage.program("gpool-supervisor"));
        let mut supervisor = Program::start("supervisor", &mut command)?;
        wait_for_supervisor(&mut supervisor)?;
        self.supervisor = Some(supervisor);
        Ok(())
    }

    /// Starts the supervisor behind a socket that has listened before it, as systemd's does.
    pub fn start_supervisor_behind(&mut self, socket: UnixListener) -> Result<()> {
        fcntl_setfd(&socket, FdFlags::empty()).context("a socket that is handed over")?;
        let handed = format!("exec 3<&{}; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\"", socket.as_raw_fd());
        let mut command = Command::new("sh");
        command.args(["-c", &handed]).arg(self.stage.program("gpool-supervisor"));
        let mut supervisor = Program::start("supervisor", &mut command)?;
        drop(socket);
        wait_for_supervisor(&mut supervisor)?;
        self.supervisor = Some(supervisor);
        Ok(())
    }

    /// The supervisor's process id, while it runs.
    pub fn supervisor_pid(&self) -> Option<u32> {
        self.supervisor.as_ref().map(Program::pid)
    }

    /// All that the supervisor has said; nothing while none runs.
    pub fn supervisor_log(&self) -> String {
        self.supervisor.as_ref().map(Program::log).unwrap_or_default()
    }

    /// The ends of all logs, for a person who looks for a cause.
    pub fn logs(&self) -> String {
        let supervisor = self.supervisor.as_ref().map(Program::log_end).unwrap_or_default();
        format!("{}{supervisor}{}", self.simulated_gpu.log_end(), self.engine.log_end())
    }

    /// Removes every container, stops every part and lists what is left: leases beyond their hold, processes, mounts,
    /// sockets, cgroup directories. Nothing should be.
    pub fn stop(mut self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        self.engine.remove_all_containers()?;
        if let Some(supervisor) = self.supervisor.take() {
            left.extend(self.leases_beyond_hold()?);
            supervisor.stop(PATIENCE)?;
        }
        self.engine.stop(PATIENCE)?;
        self.simulated_gpu.stop(PATIENCE)?;
        left.extend(Census::left_since(&self.before, &self.cgroup_parent));
        Ok(left)
    }

    fn leases_beyond_hold(&self) -> Result<Vec<String>> {
        let deadline = Instant::now() + HOLD + PATIENCE;
        loop {
            let leases = self.leases()?;
            if leases.is_empty() || Instant::now() > deadline {
                return Ok(leases.iter().map(|lease| format!("lease of container {}", lease.container_id)).collect());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn wait_for_supervisor(supervisor: &mut Program) -> Result<()> {
    let client = Client::new(DEFAULT_SOCKET);
    let own = supervisor.pid();
    supervisor.wait_for("an answer on its socket", PATIENCE, |_| {
        client.get::<SupervisorInfo>("/v1/info").is_ok_and(|info| info.pid.0 == own)
    })
}

/// What a program said, without the last newline.
pub fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim_end().to_owned()
}

/// Fails with what `output` says on stderr unless it ended well; otherwise its stdout.
pub fn succeeded(what: &str, output: Output) -> Result<String> {
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(Failure::new(format!("{what}: {}", text(&output.stderr)))),
    }
}
