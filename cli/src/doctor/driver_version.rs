//! What is known of this version of the driver.

use super::driver_notes::{BRANCHES, NOTES, Standing, is_simulated, parse};
use super::{Outcome, Surroundings};

pub fn check(host: &Surroundings) -> Outcome {
    let Ok(driver) = &host.driver else { return Outcome::skip("the supervisor knows, which does not answer") };
    let text = driver.version.as_str();
    if let Some(other) = driver.libraries.iter().find_map(|path| version_of(path)).filter(|other| *other != text) {
        return Outcome::fail(
            format!(
                "the driver's libraries are of version {other} and its kernel module of {text}: no program starts on a GPU"
            ),
            "boot this host, or have all that uses GPUs end and load the module anew; containers that run go on until then",
        );
    }
    if is_simulated(text) {
        return Outcome::ok(format!("driver {text}"));
    }
    let Some(version) = parse(text) else {
        return Outcome::warn(
            format!("NVML says {text:?}, which is no version of a driver"),
            "look at nvidia-smi; whatever this driver is, gpool has not been tried with it",
        );
    };
    if let Some(note) = NOTES.iter().find(|note| note.is_about(version)) {
        let fixed = note.fixed_in_text;
        return Outcome::fail(
            format!("driver {text}: {} (put right in {fixed}; {})", note.reason, note.source),
            format!("install {fixed} or a newer one of this branch"),
        );
    }
    let branch = version.0;
    match BRANCHES.iter().find(|known| known.branch == branch).map(|known| known.standing) {
        Some(Standing::Supported) => Outcome::ok(format!("driver {text} is of branch {branch}, which is supported")),
        Some(Standing::Known) => Outcome::ok(format!(
            "driver {text} is of branch {branch}, whose newer entry points pass uncounted (check 8 lists them)"
        )),
        None => Outcome::warn(
            format!("driver {text} is of branch {branch}, which nobody has tried with gpool"),
            format!(
                "use one of branch {}, or test what you need; docs/design/drivers.md says what is known",
                BRANCHES.map(|known| known.branch.to_string()).join(", ")
            ),
        ),
    }
}

/// `580.178.04` of the path of a file `libnvidia-ml.so.580.178.04`. A libcuda may be newer than the kernel module.
fn version_of(path: &str) -> Option<&str> {
    let (_, version) = path.rsplit_once("/libnvidia-ml.so.")?;
    version.contains('.').then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_with_a_version_has_one() {
        assert_eq!(version_of("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.178.04"), Some("580.178.04"));
        assert_eq!(version_of("/usr/lib/libnvidia-ml.so.1"), None);
        assert_eq!(version_of("/usr/lib/libcuda.so.580.178.04"), None);
    }
}
