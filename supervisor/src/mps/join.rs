//! A lease under an MPS server: finding or starting the daemon, and what the container gets.

use super::control::{Control, PROGRAM, mib};
use super::daemon;
use super::group::{Domain, Group, GroupRecord, Stage, Turn, folder_of, shared_of};
use crate::device::DriverFiles;
use crate::events::About;
use crate::lease::{Book, Leases, Record, failed};
use crate::procfs::WatchedProcess;
use gpool_policy::mechanism::{MpsLimits, active_thread_percent};
use gpool_protocol::{Class, Edit, ErrorBody, ErrorCode, EventKind, GpuUuid, HostPid, LeaseRequest};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a daemon may take to answer: the container's engine waits.
const START_PATIENCE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(10);
/// The daemon's pid, in its pipe folder.
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
/// Where the group's folders are in a container: below the /dev that the low-level runtime makes.
const CONTAINER_DIR: &str = "/dev/gpool/mps";
/// Where programs look for a daemon that is not named.
const DEFAULT_PIPE_DIR: &str = "/tmp/nvidia-mps";

impl Leases {
    /// Whose server a container would be under.
    ///
    /// # Errors
    /// This host does not serve MPS, or not to this container.
    pub fn mps_domain(&self, asked: &LeaseRequest, owner_uid: u32) -> Result<Domain, ErrorBody> {
        let refuse = |message: &str, remedy: &str| Err(ErrorBody::new(ErrorCode::RequestNotAllowed, message, remedy));
        let Some(team) = asked.request.team.clone() else {
            return refuse("an MPS server is one team's, and none is named", "add the annotation gpool.io/team");
        };
        if owner_uid != 0 {
            return refuse(
                "mode=mps is served to containers that root's engine starts",
                "use such an engine, or ask for mode=slice",
            );
        }
        Ok(domain(asked, team))
    }

    /// The group of a new lease of `domain` on these GPUs: one that there is, or a new one, whose daemon [`Leases::make_ready`]
    /// starts. The book is held until the lease is in it, so that the group is not taken away as unused.
    ///
    /// # Errors
    /// The driver's program is not there, or this supervisor cannot start it.
    pub fn join_group(&self, domain: &Domain, gpus: &[GpuUuid]) -> Result<String, ErrorBody> {
        self.mps_program()?;
        let mut groups = self.groups.all();
        // One that a fault has befallen a moment ago is refused when the lease is seated; beside it there is no other.
        let takes_in = |group: &Group| group.takes_in() || group.is_faulted();
        let is_it = |group: &&Group| group.record.domain == *domain && group.record.gpus == gpus && takes_in(group);
        if let Some(group) = groups.iter().find(is_it) {
            return Ok(group.record.id.clone());
        }
        self.check_serves_mps()?;
        let record = GroupRecord {
            boot_id: self.boot_id.clone(),
            id: ulid::Ulid::generate().to_string(),
            domain: domain.clone(),
            gpus: gpus.to_vec(),
            daemon: None,
            server: None,
            has_ended: false,
        };
        let id = record.id.clone();
        groups.push(Group::new(record, Stage::New));
        Ok(id)
    }

    /// Waits until the daemon of the group `id` runs and gives as much as every lease in the book needs; starts it and tells
    /// it where nobody else does, by `deadline`. The book is not held: this takes seconds.
    ///
    /// # Errors
    /// The daemon does not start, has ended, or does not do what it is told.
    pub fn make_ready(&self, id: &str, deadline: Instant) -> Result<(), ErrorBody> {
        let run_dir = self.configuration().paths.run_dir.clone();
        let program = self.mps_program()?;
        let turn = self.groups.take_turn(id, deadline);
        match turn.map_err(|cause| failed("the MPS daemon does not start", cause))? {
            Turn::Start(record) => self.start_group(&run_dir, &program, *record, deadline),
            Turn::Tell(told) => {
                let given = self.give_limits(&run_dir, &program, id, told);
                self.groups.end_turn(id, |group| {
                    group.stage = Stage::Started;
                    // What one that has failed was told is not known.
                    group.limits = given.as_ref().ok().copied();
                });
                given.map(drop).map_err(|cause| failed("the MPS daemon does not take its limits", cause))
            }
        }
    }

    /// Tells a daemon what its server has to give, unless it was told that last.
    fn give_limits(&self, run_dir: &Path, program: &Path, id: &str, told: Option<MpsLimits>) -> io::Result<MpsLimits> {
        // Looked up now that it is this thread's turn: leases that come later are told of after it.
        let wanted = limits_wanted(&self.book(), id);
        // Without a lease there is nobody to give anything to.
        let (wanted, gpus) = wanted.unwrap_or_default();
        if told != Some(wanted) && gpus > 0 {
            Control::of(program, run_dir, id).hasty().set_limits(wanted, gpus)?;
        }
        Ok(wanted)
    }

    /// Whether a daemon could be started.
    ///
    /// # Errors
    /// The driver's program is not there, or this supervisor cannot start it.
    pub fn check_serves_mps(&self) -> Result<(), ErrorBody> {
        self.mps_program()?;
        if self.mounts.are_here() {
            return Ok(());
        }
        Err(ErrorBody::new(
            ErrorCode::NoMechanism,
            "a supervisor with a mount namespace of its own does not serve mode=mps",
            "take confined.conf away from gpool-supervisor.service, or ask for mode=slice",
        ))
    }

    /// The driver's program.
    ///
    /// # Errors
    /// It is not there.
    pub fn mps_program(&self) -> Result<PathBuf, ErrorBody> {
        let dirs = &self.configuration().driver.program_dirs;
        DriverFiles::program(dirs, PROGRAM).ok_or_else(|| {
            let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
            ErrorBody::new(
                ErrorCode::NoMechanism,
                format!("{PROGRAM} is in none of driver.program_dirs ({})", dirs.join(", ")),
                "install the driver's compute programs, or ask for mode=slice",
            )
        })
    }

    fn start_group(
        &self,
        run_dir: &Path,
        program: &Path,
        record: GroupRecord,
        deadline: Instant,
    ) -> Result<(), ErrorBody> {
        let (id, domain, gpus) = (record.id.clone(), record.domain.clone(), list(&record.gpus));
        let mut group = Group::new(record, Stage::Started);
        let started = self.run_daemon(run_dir, program, &mut group, deadline);
        let started = started.and_then(|()| self.give_limits(run_dir, program, &id, None));
        let started = started.map_err(|cause| {
            let said = fs::read_to_string(folder_of(run_dir, &id, "log").join("start.log")).unwrap_or_default();
            format!("{cause} {}", said.trim()).trim_end().to_owned()
        });
        match &started {
            Ok(limits) => group.limits = Some(*limits),
            // What is left of it is cleared away when its leases have gone: those who wait for it are to hear now.
            Err(cause) => group.stage = Stage::Failed(cause.clone()),
        }
        self.groups.end_turn(&id, |known| *known = group);
        started.map_err(|cause| failed("the MPS daemon does not start", cause))?;
        let message = format!("started MPS for {domain} on {gpus}");
        self.events.note(EventKind::MpsStarted, About::default(), message);
        Ok(())
    }

    fn run_daemon(&self, run_dir: &Path, program: &Path, group: &mut Group, deadline: Instant) -> io::Result<()> {
        group.record.write(run_dir)?;
        let shared = shared_of(run_dir, &group.record.id);
        fs::create_dir(&shared)?;
        crate::region::mount_shared(&shared)?;
        group.record.make_folders(run_dir)?;
        group.child = daemon::start(self.settings.path(), run_dir, &group.record.id)?;
        let control = Control::of(program, run_dir, &group.record.id).hasty();
        let pid_file = folder_of(run_dir, &group.record.id, "pipe").join(PID_FILE);
        let deadline = deadline.min(Instant::now() + START_PATIENCE);
        let pid = loop {
            let pid = fs::read_to_string(&pid_file).ok().and_then(|text| text.trim().parse().ok());
            if let Some(pid) = pid.filter(|_| control.answers()) {
                break HostPid(pid);
            }
            let status = group.child.as_mut().map_or(Ok(None), std::process::Child::try_wait)?;
            if let Some(status) = status {
                return Err(io::Error::other(format!("it ended with {status}")));
            }
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"));
            }
            std::thread::sleep(POLL);
        };
        let daemon = WatchedProcess::open(pid)?;
        group.record.daemon = Some(daemon.name);
        group.daemon = Some(daemon);
        group.record.write(run_dir)
    }

    /// Takes away what a group shared; containers that have it mounted keep it.
    pub fn remove_folders(&self, run_dir: &Path, id: &str) {
        crate::region::unmount_shared(&shared_of(run_dir, id));
        // What is gone already needs no removing; the next start tries again with what stays.
        let _ = fs::remove_dir_all(super::group::dir_of(run_dir, id));
    }
}

/// Whose server a container is under that names this team. The engine says of which namespace a pod is.
fn domain(asked: &LeaseRequest, team: String) -> Domain {
    let namespace = asked.pod.as_ref().map(|pod| pod.namespace.clone());
    Domain { team, namespace, uid: asked.container_uid.unwrap_or(0) }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "team {} and user {}", self.team, self.uid)?;
        self.namespace.iter().try_for_each(|namespace| write!(f, " in namespace {namespace}"))
    }
}

/// What a lease has of its server.
fn limits_of(record: &Record) -> MpsLimits {
    MpsLimits { percent: active_thread_percent(record.fraction_permille), memory_bytes: record.memory_cap_bytes }
}

/// What the server of the group `id` has to give, and on how many GPUs; none without a lease.
pub fn limits_wanted(book: &Book, id: &str) -> Option<(MpsLimits, usize)> {
    let all = || book.leases.values().map(|lease| &lease.record).chain(&book.stranded);
    // What one had whose GPUs were taken is sold again.
    let its = || all().filter(|its| its.mps_group.as_deref() == Some(id) && !its.has_no_share());
    let gpus = its().map(|its| its.gpus().len()).max()?;
    Some((MpsLimits::of_server(its().map(limits_of)), gpus))
}

/// As NVIDIA's documentation of MPS has it: 0 is normal, 1 below that. Whose answers somebody waits for comes before the others of its
/// server.
fn client_priority(class: Class) -> &'static str {
    if class == Class::Latency { "0" } else { "1" }
}

/// GPUs in a sentence.
pub fn list(gpus: &[GpuUuid]) -> String {
    gpus.iter().map(|gpu| gpu.0.as_str()).collect::<Vec<_>>().join(", ")
}

/// What a container under the server of the group `id` gets beside the driver.
pub fn edits(run_dir: &Path, id: &str, record: &Record) -> Vec<Edit> {
    let mount = |name: &str, destination: String, access: &str| Edit::Mount {
        source: folder_of(run_dir, id, name).display().to_string(),
        destination,
        // All that the tmpfs itself is mounted with: in a user namespace nobody may take one of them away.
        options: ["bind", access, "nosuid", "nodev", "noexec", "rprivate"].map(String::from).to_vec(),
    };
    let env = |name: &str, value: String| Edit::Env { name: name.into(), value };
    let limits = limits_of(record);
    let pinned: Vec<String> = (0..record.gpus().len()).map(|gpu| format!("{gpu}={}", mib(limits))).collect();
    let uuids: Vec<&str> = record.gpus().iter().map(|gpu| gpu.0.as_str()).collect();
    vec![
        // Sockets and pipes on a read-only mount can be used as any others, and nobody in a container can remove or replace
        // them. NVIDIA's container toolkit mounts this folder so, too (internal/discover/mounts.go).
        mount("pipe", format!("{CONTAINER_DIR}/pipe"), "ro"),
        // In place of the cover that other containers have there: a program without the variables, as one that an engine
        // executes in the container later, is a client of the same server.
        mount("pipe", DEFAULT_PIPE_DIR.to_owned(), "ro"),
        mount("log", format!("{CONTAINER_DIR}/log"), "ro"),
        mount("shm", "/dev/shm".to_owned(), "rw"),
        env("CUDA_MPS_PIPE_DIRECTORY", format!("{CONTAINER_DIR}/pipe")),
        env("CUDA_MPS_LOG_DIRECTORY", format!("{CONTAINER_DIR}/log")),
        env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", limits.percent.to_string()),
        env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", pinned.join(",")),
        env("CUDA_MPS_CLIENT_PRIORITY", client_priority(record.class).to_owned()),
        // Clients number devices as their server does.
        env("CUDA_VISIBLE_DEVICES", uuids.join(",")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::Mechanism;

    #[test]
    fn a_server_gives_less_when_its_largest_container_has_ended() {
        let of = |group: &str, fraction_permille, gib: u64| -> Record {
            let record: Record = serde_json::from_value(serde_json::json!({
                "boot_id": "b", "lease_id": "01", "container_id": "c", "gpu_uuid": "GPU-1", "fraction_permille": fraction_permille,
                "memory_cap_bytes": gib << 30, "owner_uid": 0, "created_unix_ms": 1,
            }))
            .unwrap();
            Record { mps_group: Some(group.into()), ..record }
        };
        let mut book = Book { stranded: vec![of("01", 300, 4), of("01", 500, 2), of("02", 900, 9)], ..Book::default() };
        let wanted =
            |book: &Book, id| limits_wanted(book, id).map(|(its, gpus)| (its.percent, its.memory_bytes >> 30, gpus));
        assert_eq!(wanted(&book, "01"), Some((60, 4, 1)));
        book.stranded.remove(1);
        assert_eq!((wanted(&book, "01"), wanted(&book, "03")), (Some((36, 4, 1)), None));
    }

    #[test]
    fn a_team_of_one_namespace_is_none_of_another() {
        let of = |pod: serde_json::Value| {
            let asked = serde_json::json!({"container_id": "c", "request": {"fraction_permille": 300}, "container_uid": 7, "pod": pod});
            domain(&serde_json::from_value(asked).unwrap(), "vision".to_owned())
        };
        let [own, forged] =
            ["vision", "stranger"].map(|name| of(serde_json::json!({"namespace": name, "pod": "p", "container": "c"})));
        let none = of(serde_json::Value::Null);
        assert!(own != forged && own != none && none.namespace.is_none());
        assert_eq!(forged.to_string(), "team vision and user 7 in namespace stranger");
        let written_before: Domain = serde_json::from_str(r#"{"team":"vision","uid":7}"#).unwrap();
        assert_eq!((&written_before, none.to_string()), (&none, "team vision and user 7".to_owned()));
    }

    #[test]
    fn a_container_is_told_its_part_of_each_gpu() {
        let mut record: Record = serde_json::from_value(serde_json::json!({
            "boot_id": "b", "lease_id": "01", "container_id": "c", "gpu_uuid": "GPU-1", "gpu_uuids": ["GPU-1", "GPU-2"],
            "fraction_permille": 300, "memory_cap_bytes": 4_u64 << 30, "owner_uid": 0, "created_unix_ms": 1,
        }))
        .unwrap();
        record.mechanism = Mechanism::Mps;
        let edits = edits(Path::new("/run/gpool"), "02", &record);
        let env = |wanted: &str| {
            edits.iter().find_map(|edit| match edit {
                Edit::Env { name, value } if name == wanted => Some(value.as_str()),
                _ => None,
            })
        };
        assert_eq!(env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), Some("36"));
        assert_eq!(env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), Some("0=4096M,1=4096M"));
        assert_eq!(env("CUDA_VISIBLE_DEVICES"), Some("GPU-1,GPU-2"));
        assert_eq!(env("CUDA_MPS_CLIENT_PRIORITY"), Some("1"));
        assert_eq!(client_priority(Class::Latency), "0", "before the others");
        assert_eq!(env("CUDA_MPS_PIPE_DIRECTORY"), Some("/dev/gpool/mps/pipe"));
        let is_shared = |edit: &Edit| {
            matches!(edit, Edit::Mount { source, destination, .. }
            if source == "/run/gpool/mps/02/shared/shm" && destination == "/dev/shm")
        };
        assert!(edits.iter().any(is_shared));
        let access = |wanted: &str| {
            edits.iter().find_map(|edit| match edit {
                Edit::Mount { destination, options, .. } if destination == wanted => Some(options[1].as_str()),
                _ => None,
            })
        };
        let places = ["/dev/gpool/mps/pipe", "/tmp/nvidia-mps", "/dev/shm"];
        assert_eq!(places.map(access), [Some("ro"), Some("ro"), Some("rw")]);
    }
}
