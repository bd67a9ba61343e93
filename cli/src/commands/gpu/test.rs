//! `gpool gpu test`: a program of its own tests the GPU, beside which nobody uses it; here that is begun, ended when somebody comes, and
//! what it found is handed to the supervisor.

use super::{called, dcgm, named_drained};
use crate::arguments::{Format, TestOptions};
use crate::exit::{ExitStatus, Failure, unusable};
use crate::output::{self, borderless, csv, text, to_value};
use gpool_protocol::{
    Client, DrainedGpu, DriverView, ErrorBody, ErrorCode, GpuTest, GpuTestOutcome, GpuTestPart, GpuTestReport,
    GpuTestView, gpu_path,
};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Lies beside the OCI hook: nobody calls it by name.
const PROGRAM: &str = "gpool-gpu-test";
/// Between two looks at whether somebody has come to the GPU.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// Beyond the time that it was given: a context is made, kernels are compiled, and the last piece of memory is tried.
const PATIENCE: Duration = Duration::from_secs(120);
/// For so long a supervisor may be away, as one that is restarted is, and between two tries meanwhile.
const AWAY: Duration = Duration::from_secs(30);
const AWAY_PERIOD: Duration = Duration::from_millis(200);
/// For what it held the driver needs a moment when it has ended.
const ENDING: Duration = Duration::from_secs(10);
const MS_PER_SECOND: u64 = 1000;

/// What tests need besides the supervisor.
struct Tools<'a> {
    client: &'a Client,
    options: &'a TestOptions,
    program: PathBuf,
    /// Where the driver's libraries lie, as the loader wants it.
    libraries: String,
}

/// Tests GPUs one after the other.
///
/// # Errors
/// A GPU that failed, or that could not be tested, which keeps no other from it.
pub fn test(client: &Client, options: &TestOptions) -> Result<(), Failure> {
    let configuration = gpool_configuration::load(Path::new(gpool_configuration::DEFAULT_PATH));
    let hook = configuration.map_err(|error| unusable(&error))?.paths.hook;
    let driver: DriverView = client.get("/v1/driver")?;
    let tools =
        Tools { client, options, program: hook.with_file_name(PROGRAM), libraries: directories(&driver.libraries) };
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    let (wanted, mut left_out) = wanted(client, options)?;
    for name in wanted {
        match one(&tools, &name) {
            Ok((its, refusal)) => {
                if options.format == Format::Table || options.format == Format::Wide {
                    output::print(&render(&its))?;
                }
                done.push(its);
                refused.extend(refusal);
            }
            // Somebody has come since it was listed.
            Err(refusal) if options.due.is_some() && refusal.code == ErrorCode::LeaseConflict => {
                left_out += &format!("{}\n", refusal.message);
            }
            Err(refusal) => refused.push(refusal),
        }
    }
    match options.format {
        Format::Json | Format::Csv => {
            match options.format {
                Format::Json => output::print_json_of([("tests", to_value(&done))])?,
                _ => output::print(&render_csv(&done))?,
            }
            eprint!("{left_out}");
        }
        Format::Table | Format::Wide => output::print(&(left_out + &still_drained(client, &done)))?,
    }
    // Who gives way, where whoever is in use is left out anyway, has done what was asked.
    let is_left_out = |done: &Done| done.gave_way && options.due.is_some();
    let ended = |outcome| done.iter().any(|done| done.outcome == outcome && !is_left_out(done));
    let sentence = match (ended(GpuTestOutcome::Failed), ended(GpuTestOutcome::NotRun)) {
        (true, _) => "gpool: a GPU has failed its test",
        (false, true) => "gpool: a GPU could not be tested",
        (false, false) => return Failure::of_all(&refused),
    };
    let sentences: Vec<String> = refused.iter().map(ToString::to_string).chain([sentence.to_owned()]).collect();
    Err(Failure::Refused(ExitStatus::Failed, sentences.join("\n")))
}

/// A test that was made.
#[derive(serde::Serialize)]
struct Done {
    uuid: gpool_protocol::GpuUuid,
    index: u32,
    outcome: GpuTestOutcome,
    report: GpuTestReport,
    /// What failed in this test or before, and has not passed since.
    failed: Vec<String>,
    #[serde(skip)]
    gave_way: bool,
}

/// The GPUs that are to be tested, and a sentence for each of those that were meant and are not.
fn wanted(client: &Client, options: &TestOptions) -> Result<(Vec<String>, String), Failure> {
    let Some(due_seconds) = options.due else {
        if !options.all {
            return Ok((options.gpus.clone(), String::new()));
        }
        let views: Vec<GpuTestView> = client.get("/v1/gpus/tests")?;
        return Ok((views.into_iter().map(|view| view.uuid.0).collect(), String::new()));
    };
    let views: Vec<GpuTestView> = client.get("/v1/gpus/tests")?;
    let is_called = |view: &GpuTestView, name: &str| name.parse() == Ok(view.index) || view.uuid.0.starts_with(name);
    for name in &options.gpus {
        // That it is a GPU's name at all, and only one's.
        gpu_path(name)?;
        let count = views.iter().filter(|view| is_called(view, name)).count();
        if count != 1 {
            let message = format!("{name:?} means {count} GPUs of this host");
            let remedy = "name one by its index or by its UUID, as gpool gpu ls --format wide shows them";
            return Err(ErrorBody::new(ErrorCode::RequestInvalid, message, remedy).into());
        }
    }
    let named = |view: &GpuTestView| options.all || options.gpus.iter().any(|name| is_called(view, name));
    let now_unix_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    let is_due = |view: &GpuTestView| is_due(view.last.as_ref(), now_unix_ms, due_seconds);
    let (due, tested): (Vec<_>, Vec<_>) = views.into_iter().filter(named).partition(is_due);
    let mut told = String::new();
    for view in &tested {
        told += &format!("{} was tested in that time\n", called(Some(view.index), &view.uuid));
    }
    for view in &due {
        let under_way = view.under_way.then(|| "it is being tested".to_owned());
        if let Some(why) = view.in_the_way.clone().or(under_way) {
            told += &format!("{} is left out: {why}\n", called(Some(view.index), &view.uuid));
        }
    }
    let free = due.into_iter().filter(|view| view.in_the_way.is_none() && !view.under_way);
    Ok((free.map(|view| view.uuid.0).collect(), told))
}

/// A sentence for each GPU that was tested and takes no leases, as one that has failed, and one that has passed after it did: nobody
/// opens it but a person.
fn still_drained(client: &Client, done: &[Done]) -> String {
    let drained: Vec<DrainedGpu> = client.get("/v1/gpus/drained").unwrap_or_default();
    let of_tested = drained.iter().filter(|gpu| done.iter().any(|done| done.uuid == gpu.uuid));
    of_tested.map(|gpu| format!("{}; {} ends that\n", named_drained(gpu), gpu.drain.ended_by())).collect()
}

/// Whether the last test is that long ago, or there was none.
fn is_due(last: Option<&GpuTest>, now_unix_ms: u64, due_seconds: u64) -> bool {
    let is_long_ago = |age_ms: u64| age_ms >= due_seconds.saturating_mul(MS_PER_SECOND);
    // One that is still to come was made when the clock was wrong.
    last.is_none_or(|last| now_unix_ms.checked_sub(last.ended_unix_ms).is_none_or(is_long_ago))
}

/// Where the loader finds the driver's libraries.
fn directories(libraries: &[String]) -> String {
    let parents = libraries.iter().filter_map(|path| Some(Path::new(path).parent()?.display().to_string()));
    parents.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(":")
}

/// Begins a test, makes it, and says what it found; with why the supervisor does not know of it, if that is so.
fn one(tools: &Tools<'_>, name: &str) -> Result<(Done, Option<ErrorBody>), ErrorBody> {
    let path = gpu_path(name)?;
    if tools.options.dcgm.is_some() {
        dcgm::check_drained(tools.client, name)?;
    }
    let view: GpuTestView = tools.client.post(&format!("{path}/test"), &json!({}))?;
    let begun = Instant::now();
    let (mut report, mut gave_way) = (GpuTestReport { took_ms: 0, parts: Vec::new() }, false);
    match made(tools, &view) {
        Ok((parts, in_the_way)) => {
            report.parts = parts;
            gave_way = in_the_way;
        }
        Err(error) => {
            let why = format!("{} cannot be executed ({error}); install gpool anew", tools.program.display());
            report.parts.push(not_run(why));
        }
    }
    if let Some(level) = tools.options.dcgm.filter(|_| !gave_way) {
        report.parts.push(dcgm::diagnose(tools.client, name, &view.uuid, level));
    }
    report.took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let report = report.bounded();
    let (outcome, mut failed, mut refusal) = (report.outcome(), Vec::new(), None);
    match hand_over(tools.client, &path, &report) {
        Ok(view) => failed = view.failed,
        // That a test was broken off nobody needs to hear.
        Err(_) if gave_way && outcome == GpuTestOutcome::NotRun => {}
        Err(cause) => refusal = Some(cause),
    }
    Ok((Done { uuid: view.uuid, index: view.index, outcome, report, failed, gave_way }, refusal))
}

/// Tells the supervisor what was found, which may be away for a moment, and another one when it is back.
fn hand_over(client: &Client, path: &str, report: &GpuTestReport) -> Result<GpuTestView, ErrorBody> {
    let begun = Instant::now();
    loop {
        let refusal = match client.post(&format!("{path}/tested"), report) {
            Ok(view) => return Ok(view),
            Err(refusal) => refusal,
        };
        let is_of_another = refusal.code == ErrorCode::LeaseConflict;
        if begun.elapsed() >= AWAY || !(is_of_another || refusal.code == ErrorCode::SupervisorAbsent) {
            return Err(refusal);
        }
        std::thread::sleep(AWAY_PERIOD);
        let again: Result<GpuTestView, ErrorBody> = client.post(&format!("{path}/test"), &json!({}));
        if is_of_another && again.is_err() {
            // Somebody is on the GPU by now. That it has failed would have been heard all the same.
            return Err(refusal);
        }
    }
}

fn not_run(told: String) -> GpuTestPart {
    GpuTestPart { name: "test".to_owned(), outcome: GpuTestOutcome::NotRun, told }
}

/// The parts that were tried, and whether it gave way to somebody.
fn made(tools: &Tools<'_>, view: &GpuTestView) -> io::Result<(Vec<GpuTestPart>, bool)> {
    // Not a pipe: what it says fits nowhere else if it says too much.
    let mut said = tempfile::tempfile()?;
    let mut child = tools.started(view, &said)?;
    let deadline = Instant::now() + Duration::from_secs(tools.options.seconds) + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            let mut parts = parts(&mut said)?;
            if !status.success() || parts.is_empty() {
                parts.push(not_run(format!("{PROGRAM} ended with {status}")));
            }
            return Ok((parts, false));
        }
        let in_the_way = tools.in_the_way(view);
        if in_the_way.is_none() && Instant::now() < deadline {
            std::thread::sleep(LOOK_PERIOD);
            continue;
        }
        // Until it has ended what it holds is nobody's; one that the driver keeps in the kernel is not waited for.
        child.kill()?;
        let killed = Instant::now();
        while child.try_wait()?.is_none() && killed.elapsed() < ENDING {
            std::thread::sleep(LOOK_PERIOD);
        }
        let told = match &in_the_way {
            Some(why) => format!("it gave way: {why}"),
            None => format!("it had not ended {} s after its time", PATIENCE.as_secs()),
        };
        // What was found until then is known: above all what is wrong.
        let mut parts = parts(&mut said)?;
        parts.push(not_run(told));
        return Ok((parts, in_the_way.is_some()));
    }
}

impl Tools<'_> {
    fn started(&self, view: &GpuTestView, out: &File) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(["--seconds", &self.options.seconds.to_string()]);
        if let Some(bytes) = self.options.memory {
            command.args(["--memory", &bytes.to_string()]);
        }
        // Nothing of the caller's environment changes what is tested. Not a client of an MPS daemon in the usual place, and
        // nothing is left in anybody's home.
        command.env_clear().env("LD_LIBRARY_PATH", &self.libraries).env("CUDA_VISIBLE_DEVICES", &view.uuid.0);
        command.env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent").env("CUDA_CACHE_DISABLE", "1");
        command.stdin(Stdio::null()).stdout(out.try_clone()?).spawn()
    }

    /// Why the test has to end. A supervisor that is away for a moment is no reason, and one that knows nothing of the test is another
    /// one, to which it is said again.
    fn in_the_way(&self, view: &GpuTestView) -> Option<String> {
        let views: Vec<GpuTestView> = self.client.get("/v1/gpus/tests").ok()?;
        let now = views.into_iter().find(|its| its.uuid == view.uuid)?;
        if now.under_way {
            return now.in_the_way;
        }
        let again: Result<GpuTestView, ErrorBody> =
            self.client.post(&format!("/v1/gpus/{}/test", view.uuid), &json!({}));
        again.err().filter(|refusal| refusal.code == ErrorCode::LeaseConflict).map(|refusal| refusal.message)
    }
}

/// What the program has said until now, a line for each part.
fn parts(said: &mut File) -> io::Result<Vec<GpuTestPart>> {
    let mut text = String::new();
    said.rewind()?;
    said.take(1 << 20).read_to_string(&mut text)?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// What one test found.
fn render(done: &Done) -> String {
    let took_ms = done.report.took_ms;
    let took = format!("its test of {}.{} s", took_ms / MS_PER_SECOND, took_ms % MS_PER_SECOND / 100);
    let ended = match done.outcome {
        GpuTestOutcome::Passed => format!("has passed {took}"),
        GpuTestOutcome::Failed => format!("has FAILED {took}"),
        GpuTestOutcome::NotRun => "was not tested".to_owned(),
    };
    let row = |part: &GpuTestPart| vec![part.name.clone(), part.outcome.to_string(), part.told.clone()];
    let table = borderless(&[text("PART"), text("OUTCOME"), text("FOUND")], done.report.parts.iter().map(row));
    let before = done.failed.iter().filter(|name| done.report.parts.iter().all(|part| part.name != **name));
    let before: Vec<&str> = before.map(String::as_str).collect();
    let before = match before.as_slice() {
        [] => String::new(),
        names => format!("{} failed before and has not passed since\n", names.join(", ")),
    };
    format!("{} {ended}\n{table}{before}", called(Some(done.index), &done.uuid))
}

fn render_csv(done: &[Done]) -> String {
    let rows = done.iter().flat_map(|done| {
        done.report.parts.iter().map(|part| {
            let (uuid, outcome) = (done.uuid.to_string(), part.outcome.to_string());
            vec![done.index.to_string(), uuid, part.name.clone(), outcome, part.told.clone()]
        })
    });
    csv(&["index", "uuid", "part", "outcome", "found"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::GpuUuid;

    fn done(outcome: GpuTestOutcome) -> Done {
        let part = GpuTestPart { name: "memory".into(), outcome, told: "63.7MiB keep what was written".into() };
        let report = GpuTestReport { took_ms: 1951, parts: vec![part] };
        let failed = vec!["memory".to_owned(), "dcgm".to_owned()];
        Done { uuid: GpuUuid("GPU-5ca1ab1e-0".into()), index: 1, outcome, report, failed, gave_way: false }
    }

    #[test]
    fn a_test_is_told_by_its_parts() {
        let want = "\
GPU 1 (GPU-5ca1ab1e) has passed its test of 1.9 s
PART    OUTCOME  FOUND
memory  passed   63.7MiB keep what was written
dcgm failed before and has not passed since
";
        assert_eq!(render(&done(GpuTestOutcome::Passed)), want);
        assert!(render(&done(GpuTestOutcome::Failed)).starts_with("GPU 1 (GPU-5ca1ab1e) has FAILED its test of"));
        let csv = render_csv(&[done(GpuTestOutcome::NotRun)]);
        assert_eq!(csv.lines().nth(1), Some("1,GPU-5ca1ab1e-0,memory,not-run,63.7MiB keep what was written"));
    }

    #[test]
    fn a_test_is_due_when_the_last_one_is_long_ago() {
        let report = GpuTestReport { took_ms: 1, parts: Vec::new() };
        let last = GpuTest { ended_unix_ms: 10_000, uid: 0, outcome: GpuTestOutcome::Passed, report };
        assert!(is_due(None, 0, 86_400));
        assert!(is_due(Some(&last), 20_000, 10) && !is_due(Some(&last), 19_999, 10));
        assert!(is_due(Some(&last), 5_000, 10), "a clock that was set back");
    }

    #[test]
    fn the_loader_is_told_where_the_driver_lies() {
        let libraries = ["/usr/lib/a/libcuda.so.1", "/usr/lib/a/libnvidia-ml.so.1", "/opt/libx.so"].map(str::to_owned);
        assert_eq!(directories(&libraries), "/opt:/usr/lib/a");
    }

    #[test]
    fn what_was_said_until_the_end_counts_line_by_line() {
        let mut said = tempfile::tempfile().unwrap();
        let line = r#"{"name":"driver","outcome":"passed","told":"80 multiprocessors"}"#;
        std::io::Write::write_all(&mut said, format!("{line}\n{{\"name\":\"arith").as_bytes()).unwrap();
        let parts = parts(&mut said).unwrap();
        assert_eq!((parts.len(), parts[0].name.as_str()), (1, "driver"), "the second was being written");
    }
}
