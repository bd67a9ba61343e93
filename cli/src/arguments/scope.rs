//! Of which time, leases and GPUs the ledger is asked.

use super::when::{When, parse_when};
use clap::Args;
use std::process::Command;

/// Of which time.
#[derive(Debug, Clone, Args)]
pub struct SpanOptions {
    /// From when on: 90m, 24h, 7d or 4w ago, or a moment of UTC, 2026-11-01 or 2026-11-01T08:30
    #[arg(long, value_name = "WHEN", default_value = "24h", value_parser = parse_when)]
    pub since: When,
    /// Until when [default: now]
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    pub until: Option<When>,
}

impl SpanOptions {
    /// From when until when, in seconds since 1970; until nothing where that is not said.
    pub fn unix_s(&self, now_unix_s: u64) -> (u64, Option<u64>) {
        (self.since.unix_s(now_unix_s), self.until.map(|until| until.unix_s(now_unix_s)))
    }
}

/// Of what.
#[derive(Debug, Clone, Args)]
pub struct ScopeOptions {
    /// Of which time.
    #[command(flatten)]
    pub time: SpanOptions,
    /// Of one team alone; of containers without one if it is empty
    #[arg(long, value_name = "NAME", value_parser = parse_plain)]
    pub team: Option<String>,
    /// For one project alone; of containers without one if it is empty
    #[arg(long, value_name = "NAME", value_parser = parse_plain)]
    pub project: Option<String>,
    /// On one cost center's bill alone; on nobody's if it is empty
    #[arg(long, value_name = "NAME", value_parser = parse_plain)]
    pub cost_center: Option<String>,
    /// Of containers that one user started, by name or number
    #[arg(long, value_name = "NAME", value_parser = parse_user)]
    pub user: Option<u32>,
    /// On one GPU, by its number or the beginning of its UUID, or on a MIG instance, by the beginning of that
    #[arg(long, value_name = "GPU", value_parser = parse_plain)]
    pub gpu: Option<String>,
}

/// Of which container, where sums of one make sense.
#[derive(Debug, Clone, Args)]
pub struct ContainerOption {
    /// Of one container alone: its id, the beginning of one, its name for docker or podman, or a lease's id
    #[arg(long, value_name = "CONTAINER", value_parser = parse_plain)]
    pub container: Option<String>,
}

impl ContainerOption {
    /// As a query has it, with the sign between two parts of one in front.
    pub fn filter(&self) -> String {
        self.container.as_ref().map(|container| format!("&container={container}")).unwrap_or_default()
    }
}

impl ScopeOptions {
    /// The rest of it as a query has it, each with the sign between two parts of one in front.
    pub fn filters(&self) -> String {
        let user = self.user.map(|user| user.to_string());
        let named = [
            ("team", &self.team),
            ("project", &self.project),
            ("cost-center", &self.cost_center),
            ("user", &user),
            ("gpu", &self.gpu),
        ];
        named.into_iter().filter_map(|(name, value)| Some(format!("&{name}={}", value.as_ref()?))).collect()
    }
}

/// A user's number, or that of a name that this host knows.
pub fn parse_user(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    let passwd = Command::new("getent").args(["passwd", "--", text]).output();
    let line = passwd.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let uid = line.and_then(|line| line.split(':').nth(2)?.parse().ok());
    uid.ok_or_else(|| "no user of this host has that name; give the number, which id -u NAME prints".to_owned())
}

/// What stands in the path of a request as it is.
pub fn parse_plain(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
    match text.bytes().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("letters, digits, '.', '_' and '-' are what such a name is made of".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_number_or_a_name_of_this_host() {
        assert_eq!((parse_user("1234567"), parse_user("root")), (Ok(1_234_567), Ok(0)));
        assert!(parse_user("nobody-of-that-name").unwrap_err().contains("id -u"));
    }

    #[test]
    fn what_is_asked_for_stands_in_the_path() {
        let scope = ScopeOptions {
            time: SpanOptions { since: When::Ago(60), until: Some(When::At(990)) },
            team: Some("red".into()),
            project: None,
            cost_center: Some(String::new()),
            user: Some(1000),
            gpu: None,
        };
        assert_eq!(scope.filters(), "&team=red&cost-center=&user=1000");
        assert_eq!(scope.time.unix_s(1000), (940, Some(990)));
    }

    #[test]
    fn a_name_cannot_be_more_of_a_path() {
        assert_eq!(parse_plain("MIG-1/2"), Ok("MIG-1/2".to_owned()));
        assert!(parse_plain("a&team=b").is_err() && parse_plain("a b").is_err());
    }
}
