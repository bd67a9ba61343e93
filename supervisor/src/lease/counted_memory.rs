//! How much memory goes with what a cluster has counted for a container: it counts shares alone.

use crate::device::Gpu;
use gpool_configuration::Policy;
use gpool_protocol::{CountedResource, ErrorBody, ErrorCode, MemoryCap, Request, format_bytes};

/// Those of the `open` GPUs on which the count that a request has allows as much memory as it asks for.
///
/// # Errors
/// There are too few, because of the count; says how much it allows.
pub fn only_within_count(
    policy: &Policy,
    request: &Request,
    open: Vec<usize>,
    gpus: &[Gpu],
) -> Result<Vec<usize>, ErrorBody> {
    let percent = policy.counted_memory_percent;
    let (Some(CountedResource::Percent(counted)), Some(memory)) = (&request.resource, request.memory) else {
        return Ok(open);
    };
    if percent == 0 {
        return Ok(open);
    }
    let allowed = |gpu: &usize| {
        let of_share = u128::from(gpus[*gpu].memory_total_bytes) * u128::from(request.fraction_permille) / 1000;
        u64::try_from(of_share * u128::from(percent) / 100).unwrap_or(u64::MAX)
    };
    let wanted = usize::from(request.gpus.max(1));
    // What would do on as many GPUs as are asked for.
    let mut most: Vec<u64> = open.iter().map(allowed).collect();
    most.sort_unstable_by(|one, other| other.cmp(one));
    let (had, most) = (open.len(), most.get(wanted - 1).or(most.last()).copied());
    let is_within = |gpu: &usize| memory.bytes_of(gpus[*gpu].memory_total_bytes) <= allowed(gpu);
    let within: Vec<usize> = open.into_iter().filter(is_within).collect();
    // Where the count takes none away others say what is missing.
    let too_few = within.len() < had && within.len() < wanted;
    match most.filter(|_| too_few) {
        None => Ok(within),
        Some(most) => {
            let asked = match memory {
                MemoryCap::Bytes(bytes) => format_bytes(bytes),
                MemoryCap::Permille(permille) => format!("{}.{}%", permille / 10, permille % 10),
            };
            Err(ErrorBody::new(
                ErrorCode::RequestNotAllowed,
                format!(
                    "memory={asked} is more than goes with gpool.io/percent: {counted} on {wanted} GPU(s), at most {} on each \
                     ([policy] counted_memory_percent)",
                    format_bytes(most)
                ),
                "ask for less memory, or for more of gpool.io/percent in the container's limits",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_bounds_the_memory_where_the_host_wants_it() {
        let mut gpus = [Gpu::sample(0), Gpu::sample(1)];
        (gpus[0].memory_total_bytes, gpus[1].memory_total_bytes) = (20 << 30, 80 << 30);
        let within = |percent: u16, fields: &str| {
            let policy = Policy { counted_memory_percent: percent, ..Policy::default() };
            let request = format!(r#"{{"fraction_permille":300{fields}}}"#);
            only_within_count(&policy, &serde_json::from_str(&request).unwrap(), vec![0, 1], &gpus)
        };
        let counted = |memory: &str| format!(r#","resource":"percent=30","memory":{{{memory}}}"#);
        let gib = |gib: u64| counted(&format!(r#""bytes":{}"#, gib << 30));
        assert_eq!(within(100, &gib(6)), Ok(vec![0, 1]));
        assert_eq!(within(100, &gib(24)), Ok(vec![1]), "of the greater one that is no more than its part");
        assert_eq!(within(200, &gib(12)), Ok(vec![0, 1]), "twice as much");
        assert_eq!(within(100, &counted(r#""permille":300"#)), Ok(vec![0, 1]));
        assert_eq!(within(0, &gib(80)), Ok(vec![0, 1]), "nobody wants it bounded");
        assert_eq!(within(100, r#","memory":{"bytes":85899345920}"#), Ok(vec![0, 1]), "nobody has counted it");
        assert_eq!(within(100, r#","resource":"percent=30""#), Ok(vec![0, 1]), "its share of the memory");
        let short = serde_json::from_str(&format!(r#"{{"fraction_permille":300,"gpus":2{}}}"#, gib(6))).unwrap();
        let policy = Policy { counted_memory_percent: 100, ..Policy::default() };
        assert_eq!(only_within_count(&policy, &short, vec![1], &gpus), Ok(vec![1]), "a GPU is drained");
        let on_two = gib(24) + r#","gpus":2"#;
        for (fields, asked, most) in [
            (gib(25), "memory=25GiB", "at most 24GiB on each"),
            (counted(r#""permille":301"#), "memory=30.1%", "at most 24GiB on each"),
            (on_two, "memory=24GiB", "on 2 GPU(s), at most 6GiB on each"),
        ] {
            let error = within(100, &fields).unwrap_err();
            assert_eq!(error.code, ErrorCode::RequestNotAllowed);
            for part in [asked, "gpool.io/percent: 30", most] {
                assert!(error.message.contains(part), "{error} lacks {part}");
            }
        }
    }
}
