//! A container made as CRI-O makes one: by the real conmon, called with CRI-O's command line (its
//! internal/oci/runtime_oci.go), which gives the runtime no log and reads what it says from its stderr. CRI-O itself is not
//! in Debian; what it would show is `container create failed: ` and the message that conmon hands to it here.

use crate::failure::{Context, Failure, Result};
use crate::image;
use crate::stage::Stage;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

const HOME: &str = "/run/gpool-crio";

/// The part of CRI-O that a runtime can see.
#[derive(Debug)]
pub struct Crio {
    runtime: PathBuf,
    cgroup_parent: String,
}

impl Crio {
    /// Lays a root file system out for its containers, which `gpool-runtime` of this stage makes.
    pub fn set_up(stage: &Stage, cgroup_parent: &str) -> Result<Self> {
        image::lay_out(stage, &Path::new(HOME).join("rootfs"))?;
        Ok(Self { runtime: stage.program("gpool-runtime"), cgroup_parent: cgroup_parent.to_owned() })
    }

    /// Makes a container with this in its environment and these of a pod's annotations, and says what CRI-O would: nothing
    /// on success, else its words before conmon's message.
    pub fn create(&self, id: &str, env: &[&str], annotations: &[(&str, &str)]) -> Result<Output> {
        let bundle = self.bundle(id, env, annotations)?;
        let pipe = bundle.join("sync");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .context(pipe.display())?;
        let path = |name: &str| bundle.join(name).display().to_string();
        // conmon finds the number of its pipe in its environment.
        let mut command = Command::new("sh");
        command.args(["-c", "exec 3> \"$0\"; export _OCI_SYNCPIPE=3; exec \"$@\"", &path("sync"), "/usr/bin/conmon"]);
        command.args(["-b", &bundle.display().to_string(), "-c", id, "-u", id, "-n", &format!("k8s_{id}")]);
        command.args(["--exit-dir", &path("exits"), "--persist-dir", &path("persist"), "--log-level", "error"]);
        command.args(["-l", &path("log"), "-p", &path("pidfile"), "-P", &path("conmon-pidfile")]);
        command.args(["--socket-dir-path", &path("sockets"), "-r"]).arg(&self.runtime);
        command.args(["--runtime-arg", &format!("--root={HOME}/root")]);
        let mut conmon = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("conmon")?;
        let mut line = String::new();
        BufReader::new(File::open(&pipe).context("conmon's pipe")?).read_line(&mut line).context("conmon's pipe")?;
        conmon.wait().context("conmon")?;
        let told: Value = serde_json::from_str(&line).map_err(|_| Failure::new(format!("conmon says {line:?}")))?;
        let message = told["message"].as_str().unwrap_or_default();
        let failed = told["pid"].as_i64().is_none_or(|pid| pid < 0);
        let said = if failed { format!("container create failed: {message}") } else { String::new() };
        Ok(Output {
            status: ExitStatus::from_raw(if failed { 1 << 8 } else { 0 }),
            stdout: Vec::new(),
            stderr: said.into_bytes(),
        })
    }

    /// Takes a container away again.
    pub fn delete(&self, id: &str) -> Result<Output> {
        let mut command = Command::new(&self.runtime);
        command.args([&format!("--root={HOME}/root"), "delete", "--force", id]).output().context("delete")
    }

    fn bundle(&self, id: &str, env: &[&str], annotations: &[(&str, &str)]) -> Result<PathBuf> {
        let bundle = Path::new(HOME).join(id);
        ["exits", "persist", "sockets"]
            .iter()
            .try_for_each(|name| fs::create_dir_all(bundle.join(name)))
            .context(id)?;
        let spec = Command::new("runc").arg("spec").current_dir(&bundle).output().context("runc spec")?;
        super::succeeded("runc spec", spec)?;
        let file = bundle.join("config.json");
        let text = fs::read_to_string(&file).context(file.display())?;
        let mut config: Value = serde_json::from_str(&text).context(file.display())?;
        config["process"]["terminal"] = false.into();
        config["process"]["args"] = json!(["sleep", "1000"]);
        config["root"] = json!({"path": format!("{HOME}/rootfs"), "readonly": false});
        config["linux"]["cgroupsPath"] = format!("/{}/{id}", self.cgroup_parent).into();
        let all_env = config["process"]["env"].as_array_mut().ok_or_else(|| Failure::new("runc spec has no env"))?;
        all_env.extend(env.iter().map(|entry| json!(entry)));
        config["annotations"] = json!({"io.kubernetes.cri-o.ContainerType": "container"});
        for (key, value) in annotations {
            config["annotations"][*key] = json!(value);
        }
        fs::write(&file, config.to_string()).context(file.display())?;
        Ok(bundle)
    }
}
