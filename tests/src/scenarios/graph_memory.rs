//! Graphs that allocate: what streams keep for them is in the account to the byte, and what does not fit is refused. A graph
//! that frees as it goes, or that takes what a stream keeps, may allocate more in sum than there is room for.

use super::{finish, start_knowing_contexts};
use crate::failure::{Context, Result, ensure};
use crate::host::Host;
use crate::meter::usage_of;
use crate::namespaces::Inside;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const CAP_BYTES: u64 = 8192 * MIB;

/// A step, the driver's code, and what graphs then hold, in MiB.
type Step = (&'static str, i64, u64);

/// None of these makes the device hold more than the cap for a moment.
const STEPS: [Step; 77] = [
    // 16 GiB in sum, of which never more than two are there.
    ("make pairs +2048 - +2048 - +2048 - +2048 - +2048 - +2048 - +2048 - +2048 -", 0, 0),
    ("launch pairs 3", 0, 2048),
    ("make larger +3072 -", 0, 2048),
    ("launch larger 1", 0, 3072),
    ("launch pairs 100", 0, 3072),
    // What streams keep goes if somebody needs it, and comes back.
    ("take 6144", 0, 0),
    ("launch larger 1", 2, 0),
    ("drop", 0, 0),
    ("launch larger 1", 0, 3072),
    // Too large at any time.
    ("make huge +9216 -", 0, 3072),
    ("launch huge 1", 2, 0),
    ("launch larger 2", 0, 3072),
    // Beside other memory: the stream keeps all that it needs.
    ("take 4096", 0, 3072),
    ("launch larger 100", 0, 3072),
    ("launch pairs 100", 0, 3072),
    ("take 1024", 0, 0),
    ("drop", 0, 0),
    // In another stream there is no room beside the first one's, which gives back.
    ("launch larger 1", 0, 3072),
    ("elsewhere larger 1", 0, 3072),
    ("launch larger 1", 0, 3072),
    ("drop", 0, 3072),
    ("elsewhere larger 1", 0, 6144),
    ("trim", 0, 0),
    ("destroy larger", 0, 0),
    // What a launch leaves stays, and a second one is the driver's to refuse.
    ("make left +1024", 0, 0),
    ("launch left 1", 0, 1024),
    ("launch left 1", 1, 1024),
    ("trim", 0, 1024),
    ("free left", 0, 1024),
    ("launch left 1", 0, 1024),
    ("free left", 0, 1024),
    ("trim", 0, 0),
    ("auto again +1024", 0, 0),
    ("launch again 5", 0, 1024),
    ("free again", 0, 1024),
    ("trim", 0, 0),
    // What one leaves lies where another had its own, and that needs room anew.
    ("make passing +3072 -", 0, 0),
    ("make staying +3072", 0, 0),
    ("launch passing 1", 0, 3072),
    ("launch staying 1", 0, 3072),
    ("take 4096", 0, 3072),
    ("launch passing 1", 2, 3072),
    ("free staying", 0, 3072),
    ("launch passing 1", 0, 3072),
    ("drop", 0, 3072),
    ("launch staying 1", 0, 3072),
    ("launch passing 2", 0, 6144),
    ("free staying", 0, 6144),
    ("launch staying 1", 0, 6144),
    ("free staying", 0, 6144),
    ("trim", 0, 0),
    // What one has left and somebody freed another one takes, in the same stream and in another.
    ("launch passing 1", 0, 3072),
    ("launch staying 1", 0, 3072),
    ("free staying", 0, 3072),
    ("launch passing 1", 0, 3072),
    ("launch staying 1", 0, 3072),
    ("take 4096", 0, 3072),
    ("launch passing 1", 2, 3072),
    ("free staying", 0, 3072),
    ("elsewhere passing 1", 0, 3072),
    ("launch staying 1", 0, 3072),
    ("drop", 0, 3072),
    ("free staying", 0, 3072),
    ("trim", 0, 0),
    // One that frees what it has left has it again, though there is no room for it twice.
    ("auto whole +5120", 0, 0),
    ("launch whole 1", 0, 5120),
    ("trim", 0, 5120),
    ("launch whole 2", 0, 5120),
    ("elsewhere whole 1", 0, 5120),
    ("launch passing 1", 2, 5120),
    ("free whole", 0, 5120),
    ("trim", 0, 0),
    // Built node by node, and uploaded as they are instantiated.
    ("build built +512 +512 - -", 0, 0),
    ("launch built 2", 0, 1024),
    ("upload ready +2048 -", 0, 2048),
    ("upload never +9216 -", 2, 0),
    ("launch ready 1", 0, 2048),
];

/// All of it is there at once.
const BESIDE_ONE_ANOTHER: [Step; 4] = [
    ("make many +2048 +2048 +2048 +2048 +2048 - - - - -", 0, 0),
    ("launch many 1", 2, 0),
    ("make fewer +2048 +2048 +2048 - - -", 0, 0),
    ("launch fewer 2", 0, 6144),
];

/// Takes the steps, one process for each list.
pub fn run(inside: &Inside) -> Result<()> {
    // The account is compared to the byte.
    let host = start_knowing_contexts(inside)?;
    let outcome = take_all(&host);
    finish(host, outcome)
}

fn take_all(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.8"), ("GPOOL_MEMORY", "8GiB")];
    let container = host.run_container("graphs", &env, &[], &["sleep", "1000"])?;
    take(host, &STEPS)?;
    let peak = usage_of(&host.meter()?.read()?, &container.id).bytes_peak;
    ensure(peak <= CAP_BYTES, || format!("{peak} bytes were held of a cap of {CAP_BYTES}"))?;
    take(host, &BESIDE_ONE_ANOTHER)?;
    let held = usage_of(&host.meter()?.read()?, &container.id).bytes_now;
    ensure(held == 0, || format!("{held} bytes are held by processes that have ended"))
}

fn take(host: &Host, steps: &[Step]) -> Result<()> {
    let script = steps.iter().map(|(step, ..)| *step).collect::<Vec<_>>().join("; ");
    let said = host.engine.docker_text(&["exec", "graphs", "gpool-tenant", "--graphs", &script])?;
    let lines: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    ensure(lines.len() == steps.len(), || format!("{} steps are told of: {said}", lines.len()))?;
    let number = |line: &Value, name: &str| line[name].as_u64().unwrap_or(u64::MAX);
    // What is free of the cap with nothing but the context, and what cuMemAlloc has taken.
    let (without, mut taken) = (number(&lines[0], "free"), Vec::new());
    for ((step, code, reserved_mib), line) in steps.iter().zip(&lines) {
        let is_expected = line["code"] == *code && number(line, "reserved") == reserved_mib * MIB;
        ensure(is_expected, || format!("{step}: {line}, and not {code} with {reserved_mib} MiB")).context(&said)?;
        match step.split_once(' ') {
            Some(("take", mib)) if *code == 0 => taken.push(mib.parse::<u64>().context("a step")? * MIB),
            None if *step == "drop" => drop(taken.pop()),
            _ => {}
        }
        let held = without - number(line, "free");
        let expected = taken.iter().sum::<u64>() + number(line, "reserved");
        ensure(held == expected, || format!("{step}: {held} bytes are charged, {expected} are held: {line}"))?;
    }
    Ok(())
}
