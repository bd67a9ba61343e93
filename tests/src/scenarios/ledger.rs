//! The ledger: what teams had stays known when containers have ended and the supervisor was killed, ties out to what there was,
//! and agrees with the device's own meter. And a file that cannot be used keeps nobody from the GPU.

use super::{finish, reload_with, said, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, LEDGER, succeeded, text};
use crate::meter::usage_of;
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use gpool_protocol::{Charge, Charges, PastLease, Savings, Sizes, SizesRow, Usage, UsageRow};
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::Duration;

const CONFIGURATION: &str = r#"
[policy.env]
allow = ["fraction", "memory", "team", "project", "cost-center"]
[team.red]
cost_center = "4711"
[rates]
currency = "EUR"
[[rates.price]]
per_gpu_hour = "3600"
[[rates.price]]
per_gpu_hour = "1800"
team = "red"
"#;

/// Runs it.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 1, CONFIGURATION)?;
    let outcome = teams_are_told(&host)
        .and_then(|red| sharing_saves_a_gpu(&host).map(|()| red))
        .and_then(|red| what_was_asked_for_is_laid_beside_what_was_used(&host, &red).map(|()| red))
        .and_then(|red| who_pays_is_billed(&host).map(|()| red))
        .and_then(|red| a_killed_supervisor_takes_nothing_along(&mut host, &red))
        .and_then(|()| what_was_for_weeks_goes_on(&mut host))
        .and_then(|()| a_file_that_cannot_be_used_stops_nobody(&mut host));
    finish(host, outcome)
}

/// What `gpool usage` says with these arguments.
fn usage(host: &Host, arguments: &[&str]) -> Result<Usage> {
    let command: Vec<&str> = ["usage", "--format", "json"].iter().chain(arguments).copied().collect();
    let said = succeeded("gpool usage", host.gpool(&command)?)?;
    let document: Value = serde_json::from_str(&said).context("the JSON of gpool usage")?;
    let usage: Usage = serde_json::from_value(document["usage"].clone()).context(&said)?;
    ties_out(&usage)?;
    Ok(usage)
}

/// What `gpool history` says with these arguments.
pub(super) fn history(host: &Host, arguments: &[&str]) -> Result<Vec<PastLease>> {
    let command: Vec<&str> = ["history", "--format", "json"].iter().chain(arguments).copied().collect();
    let said = succeeded("gpool history", host.gpool(&command)?)?;
    let document: Value = serde_json::from_str(&said).context("the JSON of gpool history")?;
    serde_json::from_value(document["history"]["leases"].clone()).context(&said)
}

/// To the nanosecond: rows are the sum, and with what nobody had all that there was.
fn ties_out(usage: &Usage) -> Result<()> {
    let sum = |part: fn(&UsageRow) -> u64| usage.rows.iter().map(part).sum::<u64>();
    let total = &usage.total;
    let parts = [
        (sum(|row| row.used_gpu_ns), total.used_gpu_ns),
        (sum(|row| row.reserved_gpu_ns), total.reserved_gpu_ns),
        (sum(|row| row.lent_gpu_ns), total.lent_gpu_ns),
        (total.used_gpu_ns - total.burst_gpu_ns + total.lent_gpu_ns + total.idle_gpu_ns, total.reserved_gpu_ns),
    ];
    let costs = sum(|row| row.cost_nanos) == total.cost_nanos && total.unpriced_gpu_ns == 0;
    ensure(costs && parts.iter().all(|(one, other)| one == other), || format!("it does not tie out: {usage:#?}"))?;
    let Some(pool) = &usage.pool else { return Ok(()) };
    let all = [
        total.used_gpu_ns.cast_signed() + pool.unused_gpu_ns,
        total.reserved_gpu_ns.cast_signed() + pool.unreserved_gpu_ns,
    ];
    let drawn = total.energy_millijoules.cast_signed() + pool.nobodys_energy_millijoules;
    ensure(drawn == pool.energy_millijoules.cast_signed() && pool.nobodys_energy_millijoules >= 0, || {
        format!("what was drawn does not tie out: {usage:#?}")
    })?;
    let paid = total.cost_nanos.cast_signed() + pool.unpaid_cost_nanos == pool.cost_nanos.cast_signed();
    let ties_out = paid && all.iter().all(|ns| *ns == pool.gpu_ns.cast_signed());
    ensure(ties_out, || format!("it does not tie out: {usage:#?}"))
}

fn row<'a>(usage: &'a Usage, key: &str) -> Result<&'a UsageRow> {
    let found = usage.rows.iter().find(|row| row.key == key);
    found.ok_or_else(|| Failure::new(format!("no row of {key:?} in {usage:#?}")))
}

/// Two containers of a team and one of none, of which one ends. The first is returned, running.
fn teams_are_told(host: &Host) -> Result<Container> {
    let start = |name: &str, fraction: &str, payer: &[(&'static str, &'static str)]| {
        let env = [&[("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "1GiB")][..], payer].concat();
        Tenant::greedy(1000).run(host, name, &env)
    };
    let of_red = ("GPOOL_TEAM", "red");
    let red = start("red", "0.3", &[of_red])?;
    let other = start("other", "0.6", &[("GPOOL_COST_CENTER", "99")])?;
    let reader = host.meter()?;
    let busy_ns = |container: &Container| Ok::<u64, Failure>(usage_of(&reader.read()?, &container.id).busy_ns);
    wait_for("three seconds of work", || Ok(busy_ns(&other)? > 3_000_000_000))?;
    other.kill_init()?;
    wait_for("its lease to end", || Ok(host.leases()?.iter().all(|lease| lease.container_id.0 != other.id)))?;
    let short = start("short", "0.1", &[of_red, ("GPOOL_PROJECT", "mars")])?;
    // Enough that what is told of its last bursts, which others may have shared, is little beside it.
    wait_for("a little work", || Ok(busy_ns(&short)? > 800_000_000))?;
    short.kill_init()?;
    wait_for("its lease to end", || Ok(host.leases()?.iter().all(|lease| lease.container_id.0 != short.id)))?;
    let by_container = usage(host, &["--by", "container"])?;
    // What is under way is charged when it has ended, and what was when a container was killed by nobody.
    for container in [&red, &other, &short] {
        let (said_ns, seen_ns) = (row(&by_container, &container.id)?.used_gpu_ns, busy_ns(container)?);
        let ratio = said_ns as f64 / seen_ns as f64;
        ensure((0.75..1.05).contains(&ratio), || {
            format!("{}: {said_ns} ns, the device saw {seen_ns}", container.name)
        })?;
    }
    let by_team = usage(host, &["--by", "team"])?;
    let (of_red, of_none) = (row(&by_team, "red")?, row(&by_team, "")?);
    ensure((of_red.leases, of_none.leases) == (2, 1), || format!("{by_team:#?}"))?;
    // Greedy tenants: the one that has all promised to it that is promised at all leaves nothing idle beside another.
    ensure(of_none.idle_gpu_ns * 10 < of_none.reserved_gpu_ns, || format!("{by_team:#?}"))?;
    let memory = of_red.memory_used_mib_s;
    ensure(memory > 0 && memory <= of_red.memory_cap_mib_s, || format!("{by_team:#?}"))?;
    let of_team = usage(host, &["--by", "lease", "--team", "red"])?;
    ensure(of_team.rows.len() == 2 && of_team.pool.is_none(), || format!("{of_team:#?}"))?;
    // Both worked all the time, so that what they drew is by their GPU time but for what it draws with nobody on it.
    let watts = |row: &UsageRow| row.energy_millijoules as f64 * 1e6 / row.used_gpu_ns as f64;
    let drawn = by_team.pool.as_ref().map_or(0, |pool| pool.energy_millijoules);
    let ratio = drawn as f64 / reader.read()?.energy_millijoules() as f64;
    let (of_one, of_other) = (watts(of_red), watts(of_none));
    ensure((0.5..=1.0).contains(&ratio) && (0.6..1.6).contains(&(of_one / of_other)), || {
        format!("{ratio} of what the device drew; {of_one} and {of_other} W: {by_team:#?}")
    })?;
    let table = succeeded("gpool usage", host.gpool(&["usage", "--by", "gpu"])?)?;
    let has = |start: &str| table.lines().any(|line| line.starts_with(start));
    ensure(has("GPU ") && has("GPU-") && has("(nobody) ") && has("(all GPUs) "), || table.clone())?;
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    ensure(metrics.contains("\ngpool_ledger_written_timestamp_seconds "), || metrics.clone())?;
    for (arguments, part) in [(["--since", "yesterday"], "24h"), (["--by", "year"], "mechanism")] {
        let refused = host.gpool(&[&["usage"][..], &arguments].concat())?;
        let said = text(&refused.stderr);
        ensure(refused.status.code() == Some(2) && said.contains(part), || format!("{arguments:?}: {said}"))?;
    }
    Ok(red)
}

/// Three containers, of which two were there at once, are one GPU's work, and two GPUs where each has a whole one.
fn sharing_saves_a_gpu(host: &Host) -> Result<()> {
    let command = ["savings", "--percent", "100", "--format", "json"];
    let said = succeeded("gpool savings", host.gpool(&command)?)?;
    let document: Value = serde_json::from_str(&said).context("the JSON of gpool savings")?;
    let savings: Savings = serde_json::from_value(document["savings"].clone()).context(&said)?;
    let owners: Vec<(&str, u64, u64)> =
        savings.owners.iter().map(|owner| (owner.key.as_str(), owner.leases, owner.gpus)).collect();
    let ways = [savings.gpus_for_each_container, savings.gpus_for_each_owner, savings.gpus_shared];
    // In a minute in which all three came and went, or in one that was watched for a part of it only, they are fewer at once.
    let places = savings.together.places_permille;
    let is_right = owners == [("", 1, 1), ("red", 2, 1)] && ways == [places.div_ceil(1000), 2, 1];
    let used = savings.together.share_permille;
    ensure(is_right && (1006..=2000).contains(&places) && (300..=1005).contains(&used), || format!("{savings:#?}"))?;
    let table = succeeded("gpool savings", host.gpool(&["savings", "--percent", "100"])?)?;
    ensure(table.contains("  shared by all: saves 1 of 2, 50 %\nThere were 1.00.\n"), || table.clone())?;
    let refused = host.gpool(&["savings", "--by", "hour"])?;
    ensure(refused.status.code() == Some(2), || text(&refused.stderr))
}

/// Of a container that takes all that it gets it is said so, and the sums are those of `gpool usage`.
fn what_was_asked_for_is_laid_beside_what_was_used(host: &Host, red: &Container) -> Result<()> {
    let had = || -> Result<UsageRow> { Ok(usage(host, &["--by", "container", "--since", "4w"])?.total) };
    let before = had()?;
    let said = succeeded("gpool sizes", host.gpool(&["sizes", "--format", "json"])?)?;
    let after = had()?;
    let document: Value = serde_json::from_str(&said).context("the JSON of gpool sizes")?;
    let sizes: Sizes = serde_json::from_value(document["sizes"].clone()).context(&said)?;
    let of = |row: &SizesRow| [row.reserved_gpu_ns, row.used_gpu_ns, row.memory_cap_mib_s];
    let was = |row: &UsageRow| [row.reserved_gpu_ns, row.used_gpu_ns, row.memory_cap_mib_s];
    let had = was(&before).into_iter().zip(of(&sizes.total)).zip(was(&after));
    // One of them goes on meanwhile. Rows round what is less than a MiB second.
    let ties_out = had.into_iter().all(|((before, its), after)| before <= its + 3 && its <= after + 3);
    let row = sizes.rows.iter().find(|row| row.key == red.id);
    let is_full = row.is_some_and(|row| row.full_gpu_ns > 0 && row.enough.is_some() && row.leases == 1);
    ensure(ties_out && is_full && sizes.rows.len() == 3, || format!("{before:#?} {sizes:#?} {after:#?}"))?;
    let table = succeeded("gpool sizes", host.gpool(&["sizes", "--by", "team"])?)?;
    let has = |start: &str| table.lines().any(|line| line.starts_with(start));
    ensure(has("TEAM ") && has("red ") && has("(together) ") && has("Of "), || table.clone())?;
    let refused = host.gpool(&["sizes", "--by", "gpu"])?;
    ensure(refused.status.code() == Some(2), || text(&refused.stderr))
}

/// What `gpool charges` says with these arguments.
fn charges(host: &Host, arguments: &[&str]) -> Result<String> {
    succeeded("gpool charges", host.gpool(&[&["charges"][..], arguments].concat())?)
}

/// Of the three containers, on whose bill each is, and the same sums in every form of it. Of those that have ended nothing changes.
fn who_pays_is_billed(host: &Host) -> Result<()> {
    let by_center = usage(host, &["--by", "cost-center"])?;
    ensure((row(&by_center, "4711")?.leases, row(&by_center, "99")?.leases) == (2, 1), || format!("{by_center:#?}"))?;
    let listed = succeeded("gpool ps", host.gpool(&["ps", "--format", "csv"])?)?;
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split(',').collect()).collect();
    let place = rows[0].iter().position(|name| *name == "cost_center");
    let of_first = place.and_then(|place| rows.get(1)?.get(place).copied());
    ensure(of_first == Some("4711"), || listed.clone())?;
    let said: Value =
        serde_json::from_str(&charges(host, &["--format", "json", "--cost-center", "99"])?).context("JSON")?;
    let bill: Charges = serde_json::from_value(said["charges"].clone()).context("the charges")?;
    // A container that runs across midnight is in two rows.
    let of_other = |row: &Charge| row.cost_center.as_deref() == Some("99") && row.price_micros == Some(3_600_000_000);
    ensure(!bill.rows.is_empty() && bill.rows.iter().all(of_other), || format!("{bill:#?}"))?;
    let billed_ns: u64 = bill.rows.iter().map(|row| row.billed_gpu_ns).sum();
    let asked_ns: u64 = bill.rows.iter().map(|row| row.reserved_gpu_ns + row.burst_gpu_ns).sum();
    // At a unit for each second a billionth is a nanosecond.
    ensure(billed_ns == asked_ns && billed_ns.abs_diff(bill.total_cost_nanos) <= 100, || format!("{bill:#?}"))?;
    let sums = usage(host, &["--by", "lease", "--cost-center", "99"])?;
    ensure(sums.total.cost_nanos == bill.total_cost_nanos && sums.pool.is_none(), || format!("{sums:#?}\n{bill:#?}"))?;
    let of_project = usage(host, &["--by", "team", "--project", "mars"])?;
    let had = row(&of_project, "red")?;
    let half = (had.reserved_gpu_ns + had.burst_gpu_ns) / 2;
    ensure(had.leases == 1 && half.abs_diff(had.cost_nanos) <= 100, || format!("{of_project:#?}"))?;
    let focus = charges(host, &["--format", "focus", "--project", "mars", "--site", "here"])?;
    let lines: Vec<Vec<&str>> = focus.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| {
        let place = lines[0].iter().position(|column| *column == name);
        place.ok_or_else(|| Failure::new(format!("no column {name}: {focus}")))
    };
    // What is quoted has commas, and stands behind these.
    for (name, value) in [("BillingCurrency", "EUR"), ("BillingAccountId", "here"), ("ContractedUnitPrice", "1800")] {
        let place = column(name)?;
        ensure(lines.len() > 1 && lines[1..].iter().all(|line| line.get(place) == Some(&value)), || focus.clone())?;
    }
    let number = |line: &[&str], name: &str| {
        let field = line.get(column(name)?).copied().unwrap_or_default();
        field.parse::<f64>().context(format!("{name} of {focus}"))
    };
    for line in &lines[1..] {
        let product = number(line, "PricingQuantity")? * number(line, "ContractedUnitPrice")?;
        ensure((product - number(line, "BilledCost")?).abs() < 1e-6, || focus.clone())?;
    }
    let table = charges(host, &[])?;
    let has = |part: &str| table.contains(part);
    ensure(has(" mars ") && has(" 99 ") && has("Prices and costs are in EUR."), || table.clone())?;
    // What is written down is priced as the configuration has it now.
    reload_with(host, "[[rates.price]]\nper_gpu_hour = \"7200\"\n")?;
    let dearer = usage(host, &["--by", "lease", "--cost-center", "99"])?.total.cost_nanos;
    ensure(dearer.abs_diff(2 * bill.total_cost_nanos) <= 100, || format!("{dearer} after {bill:#?}"))?;
    let refused = host.gpool(&["charges", "--month", "11-2026"])?;
    ensure(refused.status.code() == Some(2) && text(&refused.stderr).contains("2026-11"), || text(&refused.stderr))
}

/// The supervisor is killed, and one of two containers ends while it is away.
fn a_killed_supervisor_takes_nothing_along(host: &mut Host, red: &Container) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.4"), ("GPOOL_MEMORY", "1GiB"), ("GPOOL_TEAM", "blue")];
    let blue = Tenant::greedy(1000).run(host, "blue", &env)?;
    let charged = |host: &Host, container: &Container| Ok::<u64, Failure>(host.lease_of(container)?.charged_gpu_ns);
    wait_for("a second of work", || Ok(charged(host, &blue)? > 1_000_000_000))?;
    let (red_ns, blue_ns) = (charged(host, red)?, charged(host, &blue)?);
    // What was charged until a look is written down with it, and looks are a second apart.
    std::thread::sleep(Duration::from_millis(1100));
    host.kill_supervisor()?;
    blue.kill_init()?;
    std::thread::sleep(Duration::from_secs(1));
    host.start_supervisor()?;
    let after = usage(host, &["--by", "container"])?;
    let (of_red, of_blue) = (row(&after, &red.id)?, row(&after, &blue.id)?);
    ensure(of_red.used_gpu_ns >= red_ns && of_blue.used_gpu_ns >= blue_ns, || {
        format!("charged before: {red_ns} and {blue_ns} ns; {after:#?}")
    })?;
    ensure(of_red.unwatched_gpu_ns > 0, || format!("nobody was away: {after:#?}"))?;
    let (entered_ns, charged_ns) = (of_red.used_gpu_ns, charged(host, red)?);
    ensure(entered_ns <= charged_ns, || format!("{entered_ns} ns are written down of {charged_ns}"))?;
    wait_for("more work", || Ok(charged(host, red)? > charged_ns + 500_000_000))?;
    // By now the whole of it is entered, and once.
    red.kill_init()?;
    wait_for("its lease to end", || Ok(host.leases()?.iter().all(|lease| lease.container_id.0 != red.id)))?;
    let ended = host.events_of(gpool_protocol::EventKind::LeaseEnded)?;
    let its = ended.iter().find(|event| event.container_id.as_ref().is_some_and(|id| id.0 == red.id));
    let all_ns = its.map_or(0, |event| event.charged.iter().map(|gpu| gpu.charged_gpu_ns).sum::<u64>());
    let after = usage(host, &["--by", "container"])?;
    let entered_ns = row(&after, &red.id)?.used_gpu_ns;
    ensure(all_ns > 0 && entered_ns == all_ns, || format!("{entered_ns} ns are written down of {all_ns}"))?;
    what_ran_is_told(host, (red, all_ns), &blue)
}

/// Of all four containers, in the order in which they came; one of them ended while nobody was there.
fn what_ran_is_told(host: &Host, (red, red_ns): (&Container, u64), blue: &Container) -> Result<()> {
    let all = history(host, &[])?;
    let endings: Vec<&str> = all.iter().map(|lease| lease.ending.as_deref().unwrap_or("runs")).collect();
    ensure(endings == ["ended", "ended", "ended", "unseen"], || format!("{all:#?}"))?;
    let first = &all[0];
    let is_right = first.container_id.0 == red.id
        && first.used_gpu_ns == red_ns
        && first.waited_ms == Some(0)
        && first.fraction_permille == Some(300)
        && first.memory_cap_bytes == Some(1 << 30)
        && first.memory_peak_bytes.is_some_and(|bytes| bytes > 0 && bytes <= 1 << 30)
        && first.gpus.len() == 1;
    ensure(is_right && all[3].container_id.0 == blue.id, || format!("{red_ns}: {all:#?}"))?;
    let of_one = history(host, &[&blue.id[..12]])?;
    ensure(of_one.len() == 1 && of_one[0].team.as_deref() == Some("blue"), || format!("{of_one:#?}"))?;
    let table = succeeded("gpool history", host.gpool(&["history", "--team", "red"])?)?;
    let of_red = table.lines().filter(|line| line.contains("  red  ")).count();
    ensure(of_red == 2 && table.contains(" 30 % ") && !table.contains("unseen"), || table.clone())
}

/// Hours of half a GPU, of four weeks until this hour.
const WEEKS_BEFORE: &str = "
import sqlite3, sys, time
db, hour, now = sqlite3.connect(sys.argv[1]), 3600, int(time.time()) // 3600 * 3600
lease, = db.execute('SELECT max(id) FROM lease').fetchone()
gpu, = db.execute('SELECT min(id) FROM gpu').fetchone()
db.execute('DELETE FROM line'); db.execute('DELETE FROM pool')
for slot in range(now - 4 * 168 * hour, now, hour):
    db.execute('INSERT INTO line VALUES (?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0, 0, 0, 0)', (slot, hour, lease, gpu, 1800 * 10**9))
    db.execute('INSERT INTO pool VALUES (?, ?, ?, ?, 0)', (slot, hour, gpu, 3600 * 10**9))
db.execute('UPDATE entered SET begins_unix_s = ?', (now - 4 * 168 * hour,))
db.commit()
print(time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(now)), end='')
";

/// Of less than two weeks nobody says what is to come; of four that were alike that it goes on so.
fn what_was_for_weeks_goes_on(host: &mut Host) -> Result<()> {
    said(&host.gpool(&["forecast"])?, 75, &["nobody can say yet: a forecast takes 2 weeks"])?;
    host.stop_supervisor()?;
    let written = Command::new("/usr/bin/python3").args(["-c", WEEKS_BEFORE, LEDGER]).output().context("python3")?;
    // By the hour that was begun then, also when the next one has.
    let until = succeeded("what was for weeks", written)?;
    host.start_supervisor()?;
    let told = ["There is 1 GPU, and no hour in which more is expected", "By 4 whole weeks", "0.50     0.50"];
    said(&host.gpool(&["forecast", "--until", &until])?, 0, &told)?;
    let more = ["forecast", "--weeks", "2", "--format", "json", "--until", &until];
    let text = succeeded("gpool forecast", host.gpool(&more)?)?;
    let document: Value = serde_json::from_str(&text).context(&text)?;
    let weeks = document["weeks"].as_array().cloned().unwrap_or_default();
    let is_so = |week: &Value| {
        let hours = week["hours_permille"].as_array().cloned().unwrap_or_default();
        hours.len() == 168
            && hours.iter().all(|hour| *hour == 500)
            && week["by"] == "trend"
            && week["weeks_tried"].is_null()
    };
    ensure(weeks.len() == 2 && weeks.iter().all(is_so), || text.clone())?;
    // The hours are of the lease that came last, which is another team's.
    let of_team = host.gpool(&["forecast", "--team", "red", "--format", "csv"])?;
    said(&of_team, 0, &["begins_unix_s,gpus_permille", ",0,0,"])?;
    said(&host.gpool(&["forecast", "--team", "reed"])?, 1, &["no lease has team=reed", "there are: blue, red"])?;
    let of_gpu = usage(host, &["--by", "gpu", "--gpu", "0", "--since", "4w"])?;
    ensure(of_gpu.rows.len() == 1, || format!("{of_gpu:#?}"))?;
    said(&host.gpool(&["usage", "--gpu", "7"])?, 1, &["there is no GPU 7", "there are: 0;"])
}

/// A ledger that is none is left alone; containers start, and what they had is written as soon as there is a place for it.
fn a_file_that_cannot_be_used_stops_nobody(host: &mut Host) -> Result<()> {
    host.stop_supervisor()?;
    let directory = std::path::Path::new(LEDGER).parent().unwrap_or(std::path::Path::new("/"));
    fs::remove_dir_all(directory).context(LEDGER)?;
    fs::create_dir_all(directory).context(LEDGER)?;
    fs::write(LEDGER, "not mine\n".repeat(100)).context(LEDGER)?;
    host.start_supervisor()?;
    let container = Tenant::greedy(1000).run(host, "late", &[("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "1GiB")])?;
    wait_for("it to have worked", || Ok(host.lease_of(&container)?.charged_gpu_ns > 300_000_000))?;
    let refused = host.gpool(&["usage"])?;
    let said = text(&refused.stderr);
    ensure(refused.status.code() == Some(1) && said.contains("[GPOOL-E002]"), || said.clone())?;
    let log = host.supervisor_log();
    let told = |part: &str| log.lines().filter(|line| line.contains("[ledger] path") && line.contains(part)).count();
    let counts = [told("is not written"), told("cannot be read")];
    ensure(counts == [1, 1], || format!("the log tells it {counts:?} times: {log}"))?;
    let left = fs::read_to_string(LEDGER).context(LEDGER)?;
    ensure(left == "not mine\n".repeat(100), || format!("the file was changed: {left}"))?;
    fs::remove_file(LEDGER).context(LEDGER)?;
    let charged_ns = host.lease_of(&container)?.charged_gpu_ns;
    wait_for("it to be written", || Ok(host.gpool(&["usage"])?.status.success()))?;
    std::thread::sleep(Duration::from_millis(1100));
    let after = usage(host, &["--by", "container"])?;
    let used_ns = row(&after, &container.id)?.used_gpu_ns;
    ensure(used_ns >= charged_ns, || format!("{used_ns} ns are written down of {charged_ns}"))
}
