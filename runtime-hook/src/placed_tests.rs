//! What the variables of other schedulers mean.

use super::*;
use crate::report::assert_presentable;
use gpool_protocol::{Class, MemoryCap, Mode, Priority, Request, RequestSource};

const FIRST: &str = "GPU-51313131-0000-4000-8000-000000000000";
const SECOND: &str = "GPU-51313131-0000-4000-8000-000000000001";

fn texts(env: &[&str]) -> Vec<String> {
    env.iter().map(|entry| (*entry).to_owned()).collect()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// What a container that is called `web` asks for in the end.
fn asked(placer: Placer, env: &[&str], annotations: &[(&str, &str)]) -> Result<Option<Request>, ErrorBody> {
    let (env, annotations) = (texts(env), map(annotations));
    let Some(given) = given(placer, &env, &annotations, Some("web"))? else { return Ok(None) };
    let (annotations, env) = given.laid_over(&annotations, &env, Some("web"))?;
    let env_allow = ["fraction", "memory", "limit", "class"].map(String::from);
    let source = RequestSource {
        annotations: &annotations,
        env: &env,
        env_allow: &env_allow,
        container_name: Some("web"),
        annotations_from_image: false,
        defaults: &[],
    };
    Request::read(source)
}

fn kai(env: &[&str]) -> Result<Option<Request>, ErrorBody> {
    asked(Placer::Kai, env, &[])
}

fn hami(env: &[&str]) -> Result<Option<Request>, ErrorBody> {
    asked(Placer::Hami, env, &[])
}

#[test]
fn kai_s_part_of_a_gpu_is_that_of_its_time_and_of_its_memory() {
    let visible = format!("{VISIBLE}={SECOND}");
    let request = kai(&["PATH=/bin", &visible, "GPU_PORTION=0.50", "RUNAI_NUM_OF_GPUS=0.50"]).unwrap().unwrap();
    assert_eq!((request.fraction_permille, request.memory), (500, Some(MemoryCap::Permille(500))));
    assert_eq!((request.devices, request.gpus, request.mode), (vec![SECOND.to_owned()], 1, Mode::Slice));
    let older = kai(&[&visible, "RUNAI_NUM_OF_GPUS=0.27"]).unwrap().unwrap();
    assert_eq!((older.fraction_permille, older.memory), (270, Some(MemoryCap::Permille(270))));
    let both = kai(&[&format!("{VISIBLE}={FIRST},{SECOND}"), "GPU_PORTION=0.25"]).unwrap().unwrap();
    assert_eq!((both.devices.len(), both.gpus, both.fraction_permille), (2, 2, 250));
    for (portion, permille) in [("1", 1000), ("1.00", 1000), ("0.3333333", 333), ("0.01", 10), ("0.9999", 999)] {
        let request = kai(&[&visible, &format!("GPU_PORTION={portion}")]).unwrap().unwrap();
        assert_eq!(request.fraction_permille, permille, "{portion}");
    }
    let cdi =
        kai(&[&format!("{VISIBLE}=k8s.device-plugin.nvidia.com/gpu={FIRST}"), "GPU_PORTION=0.5"]).unwrap().unwrap();
    assert_eq!(cdi.devices, [FIRST]);
    // CUDA's own images say `all`, and KAI tells its NRI plugin alone.
    let of_nri = [("nvidia.cdi.k8s.io/container.web", SECOND), ("nvidia.cdi.k8s.io/container.log", FIRST)];
    let image = [&format!("{VISIBLE}=all"), "GPU_PORTION=0.5"];
    assert_eq!(asked(Placer::Kai, &image, &of_nri).unwrap().unwrap().devices, [SECOND]);
}

#[test]
fn hami_s_memory_is_a_cap_and_its_cores_are_a_share() {
    let visible = format!("{VISIBLE}={FIRST}");
    let memory = "CUDA_DEVICE_MEMORY_LIMIT_0=3000m";
    let request = hami(&[&visible, memory, "CUDA_DEVICE_SM_LIMIT=30"]).unwrap().unwrap();
    assert_eq!((request.fraction_permille, request.memory), (300, Some(MemoryCap::Bytes(3000 << 20))));
    assert_eq!((request.limit_permille, request.priority), (None, Priority::Guaranteed));
    assert_eq!(request.devices, [FIRST]);
    let forced = hami(&[&visible, memory, "CUDA_DEVICE_SM_LIMIT=30", "GPU_CORE_UTILIZATION_POLICY=force"]).unwrap();
    assert_eq!(forced.unwrap().limit_permille, Some(300));
    for nothing in [&["CUDA_DEVICE_SM_LIMIT=0"][..], &[]] {
        let env: Vec<&str> = [visible.as_str(), memory].into_iter().chain(nothing.iter().copied()).collect();
        let request = hami(&env).unwrap().unwrap();
        assert_eq!((request.priority, request.fraction_permille), (Priority::Guaranteed, 10), "the least there is");
    }
    let whole = hami(&[&visible, "CUDA_DEVICE_SM_LIMIT=100"]).unwrap().unwrap();
    assert_eq!((whole.fraction_permille, whole.memory), (1000, None));
    let two =
        [&format!("{VISIBLE}={FIRST},{SECOND}"), memory, "CUDA_DEVICE_MEMORY_LIMIT_1=2g", "CUDA_DEVICE_SM_LIMIT=5"];
    let two = hami(&two).unwrap().unwrap();
    assert_eq!((two.gpus, two.memory, two.fraction_permille), (2, Some(MemoryCap::Bytes(2 << 30)), 50));
}

#[test]
fn who_was_not_placed_is_as_before() {
    let visible = format!("{VISIBLE}={FIRST}");
    assert_eq!(kai(&[&visible]), Ok(None), "a whole GPU of NVIDIA's plugin, or the image's");
    assert_eq!(hami(&[&visible]), Ok(None));
    for none in ["void", "none"] {
        assert_eq!(kai(&[&format!("{VISIBLE}={none}"), "GPU_PORTION=0.5"]), Ok(None), "KAI's word for no GPU");
        assert_eq!(hami(&[&format!("{VISIBLE}={none}"), "CUDA_DEVICE_SM_LIMIT=5"]), Ok(None));
    }
    let hamis = [visible.as_str(), "CUDA_DEVICE_MEMORY_LIMIT_0=3000m"];
    assert_eq!(asked(Placer::Gpool, &hamis, &[]), Ok(None));
    assert_eq!(kai(&hamis), Ok(None), "another scheduler's words are nobody's");
    assert_eq!(hami(&[&visible, "GPU_PORTION=0.5", "CUDA_DEVICE_MEMORY_SHARED_CACHE=/x"]), Ok(None));
    assert_eq!(marks().count(), 4);
}

#[test]
fn what_does_not_say_where_or_how_much_is_refused() {
    let visible = format!("{VISIBLE}={FIRST}");
    let refused = [
        kai(&["GPU_PORTION=0.5"]),
        kai(&["GPU_PORTION=0.5", "NVIDIA_VISIBLE_DEVICES=all"]),
        kai(&["GPU_PORTION=0.5", "NVIDIA_VISIBLE_DEVICES=GPU-1,,GPU-2"]),
        kai(&["GPU_PORTION=0.5", "NVIDIA_VISIBLE_DEVICES=MIG-1"]),
        kai(&[&visible, "GPU_PORTION=0.009"]),
        kai(&[&visible, "GPU_PORTION=2"]),
        kai(&[&visible, "GPU_PORTION=65.6"]),
        kai(&[&visible, "GPU_PORTION=1e-1"]),
        kai(&[&visible, "GPU_PORTION="]),
        hami(&["CUDA_DEVICE_SM_LIMIT=5"]),
        hami(&["CUDA_DEVICE_SM_LIMIT=5", "NVIDIA_VISIBLE_DEVICES=all"]),
        hami(&[&visible, "CUDA_DEVICE_SM_LIMIT=101"]),
        hami(&[&visible, "CUDA_DEVICE_SM_LIMIT=x"]),
        hami(&[&visible, "CUDA_DEVICE_MEMORY_LIMIT_0=0m"]),
        hami(&[&visible, "CUDA_DEVICE_MEMORY_LIMIT_0=m"]),
        hami(&[&visible, "CUDA_DEVICE_MEMORY_LIMIT_0=99999999999g"]),
    ];
    for result in refused {
        let error = result.unwrap_err();
        assert_presentable(&error);
        assert_eq!(error.code, ErrorCode::RequestInvalid, "{error}");
        assert!(error.message.contains("the container has "), "{error}");
    }
}

#[test]
fn what_is_said_twice_has_to_be_the_same() {
    let (visible, other) = (format!("{VISIBLE}={FIRST}"), format!("{VISIBLE}={SECOND}"));
    let memory = "CUDA_DEVICE_MEMORY_LIMIT_0=3000m";
    for result in [
        kai(&[&visible, "RUNAI_NUM_OF_GPUS=0.10", "GPU_PORTION=1"]),
        kai(&[&visible, "GPU_PORTION=0.10", "GPU_PORTION=1"]),
        kai(&[&visible, &other, "GPU_PORTION=0.10"]),
        asked(Placer::Kai, &[&visible, "GPU_PORTION=0.1"], &[("nvidia.cdi.k8s.io/container.web", SECOND)]),
        hami(&[&visible, memory, "CUDA_DEVICE_SM_LIMIT=5", "CUDA_DEVICE_SM_LIMIT=100"]),
        hami(&[&visible, &other, memory]),
        hami(&[&visible, memory, "CUDA_DEVICE_MEMORY_LIMIT_0=9000m"]),
    ] {
        let error = result.unwrap_err();
        assert_presentable(&error);
        assert!(error.message.contains(" contradicts "), "{error}");
    }
    // An annotation in another form is the same, and an image's word for all or none no other one.
    let cdi = format!("k8s.device-plugin.nvidia.com/gpu={SECOND}");
    for told in [SECOND, "all", "void", ""] {
        let env = [&format!("{VISIBLE}={told}"), "GPU_PORTION=0.1"];
        let request = asked(Placer::Kai, &env, &[("nvidia.cdi.k8s.io/container.web", &cdi)]).unwrap().unwrap();
        assert_eq!(request.devices, [SECOND], "{told:?}");
    }
    let twice = kai(&[&visible, &visible, "GPU_PORTION=0.10", "RUNAI_NUM_OF_GPUS=0.10", "GPU_PORTION=0.10"]).unwrap();
    assert_eq!(twice.unwrap().fraction_permille, 100);
    // Of an image, and no GPU's of this container.
    let image = hami(&[&visible, memory, "CUDA_DEVICE_MEMORY_LIMIT=1m", "CUDA_DEVICE_MEMORY_LIMIT_7=1m"]).unwrap();
    assert_eq!(image.unwrap().memory, Some(MemoryCap::Bytes(3000 << 20)));
    for (name, is) in [("GPU_PORTION", true), ("GPU_PORTION_X", false), ("CUDA_DEVICE_MEMORY_LIMIT_3", true)] {
        assert_eq!(is_mark(&format!("{name}=1")), is, "{name}");
    }
    assert!(!is_mark("CUDA_DEVICE_MEMORY_LIMIT_=1") && !is_mark("CUDA_DEVICE_MEMORY_LIMIT_X=1"));
}

#[test]
fn what_is_the_scheduler_s_to_say_nobody_else_says() {
    let env = [&format!("{VISIBLE}={FIRST}"), "GPU_PORTION=0.5"];
    for key in SAID_BY_PLACER {
        for written in [format!("gpool.io/{key}"), format!("gpool.io/{key}.web")] {
            let error = asked(Placer::Kai, &env, &[(&written, "1")]).unwrap_err();
            assert_presentable(&error);
            for part in [written.as_str(), "KAI has given", "fraction=0.500"] {
                assert!(error.message.contains(part), "{error} lacks {part}");
            }
        }
    }
    for key in ["gpool.io/resource", "gpool.io/resource-mig.1g.10gb"] {
        let resource = asked(Placer::Kai, &env, &[(key, "percent=30")]).unwrap_err();
        assert!(resource.message.contains("in its limits"), "{resource}");
    }
    let others = [
        ("gpool.io/mode", "slice"),
        ("gpool.io/memory.web", ""),
        ("gpool.io/memory.log", "1GiB"),
        ("gpool.io/class", "latency"),
        ("gpool.io/limit", "0.6"),
        ("gpool.io/team", "vision"),
    ];
    let request = asked(Placer::Kai, &env, &others).unwrap().unwrap();
    assert_eq!((request.class, request.limit_permille, request.fraction_permille), (Class::Latency, Some(600), 500));
    assert_eq!((request.team.as_deref(), request.memory), (Some("vision"), Some(MemoryCap::Permille(500))));
    // What an image would have is not what it gets.
    let image: Vec<&str> =
        env.iter().copied().chain(["GPOOL_FRACTION=1", "GPOOL_MEMORY=80GiB", "GPOOL_CLASS=latency"]).collect();
    let request = kai(&image).unwrap().unwrap();
    assert_eq!((request.fraction_permille, request.memory), (500, Some(MemoryCap::Permille(500))));
    assert_eq!(request.class, Class::Latency);
    let hamis = [&format!("{VISIBLE}={FIRST}"), "CUDA_DEVICE_MEMORY_LIMIT_0=3000m"];
    let burst = asked(Placer::Hami, &hamis, &[("gpool.io/priority", "burst")]).unwrap().unwrap();
    assert_eq!(burst.priority, Priority::Burst);
}
