//! How a command ends: exit codes and the sentence on stderr.

use gpool_configuration::ConfigurationError;
use gpool_protocol::{ErrorBody, ErrorCode};
use std::io::Write;
use std::process::ExitCode;

/// The exit codes, with the numbers of `sysexits.h` where one fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// Everything was done.
    Done = 0,
    /// It failed, for a reason that no other code names.
    Failed = 1,
    /// The command line or a value on it is not valid.
    Usage = 2,
    /// No lease has that id.
    NotFound = 3,
    /// Several leases match, or the lease's state forbids it.
    Conflict = 4,
    /// Done, and what was found is only of the kind that somebody should know.
    Warned = 10,
    /// The supervisor does not answer.
    SupervisorUnreachable = 69,
    /// No share or memory is free, or what was waited for has not come in time; try later.
    NoCapacity = 75,
    /// The user may not do this.
    NotPermitted = 77,
    /// The configuration file cannot be used.
    ConfigurationInvalid = 78,
    /// `gpool run` or `gpool exec` did not start its command, whatever the reason: the other codes may be the command's.
    NotStarted = 125,
}

/// Shown below `--help`.
pub const EXIT_CODES_HELP: &str = "\
Exit codes:
  0   done
  1   failed
  2   usage, or a value that is not valid
  3   no such lease (GPOOL-E301)
  4   conflict (GPOOL-E302), or a GPU may not be divided now (GPOOL-E107)
  10  gpool doctor found nothing worse than warnings; gpool mig drift found a difference; gpool latency
      --check found requests that take longer than is promised
  69  the supervisor is not reachable (GPOOL-E001)
  75  no capacity, try later (GPOOL-E2xx); gpool wait --timeout: the time is over; gpool
      latency --check: too few requests to say so; gpool forecast: too few weeks
  77  not permitted (GPOOL-E401)
  78  the configuration is not valid (GPOOL-E004)
  125 gpool run or exec did not start its command; otherwise its code is the command's

The page of a code: gpool doctor explain E201. The manual: /usr/share/doc/gpool.";

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        ExitCode::from(status as u8)
    }
}

impl From<ErrorCode> for ExitStatus {
    fn from(code: ErrorCode) -> Self {
        match code {
            ErrorCode::SupervisorAbsent => ExitStatus::SupervisorUnreachable,
            ErrorCode::ConfigurationInvalid => ExitStatus::ConfigurationInvalid,
            ErrorCode::RequestInvalid
            | ErrorCode::RequestKeyUnknown
            | ErrorCode::RequestFeatureMissing
            | ErrorCode::RequestNotAllowedFromEnv
            | ErrorCode::RequestNotAllowed
            | ErrorCode::LayoutNotPossible => ExitStatus::Usage,
            ErrorCode::ShareNotFree
            | ErrorCode::MemoryNotFree
            | ErrorCode::NoGpu
            | ErrorCode::NoMechanism
            | ErrorCode::TakenOutOfQueue
            | ErrorCode::QuotaReached
            | ErrorCode::DeadlineNotMet => ExitStatus::NoCapacity,
            ErrorCode::LeaseUnknown => ExitStatus::NotFound,
            ErrorCode::LeaseConflict | ErrorCode::LayoutFixed => ExitStatus::Conflict,
            ErrorCode::NotPermitted => ExitStatus::NotPermitted,
            _ => ExitStatus::Failed,
        }
    }
}

/// Why a command did not end with [`ExitStatus::Done`].
#[derive(Debug)]
pub enum Failure {
    /// A sentence for stderr and a code.
    Refused(ExitStatus, String),
    /// clap's own answer; `--help` and `--version` are among them.
    Clap(Box<clap::Error>),
    /// Whoever read stdout has gone. That is how `| head` ends, so it is success.
    ReaderGone,
}

impl Failure {
    /// Says what happened and gives the exit code.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Refused(status, sentence) => {
                // Nothing is left to do when stderr is closed as well.
                let _ = writeln!(std::io::stderr(), "{sentence}");
                status.into()
            }
            Failure::Clap(error) => {
                let _ = error.print();
                ExitCode::from(error.exit_code() as u8)
            }
            Failure::ReaderGone => ExitStatus::Done.into(),
        }
    }
}

/// What a file of the configuration that cannot be used ends a command with.
pub fn unusable(error: &ConfigurationError) -> Failure {
    let code = ErrorCode::ConfigurationInvalid;
    Failure::Refused(code.into(), format!("gpool: {error} [{}]", code.text()))
}

impl From<ErrorBody> for Failure {
    fn from(refusal: ErrorBody) -> Self {
        Failure::Refused(refusal.code.into(), refusal.to_string())
    }
}

impl Failure {
    /// Of several things that were asked for, each refusal a line, and the code of the first. None if there was none.
    pub fn of_all(refusals: &[ErrorBody]) -> Result<(), Self> {
        let Some(first) = refusals.first() else { return Ok(()) };
        let sentences: Vec<String> = refusals.iter().map(ToString::to_string).collect();
        Err(Failure::Refused(first.code.into(), sentences.join("\n")))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::ReaderGone,
            _ => Failure::Refused(ExitStatus::Failed, format!("gpool: the output cannot be written ({error})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_keep_their_documented_codes() {
        let codes = [
            (ErrorCode::SupervisorAbsent, 69),
            (ErrorCode::SupervisorFailed, 1),
            (ErrorCode::ConfigurationInvalid, 78),
            (ErrorCode::RequestInvalid, 2),
            (ErrorCode::RequestNotAllowed, 2),
            (ErrorCode::ShareNotFree, 75),
            (ErrorCode::MemoryNotFree, 75),
            (ErrorCode::LeaseUnknown, 3),
            (ErrorCode::LeaseConflict, 4),
            (ErrorCode::NotPermitted, 77),
            (ErrorCode::BundleInvalid, 1),
        ];
        for (code, want) in codes {
            assert_eq!(ExitStatus::from(code) as u8, want, "{}", code.text());
        }
    }

    #[test]
    fn each_of_several_refusals_is_told_and_the_first_one_counts() {
        let refusals = [
            ErrorBody::new(ErrorCode::LeaseUnknown, "a", "look"),
            ErrorBody::new(ErrorCode::LeaseConflict, "b", "look"),
        ];
        assert!(Failure::of_all(&[]).is_ok());
        let Err(Failure::Refused(status, sentence)) = Failure::of_all(&refusals) else { panic!("no refusal") };
        assert_eq!((status, sentence.lines().count()), (ExitStatus::NotFound, 2), "{sentence}");
    }

    /// What `gpool run` says itself ends with its own status, and no other verb says it.
    fn documented(code: ErrorCode) -> u8 {
        match code {
            ErrorCode::CommandNotPrepared => ExitStatus::NotStarted as u8,
            _ => ExitStatus::from(code) as u8,
        }
    }

    #[test]
    fn the_table_of_errors_has_the_status_of_each_code() {
        let page = include_str!("../../docs/errors.md");
        for code in ErrorCode::ALL {
            let start = format!("| [{}](#", code.text());
            let row = page.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{}", code.text()));
            let status = row.trim_end_matches('|').rsplit('|').next().unwrap().trim();
            assert_eq!(status, documented(code).to_string(), "{row}");
        }
    }

    #[test]
    fn the_table_of_exit_codes_has_each_error_where_it_belongs() {
        let page = include_str!("../../docs/reference/exit-codes.md");
        let own = page.split("\n## ").find(|section| section.starts_with("gpool\n")).unwrap();
        for code in ErrorCode::ALL {
            let short = format!("[{}](", code.text().trim_start_matches("GPOOL-"));
            let rows: Vec<&str> = own.lines().filter(|line| line.contains(&short)).collect();
            let start = format!("| {} |", documented(code));
            assert!(rows.len() == 1 && rows[0].starts_with(&start), "{} is not {start}: {rows:?}", code.text());
        }
        assert!(!own.contains(") to ["), "a range hides what is in it");
    }

    #[test]
    fn a_closed_pipe_is_success() {
        let failure = Failure::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(matches!(failure, Failure::ReaderGone));
    }
}
