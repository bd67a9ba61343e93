//! What a cluster has counted for a container, as the other keys say it: what the two say must not differ.

use super::keys::{Entry, Origin, is_counted};
use super::{RequestError, parse_gpus, permille, told};
use crate::counted::{CountedResource, INSTANCE_ANNOTATION, PERCENT_ANNOTATION, PERCENT_OF_A_GPU};
use crate::error::{ErrorBody, ErrorCode};
use crate::seal::Seal;
use std::collections::BTreeMap;

/// As a pod names the resource.
const PERCENT: &str = "gpool.io/percent";

/// Takes the resource out of the keys, with its seal, and puts in what it asks for.
///
/// # Errors
/// It is none, or another key asks for something else.
pub fn take_counted(
    entries: &mut BTreeMap<String, Entry>,
) -> Result<Option<(CountedResource, Option<Seal>)>, RequestError> {
    let keys: Vec<String> = entries.keys().filter(|key| is_counted(key)).cloned().collect();
    let counted: Vec<Entry> = keys.iter().filter_map(|key| entries.remove(key)).collect();
    let entry = match counted.as_slice() {
        [] => return Ok(None),
        [entry] => entry,
        several => return Err(refused_several(several)),
    };
    let (counted, seal) = Seal::taken_off(entry.value.trim());
    let Some(resource) = CountedResource::parse(counted) else {
        return Err(refused(
            format!("{}={counted:?} is nothing that a container can have", entry.written_as),
            format!(
                "ask for 1 to 1600 of {PERCENT}, or for one MIG instance, in the container's resource limits; {} is for \
                 gpool-device-plugin to write",
                entry.written_as
            ),
        ));
    };
    match &resource {
        CountedResource::Percent(percent) => ask_for_percent(entries, *percent)?,
        CountedResource::Instance(profile) => ask_for_instance(entries, profile)?,
    }
    Ok(Some((resource, seal)))
}

fn refused_several(counted: &[Entry]) -> RequestError {
    if counted.iter().any(|entry| entry.written_as == PERCENT_ANNOTATION) {
        return refused(
            format!("the container's limits have both {PERCENT} and a MIG instance"),
            "leave one of them out: a container has shares of GPUs or an instance".into(),
        );
    }
    let profiles: Vec<&str> = counted.iter().map(|entry| Seal::taken_off(entry.value.trim()).0).collect();
    refused(
        format!("the container's limits have MIG instances of several profiles ({})", profiles.join(", ")),
        "leave all but one of them out: a container has one instance".into(),
    )
}

fn ask_for_percent(entries: &mut BTreeMap<String, Entry>, percent: u16) -> Result<(), RequestError> {
    let mode = entries.get("mode").map_or(String::new(), |entry| entry.value.trim().to_owned());
    if entries.contains_key("mig-profile") || mode == "mig" {
        return Err(refused(
            format!(
                "{PERCENT} of the container's limits is of GPUs that are not divided, and a MIG instance is asked for"
            ),
            "put gpool.io/mig-PROFILE, for example gpool.io/mig-1g.10gb: 1, in its place".into(),
        ));
    }
    // The table may find a whole GPU for it, or an instance.
    let is_open = |key: &&str| entries.get(*key).is_some_and(|entry| !entry.value.trim().is_empty());
    if mode == "auto" || (mode.is_empty() && is_open(&"isolation")) {
        return Err(refused(
            format!("{PERCENT}: {percent} of the container's limits is a share, and another mechanism may be chosen for it"),
            "leave isolation and mode=auto out, or say mode=slice; for GPUs of its own ask for 100 of each and mode=exclusive".into(),
        ));
    }
    let gpus = match entries.get("gpus") {
        Some(entry) => told(entry, parse_gpus(&entry.value))?,
        None if percent <= PERCENT_OF_A_GPU => 1,
        None if percent.is_multiple_of(PERCENT_OF_A_GPU) => percent / PERCENT_OF_A_GPU,
        None => {
            return Err(refused(
                format!("{PERCENT}: {percent} is no whole number of GPUs, and nothing says on how many it is"),
                "ask for at most 100, for a multiple of 100, or add the annotation gpool.io/gpus".into(),
            ));
        }
    };
    let whole = PERCENT_OF_A_GPU * gpus;
    if percent > whole || (mode == "exclusive" && percent != whole) {
        return Err(refused(
            format!("{PERCENT}: {percent} does not go with {gpus} GPU(s), which are {whole} together"),
            match mode.as_str() {
                "exclusive" => format!("ask for {PERCENT}: {whole}, which is what mode=exclusive takes"),
                _ => format!("ask for at most {whole}, or for more GPUs with the annotation gpool.io/gpus"),
            },
        ));
    }
    if percent < gpus {
        return Err(refused(
            format!("{PERCENT}: {percent} on {gpus} GPUs is less than a hundredth of each"),
            format!("ask for at least {gpus}"),
        ));
    }
    put(entries, ("gpus", PERCENT_ANNOTATION), gpus.to_string());
    // What is less than a thousandth of a GPU nobody has.
    let counted = u32::from(percent) * 10 / u32::from(gpus);
    match entries.get("fraction").map(|entry| Ok::<_, RequestError>((entry, permille(entry)?))).transpose()? {
        Some((_, fraction)) if u32::from(fraction) == counted => {}
        Some((entry, fraction)) => {
            let its = u32::from(fraction) * u32::from(gpus);
            let instead = its.is_multiple_of(10).then(|| format!(", or ask for {PERCENT}: {}", its / 10));
            return Err(refused(
                format!(
                    "{}={:?} on {gpus} GPU(s) is not what {PERCENT}: {percent} of the container's limits says",
                    entry.written_as, entry.value
                ),
                format!("leave the fraction out{}", instead.unwrap_or_default()),
            ));
        }
        // The driver's time slices have a fraction only where somebody asks for one.
        None if mode == "timeslice" => {}
        None => put(entries, ("fraction", PERCENT_ANNOTATION), format!("{}.{:03}", counted / 1000, counted % 1000)),
    }
    Ok(())
}

fn ask_for_instance(entries: &mut BTreeMap<String, Entry>, profile: &str) -> Result<(), RequestError> {
    if let Some(entry) = entries.get("mig-profile").filter(|entry| entry.value.trim() != profile) {
        return Err(refused(
            format!(
                "{}={:?} is not the MIG instance of the container's limits, {profile}",
                entry.written_as, entry.value
            ),
            "leave the annotation out".into(),
        ));
    }
    if let Some(entry) = entries.get("mode").filter(|entry| entry.value.trim() != "mig") {
        return Err(refused(
            format!("{}={:?} does not go with a MIG instance in the container's limits", entry.written_as, entry.value),
            "leave the annotation out: the instance is this container's alone".into(),
        ));
    }
    put(entries, ("mig-profile", INSTANCE_ANNOTATION), profile.to_owned());
    Ok(())
}

/// Where nobody has said it: the resource is of this one container.
fn put(entries: &mut BTreeMap<String, Entry>, (key, said_by): (&str, &str), value: String) {
    let entry = || Entry { written_as: said_by.to_owned(), value, origin: Origin::OwnInPod };
    entries.entry(key.to_owned()).or_insert_with(entry);
}

fn refused(message: String, remedy: String) -> RequestError {
    ErrorBody::new(ErrorCode::RequestInvalid, message, remedy)
}

#[cfg(test)]
mod tests {
    use crate::mechanism::Mode;
    use crate::request::{Request, RequestError, RequestSource};
    use crate::{CountedResource, ErrorCode, Seal};

    fn read(pairs: &[(&str, &str)]) -> Result<Request, RequestError> {
        let annotations = pairs.iter().map(|(key, value)| (format!("gpool.io/{key}"), (*value).to_owned())).collect();
        let nothing: &[String] = &[];
        let source = RequestSource {
            annotations: &annotations,
            env: nothing,
            env_allow: nothing,
            container_name: Some("web"),
            annotations_from_image: false,
            defaults: &[],
        };
        Request::read(source).map(|request| request.expect("a request"))
    }

    #[test]
    fn what_was_counted_is_what_is_asked_for() {
        let shares = |pairs: &[(&str, &str)]| {
            let request = read(pairs).unwrap();
            (request.fraction_permille, request.gpus, request.mode)
        };
        assert_eq!(shares(&[("resource", "percent=30")]), (300, 1, Mode::Slice));
        assert_eq!(shares(&[("resource", "percent=1")]), (10, 1, Mode::Slice));
        assert_eq!(shares(&[("resource", "percent=100")]), (1000, 1, Mode::Slice));
        assert_eq!(shares(&[("resource", "percent=200")]), (1000, 2, Mode::Slice));
        assert_eq!(shares(&[("resource", "percent=100"), ("gpus", "2")]), (500, 2, Mode::Slice));
        assert_eq!(
            shares(&[("resource", "percent=100"), ("gpus", "3")]),
            (333, 3, Mode::Slice),
            "never more than counted"
        );
        assert_eq!(shares(&[("resource", "percent=200"), ("mode", "exclusive")]), (1000, 2, Mode::Exclusive));
        assert_eq!(shares(&[("resource", "percent=25"), ("mode", "timeslice")]), (0, 1, Mode::TimeSlice));
        assert_eq!(shares(&[("resource", "percent=30"), ("fraction", "0.3")]), (300, 1, Mode::Slice), "said twice");
        assert_eq!(shares(&[("resource", "percent=100"), ("gpus", "3"), ("fraction", "0.333")]).0, 333);
        let request = read(&[("resource", "percent=30"), ("memory", "4GiB"), ("class", "latency")]).unwrap();
        assert_eq!(request.resource, Some(CountedResource::Percent(30)));
        assert_eq!(request.seal, None);
        let seal = Seal::of(7);
        let sealed = read(&[("resource", &seal.put_on("percent=30"))]).unwrap();
        assert_eq!((sealed.resource, sealed.seal), (Some(CountedResource::Percent(30)), Some(seal)));
        let instance = read(&[("resource-mig", "mig=1g.10gb+me")]).unwrap();
        assert_eq!((instance.mode, instance.mig_profile.as_deref()), (Mode::Mig, Some("1g.10gb+me")));
        let key = crate::instance_annotation("1g.10gb+me");
        assert_eq!(key, "gpool.io/resource-mig.1g.10gb.me");
        assert_eq!(read(&[(key.strip_prefix("gpool.io/").unwrap(), "mig=1g.10gb+me")]).unwrap(), instance);
    }

    #[test]
    fn what_says_something_else_is_refused_with_both() {
        for (pairs, parts) in [
            (
                &[("resource", "percent=30"), ("fraction", "0.5")][..],
                ["gpool.io/fraction=\"0.5\"", "gpool.io/percent: 50"],
            ),
            (
                &[("resource", "percent=30"), ("fraction.web", "0.5")],
                ["gpool.io/fraction.web=\"0.5\"", "leave the fraction"],
            ),
            (&[("resource", "percent=150")], ["no whole number of GPUs", "gpool.io/gpus"]),
            (&[("resource", "percent=150"), ("gpus", "1")], ["percent: 150", "at most 100"]),
            (&[("resource", "percent=50"), ("mode", "exclusive")], ["percent: 50", "percent: 100"]),
            (&[("resource", "percent=1"), ("gpus", "2")], ["percent: 1 on 2 GPUs", "at least 2"]),
            (&[("resource", "percent=50"), ("mig-profile", "1g.10gb")], ["MIG instance", "gpool.io/mig-PROFILE"]),
            (&[("resource", "percent=50"), ("mode", "mig")], ["MIG instance", "gpool.io/mig-PROFILE"]),
            (&[("resource", "percent=1"), ("mode", "auto")], ["another mechanism", "mode=slice"]),
            (&[("resource", "percent=1"), ("isolation", "exclusive")], ["another mechanism", "mode=exclusive"]),
            (&[("resource", "percent=1"), ("isolation", "hardware")], ["another mechanism", "mode=slice"]),
            (&[("resource", "percent=1"), ("isolation.web", "shared")], ["another mechanism", "mode=slice"]),
            (&[("resource", "percent=50"), ("gpus", "x")], ["gpool.io/gpus=\"x\"", "between 1 and 16"]),
            (&[("resource", "percent=50"), ("fraction", "x")], ["gpool.io/fraction=\"x\"", "between 0.01 and 1"]),
            (&[("resource-mig", "mig=1g.10gb"), ("mig-profile", "2g.20gb")], ["2g.20gb", "1g.10gb"]),
            (&[("resource-mig", "mig=1g.10gb"), ("mode", "slice")], ["mode=\"slice\"", "leave the annotation out"]),
            (&[("resource", "percent=30"), ("fraction", "0.305")], ["fraction=\"0.305\"", "leave the fraction out"]),
            (&[("resource", "30")], ["gpool.io/resource=\"30\"", "gpool-device-plugin"]),
            (&[("resource", "percent=1700")], ["percent=1700", "1 to 1600"]),
            (&[("resource-mig", "mig=1g.10gb*2")], ["mig=1g.10gb*2", "one MIG instance"]),
            (&[("resource-mig.1g.10gb", "mig=1g.10gb*2")], ["mig=1g.10gb*2", "one MIG instance"]),
            (
                &[("resource-mig.1g.10gb", "mig=1g.10gb"), ("resource-mig.2g.20gb", "mig=2g.20gb")],
                ["(mig=1g.10gb, mig=2g.20gb)", "all but one"],
            ),
            (&[("resource-mig", "mig=1g.10gb"), ("resource-mig.2g.20gb", "mig=2g.20gb")], ["several", "all but one"]),
            (
                &[("resource-mig.1g.10gb", "mig=1g.10gb"), ("resource", "percent=30")],
                ["both gpool.io/percent", "leave"],
            ),
            (
                &[("resource-mig", "mig=1g.10gb"), ("resource", "percent=30")],
                ["both gpool.io/percent", "leave one of them out"],
            ),
        ] {
            let error = read(pairs).unwrap_err();
            assert_eq!(error.code, ErrorCode::RequestInvalid, "{error}");
            let sealed = |(key, value): &(&str, &str)| match key.starts_with("resource") {
                true => ((*key).to_owned(), Seal::of(0xfeed).put_on(value)),
                false => ((*key).to_owned(), (*value).to_owned()),
            };
            let sealed: Vec<_> = pairs.iter().map(sealed).collect();
            let pairs: Vec<_> = sealed.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            assert_eq!(read(&pairs).unwrap_err(), error, "a seal changes nothing, and is not shown");
            parts.iter().for_each(|part| assert!(error.to_string().contains(part), "{error} lacks {part}"));
        }
    }

    #[test]
    fn it_is_an_annotation_of_the_whole_container_alone() {
        let refused = |annotations: &[(&str, &str)], env: &[&str]| {
            let annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let env: Vec<String> = env.iter().map(|text| (*text).to_owned()).collect();
            let source = RequestSource {
                annotations: &annotations,
                env: &env,
                env_allow: &["resource".to_owned()],
                container_name: Some("web"),
                annotations_from_image: false,
                defaults: &[],
            };
            Request::read(source).unwrap_err().code
        };
        assert_eq!(refused(&[("gpool.io/resource.web", "percent=30")], &[]), ErrorCode::RequestKeyUnknown);
        assert_eq!(refused(&[], &["GPOOL_RESOURCE=percent=30"]), ErrorCode::RequestKeyUnknown);
    }
}
