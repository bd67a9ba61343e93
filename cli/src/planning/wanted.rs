//! Which layout this host's GPUs are compared with or divided by: one of a file that is named, or the configured one.

use crate::arguments::Wanted;
use crate::exit::Failure;
use gpool_configuration::layouts::{self, Divisible, Goal};
use gpool_protocol::{Client, ConfigurationView, ErrorBody, ErrorCode, MigGoal, MigGpuView};
use std::path::PathBuf;

/// What is wanted of each GPU.
pub struct Goals {
    /// The file that says so.
    pub file: PathBuf,
    /// One for each GPU that it is about.
    pub goals: Vec<MigGoal>,
}

fn wrong(cause: String) -> Failure {
    ErrorBody::new(
        ErrorCode::RequestInvalid,
        cause,
        "see docs/mechanisms.md for the format; packages have it in /usr/share/doc/gpool",
    )
    .into()
}

/// Reads the layout that `wanted` names for these GPUs.
///
/// # Errors
/// No file is named or configured, it cannot be read, or it does not go with the GPUs.
pub fn read(client: &Client, wanted: &Wanted, gpus: &[MigGpuView]) -> Result<Goals, Failure> {
    let (file, config) = match &wanted.file {
        Some(file) => (file.clone(), wanted.config.clone()),
        None => {
            let (file, config) = configured(&client.get("/v1/configuration")?)?;
            (file, wanted.config.clone().or(config))
        }
    };
    let told = |cause: String| wrong(format!("{}: {cause}", file.display()));
    let read = layouts::load(&file).map_err(wrong)?;
    let (name, entries) = read.named(config.as_deref()).map_err(told)?;
    let divisible: Vec<Divisible> =
        gpus.iter().map(|gpu| Divisible { index: gpu.index, pci_device_id: gpu.pci_device_id }).collect();
    let goals = layouts::goals(entries, &divisible).map_err(|cause| told(format!("mig-configs.{name}: {cause}")))?;
    let goal = |goal: Goal| {
        let gpu = gpus.iter().find(|gpu| gpu.index == goal.index)?;
        Some(MigGoal { uuid: gpu.uuid.clone(), enabled: goal.enabled, profiles: goal.profiles })
    };
    let goals = goals.into_iter().filter_map(goal).collect();
    Ok(Goals { file, goals })
}

/// File and layout that the supervisor's configuration names.
fn configured(view: &ConfigurationView) -> Result<(PathBuf, Option<String>), Failure> {
    let key = |name: &str| {
        let line = format!("value = {}", view.keys.get(name)?);
        let read: toml::Table = toml::from_str(&line).ok()?;
        Some(read.get("value")?.as_str()?.to_owned())
    };
    let layout = key("mig.layout").ok_or_else(|| {
        Failure::from(ErrorBody::new(
            ErrorCode::RequestInvalid,
            "no layout is named, and none is configured",
            "add --file FILE, or set [mig] layout in config.toml",
        ))
    })?;
    Ok((layout.into(), key("mig.config")))
}

/// A layout in words, alike for alike instances in any order.
pub fn names(enabled: bool, profiles: &[String]) -> String {
    let mut sorted: Vec<&str> = profiles.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    match (enabled, sorted.as_slice()) {
        (false, _) => "MIG off".to_owned(),
        (true, []) => "MIG on, no instances".to_owned(),
        (true, all) => all.join(" + "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configured_layout_is_the_supervisors() {
        let view = |keys: &[(&str, &str)]| ConfigurationView {
            path: "/etc/gpool/config.toml".into(),
            unusable: None,
            keys: keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        };
        let both = view(&[("mig.layout", "\"/etc/gpool/mig.yaml\""), ("mig.config", "'mixed'")]);
        assert_eq!(configured(&both).ok(), Some(("/etc/gpool/mig.yaml".into(), Some("mixed".to_owned()))));
        assert_eq!(configured(&view(&[("mig.layout", "\"/a\"")])).ok(), Some(("/a".into(), None)));
        assert!(configured(&view(&[("mig.windows", "[]")])).is_err());
    }
}
