//! `gpool mig plan|layouts|arrivals`; what is about this host is beside it

use super::mig_host;
use crate::arguments::{Format, MigVerb, Plan};
use crate::exit::Failure;
use crate::output::{self, Column, borderless, csv, figure, text};
use gpool_configuration::layouts::{self, Entry};
use gpool_policy::mig::{Layout, Model, PlanRefusal, counted, maximal_layouts, plan, profiles_named};
use gpool_policy_simulator::mig_arrivals::{Chooser, MIXES, mean_millislices};
use gpool_protocol::{Client, ErrorBody, ErrorCode};
use serde::Serialize;
use std::path::Path;

/// Runs a verb of `gpool mig`; `client` is asked for by those that need a supervisor.
pub fn run(verb: &MigVerb, client: impl FnOnce() -> Client) -> Result<(), Failure> {
    match verb {
        MigVerb::Show { format } => mig_host::show(&client(), *format),
        MigVerb::Drift { wanted, format } => mig_host::drift(&client(), wanted, *format),
        MigVerb::Apply { wanted, drain, format } => mig_host::apply(client(), wanted, *drain, *format),
        MigVerb::Plan(asked) => match &asked.file {
            None => plan_one(asked),
            Some(file) => plan_file(asked, file),
        },
        MigVerb::Layouts { model, all_profiles, format } => layouts(model, *all_profiles, *format),
        MigVerb::Arrivals { model, runs, seed, format } => arrivals(model, *runs, *seed, *format),
    }
}

/// An instance for programs.
#[derive(Debug, Serialize)]
struct InstanceView {
    profile: &'static str,
    start: u8,
    memory_slices: u8,
    compute_slices: u8,
    memory_mib: u32,
}

fn instances(layout: &Layout) -> Vec<InstanceView> {
    let view = |instance: &gpool_policy::mig::Instance| InstanceView {
        profile: instance.profile.name,
        start: instance.placement.start,
        memory_slices: instance.placement.size,
        compute_slices: instance.profile.compute_slices,
        memory_mib: instance.profile.memory_mib,
    };
    layout.instances().iter().map(view).collect()
}

fn planned(model: &'static Model, names: &[String]) -> Result<Layout, PlanRefusal> {
    plan(model, &profiles_named(model, names)?)
}

fn refused(refusal: &PlanRefusal) -> Failure {
    ErrorBody::new(ErrorCode::LayoutNotPossible, refusal.to_string(), refusal.remedy()).into()
}

fn plan_one(asked: &Plan) -> Result<(), Failure> {
    let layout = planned(asked.model, &asked.profiles).map_err(|refusal| refused(&refusal))?;
    match asked.format {
        Format::Table | Format::Wide => output::print(&render_layout(asked.model, &layout)),
        Format::Json => output::print_json("instances", &instances(&layout)),
        Format::Csv => {
            let cells = |view: InstanceView| {
                vec![
                    view.profile.to_owned(),
                    view.start.to_string(),
                    view.memory_slices.to_string(),
                    view.compute_slices.to_string(),
                    view.memory_mib.to_string(),
                ]
            };
            let header = ["profile", "start", "memory_slices", "compute_slices", "memory_mib"];
            output::print(&csv(&header, instances(&layout).into_iter().map(cells)))
        }
    }
}

fn render_layout(model: &Model, layout: &Layout) -> String {
    const COLUMNS: [Column; 4] = [text("PROFILE"), figure("START"), figure("MEMORY SLICES"), figure("MEMORY MiB")];
    let cells = |view: InstanceView| {
        let last = view.start + view.memory_slices - 1;
        let slices = if last == view.start { last.to_string() } else { format!("{}-{last}", view.start) };
        vec![view.profile.to_owned(), view.start.to_string(), slices, view.memory_mib.to_string()]
    };
    let table = borderless(&COLUMNS, instances(layout).into_iter().map(cells));
    format!(
        "{table}{} of {} compute slices and {} of {} memory slices of {} are used\n",
        layout.compute_slices(),
        model.compute_slices,
        layout.memory_slices().len(),
        model.memory_slices,
        model.name
    )
}

/// What became of one entry of a file.
#[derive(Debug, Serialize)]
struct Checked {
    config: String,
    devices: String,
    possible: bool,
    layout: String,
}

fn plan_file(asked: &Plan, path: &Path) -> Result<(), Failure> {
    let wrong = |cause: String| {
        Failure::from(ErrorBody::new(
            ErrorCode::RequestInvalid,
            cause,
            "see docs/mechanisms.md for the format; packages have it in /usr/share/doc/gpool",
        ))
    };
    let file = layouts::load(path).map_err(wrong)?;
    if let Some(name) = asked.config.as_ref().filter(|name| !file.configs.contains_key(*name)) {
        let names: Vec<&str> = file.configs.keys().map(String::as_str).collect();
        return Err(wrong(format!("{}: there is no layout {name:?}, there are {}", path.display(), names.join(", "))));
    }
    let wanted = |name: &&String| asked.config.as_ref().is_none_or(|only| only == *name);
    let entries = file.configs.iter().filter(|(name, _)| wanted(name));
    let entries = entries.flat_map(|(name, entries)| entries.iter().map(move |entry| (name, entry)));
    let checked: Vec<Checked> = entries.map(|(name, entry)| check(asked.model, name, entry)).collect();
    let row = |one: &Checked| vec![one.config.clone(), one.devices.clone(), one.layout.clone()];
    match asked.format {
        Format::Table | Format::Wide => {
            const COLUMNS: [Column; 3] = [text("CONFIG"), text("DEVICES"), text("LAYOUT")];
            output::print(&borderless(&COLUMNS, checked.iter().map(row)))?;
        }
        Format::Json => output::print_json("configs", &checked)?,
        Format::Csv => output::print(&csv(&["config", "devices", "layout"], checked.iter().map(row)))?,
    }
    match checked.iter().filter(|one| !one.possible).count() {
        0 => Ok(()),
        count => Err(Failure::from(ErrorBody::new(
            ErrorCode::LayoutNotPossible,
            format!(
                "{count} of {} entries of {} cannot be made on {}",
                checked.len(),
                path.display(),
                asked.model.name
            ),
            "change them, or check them on the model that they are for with --model",
        ))),
    }
}

fn check(model: &'static Model, config: &str, entry: &Entry) -> Checked {
    let (possible, layout) = match (entry.mig_enabled, planned(model, &entry.profiles())) {
        (false, _) => (true, "MIG off".to_owned()),
        (true, Ok(layout)) if layout.instances().is_empty() => (true, "MIG on, no instances".to_owned()),
        (true, Ok(layout)) => (true, layout.to_string()),
        (true, Err(refusal)) => (false, format!("cannot be made: {refusal}; {}", refusal.remedy())),
    };
    Checked { config: config.to_owned(), devices: entry.which(), possible, layout }
}

/// A layout for programs.
#[derive(Debug, Serialize)]
struct LayoutView {
    profiles: String,
    instances: Vec<InstanceView>,
}

fn layouts(model: &'static Model, all_profiles: bool, format: Format) -> Result<(), Failure> {
    if !model.has_mig() {
        return Err(refused(&PlanRefusal::NoMig { model: model.name }));
    }
    let profiles = if all_profiles { model.profiles.iter().collect() } else { model.plain_profiles() };
    let all = maximal_layouts(model, &profiles);
    let row = |layout: &Layout| vec![counted(&layout.profiles()), layout.to_string()];
    match format {
        Format::Table | Format::Wide => {
            let table = borderless(&[text("PROFILES"), text("INSTANCES")], all.iter().map(row));
            output::print(&format!("{table}{} layouts to which nothing can be added\n", all.len()))
        }
        Format::Json => {
            let view =
                |layout: &Layout| LayoutView { profiles: counted(&layout.profiles()), instances: instances(layout) };
            output::print_json("layouts", &all.iter().map(view).collect::<Vec<_>>())
        }
        Format::Csv => output::print(&csv(&["profiles", "instances"], all.iter().map(row))),
    }
}

/// Compute slices in use at the first refusal, in thousandths.
#[derive(Debug, Serialize)]
struct ArrivalsView {
    mix: &'static str,
    highest_millislices: u64,
    lowest_millislices: u64,
    random_millislices: u64,
}

fn arrivals(model: &'static Model, runs: u64, seed: u64, format: Format) -> Result<(), Failure> {
    let rows: Vec<ArrivalsView> = MIXES
        .iter()
        .map(|mix| {
            let [highest_millislices, lowest_millislices, random_millislices] =
                Chooser::ALL.map(|chooser| mean_millislices(model, mix, chooser, runs, seed));
            ArrivalsView { mix: mix.name, highest_millislices, lowest_millislices, random_millislices }
        })
        // A mix with sizes that the model does not have says nothing about it.
        .filter(|row| row.highest_millislices > 0)
        .collect();
    let cells = |row: &ArrivalsView, shown: fn(u64) -> String| {
        let figures = [row.highest_millislices, row.lowest_millislices, row.random_millislices];
        std::iter::once(row.mix.to_owned()).chain(figures.map(shown)).collect::<Vec<_>>()
    };
    match format {
        Format::Table | Format::Wide => {
            const COLUMNS: [Column; 4] = [text("MIX"), figure("HIGHEST START"), figure("LOWEST"), figure("RANDOM")];
            let table = borderless(&COLUMNS, rows.iter().map(|row| cells(row, slices)));
            output::print(&format!(
                "{table}compute slices of {} in use at the first refusal, mean of {runs} GPUs, seed {seed}\n",
                model.compute_slices
            ))
        }
        Format::Json => output::print_json("arrivals", &rows),
        Format::Csv => {
            let header = ["mix", "highest_millislices", "lowest_millislices", "random_millislices"];
            output::print(&csv(&header, rows.iter().map(|row| cells(row, |value| value.to_string()))))
        }
    }
}

fn slices(millislices: u64) -> String {
    format!("{}.{:02}", millislices / 1000, millislices % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_shown_with_its_starts() {
        let model = Model::named("A100-80GB").unwrap();
        let names = ["3g.40gb", "2g.20gb", "1g.10gb"].map(String::from);
        let want = "\
PROFILE  START  MEMORY SLICES  MEMORY MiB
1g.10gb      1              1        9856
2g.20gb      2            2-3       19968
3g.40gb      4            4-7       40192
6 of 7 compute slices and 7 of 8 memory slices of A100-80GB are used
";
        assert_eq!(render_layout(model, &planned(model, &names).unwrap()), want);
    }

    #[test]
    fn each_entry_of_a_file_is_judged_on_the_model() {
        let entry = |profile: &str, count, mig_enabled| Entry {
            devices: layouts::Devices::All("all".into()),
            device_filter: None,
            mig_enabled,
            mig_devices: [(profile.to_owned(), count)].into(),
        };
        let model = Model::named("A30").unwrap();
        assert!(check(model, "a", &entry("1g.6gb", 4, true)).possible);
        assert_eq!(check(model, "a", &entry("1g.6gb", 0, true)).layout, "MIG on, no instances");
        assert_eq!(check(model, "a", &entry("1g.6gb", 0, false)).layout, "MIG off");
        let wrong = check(model, "a", &entry("1g.10gb", 1, true));
        assert!(!wrong.possible && wrong.layout.contains("no profile"), "{wrong:?}");
    }

    #[test]
    fn figures_have_two_decimals_and_are_not_rounded_up() {
        assert_eq!((slices(5_859).as_str(), slices(7_000).as_str()), ("5.85", "7.00"));
    }
}
