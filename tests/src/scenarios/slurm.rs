//! Slurm's own daemons and sudo, from Debian's packages, and jobs under the script and the rule of `docs/slurm.md`, word
//! for word. Without munge: `auth/none` believes users, of whom there are two here.

use super::{block_of_a_page, finish, wait_for};
use crate::downloads::{Downloads, Packages};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, OTHER, Program, USER, User, add_users, succeeded, text};
use crate::namespaces::{Inside, another_run};
use crate::stage::Stage;
use rustix::mount::{MountFlags, mount};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

const PACKAGES: Packages = Packages {
    suite: "bookworm",
    component: "main",
    names: &[
        "slurmctld",
        "slurmd",
        "slurm-client",
        "slurm-wlm-basic-plugins",
        "libmunge2",
        "libhwloc15",
        "liblua5.1-0",
        "sudo",
    ],
};
const PATIENCE: Duration = Duration::from_secs(20);
/// In which the node's health is looked at more than once.
const LOOKS: Duration = Duration::from_secs(3);
const SCRIPT: &str = "/usr/local/sbin/gpool-job";
const OVERFLOW: &str = "/etc/gpool/overflow";
const HEALTH: &str = "/usr/local/sbin/gpool-node-health";
const EPILOG: &str = "/usr/local/sbin/gpool-epilog";
/// Where a command says which signals it has had.
const SAVES: &str = "/run/saves";
/// Slurm resolves no name where every address is of the loopback net.
const ADDRESS: &str = "10.9.9.1";

/// What `gpool export slurm` leaves to others, and what takes munge or cgroups elsewhere.
const SETTINGS: &str = "\
ClusterName=here
SlurmctldHost=node1(10.9.9.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SelectTypeParameters=CR_CPU
HealthCheckProgram=/usr/local/sbin/gpool-node-health
HealthCheckInterval=1
Epilog=/usr/local/sbin/gpool-epilog
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:8 State=UP
PartitionName=cloud Nodes=ALL State=DOWN
";

/// Downloads the packages, then runs jobs in a run of its own, which has no network.
pub fn run() -> Result<()> {
    if let Err(failure) = downloads()?.fetch(&PACKAGES) {
        println!("skipped: {failure}");
        return Ok(());
    }
    let status = another_run().arg("slurm-inside").status().context("the run with jobs")?;
    ensure(status.success(), || format!("the run with jobs ended with {status}"))
}

fn downloads() -> Result<Downloads> {
    Ok(Downloads::in_directory(Stage::of_this_program()?.downloads()))
}

/// Runs jobs.
pub fn inside(inside: &Inside) -> Result<()> {
    let packages = downloads()?.unpacked(&PACKAGES).ok_or_else(|| Failure::new("Slurm's packages are not here"))?;
    if let Err(failure) = install(&packages) {
        // Where /usr is an overlay already, another one may be refused.
        println!("skipped: {failure}");
        return Ok(());
    }
    let host = Host::start(inside)?;
    let outcome = set_up(&host).and_then(|()| start_slurm()).and_then(|(controller, node)| {
        let outcome = jobs(&host).and_then(|()| a_forbidden_device_is_told(&host, &inside.cgroup_parent));
        let logs = format!("{}\n{}", controller.log_end(), node.log_end());
        let stopped = node.stop(PATIENCE).and_then(|()| controller.stop(PATIENCE));
        outcome.map_err(|failure| Failure::new(format!("{failure}\n{logs}"))).and(stopped)
    });
    finish(host, outcome)
}

fn jobs(host: &Host) -> Result<()> {
    a_job_has_the_share_of_its_count(host)
        .and_then(|()| what_a_user_writes_changes_nothing(host))
        .and_then(|()| who_has_no_count_is_refused())
        .and_then(|()| one_command_at_a_time(host))
        .and_then(|()| each_task_of_an_array_has_its_own_share(host))
        .and_then(|()| a_command_has_the_signals_of_its_job(host))
        .and_then(|()| a_cancelled_job_leaves_nothing(host))
        .and_then(|()| a_partition_is_open_while_the_host_is_short_of_room())
        .and_then(|()| a_node_without_a_gpu_in_service_is_drained(host))
}

/// Lays the packages' `/usr` over the machine's, for this run.
fn install(packages: &Path) -> Result<()> {
    for directory in ["/run/usr/upper", "/run/usr/work"] {
        fs::create_dir_all(directory).context(directory)?;
    }
    let lower = packages.join("usr").display().to_string();
    let layers = format!("lowerdir={lower}:/usr,upperdir=/run/usr/upper,workdir=/run/usr/work");
    let layers = std::ffi::CString::new(layers).context("layers")?;
    mount("overlay", "/usr", "overlay", MountFlags::empty(), &*layers).context("/usr cannot be covered")?;
    // Debian's alternatives name them so.
    for name in ["slurmctld", "slurmd", "slurmstepd"] {
        symlink(format!("{name}-wlm"), format!("/usr/sbin/{name}")).context(name)?;
    }
    Ok(())
}

fn set_up(host: &Host) -> Result<()> {
    add_users()?;
    let write = |path: &str, text: &str, mode: u32| -> Result<()> {
        Path::new(path).parent().map_or(Ok(()), fs::create_dir_all).context(path)?;
        fs::write(path, text).context(path)?;
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).context(path)
    };
    let permitted = "auth required pam_permit.so\naccount required pam_permit.so\nsession required pam_permit.so\n";
    write("/etc/pam.d/sudo", permitted, 0o644)?;
    write("/etc/sudoers", &on_the_page("Defaults!")?, 0o440)?;
    write(SCRIPT, &on_the_page("#!/bin/sh\n# gpool-job")?, 0o755)?;
    write(EPILOG, &on_the_page("#!/bin/sh\n# gpool-epilog")?, 0o755)?;
    write(HEALTH, &on_the_page("#!/bin/sh\n# gpool-node-health")?, 0o755)?;
    let overflow = block_of_a_page(include_str!("../../../docs/overflow.md"), "#!/bin/sh\n# overflow: opens")?;
    write(OVERFLOW, &overflow, 0o755)?;
    let (settings, gres) = exported(host)?;
    write("/etc/slurm/slurm.conf", &settings, 0o644)?;
    write("/etc/slurm/gres.conf", &gres, 0o644)?;
    write("/etc/hosts", &format!("127.0.0.1 localhost\n{ADDRESS} node1\n"), 0o644)?;
    for directory in ["/run/slurm/state", "/run/slurm/spool"] {
        fs::create_dir_all(directory).context(directory)?;
    }
    for name in ["gpool", "gpool-tenant"] {
        symlink(host.stage.program(name), format!("/usr/bin/{name}")).context(name)?;
    }
    fs::write("/proc/sys/kernel/hostname", "node1").context("the host's name")?;
    let added = host.command_named("ip").args(["addr", "add", &format!("{ADDRESS}/32"), "dev", "lo"]).status();
    ensure(added.context("ip")?.success(), || "the loopback device takes no address".to_owned())
}

/// The two files, of what the node says of itself. It is larger than it is in truth: jobs run beside each other.
fn exported(host: &Host) -> Result<(String, String)> {
    let output = host.gpool(&["export", "slurm", "--node", "node1"])?;
    let said = text(&output.stdout);
    let (settings, gres) =
        said.split_once("# gres.conf\n").ok_or_else(|| Failure::new(format!("it exports {said:?}")))?;
    let (node, whole) = ("NodeName=node1 Gres=gpool:10 Feature=", format!("NodeAddr={ADDRESS} CPUs=2 "));
    ensure(settings.contains(node), || format!("it exports {said:?}"))?;
    Ok((format!("{settings}{SETTINGS}").replace("Gres=", &format!("{whole}Gres=")), gres.to_owned()))
}

/// The block of the page that begins so.
fn on_the_page(start: &str) -> Result<String> {
    block_of_a_page(include_str!("../../../docs/slurm.md"), start)
}

fn daemon(name: &'static str) -> Result<Program> {
    let mut command = std::process::Command::new(format!("/usr/sbin/{name}"));
    Program::start(name, command.arg("-D"))
}

fn start_slurm() -> Result<(Program, Program)> {
    let controller = daemon("slurmctld")?;
    let node = daemon("slurmd")?;
    let idle = wait_for("an idle node", || {
        let mut command = std::process::Command::new("sinfo");
        let output = command.args(["--noheader", "--format=%T"]).output().context("sinfo")?;
        Ok(text(&output.stdout).trim() == "idle")
    });
    let logs = |failure| Failure::new(format!("{failure}\n{}\n{}", controller.log_end(), node.log_end()));
    idle.map_err(logs)?;
    Ok((controller, node))
}

/// Starts a job that has this count, as `user`.
fn job(user: User, count: Option<u32>, options: &[&str], words: &[&str]) -> Result<Child> {
    let mut command = user.command("srun");
    command.args(["--chdir=/", "--time=5", "--overcommit", "--quiet"]).args(options);
    command.args(count.map(|count| format!("--gres=gpool:{count}"))).args(words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("srun")
}

fn ended(user: User, count: Option<u32>, words: &[&str]) -> Result<Output> {
    job(user, count, &[], words)?.wait_with_output().context("srun")
}

/// What the job's command says if it ends well.
fn answer(user: User, count: u32, words: &[&str]) -> Result<String> {
    let output = ended(user, Some(count), words)?;
    ensure(output.status.success(), || format!("{words:?} ended with {}: {}", output.status, text(&output.stderr)))?;
    Ok(text(&output.stdout).trim().to_owned())
}

fn refused(output: &Output, with: &str) -> Result<()> {
    let said = text(&output.stderr);
    let is_refused = output.status.code() == Some(125) && said.contains(with);
    ensure(is_refused, || format!("{with:?} was expected; it ended with {:?}: {said}", output.status.code()))
}

const GPUS_SHARES: &str = "id -un; ls /dev | grep -c '^nvidia[0-9]'; gpool ps --format csv | tail -n +2 | wc -l; \
                           echo $SLURM_JOB_USER";

fn a_job_has_the_share_of_its_count(host: &Host) -> Result<()> {
    let said = answer(USER, 3, &["sudo", SCRIPT, "sh", "-c", GPUS_SHARES])?;
    let want = format!("{0}\n1\n1\n{0}", USER.name);
    ensure(said == want, || format!("in a job it is {said:?}"))?;
    let tenant = job(USER, Some(3), &[], &["sudo", SCRIPT, "gpool-tenant", "--seconds", "2"])?;
    wait_for("a lease of three tenths", || has_one_lease_of(host, 300))?;
    let leases = host.leases()?;
    ensure(leases.iter().all(|its| its.container_id.0.starts_with("job-")), || format!("the job's are {leases:?}"))?;
    let output = tenant.wait_with_output().context("srun")?;
    ensure(output.status.success(), || format!("a tenant ended with {}: {}", output.status, text(&output.stderr)))?;
    let status = ended(USER, Some(3), &["sudo", SCRIPT, "sh", "-c", "exit 7"])?.status.code();
    ensure(status == Some(7), || format!("an exit with 7 is {status:?}"))?;
    wait_for("the end of all", || Ok(host.leases()?.is_empty()))
}

fn has_one_lease_of(host: &Host, permille: u32) -> Result<bool> {
    has_leases_of(host, &[permille])
}

fn has_leases_of(host: &Host, permilles: &[u32]) -> Result<bool> {
    let shares: Vec<u32> = host.leases()?.iter().map(|lease| u32::from(lease.fraction_permille)).collect();
    Ok(shares == permilles)
}

/// Variables, another configuration of Slurm's, and a job's name that reads like a count.
fn what_a_user_writes_changes_nothing(host: &Host) -> Result<()> {
    let forged = ["env", "SLURM_CONF=/nonexistent", "SLURM_JOB_ID=1", "SUDO_UID=0", "SLURM_JOB_GRES=gpool:9"];
    let words = [&forged[..], &["sudo", SCRIPT, "sleep", "2"]].concat();
    let named = job(USER, Some(2), &["--job-name=x TresPerNode=gres:gpool:9"], &words)?;
    wait_for("a lease of two tenths", || has_one_lease_of(host, 200))?;
    let output = named.wait_with_output().context("srun")?;
    ensure(output.status.success(), || format!("it ended with {}: {}", output.status, text(&output.stderr)))?;
    // Whatever stands behind the script's name is the command.
    let said = answer(USER, 1, &["sudo", SCRIPT, "sh", "-c", "id -u; grep CapEff /proc/self/status"])?;
    ensure(said == format!("{}\nCapEff:\t0000000000000000", USER.uid), || format!("the command is {said:?}"))?;
    // A command that is called --user is not there.
    let option = ended(USER, Some(1), &["sudo", SCRIPT, "--user", "root", "id"])?;
    ensure(option.status.code() == Some(127), || format!("an option ended with {option:?}"))?;
    let direct = ended(USER, Some(1), &["sudo", "--non-interactive", "/usr/bin/gpool", "ps"])?;
    ensure(!direct.status.success(), || "sudo lets users call gpool itself".to_owned())
}

fn who_has_no_count_is_refused() -> Result<()> {
    refused(&ended(USER, None, &["sudo", SCRIPT, "true"])?, "has no gres/gpool")?;
    let outside = USER.command("sudo").args([SCRIPT, "true"]).output().context("sudo")?;
    refused(&outside, "no process of a Slurm job")?;
    let by_root = std::process::Command::new(SCRIPT).arg("true").env_remove("SUDO_UID").output().context(SCRIPT)?;
    refused(&by_root, "as the user of a job")
}

/// Two commands of a job would have its share twice.
fn one_command_at_a_time(host: &Host) -> Result<()> {
    let both = format!("sudo {SCRIPT} sleep 3 & sleep 1.5; sudo {SCRIPT} true; echo $?; wait");
    let first = job(USER, Some(4), &[], &["sh", "-c", &both])?;
    wait_for("a lease of four tenths", || has_one_lease_of(host, 400))?;
    // Another job of another user beside it.
    let other = answer(OTHER, 5, &["sudo", SCRIPT, "id", "-un"])?;
    ensure(other == OTHER.name, || format!("beside it {other:?} runs"))?;
    let output = first.wait_with_output().context("srun")?;
    let said = (text(&output.stdout), text(&output.stderr));
    let is_told = said.0.trim() == "125" && said.1.contains("another one has the lock");
    ensure(is_told, || format!("the second command of a job says {said:?}"))
}

/// One of the tasks has the array's own id.
fn each_task_of_an_array_has_its_own_share(host: &Host) -> Result<()> {
    let mut command = USER.command("sbatch");
    command.args(["--array=1-3", "--gres=gpool:2", "--wait", "--chdir=/", "--time=5", "--output=/dev/null"]);
    command.arg(format!("--wrap=exec sudo {SCRIPT} sleep 5")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let array = command.spawn().context("sbatch")?;
    let leases = wait_for("three leases of two tenths", || has_leases_of(host, &[200; 3]));
    // It ends with the highest code of its tasks.
    let output = array.wait_with_output().context("sbatch")?;
    succeeded("an array", output).and(leases)?;
    wait_for("the end of all", || Ok(host.leases()?.is_empty()))
}

/// A command that is told of its end saves, and has `KillWait` for that: nothing between it and Slurm dies meanwhile.
fn a_command_has_the_signals_of_its_job(host: &Host) -> Result<()> {
    const PROGRAM: &str = "#!/bin/sh\ncd /run/saves\ntrap 'echo usr1 >> said' USR1\n\
                           trap 'echo term >> said; sleep 1; echo saved >> said; exit 0' TERM\n\
                           echo ready > said\nwhile :; do sleep 0.1; done\n";
    let directory = Path::new(SAVES);
    fs::create_dir_all(directory).context(SAVES)?;
    fs::set_permissions(directory, PermissionsExt::from_mode(0o777)).context(SAVES)?;
    let program = directory.join("program");
    fs::write(&program, PROGRAM).context(program.display())?;
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).context(program.display())?;
    let said = || fs::read_to_string(directory.join("said")).unwrap_or_default();
    let mut command = USER.command("sbatch");
    command.args(["--job-name=saves", "--gres=gpool:9", "--wait", "--chdir=/", "--time=5", "--output=/dev/null"]);
    command.arg(format!("--wrap=exec sudo {SCRIPT} {SAVES}/program")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let job = command.spawn().context("sbatch")?;
    wait_for("a command that waits for signals", || Ok(said() == "ready\n"))?;
    let told = |options: &[&str]| -> Result<()> {
        let status = USER.command("scancel").args(options).arg("--name=saves").status().context("scancel")?;
        ensure(status.success(), || format!("scancel {options:?} ended with {status}"))
    };
    told(&["--signal=USR1", "--full"])?;
    wait_for("USR1", || Ok(said() != "ready\n"))?;
    // A second one would be there by now.
    std::thread::sleep(LOOKS);
    told(&[])?;
    wait_for("the end of its lease", || Ok(host.leases()?.is_empty()))?;
    job.wait_with_output().context("sbatch")?;
    let said = said();
    ensure(said == "ready\nusr1\nterm\nsaved\n", || format!("a command that traps signals says {said:?}"))
}

fn a_cancelled_job_leaves_nothing(host: &Host) -> Result<()> {
    let long = job(USER, Some(9), &["--job-name=long"], &["sudo", SCRIPT, "sleep", "1000"])?;
    wait_for("a lease of nine tenths", || has_one_lease_of(host, 900))?;
    let cancelled = USER.command("scancel").arg("--name=long").status().context("scancel")?;
    ensure(cancelled.success(), || format!("scancel ended with {cancelled}"))?;
    wait_for("the end of its lease", || Ok(host.leases()?.is_empty()))?;
    long.wait_with_output().context("srun")?;
    // Of this job and of all before it.
    let locks = || fs::read_dir("/run/gpool-job").context("the locks of jobs").map(Iterator::count);
    wait_for("an Epilog that removes the job's file", || Ok(locks()? == 0))
}

/// What Slurm says of its node.
fn node() -> Result<String> {
    let output =
        std::process::Command::new("scontrol").args(["--oneliner", "--details", "show", "node", "node1"]).output();
    Ok(text(&output.context("scontrol")?.stdout))
}

fn update(what: &str) -> Result<()> {
    let status =
        std::process::Command::new("scontrol").args(["update", "NodeName=node1"]).args(what.split(' ')).status();
    ensure(status.context("scontrol")?.success(), || format!("scontrol update {what}"))
}

/// A job that waits in the partition begins when a program like that of the page is told that the host is short of room.
fn a_partition_is_open_while_the_host_is_short_of_room() -> Result<()> {
    let state = || -> Result<String> {
        let mut command = std::process::Command::new("scontrol");
        let output = command.args(["--oneliner", "show", "partition", "cloud"]).output().context("scontrol")?;
        let said = text(&output.stdout);
        let state = said.split_whitespace().find_map(|word| word.strip_prefix("State=").map(str::to_owned));
        state.ok_or_else(|| Failure::new(format!("no state of the partition in {said:?}")))
    };
    let told = |word: &str| std::process::Command::new(OVERFLOW).arg(word).status().context(OVERFLOW);
    ensure(!told("gone")?.success(), || "the program takes any word".to_owned())?;
    let waits = job(USER, Some(1), &["--partition=cloud"], &["true"])?;
    std::thread::sleep(LOOKS);
    ensure(state()? == "DOWN", || "the partition is open before anybody is short of room".to_owned())?;
    ensure(told("began")?.success() && state()? == "UP", || "the partition is not open".to_owned())?;
    succeeded("a job in the partition", waits.wait_with_output().context("srun")?)?;
    ensure(told("ended")?.success() && state()? == "DOWN", || "the partition is open still".to_owned())
}

/// The node is drained while its only GPU is, and not resumed for one who has drained it himself.
fn a_node_without_a_gpu_in_service_is_drained(host: &Host) -> Result<()> {
    const REASON: &str = "Reason=gpool has too few GPUs";
    let chosen = job(USER, Some(1), &["--constraint=driver_535"], &["true"])?.wait_with_output().context("srun")?;
    ensure(chosen.status.success(), || format!("a job that chooses by a feature: {}", text(&chosen.stderr)))?;
    succeeded("gpool gpu drain", host.gpool(&["gpu", "drain", "0", "--reason", "a look"])?)?;
    wait_for("a drained node", || Ok(node()?.contains(REASON)))?;
    succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0"])?)?;
    wait_for("a node that is drained no more", || Ok(!node()?.contains("DRAIN")))?;
    answer(USER, 9, &["sudo", SCRIPT, "true"])?;
    // What another has taken out of service stays so, whatever gpool has meanwhile.
    for (taken_out, state) in [("State=DRAIN Reason=fans", "DRAIN"), ("State=DOWN Reason=fans", "DOWN")] {
        update(taken_out)?;
        succeeded("gpool gpu drain", host.gpool(&["gpu", "drain", "0", "--reason", "a look"])?)?;
        std::thread::sleep(LOOKS);
        succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0"])?)?;
        std::thread::sleep(LOOKS);
        let said = node()?;
        ensure(said.contains(state) && said.contains("Reason=fans"), || format!("after {taken_out}: {said}"))?;
        update("State=RESUME")?;
        wait_for("a node in service", || Ok(node()?.contains("State=IDLE ")))?;
    }
    Ok(())
}

/// As `ConstrainDevices` does it where version 1 of cgroups has the controller.
fn a_forbidden_device_is_told(host: &Host, cgroup_parent: &str) -> Result<()> {
    let devices = Path::new("/sys/fs/cgroup/devices");
    if !devices.join("devices.deny").exists() {
        println!("skipped in part: no device controller of version 1");
        return Ok(());
    }
    let group = devices.join(cgroup_parent).join("no-gpu");
    fs::create_dir_all(&group).context(group.display())?;
    fs::write(group.join("devices.deny"), "c 195:0 rwm").context("devices.deny")?;
    let words = format!("echo $$ > {}/cgroup.procs; exec gpool run --fraction 0.1 -- true", group.display());
    let output = host.command_named("sh").args(["-c", &words]).output().context("sh")?;
    let outcome = refused(&output, "GPOOL-E511").and_then(|()| refused(&output, "the device node /dev/nvidia0"));
    fs::remove_dir(&group).context(group.display())?;
    outcome
}
