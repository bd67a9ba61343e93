//! NVIDIA's own diagnosis, `dcgmi diag`, where DCGM is installed: of a GPU that is drained and empty, since what it runs belongs to DCGM's
//! daemon, and nobody who comes meanwhile could have it ended.
//!
//! Sources: `dcgmi diag --json` (docs.nvidia.com/datacenter/dcgm, "dcgmi diag"), of DCGM 2 and 3 with `gpu_ids` and `DCGM GPU Diagnostic`, of
//! DCGM 4 with `entity_id` and `DCGM Diagnostic`; dcgm_errors.h, `dcgmErrorSeverity_t`, for what a warning means.

use super::test::refused;
use gpool_protocol::{Client, DrainedGpu, ErrorBody, GpuTestOutcome, GpuTestPart, GpuUuid, GpuView};
use serde_json::Value;
use std::io;
use std::process::Command;

const PROGRAM: &str = "dcgmi";
/// The severity that says nothing against the GPU: a setting of the host, DCGM_ERROR_CONFIG.
const SETTING: u64 = 5;
/// Where nothing is said of the severity, as by older versions, failures of these categories are the host's settings.
const SETTINGS: &str = "Deployment";
/// The longest sentence of DCGM's that is repeated, in characters.
const WARNING_CHARACTERS: usize = 200;

/// # Errors
/// The GPU is not drained.
pub fn check_drained(client: &Client, name: &str) -> Result<(), ErrorBody> {
    let drained: Vec<DrainedGpu> = client.get("/v1/gpus/drained")?;
    let is_it =
        |gpu: &DrainedGpu| gpu.uuid.0.starts_with(name) || gpu.index.is_some_and(|index| name.parse() == Ok(index));
    if drained.iter().any(is_it) {
        return Ok(());
    }
    let message = format!("GPU {name} takes leases, and DCGM's diagnosis gives way to nobody");
    Err(refused(message, "gpool gpu drain --wait lets the leases on it end and nobody come; test it again then"))
}

/// Has DCGM diagnose a GPU.
pub fn diagnose(client: &Client, uuid: &GpuUuid, level: u8) -> GpuTestPart {
    let (outcome, told) = match number(client, uuid).and_then(|number| run(number, level)) {
        Ok(text) => judged(&text),
        Err(why) => (GpuTestOutcome::NotRun, why),
    };
    GpuTestPart { name: "dcgm".to_owned(), outcome, told }
}

fn called(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(PROGRAM).args(arguments).output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{PROGRAM} is not installed"),
        _ => format!("{PROGRAM} cannot be executed ({error})"),
    })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let said = text(&output.stdout);
    // It ends with another code than 0 when a test has failed, too: what it prints says so.
    match said.is_empty() {
        false => Ok(said),
        true => Err(format!("{PROGRAM} ended with {} and said {:?}", output.status, shortened(&text(&output.stderr)))),
    }
}

/// DCGM's own number of a GPU, which need not be NVML's.
fn number(client: &Client, uuid: &GpuUuid) -> Result<u32, String> {
    let listed = called(&["discovery", "-l"])?;
    let gpus: Vec<GpuView> = client.get("/v1/gpus").unwrap_or_default();
    let name = gpus.iter().find(|gpu| gpu.uuid == *uuid).map_or("", |gpu| gpu.name.as_str());
    number_in(&listed, uuid).ok_or_else(|| format!("{PROGRAM} discovery -l does not list {uuid} {name}"))
}

/// Rows of several lines, the first of which begins with the number, and one of which has the UUID.
fn number_in(listed: &str, uuid: &GpuUuid) -> Option<u32> {
    let mut number = None;
    for line in listed.lines() {
        let first = line.trim_start_matches('|').split('|').next().unwrap_or_default().trim();
        number = first.parse().ok().or(number);
        if line.contains(&uuid.0) {
            return number;
        }
    }
    None
}

fn run(number: u32, level: u8) -> Result<String, String> {
    called(&["diag", "-r", &level.to_string(), "-i", &number.to_string(), "-j"])
}

/// What came of it.
fn judged(text: &str) -> (GpuTestOutcome, String) {
    let untried = |why: String| (GpuTestOutcome::NotRun, why);
    // Lines may stand before and behind it.
    let document = text.find('{').zip(text.rfind('}')).and_then(|(begin, end)| text.get(begin..=end));
    let Some(answer) = document.and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return untried(format!("{PROGRAM} said {:?}", shortened(text)));
    };
    let diagnosis =
        ["DCGM Diagnostic", "DCGM GPU Diagnostic"].iter().find_map(|key| answer.get(key)).unwrap_or(&answer);
    if let Some(error) = diagnosis.get("runtime_error").and_then(Value::as_str).filter(|error| !error.is_empty()) {
        return untried(format!("{PROGRAM} said {:?}", shortened(error)));
    }
    let (mut passed, mut failed, mut settings) = (0_u32, Vec::new(), Vec::new());
    for category in array(diagnosis, "test_categories") {
        for test in array(category, "tests") {
            for result in array(test, "results") {
                match word(result, "status").to_lowercase().as_str() {
                    "pass" => passed += 1,
                    "fail" if is_harmless(word(category, "category"), result) => settings.push(sentence(test, result)),
                    "fail" => failed.push(sentence(test, result)),
                    // Skipped, or a warning.
                    _ => {}
                }
            }
        }
    }
    let beside = if settings.is_empty() { String::new() } else { format!("; of the host: {}", settings.join(", ")) };
    match (failed.is_empty(), passed) {
        (false, _) => (GpuTestOutcome::Failed, failed.join(", ") + &beside),
        (true, 0) => untried(format!("no test was made{beside}")),
        (true, passed) => (GpuTestOutcome::Passed, format!("{passed} tests passed{beside}")),
    }
}

fn array<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Whether a failure says nothing against the GPU, as persistence mode that is off does: all that is said of it is a setting.
fn is_harmless(category: &str, result: &Value) -> bool {
    let is_setting = |warning: &Value| match warning.get("error_severity").and_then(Value::as_u64) {
        Some(severity) => severity == SETTING,
        None => category == SETTINGS,
    };
    let mut warnings = array(result, "warnings").peekable();
    if warnings.peek().is_none() { category == SETTINGS } else { warnings.all(is_setting) }
}

/// A failure by its test and what is said of it.
fn sentence(test: &Value, result: &Value) -> String {
    let listed = array(result, "warnings").map(|warning| warning.get("warning").unwrap_or(warning));
    let warnings: Vec<&str> = listed.chain(result.get("warnings")).filter_map(Value::as_str).collect();
    let name = word(test, "name");
    if warnings.is_empty() { format!("{name} failed") } else { format!("{name}: {}", shortened(&warnings.join(" "))) }
}

fn shortened(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WARNING_CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(version: &str, category: &str, results: &Value) -> (GpuTestOutcome, String) {
        let tests = json!([{"name": "memory", "results": results}]);
        judged(&json!({version: {"test_categories": [{"category": category, "tests": tests}]}}).to_string())
    }

    #[test]
    fn failures_are_the_gpus_unless_dcgm_says_that_they_are_settings() {
        let warning = |severity: u64| {
            json!([{"entity_group": "GPU", "entity_id": 0, "status": "Fail",
            "warnings": [{"warning": "Persistence mode is\n disabled.", "error_id": 29, "error_severity": severity}]}])
        };
        for severity in [0, 1, 2, 3, 4, 6] {
            let (outcome, told) = of("DCGM Diagnostic", "Deployment", &warning(severity));
            assert_eq!((outcome, told.as_str()), (GpuTestOutcome::Failed, "memory: Persistence mode is disabled."));
        }
        let (outcome, told) = of("DCGM Diagnostic", "Hardware", &warning(5));
        assert_eq!(outcome, GpuTestOutcome::NotRun);
        assert_eq!(told, "no test was made; of the host: memory: Persistence mode is disabled.");
        let older = json!([{"gpu_ids": "0", "status": "Fail", "warnings": "a bit is wrong"}]);
        let told = "memory: a bit is wrong".to_owned();
        assert_eq!(of("DCGM GPU Diagnostic", "Hardware", &older), (GpuTestOutcome::Failed, told));
        assert_eq!(of("DCGM GPU Diagnostic", "Deployment", &older).0, GpuTestOutcome::NotRun);
        let both =
            json!([{"status": "Fail", "warnings": [{"warning": "off", "error_severity": 5}, {"warning": "hot"}]}]);
        assert_eq!(of("DCGM Diagnostic", "Stress", &both), (GpuTestOutcome::Failed, "memory: off hot".into()));
        let mixed = json!([{"status": "PASS"}, {"status": "Skip"}, {"status": "Pass"}]);
        assert_eq!(of("DCGM Diagnostic", "Hardware", &mixed), (GpuTestOutcome::Passed, "2 tests passed".into()));
    }

    #[test]
    fn what_is_no_answer_says_nothing_of_the_gpu() {
        for text in ["Error: unable to establish a connection", "{", "{}", "[]"] {
            assert_eq!(judged(text).0, GpuTestOutcome::NotRun, "{text}");
        }
        let (outcome, told) = judged("note\n{\"DCGM Diagnostic\": {\"runtime_error\": \"the GPU is in use\"}}\nend");
        assert_eq!((outcome, told.as_str()), (GpuTestOutcome::NotRun, "dcgmi said \"the GPU is in use\""));
    }

    #[test]
    fn dcgms_number_of_a_gpu_stands_before_its_uuid() {
        let listed = "\
2 GPUs found.
| GPU ID | Device Information                                          |
+--------+--------------------------------------------------------------+
| 0      | Name: NVIDIA H200                                            |
|        | PCI Bus ID: 00000000:1B:00.0                                 |
|        | Device UUID: GPU-aaaa                                        |
| 3      | Name: NVIDIA H200                                            |
|        | Device UUID: GPU-bbbb                                        |
";
        let number = |uuid: &str| number_in(listed, &GpuUuid(uuid.into()));
        assert_eq!((number("GPU-aaaa"), number("GPU-bbbb"), number("GPU-cccc")), (Some(0), Some(3), None));
    }
}
