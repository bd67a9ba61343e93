//! What a container says itself of the GPUs that its programs see, by `CUDA_VISIBLE_DEVICES`.

use gpool_protocol::{Edit, GpuUuid};
use serde_json::Value;

const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// Takes out what names GPUs that are not `leased`, as one does that was written for the whole host: CUDA would show none, or
/// not all. Where an edit of the lease sets the variable, that one holds anyway.
pub fn without_others(spec: &mut Value, leased: &[GpuUuid], edits: &[Edit]) {
    if edits.iter().any(|edit| matches!(edit, Edit::Env { name, .. } if name == VARIABLE)) {
        return;
    }
    let Some(env) = spec.pointer_mut("/process/env").and_then(Value::as_array_mut) else { return };
    let value = |entry: &Value| Some(entry.as_str()?.strip_prefix(VARIABLE)?.strip_prefix('=')?.to_owned());
    env.retain(|entry| value(entry).is_none_or(|list| !names_others(&list, leased)));
}

/// Whether a list has a number or a UUID that is none of `leased`, of which the first is number 0. CUDA reads it up to the first
/// word that is neither, such as -1: with that people say that no GPU shall be seen, or no more of them.
fn names_others(list: &str, leased: &[GpuUuid]) -> bool {
    for entry in list.split(',').map(str::trim) {
        let is_leased = if entry.starts_with("GPU-") || entry.starts_with("MIG-") {
            // A UUID may be cut short.
            leased.iter().any(|gpu| gpu.0.starts_with(entry))
        } else if !entry.is_empty() && entry.bytes().all(|byte| byte.is_ascii_digit()) {
            entry.parse().is_ok_and(|number: usize| number < leased.len())
        } else {
            return false;
        };
        if !is_leased {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_is_another_hosts_if_it_names_what_is_not_leased() {
        let leased = ["GPU-51aa-1", "GPU-62bb-2"].map(|uuid| GpuUuid(uuid.into()));
        for kept in ["0", "1,0", "0, 1", "GPU-62bb-2", "GPU-51,1", "", "-1", "NoDevFiles", "none", "0,-1,7", "-1,7"] {
            assert!(!names_others(kept, &leased), "{kept:?}");
        }
        for others in ["2", "0,2", " 3 ", "GPU-73cc-3", "0,GPU-62bb-3", "MIG-1", "99999999999999999999999"] {
            assert!(names_others(others, &leased), "{others:?}");
        }
        assert!(names_others("1", &leased[..1]) && !names_others("0", &leased[..1]));
    }

    #[test]
    fn what_names_others_is_taken_out_and_nothing_else() {
        let leased = [GpuUuid("GPU-51aa-1".into())];
        let after = |env: Value, edits: &[Edit]| {
            let mut spec = json!({"process": {"env": env}});
            without_others(&mut spec, &leased, edits);
            spec["process"]["env"].take()
        };
        let env = json!(["A=1", "CUDA_VISIBLE_DEVICES=3", "CUDA_VISIBLE_DEVICES_X=3", "CUDA_VISIBLE_DEVICES"]);
        let rest = json!(["A=1", "CUDA_VISIBLE_DEVICES_X=3", "CUDA_VISIBLE_DEVICES"]);
        assert_eq!(after(env.clone(), &[]), rest);
        let set = [Edit::Env { name: VARIABLE.into(), value: "MIG-1".into() }];
        assert_eq!(after(env.clone(), &set), env, "it is set to what the lease has in any case");
        assert_eq!(after(json!(["CUDA_VISIBLE_DEVICES=0"]), &[]), json!(["CUDA_VISIBLE_DEVICES=0"]));
        let mut without = json!({"process": {}});
        without_others(&mut without, &leased, &[]);
        assert_eq!(without, json!({"process": {}}));
    }
}
