//! A Kubernetes cluster of one node: etcd, the API server, the scheduler, the controllers and the kubelet, as real
//! processes in front of a containerd of the run's own.

use super::{Container, Containerd, Program, succeeded};
use crate::cgroups;
use crate::downloads::Kubernetes;
use crate::failure::{Context, Failure, Result, ensure};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The name of its only node.
pub const NODE: &str = "node1";

const HOME: &str = "/run/kubernetes";
/// Kubelets write nowhere else, whatever they are told of directories.
const KUBELETS: [&str; 2] = ["/var/lib/kubelet", "/var/log"];
/// A node's address must not be of the loopback net.
const ADDRESS: &str = "10.9.9.1";
const SERVER: &str = "https://10.9.9.1:6443";
const STORE: &str = "http://127.0.0.1:2379";
const PATIENCE: Duration = Duration::from_secs(60);

/// Who may speak to the API server: token, name and groups.
const USERS: [(&str, &str, &str); 4] = [
    ("admins-token", "admin", "system:masters"),
    ("kubelets-token", "system:node:node1", "system:nodes"),
    ("schedulers-token", "system:kube-scheduler", ""),
    ("controllers-token", "system:kube-controller-manager", ""),
];

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    kubernetes: Kubernetes,
    containerd: Containerd,
    cgroup_parent: String,
    kubelet: Option<Program>,
    /// In the order in which they are stopped.
    others: Vec<Program>,
}

/// Gives kubelets of this run directories of their own, before anybody counts mounts.
pub fn prepare() -> Result<()> {
    for directory in KUBELETS {
        fs::create_dir_all(directory).context(directory)?;
        mount("tmpfs", directory, "tmpfs", MountFlags::empty(), c"mode=755").context(directory)?;
    }
    // What it mounts there has to reach containerd's containers.
    mount_change(KUBELETS[0], MountPropagationFlags::SHARED).context(KUBELETS[0])?;
    // Names are looked up in no network.
    fs::write("/etc/resolv.conf", "").context("/etc/resolv.conf")?;
    fs::write("/etc/hosts", format!("127.0.0.1 localhost\n{ADDRESS} {NODE}\n")).context("/etc/hosts")?;
    let added = Command::new("ip").args(["addr", "add", &format!("{ADDRESS}/32"), "dev", "lo"]).status();
    ensure(added.context("ip")?.success(), || "the loopback device takes no address".to_owned())
}

impl Cluster {
    /// Starts everything and waits until the node is ready.
    ///
    /// # Errors
    /// When a part is not ready in time; the sentence holds the end of its log.
    pub(super) fn start(kubernetes: &Kubernetes, containerd: Containerd, cgroup_parent: &str) -> Result<Self> {
        fs::create_dir_all(HOME).context(HOME)?;
        let tokens: Vec<String> =
            USERS.iter().map(|(token, name, groups)| format!("{token},{name},{name},{groups}")).collect();
        write("tokens.csv", &tokens.join("\n"))?;
        USERS.iter().try_for_each(|(token, name, _)| write_access(name, token))?;
        let key = format!("{HOME}/accounts.key");
        let made = Command::new(kubernetes.program("openssl")).args(["genrsa", "-out", &key, "2048"]).output();
        succeeded("openssl genrsa", made.context("openssl")?)?;
        let (kubernetes, cgroup_parent) = (kubernetes.clone(), cgroup_parent.to_owned());
        let mut cluster = Self { kubernetes, containerd, cgroup_parent, kubelet: None, others: Vec::new() };
        let started = cluster.start_others().and_then(|()| cluster.start_kubelet());
        match started.and_then(|()| cluster.wait_for_the_node()) {
            Ok(()) => Ok(cluster),
            Err(failure) => {
                let said = Failure::new(format!("{failure}\n{}", cluster.logs()));
                let _ = cluster.stop_programs();
                Err(said)
            }
        }
    }

    fn start_others(&mut self) -> Result<()> {
        let mut store = Command::new(self.kubernetes.program("etcd"));
        store.args(["--data-dir", &format!("{HOME}/etcd"), "--listen-client-urls", STORE]);
        store.args(["--advertise-client-urls", STORE, "--listen-peer-urls", "http://127.0.0.1:2380"]);
        let store = Program::start("etcd", &mut store)?;
        let mut server = Program::start("kube-apiserver", &mut self.server())?;
        let answered = server.wait_for("an answer", PATIENCE, |_| {
            self.kubectl(&["get", "--raw=/readyz"]).is_ok_and(|output| output.status.success())
        });
        self.others = vec![server, store];
        answered?;
        for (name, user) in
            [("kube-scheduler", "system:kube-scheduler"), ("kube-controller-manager", "system:kube-controller-manager")]
        {
            let mut command = Command::new(self.kubernetes.daemon(name));
            command.args(["--leader-elect=false", "--kubeconfig", &access(user), "--bind-address=127.0.0.1"]);
            command.arg(format!("--cert-dir={HOME}/{name}"));
            if name == "kube-controller-manager" {
                command.arg("--use-service-account-credentials");
                command.arg(format!("--service-account-private-key-file={HOME}/accounts.key"));
            }
            self.others.insert(0, Program::start(name, &mut command)?);
        }
        // Pods need one, which the controllers make.
        self.wait_for("an account for pods", |cluster| {
            cluster.value(&["get", "serviceaccount", "default"]).map(|account| !account["secrets"].is_null())
        })
    }

    fn server(&self) -> Command {
        let key = format!("{HOME}/accounts.key");
        let mut command = Command::new(self.kubernetes.daemon("kube-apiserver"));
        command.args(["--etcd-servers", STORE, "--secure-port=6443", "--advertise-address", ADDRESS]);
        command.args(["--cert-dir", &format!("{HOME}/kube-apiserver")]);
        command.args(["--token-auth-file", &format!("{HOME}/tokens.csv"), "--authorization-mode=Node,RBAC"]);
        // A pod that has a GPU past gpool, as plug-ins of monitors have.
        command.arg("--allow-privileged=true");
        command.args(["--enable-admission-plugins=NodeRestriction", "--service-cluster-ip-range=10.9.7.0/24"]);
        command.args(["--service-account-issuer=https://kubernetes.default.svc"]);
        command.args(["--service-account-signing-key-file", &key, "--service-account-key-file", &key]);
        command
    }

    /// Starts the kubelet, for the first time or after it was stopped, and waits until the cluster knows of it.
    pub fn start_kubelet(&mut self) -> Result<()> {
        // It makes no directory for this one itself.
        let parent = format!("/{}", self.cgroup_parent);
        for hierarchy in cgroups::hierarchies() {
            let directory = hierarchy.join(&self.cgroup_parent);
            fs::create_dir_all(&directory).context(directory.display())?;
        }
        let settings = json!({
            "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs", "cgroupRoot": parent, "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "clusterDNS": [ADDRESS], "failSwapOn": false, "imageGCHighThresholdPercent": 100, "resolvConf": "",
        });
        write("kubelet.json", &settings.to_string())?;
        let runtime = format!("--container-runtime-endpoint=unix://{}", self.containerd.socket());
        let mut command = Command::new(self.kubernetes.daemon("kubelet"));
        command.args(["--config", &format!("{HOME}/kubelet.json"), "--kubeconfig", &access("system:node:node1")]);
        command.args(["--container-runtime=remote", &runtime, "--hostname-override", NODE, "--node-ip", ADDRESS]);
        command.args(["--runtime-cgroups=/", "--kubelet-cgroups=/", "--cert-dir", &format!("{HOME}/kubelet")]);
        // Its times between attempts are what they are; those between looks need not be.
        command.arg("--sync-frequency=5s");
        let kubelet = self.kubelet.insert(Program::start("kubelet", &mut command)?);
        kubelet.wait_for("node that is registered", PATIENCE, |kubelet| {
            kubelet.log().contains("Successfully registered node")
        })
    }

    /// Ends the kubelet; pods run on.
    pub fn stop_kubelet(&mut self) -> Result<()> {
        self.kubelet.take().map_or(Ok(()), |kubelet| kubelet.stop(PATIENCE))
    }

    fn wait_for_the_node(&self) -> Result<()> {
        self.wait_for("a node that is ready", |cluster| {
            let node = cluster.value(&["get", "node", NODE])?;
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            Ok(conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True"))
        })
    }

    /// Looks until something holds; what cannot be asked for yet does not.
    pub fn wait_for(&self, what: &str, holds: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        self.wait_until(what, |cluster| holds(cluster).map(|holds| holds.then_some(())))
    }

    /// Waits until `find` has found something.
    fn wait_until<T>(&self, what: &str, find: impl Fn(&Self) -> Result<Option<T>>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match find(self) {
                Ok(Some(found)) => return Ok(found),
                other if Instant::now() > deadline => {
                    let cause = other.err();
                    return Err(Failure::new(format!("waited in vain for {what}: {cause:?}")));
                }
                _ => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Runs `kubectl` as the cluster's administrator.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(self.kubernetes.program("kubectl"));
        command.args(["--kubeconfig", &access("admin")]).args(arguments).stdin(Stdio::null());
        command.env("HOME", HOME).output().context("kubectl")
    }

    /// Its stdout.
    ///
    /// # Errors
    /// Its own sentence.
    pub fn text(&self, arguments: &[&str]) -> Result<String> {
        succeeded(&format!("kubectl {}", arguments.join(" ")), self.kubectl(arguments)?)
    }

    /// What it says of an object.
    pub fn value(&self, arguments: &[&str]) -> Result<Value> {
        let said = self.text(&[arguments, &["--output=json"]].concat())?;
        serde_json::from_str(&said).context("kubectl --output=json")
    }

    /// The container `name` of a pod, once it runs.
    pub fn container(&self, pod: &str, name: &str) -> Result<Container> {
        let all = self.value(&["get", "pod", pod])?["status"]["containerStatuses"].take();
        let its = all.as_array().and_then(|all| all.iter().find(|container| container["name"] == name));
        let runs = its.filter(|container| !container["state"]["running"].is_null());
        let id = runs.and_then(|container| container["containerID"].as_str()?.strip_prefix("containerd://"));
        let id = id.ok_or_else(|| Failure::new(format!("{name} of pod {pod} does not run: {its:?}")))?;
        Ok(Container {
            name: format!("{pod}/{name}"),
            init_pid: self.containerd.cri().init_pid(id)?,
            id: id.to_owned(),
        })
    }

    /// Waits until it runs.
    pub fn wait_for_container(&self, pod: &str, name: &str) -> Result<Container> {
        self.wait_until(&format!("{name} of pod {pod}"), |cluster| cluster.container(pod, name).map(Some))
    }

    /// Waits until another one than `old` runs in its place.
    pub fn wait_for_another(&self, old: &Container, pod: &str, name: &str) -> Result<Container> {
        self.wait_until(&format!("another {name} of pod {pod}"), |cluster| {
            Ok(Some(cluster.container(pod, name)?).filter(|container| container.id != old.id))
        })
    }

    /// Makes what `manifest`, YAML or JSON, describes.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        let file = format!("{HOME}/manifest.yaml");
        fs::write(&file, manifest).context(&file)?;
        self.text(&["apply", "--filename", &file]).map(drop)
    }

    /// The ends of all logs.
    pub fn logs(&self) -> String {
        let others = self.others.iter().chain(&self.kubelet).map(Program::log_end);
        others.chain([self.containerd.log_end()]).collect()
    }

    /// Removes every pod, then stops everything.
    pub fn stop(mut self) -> Result<()> {
        let removed = self.text(&["delete", "pods,jobs", "--all", "--grace-period=1", "--timeout=60s"]);
        let stopped = self.stop_programs();
        removed.map(drop).and(stopped).and(self.containerd.stop())
    }

    fn stop_programs(&mut self) -> Result<()> {
        let mut outcome = self.stop_kubelet();
        for program in self.others.drain(..) {
            outcome = outcome.and(program.stop(PATIENCE));
        }
        outcome
    }
}

fn write(name: &str, text: &str) -> Result<PathBuf> {
    let file = PathBuf::from(HOME).join(name);
    fs::write(&file, text).context(file.display()).map(|()| file)
}

/// The file with which `user` is let in.
fn access(user: &str) -> String {
    format!("{HOME}/{user}.json")
}

fn write_access(user: &str, token: &str) -> Result<()> {
    let here = json!({"name": "here", "cluster": {"server": SERVER, "insecure-skip-tls-verify": true}});
    let settings = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here", "clusters": [here],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": user}}],
    });
    write(&format!("{user}.json"), &settings.to_string()).map(drop)
}
