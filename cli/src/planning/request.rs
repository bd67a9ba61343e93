//! A request in one line: the keys of a container, and what a plan may know beside them.

use gpool_policy::mechanism::{Ask, Fact, Isolation, Mode, Trust, Workload};
use gpool_protocol::{
    ANNOTATION_PREFIX, Class, Deadline, ErrorBody, GPUS_LIMIT, MemoryCap, Priority, Request, RequestSource,
    parse_bytes, parse_permille, parse_short_time, parse_time, request_keys,
};
use std::collections::{BTreeMap, BTreeSet};

/// The keys, as they are listed to people.
const KEYS: &str = "fraction, limit, memory, spill, gpus, device, model, min-memory, class, priority, mode, isolation, mig-profile, team, \
                    project, cost-center, wait, run-time, deadline, trust, workload, p99, production, replicas, burst, duty, layout, \
                    plugin-replicas, shared-replicas, memory-share, facts";

/// Reads `fraction=0.3,isolation=hardware,p99=50ms`. Lists are joined by `+`.
///
/// # Errors
/// The key and what it may be.
pub fn read(text: &str) -> Result<Ask, String> {
    let mut ask = Ask::of(0);
    let (mut fraction, mut class, mut workload, mut seen) = (None, None, None, BTreeSet::new());
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            format!("{pair:?} is no KEY=VALUE; join several values by +, as in model=A100+H100; the keys are {KEYS}")
        })?;
        let (key, value) = (key.trim(), value.trim());
        let wrong = |cause: String| format!("{key}={value:?} is not valid; {cause}");
        if !seen.insert(key.to_owned()) {
            return Err(format!("{key} is given twice; give it once"));
        }
        match key {
            "fraction" => fraction = Some(permille(value).map_err(wrong)?),
            "limit" => ask.limit_permille = Some(permille(value).map_err(wrong)?),
            "memory" => match MemoryCap::parse(value).map_err(|error| wrong(error.to_string()))? {
                MemoryCap::Bytes(bytes) => ask.memory_bytes = Some(bytes),
                MemoryCap::Permille(permille) => ask.memory_permille = Some(permille),
            },
            "gpus" => ask.gpus = count(value, GPUS_LIMIT).map_err(wrong)?,
            "device" => ask.suitable.keys = value.split('+').map(|name| name.trim().to_owned()).collect(),
            "model" => ask.suitable.models = value.split('+').map(|model| model.trim().to_owned()).collect(),
            "min-memory" => {
                ask.suitable.least_memory_bytes = parse_bytes(value).map_err(|error| wrong(error.to_string()))?;
            }
            "class" => class = Some(Class::parse(value).map_err(wrong)?),
            // Only what is promised has to be free.
            "priority" => ask.is_best_effort = Priority::parse(value).map_err(wrong)? != Priority::Guaranteed,
            "mode" => ask.mode = Mode::parse(value).map_err(wrong)?,
            "isolation" => ask.isolation = Isolation::parse(value).map_err(wrong)?,
            "mig-profile" => ask.profile = Some(value.to_owned()),
            "team" => ask.team = Some(value.to_owned()),
            // How it is served does not depend on who pays, or on when.
            "project" | "cost-center" => {}
            // What has no room on a GPU goes to the host, whatever serves it; the shims alone can do that.
            "spill" => drop(parse_bytes(value).map_err(|error| wrong(error.to_string()))?),
            "wait" | "run-time" => drop(parse_time(value).map_err(|error| wrong(error.to_string()))?),
            "deadline" => drop(Deadline::parse(value).map_err(wrong)?),
            "trust" => ask.trust = Trust::parse(value).map_err(wrong)?,
            "workload" => workload = Some(Workload::parse(value).map_err(wrong)?),
            "p99" => ask.p99_ms = Some(milliseconds(value).map_err(wrong)?),
            "production" => ask.in_production = yes_or_no(value).map_err(wrong)?,
            "replicas" => ask.replicas = count(value, u16::MAX).map_err(wrong)?,
            "burst" => ask.burst_us = Some(microseconds(value).map_err(wrong)?),
            "duty" => ask.duty_permille = Some(permille(value).map_err(wrong)?),
            "layout" => ask.geometry = value.split('+').map(|profile| profile.trim().to_owned()).collect(),
            "plugin-replicas" => ask.plugin_replicas = Some(count(value, u16::MAX).map_err(wrong)?),
            "shared-replicas" => ask.shared_replicas = Some(count(value, u16::MAX).map_err(wrong)?),
            "memory-share" => ask.memory_share_permille = Some(permille(value).map_err(wrong)?),
            "facts" => ask.facts = facts(value).map_err(wrong)?,
            _ => return Err(format!("{key} is no key of a request; the keys are {KEYS}")),
        }
    }
    if ask.profile.is_some() && !seen.contains("mode") {
        ask.mode = Mode::Mig;
    }
    // Schedulers that share by memory alone give no other share.
    let fraction = fraction.or(ask.memory_share_permille);
    if ask.mode == Mode::Mig && ask.memory_permille.is_some() {
        return Err("a memory in per cent does not go with mode=mig; give a size, for example 20GiB".to_owned());
    }
    // Whole GPUs, instances and the driver's own time slices are no fraction that anybody would have to name.
    let whole = match ask.mode {
        Mode::Exclusive => Some(1000),
        Mode::Mig | Mode::TimeSlice => Some(1),
        Mode::Auto | Mode::Slice | Mode::Mps => None,
    };
    ask.fraction_permille = fraction.or(whole).ok_or("a request needs a fraction; add fraction=0.3 or the like")?;
    if ask.limit_permille.is_some_and(|limit| limit < ask.fraction_permille) {
        return Err("limit is below fraction; give a limit between the fraction and 1, or none".to_owned());
    }
    ask.workload = workload.or(class.map(workload_of)).unwrap_or(ask.workload);
    Ok(ask)
}

/// The same as a container would ask for it, with its annotations: what only a plan knows is left out. None where that is no request,
/// such as one by a share of the memory alone.
///
/// # Errors
/// What a start would be refused for whatever there is.
pub fn of_container(text: &str) -> Result<Option<Request>, ErrorBody> {
    let known: Vec<&str> = request_keys().collect();
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    let pairs: Vec<(&str, &str)> = pairs.map(|(key, value)| (key.trim(), value.trim())).collect();
    // Of any other class it is what a plan knows of a workload.
    let is_promise = pairs.contains(&("class", Class::Latency.text()));
    let keys = pairs.iter().copied().filter(|(key, _)| known.contains(key) && (*key != "p99" || is_promise));
    let annotation = |(key, value): (&str, &str)| {
        let value = if matches!(key, "model" | "device") { value.replace('+', ",") } else { value.to_owned() };
        (format!("{ANNOTATION_PREFIX}{key}"), value)
    };
    let annotations: BTreeMap<String, String> = keys.map(annotation).collect();
    let source = RequestSource {
        annotations: &annotations,
        env: &[],
        env_allow: &[],
        container_name: None,
        annotations_from_image: false,
        defaults: &[],
    };
    // A plan for other schedulers, which share by memory alone.
    let has_fraction = annotations.contains_key(&format!("{ANNOTATION_PREFIX}fraction"));
    if !has_fraction && text.contains("memory-share") {
        return Ok(None);
    }
    Request::read(source)
}

/// What a class is taken for where nothing better is known.
fn workload_of(class: Class) -> Workload {
    match class {
        Class::Latency => Workload::InferOnline,
        Class::Batch => Workload::BatchInfer,
        Class::Notebook => Workload::Notebook,
        Class::Train => Workload::Train,
    }
}

fn permille(text: &str) -> Result<u16, String> {
    parse_permille(text).map_err(|error| error.to_string())
}

fn count(text: &str, most: u16) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("write a number from 1 to {most}"))
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("write yes or no".to_owned()),
    }
}

fn milliseconds(text: &str) -> Result<u32, String> {
    let ns = parse_short_time(text).map_err(|_| "write a time, for example 50ms".to_owned())?;
    u32::try_from(ns.div_ceil(1_000_000)).map_err(|_| "write a shorter time".to_owned())
}

/// `400us`, `20ms`, `2s`
fn microseconds(text: &str) -> Result<u64, String> {
    let units = [("us", 1), ("ms", 1000), ("s", 1_000_000)];
    let read =
        units.iter().find_map(|(unit, us)| text.strip_suffix(unit)?.trim().parse::<u64>().ok()?.checked_mul(*us));
    read.filter(|us| *us > 0).ok_or_else(|| "write a whole number with us, ms or s, for example 50ms".to_owned())
}

fn facts(text: &str) -> Result<BTreeSet<Fact>, String> {
    text.split('+').map(str::trim).filter(|word| !word.is_empty()).map(Fact::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_a_plan_knows_is_no_part_of_what_a_container_asks_for() {
        let of_container = |text: &str| super::of_container(text).unwrap();
        let asked =
            of_container("fraction=0.3, memory=4GiB,team=vision,p99=50ms,model=A100 + H100,trust=org,priority=burst")
                .unwrap();
        assert_eq!(
            (asked.fraction_permille, asked.team.as_deref(), asked.priority),
            (300, Some("vision"), Priority::Burst)
        );
        assert_eq!(
            (asked.memory, asked.models),
            (Some(MemoryCap::Bytes(4 << 30)), vec!["A100".to_owned(), "H100".to_owned()])
        );
        assert_eq!(
            of_container("mode=exclusive,gpus=2").map(|asked| (asked.fraction_permille, asked.gpus)),
            Some((1000, 2))
        );
        let promised = |class: &str| of_container(&format!("fraction=0.3,p99=50ms{class}")).unwrap().p99_ns;
        assert_eq!((asked.p99_ns, promised(",class=latency")), (None, Some(50_000_000)));
        assert!(of_container("memory-share=0.3").is_none() && of_container("p99=5ms").is_none());
        let refused = super::of_container("fraction=0.3,mode=exclusive").unwrap_err();
        assert!(refused.message.contains("exclusive"), "{refused}");
    }

    #[test]
    fn a_line_is_read_whole() {
        let line = "fraction=0.3, isolation=software,class=latency,p99=50ms,burst=400us,memory=4GiB,team=vision,project=mars,\
                    facts=uvm+graphs,layout=3g.40gb+3g.40gb";
        let want = Ask {
            isolation: Isolation::Software,
            workload: Workload::InferOnline,
            p99_ms: Some(50),
            burst_us: Some(400),
            memory_bytes: Some(4 << 30),
            team: Some("vision".into()),
            facts: [Fact::Uvm, Fact::Graphs].into(),
            geometry: vec!["3g.40gb".into(), "3g.40gb".into()],
            ..Ask::of(300)
        };
        assert_eq!(read(line), Ok(want));
        assert_eq!(read("mode=exclusive").map(|ask| ask.fraction_permille), Ok(1000));
        assert_eq!(read("mode=timeslice").map(|ask| (ask.mode, ask.fraction_permille)), Ok((Mode::TimeSlice, 1)));
        assert_eq!(read("mig-profile=1g.10gb").map(|ask| (ask.mode, ask.fraction_permille)), Ok((Mode::Mig, 1)));
        assert_eq!(read("fraction=0.3,mode=slice,mig-profile=1g.10gb").map(|ask| ask.mode), Ok(Mode::Slice));
        let burst = |priority| read(&format!("fraction=0.3,priority={priority}")).map(|ask| ask.is_best_effort);
        assert_eq!(["guaranteed", "burst", "scavenger"].map(burst), [Ok(false), Ok(true), Ok(true)]);
        let part = read("fraction=0.3,memory=25%").unwrap();
        assert_eq!((part.memory_bytes, part.memory_permille, part.memory_on(80 << 30)), (None, Some(250), 20 << 30));
        assert_eq!(read("memory-share=0.25").map(|ask| ask.fraction_permille), Ok(250));
        let training = read("fraction=0.5,class=latency,workload=train-large").unwrap();
        assert_eq!(training.workload, Workload::TrainLarge, "a workload says more than a class");
    }

    #[test]
    fn what_cannot_be_read_names_the_key_and_the_remedy() {
        for (line, part) in [
            ("fraction=2", "fraction=\"2\""),
            ("fraction", "no KEY=VALUE"),
            ("fraction=0.3,model=A100,H100", "by +, as in model=A100+H100"),
            ("fraction=0.3,priority=high", "scavenger"),
            ("fraction=0.3,colour=red", "the keys are fraction, limit"),
            ("fraction=0.3,fraction=0.4", "given twice"),
            ("isolation=strong,fraction=0.3", "shared, software, hardware, exclusive"),
            ("isolation=hardware", "add fraction=0.3"),
            ("fraction=0.3,limit=0.2", "limit is below"),
            ("fraction=0.3,p99=50", "for example 50ms"),
            ("fraction=0.3,memory=101%", "memory=\"101%\""),
            ("fraction=0.3,memory=4", "a bare number is bytes"),
            ("mode=mig,memory=25%", "for example 20GiB"),
            ("fraction=0.3,facts=fast", "privileged, host-pid"),
            ("fraction=0.3,gpus=0", "1 to 16"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error} lacks {part}");
        }
    }
}
