//! What gpool reads from config.json, as far as it reads it: annotations, the process's env, the root.
//!
//! Fields are looked up one by one in the JSON value, so that one which gpool does not know, or an enum value
//! that is newer than this build, disturbs nothing.

use crate::defaults::{self, Wanted};
use crate::edits;
use crate::placed::{self, given};
use crate::podman::{copies_annotations_of_images, has_hooks_of_files, is_podmans, removes_itself};
use gpool_configuration::{DefaultRequest, Placer};
use gpool_protocol::{
    ANNOTATION_PREFIX, ENV_PREFIX, ErrorBody, ErrorCode, LeaseId, PodName, PodPlace, Request, RequestSource,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// The annotation that says which lease's edits config.json holds.
pub const INJECTED: &str = "gpool.io/injected";

const SANDBOX_MARKS: [&str; 2] = ["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"];
const NAMES_IN_POD: [&str; 3] =
    ["io.kubernetes.cri.container-name", "io.kubernetes.container.name", "io.kubernetes.cri-o.ContainerName"];
/// The annotations in which an engine of Kubernetes says which container of which pod one is.
#[derive(Clone, Copy)]
struct PodKeys {
    sandbox: &'static str,
    container: &'static str,
    namespace: &'static str,
    pod: &'static str,
}

/// containerd's (pkg/cri/annotations; the pod's name and namespace since 1.5) and CRI-O's, all but the first of which are labels of the kubelet's
/// that it writes over all annotations of the pod's own.
const PLACES_IN_POD: [PodKeys; 2] = [
    PodKeys {
        sandbox: "io.kubernetes.cri.sandbox-id",
        container: "io.kubernetes.cri.container-name",
        namespace: "io.kubernetes.cri.sandbox-namespace",
        pod: "io.kubernetes.cri.sandbox-name",
    },
    PodKeys {
        sandbox: "io.kubernetes.cri-o.SandboxID",
        container: "io.kubernetes.container.name",
        namespace: "io.kubernetes.pod.namespace",
        pod: "io.kubernetes.pod.name",
    },
];

/// Where the nodes of MIG instances are.
const INSTANCES: &str = "/dev/nvidia-caps/";
/// The annotation by which a container says its team.
const TEAM: &str = "gpool.io/team";
/// On whose bill it is.
const COST_CENTER: &str = "gpool.io/cost-center";

/// Whether config.json can hold a request at all, told without parsing it. Most containers end here.
///
/// Only a JSON writer that escapes plain letters could hide a request from this; such a container gets no GPU.
pub fn may_hold_request(bytes: &[u8]) -> bool {
    // Without the slash, which some JSON writers escape.
    let marks: Vec<&[u8]> =
        ["gpool.io", "GPOOL_", defaults::VISIBLE].into_iter().chain(placed::marks()).map(str::as_bytes).collect();
    let first = |byte: &u8| marks.iter().any(|mark| mark[0] == *byte);
    bytes.iter().enumerate().any(|(at, byte)| first(byte) && marks.iter().any(|mark| bytes[at..].starts_with(mark)))
}

/// Whether there are devices `/dev/nvidia0` or the like, and none of a MIG instance, which has its board's beside its own.
fn has_nodes_of_whole_gpus(spec: &Value) -> bool {
    let devices = spec["linux"]["devices"].as_array().into_iter().flatten();
    let paths: Vec<&str> = devices.filter_map(|device| device["path"].as_str()).collect();
    let is_gpu = |path: &&str| {
        let number = path.strip_prefix("/dev/nvidia").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    paths.iter().any(is_gpu) && !paths.iter().any(|path| path.starts_with(INSTANCES))
}

/// The parts of config.json from which a request is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    annotations: BTreeMap<String, String>,
    env: Vec<String>,
    cgroups_path: String,
    /// Who has placed it, if that is not gpool.
    placed_by: Placer,
    /// What the host has for it.
    defaults: Vec<(&'static str, String)>,
    /// Whether its engine gives it nodes of GPUs, by CDI or by hand.
    has_nodes: bool,
    /// Whether it adds NVIDIA's legacy hook, for this container or for all.
    has_hook: bool,
    /// What that hook was told of GPUs, in gpool's keys, as far as the container does not say it itself.
    named: Vec<(&'static str, String)>,
}

impl Described {
    /// Collects them; what is absent, null or of another type is left out.
    pub fn read(spec: &Value) -> Self {
        let annotations = spec["annotations"].as_object().into_iter().flatten();
        let env = spec["process"]["env"].as_array().into_iter().flatten();
        Self {
            annotations: annotations.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect(),
            env: env.filter_map(|entry| entry.as_str().map(str::to_owned)).collect(),
            cgroups_path: spec["linux"]["cgroupsPath"].as_str().unwrap_or_default().to_owned(),
            placed_by: Placer::Gpool,
            defaults: Vec::new(),
            has_nodes: has_nodes_of_whole_gpus(spec),
            has_hook: edits::has_legacy_hook(spec),
            named: Vec::new(),
        }
    }

    /// The view of these parts that the request grammar reads.
    pub fn source<'a>(&'a self, env_allow: &'a [String]) -> RequestSource<'a> {
        RequestSource {
            annotations: &self.annotations,
            env: &self.env,
            env_allow,
            container_name: self.container_name(),
            annotations_from_image: copies_annotations_of_images(&self.annotations),
            defaults: &self.defaults,
        }
    }

    fn container_name(&self) -> Option<&str> {
        NAMES_IN_POD.iter().find_map(|key| self.annotations.get(*key)).map(String::as_str)
    }

    /// Whether the container asks for a share, or misspells what it asks for. A pod's sandbox sees the pod's annotations but
    /// never computes, and its other containers see what only one of them asks for.
    pub fn has_request(&self) -> bool {
        !self.is_sandbox() && self.source(&[]).has_request()
    }

    fn is_sandbox(&self) -> bool {
        SANDBOX_MARKS.iter().any(|key| self.annotations.get(*key).is_some_and(|kind| kind == "sandbox"))
    }

    /// Whether the scheduler of a cluster may have placed the container on a GPU: which one's words count, the configuration says.
    pub fn may_be_placed(&self) -> bool {
        !self.is_sandbox() && self.is_in_a_pod() && self.env.iter().any(|entry| placed::is_mark(entry))
    }

    /// Who has placed it: gpool does where nobody else has.
    pub fn placed_by(&self) -> Placer {
        self.placed_by
    }

    /// The same container with what `placer` has given it in place of what it asks for, if that has placed it.
    ///
    /// # Errors
    /// It has, and does not say where; or the container asks for what is the scheduler's to give.
    pub fn into_placed_by(self, placer: Placer) -> Result<Self, ErrorBody> {
        if !self.may_be_placed() {
            return Ok(self);
        }
        let container = self.container_name();
        let Some(given) = given(placer, &self.env, &self.annotations, container)? else { return Ok(self) };
        let (annotations, env) = given.laid_over(&self.annotations, &self.env, container)?;
        Ok(Self { annotations, env, placed_by: placer, ..self })
    }

    /// Whether it asks for GPUs as NVIDIA's runtime has it, where nobody but the host may have something for it.
    pub fn may_have_default(&self) -> bool {
        let is_its_own = !self.has_request() && !self.is_sandbox() && !self.is_in_a_pod();
        is_its_own && self.injected().is_none() && self.wanted().is_some()
    }

    fn wanted(&self) -> Option<Wanted<'_>> {
        defaults::wanted(&self.env, self.has_nodes, self.has_hook && !self.has_hook_for_all())
    }

    /// The same container with what the host has for those that name no share; none if there is nothing for it. One that says nothing
    /// of gpool has it if it `asks_for_gpus`.
    pub fn with_default(&self, default: &DefaultRequest, asks_for_gpus: bool, env_allow: &[String]) -> Option<Self> {
        let has_request = self.has_request();
        if self.is_in_a_pod() || !(has_request || asks_for_gpus) {
            return None;
        }
        let mut defaults = defaults::for_the_rest(default, |key| self.said(key))?;
        if !has_request && let Some(wanted) = self.wanted() {
            defaults.extend(defaults::on(&wanted, env_allow));
        }
        Some(Self { defaults, ..self.clone() })
    }

    /// The same container with the GPUs that docker's `--gpus` or a compose file names beside its own keys; none if it names none.
    ///
    /// # Errors
    /// They contradict its own keys.
    pub fn with_named_gpus(&self, env_allow: &[String]) -> Result<Option<Self>, ErrorBody> {
        let is_its_own = self.has_hook && !self.has_hook_for_all() && self.has_request();
        if !is_its_own || self.placed_by != Placer::Gpool {
            return Ok(None);
        }
        let named = defaults::beside_own(&self.env, |key| self.said(key), env_allow)?;
        if named.is_empty() {
            return Ok(None);
        }
        let mut env = self.env.clone();
        env.extend(named.iter().map(|(key, value)| format!("{ENV_PREFIX}{}={value}", key.to_ascii_uppercase())));
        Ok(Some(Self { env, named, ..self.clone() }))
    }

    /// A refusal with what was not written as a key of gpool's.
    pub fn explained(&self, error: ErrorBody) -> ErrorBody {
        let ErrorBody { mut message, .. } = error.clone();
        if self.has_default() {
            message += "; the container names no share, and has that of [default_request] on this host";
        }
        if !self.named.is_empty() {
            let keys: Vec<String> = self.named.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let by = "docker's --gpus, or deploy.resources.reservations.devices of its compose file";
            message += &format!("; the container has {} by {by}", keys.join(" "));
        }
        ErrorBody { message, ..error }
    }

    /// The value of a key that is for all containers.
    fn said(&self, key: &str) -> Option<&str> {
        let is_it = |entry: &&String| {
            let name = entry.split('=').next().and_then(|name| name.strip_prefix(ENV_PREFIX));
            name.is_some_and(|name| name.to_ascii_lowercase().replace('_', "-") == key)
        };
        let in_env = || self.env.iter().rev().find(is_it)?.split_once('=').map(|(_, value)| value);
        self.annotations.get(&format!("{ANNOTATION_PREFIX}{key}")).map(String::as_str).or_else(in_env)
    }

    /// Whether that has been given to it.
    pub fn has_default(&self) -> bool {
        !self.defaults.is_empty()
    }

    /// Which container of a pod it is, if the engine says so. An engine overwrites its own annotations and passes others of
    /// the pod's on: where both engines seem to have spoken, or the image might have, nobody is believed.
    pub fn in_pod(&self) -> Option<PodPlace> {
        let keys = self.pod_keys()?;
        let text = |key: &str| self.annotations.get(key).cloned();
        let place = PodPlace { sandbox_id: text(keys.sandbox)?, container_name: text(keys.container)? };
        place.check().is_ok().then_some(place)
    }

    /// How people call that, by the same word.
    pub fn pod_name(&self) -> Option<PodName> {
        // Users of podman annotate as they like; its pods are none of a cluster's.
        let keys = self.pod_keys().filter(|_| !is_podmans(&self.annotations))?;
        let text = |key: &str| self.annotations.get(key).cloned();
        let name = PodName { namespace: text(keys.namespace)?, pod: text(keys.pod)?, container: text(keys.container)? };
        name.check().is_ok().then_some(name)
    }

    /// The keys of the engine that has made the container's pod; none if it is in none, or nobody is believed.
    fn pod_keys(&self) -> Option<PodKeys> {
        let mut said = PLACES_IN_POD.iter().filter(|keys| self.annotations.contains_key(keys.sandbox));
        let keys = said.next().filter(|_| !copies_annotations_of_images(&self.annotations))?;
        said.next().is_none().then_some(*keys)
    }

    /// Whether it is in a pod of Kubernetes. podman writes CRI-O's key of a sandbox for pods of its own; containerd does not say that
    /// it is not podman, but which sandbox it is.
    fn is_in_a_cluster(&self) -> bool {
        let [containerd, _] = PLACES_IN_POD;
        let is_podman = is_podmans(&self.annotations) && !self.annotations.contains_key(containerd.sandbox);
        !is_podman && PLACES_IN_POD.iter().any(|keys| self.annotations.contains_key(keys.sandbox))
    }

    /// Whether a kubelet has it made, through whichever engine: docker says nothing of pods to its runtimes, and the kubelet names
    /// their cgroups so.
    fn is_in_a_pod(&self) -> bool {
        self.is_in_a_cluster() || self.cgroups_path.contains("kubepods")
    }

    /// For hosts on which pods have only what their cluster has counted.
    ///
    /// # Errors
    /// It is in a pod, and asks for what nobody has counted.
    pub fn must_be_counted(&self, request: &Request) -> Result<(), ErrorBody> {
        if request.resource.is_some() || !self.is_in_a_pod() {
            return Ok(());
        }
        Err(ErrorBody::new(
            ErrorCode::RequestNotAllowed,
            "the container is in a pod and asks for a share that its cluster has not counted, and [policy] counted_pods of this host \
             wants it counted",
            "ask in the container's resource limits, for example gpool.io/percent: 30, or have the scheduler of [policy] placed_by \
             place the pod; or leave gpool's annotations and variables out",
        ))
    }

    /// The same container with the namespace of its pod as its team, and on that team's bill where the host says on which it is; one
    /// that is in no pod is as it was.
    ///
    /// # Errors
    /// It asks for another team or bill, or its engine does not say of which namespace it is.
    pub fn with_namespace_as_team(&self, bill_of: impl Fn(&str) -> Option<String>) -> Result<Self, ErrorBody> {
        const RULE: &str = "[policy] namespace_teams of this host makes the namespace of a pod its team";
        if !self.is_in_a_cluster() {
            return Ok(self.clone());
        }
        let refused = |message: String, remedy: &str| {
            Err(ErrorBody::new(ErrorCode::RequestNotAllowed, format!("{message}, and {RULE}"), remedy))
        };
        let namespace = self.pod_keys().and_then(|keys| self.annotations.get(keys.namespace)).cloned();
        let Some(namespace) = namespace.filter(|namespace| !namespace.is_empty()) else {
            return refused(
                "the container is in a pod, of which the engine does not say the namespace in a way that can be believed".into(),
                "use containerd 1.5 or newer, or CRI-O, and let no annotation io.kubernetes.* of pods through to the handler; or \
                 set the key to false",
            );
        };
        let mut annotations = self.annotations.clone();
        let own = NAMES_IN_POD.iter().find_map(|key| self.annotations.get(*key));
        let bill = bill_of(&namespace).map(|bill| (COST_CENTER, bill));
        for (key, value) in [(TEAM, namespace.clone())].into_iter().chain(bill) {
            let of_container = own.map(|name| format!("{key}.{name}"));
            for written in of_container.into_iter().chain([key.to_owned()]) {
                match annotations.remove(&written) {
                    Some(other) if !other.trim().is_empty() && other != value => {
                        return refused(
                            format!("{written} is {other:?} in a pod of the namespace {namespace:?}"),
                            "leave the annotation out",
                        );
                    }
                    _ => {}
                }
            }
            annotations.insert(key.to_owned(), value);
        }
        Ok(Self { annotations, ..self.clone() })
    }

    /// Whether it has NVIDIA's legacy hook because a file has that added to each container, as NVIDIA's packages once did for podman and
    /// CRI-O: it asks for nothing by that.
    pub fn has_hook_for_all(&self) -> bool {
        self.has_hook && has_hooks_of_files(&self.annotations)
    }

    /// Whether the engine says that the container is removed when it ends.
    pub fn removes_itself(&self) -> bool {
        removes_itself(&self.annotations)
    }

    /// The lease whose edits are said to be in already.
    pub fn injected(&self) -> Option<LeaseId> {
        self.annotations.get(INJECTED).cloned().map(LeaseId)
    }
}

/// Checks what the mark says: the hook of that lease must be there, without which no shim would be looked for
/// and no process bound. Anybody can write an annotation; only who writes the bundle can add a hook.
pub fn verify_injected(spec: &Value, lease: &LeaseId) -> Result<(), ErrorBody> {
    let hooks = spec["hooks"]["createRuntime"].as_array().into_iter().flatten();
    let ours = |hook: &Value| {
        let args = hook["args"].as_array().into_iter().flatten();
        args.filter_map(Value::as_str).any(|argument| argument == lease.0)
    };
    if hooks.into_iter().any(ours) {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::BundleInvalid,
        format!("config.json is marked as holding lease {lease} already, but the hook of that lease is not in it"),
        format!("remove the annotation {INJECTED}, which only gpool writes"),
    ))
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
