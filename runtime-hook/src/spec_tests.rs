//! What is read from config.json.

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
    let image = json!({"gpool.io/fraction": "0.3", "io.podman.annotations.privileged": "FALSE", crio.sandbox: "5a"});
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
        let mut all =
            json!({keys.sandbox: "5a", keys.container: "web", keys.namespace: "vision", "gpool.io/fraction": "0.3"});
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
