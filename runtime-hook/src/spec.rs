//! What gpool reads from config.json, as far as it reads it: annotations, the process's env, the root.
//!
//! Fields are looked up one by one in the JSON value, so that one which gpool does not know, or an enum value
//! that is newer than this build, disturbs nothing.

use crate::defaults;
use crate::placed::{self, given};
use crate::podman::{copies_annotations_of_images, is_podmans, removes_itself};
use gpool_configuration::{DefaultRequest, Placer};
use gpool_protocol::{ErrorBody, ErrorCode, LeaseId, PodName, PodPlace, Request, RequestSource};
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

/// The parts of config.json from which a request is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    annotations: BTreeMap<String, String>,
    env: Vec<String>,
    cgroups_path: String,
    /// Who has placed it, if that is not gpool.
    placed_by: Placer,
    /// Whether it asks for GPUs otherwise than by keys of gpool's.
    asks_for_gpus: bool,
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
            asks_for_gpus: false,
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
        is_its_own && self.injected().is_none() && defaults::may_ask(&self.env)
    }

    /// The same container, which asks for GPUs, said or not.
    pub fn asking_for_gpus(self) -> Self {
        Self { asks_for_gpus: true, ..self }
    }

    /// The same container with what the host has for those that name no share; none if there is nothing to add.
    pub fn with_default(&self, default: &DefaultRequest, env_allow: &[String]) -> Option<Self> {
        let is_for_it = (self.asks_for_gpus || self.has_request()) && !self.is_in_a_pod();
        let annotations =
            is_for_it.then(|| defaults::laid_under(default, &self.annotations, &self.env, env_allow))??;
        Some(Self { annotations, ..self.clone() })
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
mod tests {
    use super::*;
    use crate::report::assert_presentable;
    use serde_json::json;

    #[test]
    fn a_request_is_seen_in_annotations_and_env_only() {
        let annotated = json!({"annotations": {"gpool.io/fraction": "0.3"}, "process": null});
        let env = json!({"process": {"env": ["A=1", "GPOOL_FRACTION=0.3", 7]}, "annotations": null});
        for spec in [&annotated, &env] {
            assert!(may_hold_request(spec.to_string().as_bytes()));
            assert!(Described::read(spec).has_request());
        }
        let elsewhere = json!({"process": {"args": ["echo", "GPOOL_FRACTION=1"]}, "annotations": {"x": "gpool.io/a"}});
        assert!(!Described::read(&elsewhere).has_request());
        for spec in [json!({}), json!([]), json!(null), json!({"annotations": 3, "process": {"env": "GPOOL_X=1"}})] {
            assert!(!Described::read(&spec).has_request());
        }
        assert!(!may_hold_request(br#"{"process":{"env":["PATH=/g","gpool=1"]}}"#));
        assert!(may_hold_request(br#"{"gpool.io\/fraction":"1"}"#));
    }

    #[test]
    fn a_sandbox_asks_for_nothing_and_a_container_knows_its_name() {
        for key in SANDBOX_MARKS {
            let mut spec = json!({"annotations": {"gpool.io/fraction": "0.3", key: "sandbox"}});
            assert!(!Described::read(&spec).has_request());
            spec["annotations"][key] = json!("container");
            assert!(Described::read(&spec).has_request());
        }
        for key in NAMES_IN_POD {
            let pod = |name: &str| json!({"annotations": {"gpool.io/fraction.web": "0.3", key: name}});
            assert!(Described::read(&pod("web")).has_request() && !Described::read(&pod("log")).has_request());
            let described = Described::read(&json!({"annotations": {key: "web"}}));
            assert_eq!(described.source(&[]).container_name, Some("web"));
        }
    }

    #[test]
    fn a_container_of_a_pod_is_told_by_its_engine_alone() {
        let [containerd, crio] = PLACES_IN_POD;
        let in_pod = |annotations: &Value| Described::read(&json!({"annotations": annotations})).in_pod();
        for PodKeys { sandbox, container: name, namespace, pod } in [containerd, crio] {
            let place = PodPlace { sandbox_id: "5a".into(), container_name: "web".into() };
            assert_eq!(in_pod(&json!({sandbox: "5a", name: "web"})), Some(place));
            assert_eq!(in_pod(&json!({sandbox: "5a"})), None);
            let called = |pod_name: &str| {
                let annotations = json!({sandbox: "5a", name: "web", namespace: "ml", pod: pod_name});
                Described::read(&json!({"annotations": annotations})).pod_name().map(|name| name.to_string())
            };
            assert_eq!((called("train-0").as_deref(), called("a b")), (Some("ml/train-0/web"), None));
            assert_eq!(in_pod(&json!({sandbox: "5a", name: "a b"})), None);
            let image = json!({sandbox: "5a", name: "web", "io.podman.annotations.privileged": "FALSE"});
            assert_eq!(in_pod(&image), None);
        }
        let both = json!({containerd.sandbox: "5a", containerd.container: "web", crio.sandbox: "other"});
        assert_eq!(in_pod(&both), None, "one of them is not the engine's");
        assert_eq!(in_pod(&json!({})), None);
    }

    #[test]
    fn the_namespace_of_a_pod_is_its_team_by_its_engine_s_word_alone() {
        let read = |annotations: Value| Described::read(&json!({"annotations": annotations}));
        let team = |annotations: Value| {
            let described = read(annotations).with_namespace_as_team(|_| None)?;
            let request = gpool_protocol::Request::read(described.source(&["fraction".to_owned()]))?;
            Ok::<_, ErrorBody>(request.and_then(|request| request.team))
        };
        let [containerd, crio] = PLACES_IN_POD;
        for keys in [containerd, crio] {
            let pod = |more: Value| {
                let mut all = json!({keys.sandbox: "5a", keys.container: "web", keys.namespace: "vision", "gpool.io/fraction": "0.3"});
                let more = more.as_object().cloned().unwrap_or_default();
                all.as_object_mut().unwrap().extend(more);
                all
            };
            assert_eq!(team(pod(json!({}))).unwrap().as_deref(), Some("vision"));
            for same in ["gpool.io/team", "gpool.io/team.web"] {
                assert_eq!(team(pod(json!({same: "vision"}))).unwrap().as_deref(), Some("vision"));
                let error = team(pod(json!({same: "speech"}))).unwrap_err();
                assert_eq!(error.code, ErrorCode::RequestNotAllowed);
                assert_presentable(&error);
                assert!(error.message.contains("\"speech\"") && error.message.contains("\"vision\""), "{error:?}");
            }
            let mut unnamed = pod(json!({}));
            unnamed.as_object_mut().unwrap().remove(keys.namespace);
            assert_presentable(&team(unnamed).unwrap_err());
        }
        let both = json!({
            containerd.sandbox: "5a", containerd.namespace: "vision", crio.sandbox: "x", "gpool.io/fraction": "0.3"
        });
        assert!(team(both).is_err(), "one of them is not the engine's");
        let alone = json!({"gpool.io/fraction": "0.3", "gpool.io/team": "speech", crio.namespace: "vision"});
        assert_eq!(team(alone).unwrap().as_deref(), Some("speech"), "in no pod its word counts");
        let podman =
            |keys: PodKeys| json!({"gpool.io/fraction": "0.3", "io.container.manager": "libpod", keys.sandbox: "5a"});
        assert_eq!(team(podman(crio)).unwrap(), None);
        assert!(team(podman(containerd)).is_err(), "anybody can say that under containerd");
        let image =
            json!({"gpool.io/fraction": "0.3", "io.podman.annotations.privileged": "FALSE", crio.sandbox: "5a"});
        assert!(team(image).is_err(), "and that under CRI-O");
    }

    #[test]
    fn who_is_in_no_pod_is_placed_by_nobody() {
        let env = ["NVIDIA_VISIBLE_DEVICES=GPU-51", "GPU_PORTION=0.5"];
        let read = |annotations: Value, path: &str| {
            Described::read(&json!({
                "annotations": annotations, "process": {"env": env}, "linux": {"cgroupsPath": path}
            }))
        };
        let [containerd, _] = PLACES_IN_POD;
        let pod = json!({containerd.sandbox: "5a", containerd.container: "web"});
        let by_kai = |described: Described| described.into_placed_by(Placer::Kai).unwrap();
        let placed = by_kai(read(pod, ""));
        assert!(placed.has_request() && placed.annotations["gpool.io/device"] == "GPU-51");
        assert_eq!(placed.placed_by(), Placer::Kai);
        assert!(by_kai(read(json!({}), "/kubepods/pod5a/9b")).has_request(), "of docker's");
        let sandbox = json!({containerd.sandbox: "5a", SANDBOX_MARKS[0]: "sandbox"});
        for other in [read(json!({}), "/system.slice/x"), read(sandbox, "")] {
            assert_eq!(by_kai(other.clone()), other);
        }
        let spec = json!({"process": {"env": env}});
        assert!(may_hold_request(spec.to_string().as_bytes()) && !Described::read(&spec).may_be_placed());
    }

    #[test]
    fn a_pod_that_was_not_counted_is_refused_where_all_have_to_be() {
        let check = |mut annotations: Value, more: Value| {
            annotations.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
            let described = Described::read(&json!({"annotations": annotations}));
            let request = Request::read(described.source(&[]))?.expect("a request");
            described.must_be_counted(&request)
        };
        let (share, counted) = (json!({"gpool.io/fraction": "0.3"}), json!({"gpool.io/resource": "percent=30"}));
        let [containerd, crio] = PLACES_IN_POD;
        for keys in [containerd, crio] {
            let error = check(share.clone(), json!({keys.sandbox: "5a"})).unwrap_err();
            assert_eq!(error.code, ErrorCode::RequestNotAllowed);
            assert_presentable(&error);
            assert_eq!(check(counted.clone(), json!({keys.sandbox: "5a"})), Ok(()));
        }
        let podman = |keys: PodKeys| json!({"io.container.manager": "libpod", keys.sandbox: "5a"});
        assert_eq!(check(share.clone(), podman(crio)), Ok(()), "its pods are of no cluster");
        assert!(check(share.clone(), podman(containerd)).is_err(), "anybody can say that under containerd");
        assert_eq!(check(share, json!({})), Ok(()), "of docker, for example");
        for path in ["kubepods-burstable-pod5a.slice:docker:9b21", "/kubepods/besteffort/pod5a/9b21"] {
            let spec = json!({"process": {"env": ["GPOOL_FRACTION=1"]}, "linux": {"cgroupsPath": path}});
            let described = Described::read(&spec);
            let request = Request::read(described.source(&["fraction".to_owned()])).unwrap().unwrap();
            assert!(described.must_be_counted(&request).is_err(), "{path}");
        }
    }

    #[test]
    fn where_the_host_knows_a_namespace_s_bill_no_pod_names_another() {
        let [keys, _] = PLACES_IN_POD;
        let bill = |more: Value| {
            let mut all = json!({keys.sandbox: "5a", keys.container: "web", keys.namespace: "vision", "gpool.io/fraction": "0.3"});
            all.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
            let described = Described::read(&json!({"annotations": all}));
            let bill_of = |team: &str| (team == "vision").then(|| "4711".to_owned());
            let described = described.with_namespace_as_team(bill_of)?;
            let request = gpool_protocol::Request::read(described.source(&["fraction".to_owned()]))?;
            Ok::<_, ErrorBody>(request.and_then(|request| request.cost_center))
        };
        for same in [json!({}), json!({COST_CENTER: "4711"}), json!({"gpool.io/cost-center.web": "4711"})] {
            assert_eq!(bill(same).unwrap().as_deref(), Some("4711"));
        }
        for other in [json!({COST_CENTER: "99"}), json!({"gpool.io/cost-center.web": "99"})] {
            let error = bill(other).unwrap_err();
            assert!(error.code == ErrorCode::RequestNotAllowed && error.message.contains("\"99\""), "{error:?}");
            assert_presentable(&error);
        }
        let elsewhere = json!({keys.namespace: "speech", COST_CENTER: "99"});
        assert_eq!(bill(elsewhere).unwrap().as_deref(), Some("99"), "of other namespaces the host says nothing");
    }

    #[test]
    fn a_mark_without_the_leases_hook_is_refused() {
        let lease = LeaseId("01LEASE".into());
        let mut spec = json!({"annotations": {INJECTED: "01LEASE"}});
        assert_eq!(Described::read(&spec).injected(), Some(lease.clone()));
        assert_presentable(&verify_injected(&spec, &lease).unwrap_err());
        spec["hooks"] = json!({"createRuntime": [{"path": "/x", "args": ["gpool-hook", "create-runtime", "01LEASE"]}]});
        assert_eq!(verify_injected(&spec, &lease), Ok(()));
    }
}
