//! NVIDIA's own diagnosis, `dcgmi diag`, where DCGM is installed: of a GPU that is drained and empty, since what it runs belongs to DCGM's
//! daemon, and nobody who comes meanwhile could have it ended.
//!
//! Sources: `dcgmi diag --json` (docs.nvidia.com/datacenter/dcgm, "dcgmi diag"), of DCGM 2 and 3 with `gpu_ids` and `DCGM GPU Diagnostic`, of
//! DCGM 4 with `entity_id` and `DCGM Diagnostic`; dcgm_errors.h, `dcgmErrorSeverity_t`, for what a warning means.

use gpool_protocol::{
    Client, DrainedGpu, ErrorBody, ErrorCode, GpuTestOutcome, GpuTestPart, GpuTestView, GpuUuid, format_seconds,
};
use serde_json::Value;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = "dcgmi";
/// How long a list may take, and a diagnosis by its level: several times what NVIDIA says that each takes (seconds, 2 minutes, 15
/// minutes, an hour and a half).
const LIST_PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE: [Duration; 4] =
    [Duration::from_secs(600), Duration::from_secs(1800), Duration::from_secs(2 * 3600), Duration::from_secs(6 * 3600)];
const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// The most that is read of what it prints.
const MOST_BYTES: u64 = 4 << 20;
/// The severity that says nothing against the GPU: a setting of the host, DCGM_ERROR_CONFIG.
const SETTING: u64 = 5;
/// Where nothing is said of the severity, as by older versions, failures of these categories are the host's settings.
const SETTINGS: &str = "Deployment";
/// The longest sentence of DCGM's that is repeated, in characters.
const WARNING_CHARACTERS: usize = 200;

/// # Errors
/// The GPU is not drained. One that is not there is refused by whoever begins a test.
pub fn check_drained(client: &Client, name: &str) -> Result<(), ErrorBody> {
    let tests: Vec<GpuTestView> = client.get("/v1/gpus/tests")?;
    let drained: Vec<DrainedGpu> = client.get("/v1/gpus/drained")?;
    let meant = tests.iter().find(|gpu| gpu.uuid.0.starts_with(name) || name.parse() == Ok(gpu.index));
    let Some(gpu) = meant.filter(|gpu| drained.iter().all(|its| its.uuid != gpu.uuid)) else { return Ok(()) };
    let gpu = super::called(Some(gpu.index), &gpu.uuid);
    let message = format!("{gpu} takes leases, and DCGM's diagnosis gives way to nobody");
    let remedy = "gpool gpu drain --wait lets the leases on it end and nobody come; test it again then";
    Err(ErrorBody::new(ErrorCode::LeaseConflict, message, remedy))
}

/// Has DCGM diagnose a GPU, if that is drained still.
pub fn diagnose(client: &Client, name: &str, uuid: &GpuUuid, level: u8) -> GpuTestPart {
    let is_drained = || check_drained(client, name).map_err(|refusal| refusal.message);
    let (outcome, told) = match is_drained().and_then(|()| number(uuid)).and_then(|number| run(number, level)) {
        Ok(text) => judged(&text),
        Err(why) => (GpuTestOutcome::NotRun, why),
    };
    GpuTestPart { name: "dcgm".to_owned(), outcome, told }
}

/// What it prints, which has so long for it.
fn called(arguments: &[&str], patience: Duration) -> Result<String, String> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => format!("{PROGRAM} is not installed"),
        _ => format!("{PROGRAM} cannot be executed ({error})"),
    };
    // Not pipes, which somebody would have to empty meanwhile.
    let (mut out, mut err) = (tempfile::tempfile().map_err(failed)?, tempfile::tempfile().map_err(failed)?);
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(out.try_clone().map_err(failed)?).stderr(err.try_clone().map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if begun.elapsed() >= patience {
            let _ = child.kill().and_then(|()| child.wait());
            return Err(format!("{PROGRAM} had not ended after {}", format_seconds(patience.as_secs())));
        }
        std::thread::sleep(LOOK_PERIOD);
    };
    let read = |file: &mut File| -> io::Result<String> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.take(MOST_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    let (said, errors) = (read(&mut out).map_err(failed)?, read(&mut err).map_err(failed)?);
    // It ends with another code than 0 when a test has failed, too: what it prints says so.
    match said.is_empty() {
        false => Ok(said),
        true => Err(format!("{PROGRAM} ended with {status} and said {:?}", shortened(&errors))),
    }
}

/// DCGM's own number of a GPU, which need not be NVML's.
fn number(uuid: &GpuUuid) -> Result<u32, String> {
    let listed = called(&["discovery", "-l"], LIST_PATIENCE)?;
    number_in(&listed, uuid).ok_or_else(|| format!("{PROGRAM} discovery -l does not list {uuid}"))
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
    let patience = PATIENCE.get(usize::from(level) - 1).copied().unwrap_or(LIST_PATIENCE);
    called(&["diag", "-r", &level.to_string(), "-i", &number.to_string(), "-j"], patience)
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
        (true, 0) if settings.is_empty() => untried("no test was made".to_owned()),
        (true, 0) => (GpuTestOutcome::Passed, format!("nothing is said against the GPU{beside}")),
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
        assert_eq!(outcome, GpuTestOutcome::Passed);
        assert_eq!(told, "nothing is said against the GPU; of the host: memory: Persistence mode is disabled.");
        let older = json!([{"gpu_ids": "0", "status": "Fail", "warnings": "a bit is wrong"}]);
        let told = "memory: a bit is wrong".to_owned();
        assert_eq!(of("DCGM GPU Diagnostic", "Hardware", &older), (GpuTestOutcome::Failed, told));
        assert_eq!(of("DCGM GPU Diagnostic", "Deployment", &older).0, GpuTestOutcome::Passed);
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
