//! `gpool baseline`

use super::savings::{gpus, saved, unknown};
use super::usage::{begins_later, hours, moment};
use crate::arguments::{BaselineOptions, Format};
use crate::exit::Failure;
use crate::output::{self, borderless, csv, figure, text, to_value};
use gpool_protocol::{Baseline, Client, ContainerId, EnoughRequest, Unleased, UnleasedKind, UnleasedUse, format_bytes};
use jiff::Timestamp;

/// Who could have no more for more than a twentieth of its time may have wanted more than it had.
const CROWDED_PART: u64 = 20;

/// Prints who used GPUs without a lease, and what would have been enough.
pub fn run(client: &Client, options: &BaselineOptions) -> Result<(), Failure> {
    let now_s = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
    let baseline: Baseline = client.get(&path(options, now_s))?;
    match options.format {
        Format::Table => output::print(&render(&baseline, false)),
        Format::Wide => output::print(&render(&baseline, true)),
        Format::Json => output::print_json("baseline", &to_value(&baseline)),
        Format::Csv => output::print(&render_csv(&baseline)),
    }
}

fn path(options: &BaselineOptions, now_s: u64) -> String {
    let (since, until) = options.time.unix_s(now_s);
    let (until, user) = (until.map(|until| until.to_string()), options.user.map(|user| user.to_string()));
    let named = [("until", &until), ("user", &user), ("gpu", &options.gpu)];
    let filters: String =
        named.into_iter().filter_map(|(name, value)| Some(format!("&{name}={}", value.as_ref()?))).collect();
    format!("/v1/baseline?percent={}&since={since}{filters}", options.percent)
}

/// As people call it.
fn called(row: &UnleasedUse) -> String {
    let Unleased { kind, name, .. } = &row.user;
    let of_pod = row.pod.as_ref().map(|pod| format!(" of {pod}")).unwrap_or_default();
    match kind {
        UnleasedKind::Container => format!("container {}{of_pod}", short(name)),
        UnleasedKind::Others => "(others)".to_owned(),
        kind => format!("{} {name}", kind.word()),
    }
}

/// An id as engines show it; what is called by a name has all of that.
fn short(name: &str) -> String {
    let is_id = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id { ContainerId(name.to_owned()).short().to_owned() } else { name.to_owned() }
}

/// The words of a request, as an environment has them.
pub fn request(enough: &EnoughRequest) -> String {
    let share = match (enough.is_whole, enough.fraction_permille) {
        (true, _) => "GPOOL_FRACTION=1".to_owned(),
        (false, Some(permille)) => format!("GPOOL_FRACTION={}", gpus(permille)),
        // No request without a share.
        (false, None) => return format!("{} of memory", exactly(enough.memory_bytes)),
    };
    // Whole GPUs are had with all of their memory.
    let memory = (!enough.is_whole).then(|| format!("GPOOL_MEMORY={}", exactly(enough.memory_bytes)));
    let count = (enough.gpus > 1).then(|| format!("GPOOL_GPUS={}", enough.gpus));
    [count, Some(share), memory].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// As a request has it, without fractions.
fn exactly(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes.is_multiple_of(GIB) { format!("{}GiB", bytes / GIB) } else { format!("{}MiB", bytes.div_ceil(1 << 20)) }
}

/// Whether somebody could have no more for so long that he may have wanted it.
pub fn is_often(short_ns: u64, of_ns: u64) -> bool {
    short_ns.saturating_mul(CROWDED_PART) > of_ns
}

fn is_crowded(row: &UnleasedUse) -> bool {
    is_often(row.crowded_gpu_ns, row.held_gpu_ns)
}

fn render(baseline: &Baseline, is_wide: bool) -> String {
    let mut columns = vec![text("WHO"), text("PROGRAM"), figure("USER"), figure("HERE"), figure("WORKED")];
    columns.extend([figure("SHARE"), figure("MEMORY"), text("WOULD BE ENOUGH")]);
    if is_wide {
        columns.extend([figure("CROWDED"), figure("UNSEEN"), text("FROM"), text("UNTIL")]);
    }
    let rows = baseline.users.iter().map(|row| {
        let share = match row.enough.and_then(|enough| enough.fraction_permille) {
            Some(_) => gpus(row.work_permille) + if is_crowded(row) { "+" } else { "" },
            None => "-".to_owned(),
        };
        let user = row.user.uid.map_or_else(|| "-".to_owned(), |uid| uid.to_string());
        let mut cells = vec![called(row), row.command.clone(), user];
        cells.extend([row.held_gpu_ns, row.busy_gpu_ns].map(hours));
        cells.extend([
            share,
            format_bytes(row.memory_peak_bytes),
            row.enough.as_ref().map_or_else(|| "-".to_owned(), request),
        ]);
        if is_wide {
            cells.extend([row.crowded_gpu_ns, row.unmetered_gpu_ns].map(hours));
            cells.extend([row.first_unix_s, row.last_unix_s].map(moment));
        }
        cells
    });
    borderless(&columns, rows) + &summary(baseline) + &note(baseline)
}

/// How many GPUs would have been enough for all of them.
fn summary(baseline: &Baseline) -> String {
    if baseline.users.is_empty() {
        return "Nobody used a GPU without a lease.\n".to_owned();
    }
    let all = [baseline.gpus_for_each, baseline.gpus_with_requests, baseline.gpus_shared];
    let width = all.map(|count| count.to_string().len()).into_iter().max().unwrap_or(1);
    let [each, requested, shared] = all;
    format!(
        "\nFor {} % of {} h in which they were watched so many GPUs would have been enough for them:\n\
         {each:>width$}  whole ones for each\n\
         {requested:>width$}  each with that request: {}\n\
         {shared:>width$}  shared by all as they work, with nothing promised: {}\n\
         There were {}.\n",
        baseline.percent,
        hours(baseline.known_ns),
        saved(each, requested),
        saved(each, shared),
        gpus(baseline.there_permille),
    )
}

/// What the figures do not say.
fn note(baseline: &Baseline) -> String {
    let crowded = match baseline.users.iter().any(is_crowded) {
        true => "+ Others kept the GPU from it at times: with a GPU to itself it may use more.\n",
        false => "",
    };
    crowded.to_owned()
        + &unknown(baseline.unknown_gpus)
        + &hours_alone(baseline.hours_until_unix_s)
        + &begins_later("It was begun to watch", baseline.begins_unix_s, baseline.since_unix_s)
}

/// That of older times less is known.
pub fn hours_alone(until_unix_s: Option<u64>) -> String {
    until_unix_s.map_or_else(String::new, |until_s| {
        format!("Until {} hours alone are known, and shares are means over them.\n", moment(until_s))
    })
}

fn render_csv(baseline: &Baseline) -> String {
    const HEADER: [&str; 18] = [
        "since",
        "until",
        "percent",
        "kind",
        "name",
        "uid",
        "program",
        "pod",
        "held_gpu_ns",
        "busy_gpu_ns",
        "unmetered_gpu_ns",
        "crowded_gpu_ns",
        "work_permille",
        "memory_peak_bytes",
        "enough_gpus",
        "enough_fraction_permille",
        "enough_memory_bytes",
        "is_whole",
    ];
    let row = |row: &UnleasedUse| {
        let [since, until] = [row.first_unix_s, row.last_unix_s].map(moment);
        let or_none = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
        let who = [row.user.kind.word().to_owned(), row.user.name.clone(), or_none(row.user.uid.map(u64::from))];
        let figures = [
            row.held_gpu_ns,
            row.busy_gpu_ns,
            row.unmetered_gpu_ns,
            row.crowded_gpu_ns,
            row.work_permille,
            row.memory_peak_bytes,
        ];
        let first = [since, until, baseline.percent.to_string()]
            .into_iter()
            .chain(who)
            .chain([row.command.clone(), row.pod.clone().unwrap_or_default()]);
        let last = enough_fields(row.enough.as_ref());
        first.chain(figures.map(|figure| figure.to_string())).chain(last).collect()
    };
    csv(&HEADER, baseline.users.iter().map(row))
}

/// What would have been enough: GPUs, thousandths, bytes, and whether they are whole ones; empty where that is not known.
pub fn enough_fields(enough: Option<&EnoughRequest>) -> [String; 4] {
    let of = |figure: fn(&EnoughRequest) -> Option<String>| enough.and_then(figure).unwrap_or_default();
    [
        of(|enough| Some(enough.gpus.to_string())),
        of(|enough| enough.fraction_permille.map(|permille| permille.to_string())),
        of(|enough| Some(enough.memory_bytes.to_string())),
        of(|enough| Some(enough.is_whole.to_string())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    fn used(kind: UnleasedKind, name: &str, uid: Option<u32>, enough: Option<EnoughRequest>) -> UnleasedUse {
        UnleasedUse {
            user: Unleased { kind, name: name.into(), uid },
            command: "python3".into(),
            pod: None,
            first_unix_s: 1_793_491_200,
            last_unix_s: 1_793_527_200,
            held_gpu_ns: 10 * HOUR_NS,
            unmetered_gpu_ns: 0,
            busy_gpu_ns: 2 * HOUR_NS,
            crowded_gpu_ns: HOUR_NS / 2,
            work_permille: 334,
            memory_peak_bytes: 3 << 30,
            enough,
        }
    }

    fn sample() -> Baseline {
        let enough =
            EnoughRequest { gpus: 1, fraction_permille: Some(340), memory_bytes: 13 * (256 << 20), is_whole: false };
        let id = "3f9a2117a1dc85".repeat(5)[..64].to_owned();
        let several = EnoughRequest { gpus: 2, fraction_permille: Some(910), is_whole: true, ..enough };
        let hidden = EnoughRequest { fraction_permille: None, memory_bytes: 4 << 30, ..enough };
        let mut crowded = used(UnleasedKind::Job, "4711", Some(1000), Some(several));
        crowded.crowded_gpu_ns = HOUR_NS;
        Baseline {
            since_unix_s: 1_793_491_200,
            until_unix_s: 1_793_527_200,
            begins_unix_s: Some(1_793_494_800),
            hours_until_unix_s: Some(1_793_498_400),
            percent: 95,
            known_ns: 9 * HOUR_NS,
            users: vec![
                used(UnleasedKind::Container, &id, None, Some(enough)),
                crowded,
                used(UnleasedKind::Service, "lab.service", Some(7), Some(hidden)),
                used(UnleasedKind::Others, "", None, None),
            ],
            gpus_for_each: 4,
            gpus_with_requests: 3,
            gpus_shared: 2,
            there_permille: 8000,
            unknown_gpus: 0,
        }
    }

    #[test]
    fn each_has_its_request_and_below_them_is_what_sharing_saves() {
        let want = "\
WHO                     PROGRAM  USER    HERE  WORKED  SHARE  MEMORY  WOULD BE ENOUGH
container 3f9a2117a1dc  python3     -  10.000   2.000   0.33    3GiB  GPOOL_FRACTION=0.34 GPOOL_MEMORY=3328MiB
job 4711                python3  1000  10.000   2.000  0.33+    3GiB  GPOOL_GPUS=2 GPOOL_FRACTION=1
service lab.service     python3     7  10.000   2.000      -    3GiB  4GiB of memory
(others)                python3     -  10.000   2.000      -    3GiB  -

For 95 % of 9.000 h in which they were watched so many GPUs would have been enough for them:
4  whole ones for each
3  each with that request: saves 1 of 4, 25 %
2  shared by all as they work, with nothing promised: saves 2 of 4, 50 %
There were 8.00.
+ Others kept the GPU from it at times: with a GPU to itself it may use more.
Until 2026-11-01T02:00:00Z hours alone are known, and shares are means over them.
It was begun to watch 2026-11-01T01:00:00Z.
";
        assert_eq!(render(&sample(), false), want);
        let wide = render(&sample(), true);
        assert!(
            wide.lines()
                .nth(2)
                .is_some_and(|line| line.ends_with("1.000   0.000  2026-11-01T00:00:00Z  2026-11-01T10:00:00Z")),
            "{wide}"
        );
        let mut in_pod = sample();
        in_pod.users[0].pod = Some("ml/trainer-0".into());
        assert!(render(&in_pod, false).contains("\ncontainer 3f9a2117a1dc of ml/trainer-0  python3 "));
        assert!(render(&Baseline::default(), false).ends_with("Nobody used a GPU without a lease.\n"));
    }

    #[test]
    fn csv_has_all_figures_of_each() {
        let drawn = render_csv(&sample());
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines[0].split(',').count(), lines[2].split(',').count());
        assert!(lines[2].contains(",95,job,4711,1000,python3,,36000000000000,"));
        assert!(lines[2].ends_with(",2,910,3489660928,true") && lines[3].ends_with(",1,,4294967296,false"));
        assert!(lines[4].ends_with(",3221225472,,,,"));
    }
}
