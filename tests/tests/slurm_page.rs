//! The scripts of `docs/slurm.md`, as they stand there, with programs of a test in the place of Slurm's and gpool's: for what
//! Slurm's own daemons, in the scenario `slurm`, are hard to bring to.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PAGE: &str = include_str!("../../docs/slurm.md");

/// A host whose Slurm says what the files of its directory hold.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Self {
        let scene = Self(tempfile::tempdir().unwrap());
        fs::create_dir(scene.path("bin")).unwrap();
        for name in ["gpool-job", "gpool-node-health", "gpool-epilog"] {
            let script = scene.with_its_places(block(&format!("#!/bin/sh\n# {name}")));
            scene.program(&scene.path(name), &script);
        }
        let here = scene.0.path().display();
        let scontrol = format!(
            "echo \"$*\" >> {here}/told\ncase $1 in pidinfo) cat {here}/pidinfo ;; --oneliner) cat {here}/node ;; esac"
        );
        // So often it does not answer.
        let squeue = format!(
            "if [ -s {here}/silence ]; then sed -i 1d {here}/silence; echo 'Unable to contact slurm controller' >&2; exit 1; \
             fi\ncat {here}/squeue"
        );
        let gpool = format!("[ \"$1\" != export ] || exec cat {here}/gpus\necho \"$*\"");
        for (name, body) in [("scontrol", scontrol), ("squeue", squeue), ("gpool", gpool)] {
            scene.program(&scene.path("bin").join(name), &format!("#!/bin/sh\n{body}\n"));
        }
        scene.holds("pidinfo", "Slurm JobId=47 ends at Mon\nslurm_get_rem_time is 3\n");
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn holds(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn program(&self, place: &Path, text: &str) {
        fs::write(place, text).unwrap();
        fs::set_permissions(place, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// The scripts' own places below this directory, and no long waits.
    fn with_its_places(&self, script: &str) -> String {
        let here = self.0.path().display();
        let changes = [
            ("PATH=/usr/sbin", format!("PATH={here}/bin:/usr/sbin")),
            ("slurm_path=/usr/bin", format!("slurm_path={here}/bin")),
            ("/run/gpool-job", format!("{here}/locks")),
            ("/sys/fs/cgroup", format!("{here}/cgroup")),
            // Whole seconds are compared: of one little may be left.
            ("longest_silence=120", "longest_silence=4".to_owned()),
            ("sleep 5", "sleep 0.1".to_owned()),
        ];
        changes.iter().fold(script.to_owned(), |script, (its, here)| script.replace(its, here))
    }

    fn run(&self, name: &str) -> Output {
        let mut command = Command::new(self.path(name));
        command.args(["train.py", "a b"]).envs([("SUDO_UID", "1000"), ("SUDO_USER", "me"), ("SLURM_JOB_ID", "47")]);
        command.output().unwrap()
    }

    /// What `gpool-job` becomes, or says.
    fn job(&self) -> String {
        let output = self.run("gpool-job");
        let said = if output.status.success() { output.stdout } else { output.stderr };
        let is_refusal = output.status.code() == Some(125);
        assert!(output.status.success() || is_refusal, "{}", output.status);
        String::from_utf8(said).unwrap().trim_end().to_owned()
    }

    fn job_that_has(&self, count: &str) -> String {
        self.holds("squeue", &format!("46|1000|x|gres:gpool:9\n47|1000|the lab|{count}\n"));
        self.job()
    }

    /// Whether the node is drained or brought back, by the words that Slurm is told.
    fn health(&self, state: &str, reason: &str) -> Option<&'static str> {
        self.holds("told", "");
        self.holds("node", &format!("NodeName=n State={state} Weight=1 Reason={reason} [root@x]\n"));
        let output = self.run("gpool-node-health");
        assert!(output.status.success(), "{output:?}");
        let told = fs::read_to_string(self.path("told")).unwrap();
        ["State=DRAIN", "State=UNDRAIN"].into_iter().find(|word| told.contains(&format!(" {word}")))
    }
}

/// The block of the page that begins so.
fn block(start: &str) -> &'static str {
    let from = PAGE.find(&format!("```sh\n{start}")).unwrap() + "```sh\n".len();
    PAGE[from..].split("```").next().unwrap()
}

#[test]
fn a_job_becomes_gpool_run_with_its_part_or_its_gpus() {
    let scene = Scene::new();
    let lock = scene.path("locks/47");
    let run = |share: &str| {
        format!(
            "run {share} --wait 10m --team the_lab --user me --name job-47 --lock {} -- train.py a b",
            lock.display()
        )
    };
    for (count, share) in [
        ("gres:gpool:3", "--gpus 1 --fraction 30%"),
        ("gres/gpool:10", "--gpus 1 --fraction 100%"),
        ("gres:gpool", "--gpus 1 --fraction 10%"),
        ("gres/gpu:2,gres/gpool", "--gpus 1 --fraction 10%"),
        ("gres:gpu:1,gres:gpool:20", "--gpus 2 --fraction 100%"),
    ] {
        assert_eq!(scene.job_that_has(count), run(share), "{count}");
    }
    assert_eq!(fs::metadata(scene.path("locks")).unwrap().permissions().mode() & 0o777, 0o700);
    for (count, refusal) in [
        ("gres:gpool:13", "one GPU is 10, and more than that are whole ones"),
        ("gres:gpool:0", "has no gres/gpool"),
        ("gres:gpool_other", "has no gres/gpool"),
        ("N/A", "has no gres/gpool"),
    ] {
        let said = scene.job_that_has(count);
        assert!(said.contains(refusal), "{count}: {said}");
    }
}

#[test]
fn a_job_is_told_apart_from_a_slurm_that_does_not_answer() {
    let scene = Scene::new();
    scene.holds("silence", "\n\n");
    assert!(scene.job_that_has("gres:gpool:3").starts_with("run "), "it answers in the end");
    scene.holds("silence", &"\n".repeat(10_000));
    let said = scene.job();
    assert_eq!(said, "gpool-job: Slurm does not answer: Unable to contact slurm controller");
    scene.holds("silence", "");
    scene.holds("squeue", "47|1001|x|gres:gpool:3\n");
    assert!(scene.job().contains("somebody else's"));
    scene.holds("squeue", "48|1000|x|gres:gpool:3\n");
    assert!(scene.job().contains("Slurm knows no job 47"));
    let wrong = "#!/bin/sh\necho 'Failed to locate job for requested pid: Invalid job id specified' >&2\nexit 1\n";
    scene.program(&scene.path("bin/scontrol"), wrong);
    assert!(scene.job().contains("no process of a Slurm job"));
    fs::remove_file(scene.path("bin/scontrol")).unwrap();
    assert!(scene.job().contains("scontrol is not in"));
}

#[test]
fn a_node_that_slurm_would_have_drained_itself_is_not_brought_back() {
    let (scene, own) = (Scene::new(), "gpool has too few GPUs");
    scene.holds("gpus", "0\n");
    scene.holds("squeue", "8\n");
    assert_eq!(scene.health("IDLE", "x"), Some("State=DRAIN"));
    scene.holds("gpus", "1\n");
    assert_eq!(scene.health("IDLE+DRAIN", own), Some("State=UNDRAIN"));
    assert_eq!(scene.health("IDLE+DRAIN", "Kill task failed"), None);
    assert_eq!(scene.health("IDLE+COMPLETING+DRAIN", own), None);
    scene.holds("cgroup/slurm/job_8/step_0/cgroup.procs", "77\n");
    scene.holds("cgroup/slurm/job_9/step_0/cgroup.procs", "");
    assert_eq!(scene.health("IDLE+DRAIN", own), Some("State=UNDRAIN"), "job 8 runs on, and of job 9 nothing is left");
    scene.holds("cgroup/slurm/job_9/step_0/cgroup.procs", "78\n");
    assert_eq!(scene.health("IDLE+DRAIN", own), None, "a process of job 9 is left");
    scene.holds("cgroup/slurm/job_9/step_0/cgroup.procs", "");
    scene.holds("silence", "\n");
    assert_eq!(scene.health("IDLE+DRAIN", own), None, "nobody knows which jobs run");
}

#[test]
fn an_epilog_removes_the_job_s_empty_directories_and_no_others() {
    let scene = Scene::new();
    for place in ["cgroup/s/job_47/step_0/gpool-run-1", "cgroup/s/job_470", "cgroup/f/uid_1/job_47"] {
        fs::create_dir_all(scene.path(place)).unwrap();
    }
    scene.holds("cgroup/p/job_47/step_1/cgroup.procs", "7\n");
    scene.holds("locks/47", "");
    assert!(scene.run("gpool-epilog").status.success());
    let is_left = |place: &str| scene.path(place).exists();
    assert!(!is_left("cgroup/s/job_47") && !is_left("cgroup/f/uid_1/job_47") && !is_left("locks/47"));
    assert!(is_left("cgroup/s/job_470") && is_left("cgroup/p/job_47/step_1") && is_left("cgroup/f/uid_1"));
}
