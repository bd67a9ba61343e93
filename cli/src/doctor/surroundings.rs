//! What the checks look at, asked once.

use crate::engines::dockerd::Today;
use gpool_configuration::{Configuration, ConfigurationError};
use gpool_protocol::{
    Client, DrainedGpu, DriverView, ErrorBody, ErrorCode, GpuView, GuardedProcess, LeaseView, OutsideProcess,
    ReservationView, SilentGpu, SupervisorInfo,
};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the first question waits. With all of them a host whose socket is there, of a supervisor that does not come up,
/// would be silent for minutes.
const FIRST_PATIENCE: Duration = Duration::from_secs(4);

/// The host's files below a root, and the answers of its supervisor.
pub struct Surroundings {
    /// `/`, but in tests: where `sys` and `proc` are looked for.
    pub root: PathBuf,
    /// The configuration file.
    pub configuration_path: PathBuf,
    /// The files that were read for it, drop-ins included.
    pub configuration_files: Vec<PathBuf>,
    /// What they say.
    pub configuration: Result<Configuration, ConfigurationError>,
    /// Wall time now, milliseconds since 1970.
    pub now_unix_ms: u64,
    /// What the dockerd that runs knows; none if it was not asked or does not say.
    pub docker: Option<Today>,
    /// The supervisor about itself.
    pub info: Result<SupervisorInfo, ErrorBody>,
    /// The driver and the shims, as the supervisor sees them.
    pub driver: Result<DriverView, ErrorBody>,
    /// The GPUs.
    pub gpus: Result<Vec<GpuView>, ErrorBody>,
    /// Those for which NVML does not answer.
    pub silent: Result<Vec<SilentGpu>, ErrorBody>,
    /// GPUs that take no new leases because somebody said so.
    pub drained: Result<Vec<DrainedGpu>, ErrorBody>,
    /// What is kept free for whom.
    pub reservations: Result<Vec<ReservationView>, ErrorBody>,
    /// The leases.
    pub leases: Result<Vec<LeaseView>, ErrorBody>,
    /// Processes that use GPUs in leased containers.
    pub guarded: Result<Vec<GuardedProcess>, ErrorBody>,
    /// Processes that use GPUs without a lease.
    pub outside: Result<Vec<OutsideProcess>, ErrorBody>,
}

impl Surroundings {
    /// Asks the supervisor at `socket`, or where the configuration says it is.
    pub fn of_this_host(configuration_path: &Path, socket: Option<&Path>) -> Self {
        let layered = gpool_configuration::load_layered(configuration_path);
        let configuration_files = layered.as_ref().map(|layered| layered.files.clone()).unwrap_or_default();
        let configuration = layered.map(|layered| layered.configuration);
        let configured = configuration.clone().unwrap_or_default().socket.path;
        let client = Client::new(socket.unwrap_or(&configured));
        let info = client.clone().with_timeout(FIRST_PATIENCE).get("/v1/info");
        let gone = absence(&info);
        Self {
            root: "/".into(),
            configuration_path: configuration_path.to_owned(),
            configuration_files,
            configuration,
            docker: Today::of_this_host(),
            now_unix_ms: u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default(),
            driver: ask(&client, gone, "/v1/driver"),
            gpus: ask(&client, gone, "/v1/gpus"),
            silent: ask(&client, gone, "/v1/gpus/silent"),
            drained: ask(&client, gone, "/v1/gpus/drained"),
            reservations: ask(&client, gone, "/v1/reservations"),
            leases: ask(&client, gone, "/v1/leases"),
            guarded: ask(&client, gone, "/v1/guard"),
            outside: ask(&client, gone, "/v1/guard/outside"),
            info,
        }
    }

    /// `GET path`, of a supervisor that has answered when it was asked first.
    pub fn ask<Answer: DeserializeOwned>(&self, client: &Client, path: &str) -> Result<Answer, ErrorBody> {
        ask(client, self.absence(), path)
    }

    /// That nobody has answered.
    pub fn absence(&self) -> Option<&ErrorBody> {
        absence(&self.info)
    }

    /// The configuration, or the defaults where it cannot be read, which a check of its own tells.
    pub fn configuration(&self) -> Configuration {
        self.configuration.clone().unwrap_or_default()
    }

    /// A path below the root.
    pub fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }
}

fn absence(info: &Result<SupervisorInfo, ErrorBody>) -> Option<&ErrorBody> {
    info.as_ref().err().filter(|error| error.code == ErrorCode::SupervisorAbsent)
}

/// Who did not answer once is not asked again.
fn ask<Answer: DeserializeOwned>(client: &Client, gone: Option<&ErrorBody>, path: &str) -> Result<Answer, ErrorBody> {
    gone.map_or_else(|| client.get(path), |gone| Err(gone.clone()))
}

/// What a file says, in which others may have put any bytes: the name of a process, of a cgroup or of a mount. Empty if it
/// cannot be read.
pub fn text(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
