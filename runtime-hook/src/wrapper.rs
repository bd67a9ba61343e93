//! `gpool-runtime`: everything between the engine's call and the low-level runtime's.

use crate::argv::{Creation, Invocation, scan};
use crate::bundle::{Bundle, Config};
use crate::edits;
use crate::leasing::{Applicant, can_be_leased, lease_into};
use crate::low_level::{self, Launch};
use crate::report::report;
use crate::spec::{self, Described};
use crate::waiting;
use gpool_configuration::{Configuration, ConfigurationError};
use gpool_protocol::{ContainerId, ErrorBody, ErrorCode};
use serde_json::Value;
use std::ffi::OsString;
use std::path::PathBuf;

/// Exit status of every own error.
const FAILED: u8 = 1;
/// Exit status when the low-level runtime cannot be executed, as a shell has it.
const NOT_EXECUTED: u8 = 127;

/// Where gpool's files lie on this host. The program has them fixed; only tests have others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// The configuration file.
    pub configuration: PathBuf,
    /// The symbolic link that records the low-level runtime.
    pub low_level_link: PathBuf,
}

impl Default for Installation {
    fn default() -> Self {
        Self {
            configuration: gpool_configuration::DEFAULT_PATH.into(),
            low_level_link: "/run/gpool/low-level-runtime".into(),
        }
    }
}

/// Does what the engine asks for and becomes the low-level runtime. Returns an exit status only on failure,
/// which has been reported by then.
pub fn run(installation: &Installation, arguments: &[OsString]) -> u8 {
    let command_line = scan(arguments);
    let (error, status) = match choose(installation, &command_line.invocation) {
        Ok(program) => (Launch { program, arguments: arguments.to_vec() }.exec(), NOT_EXECUTED),
        Err(error) => (error, FAILED),
    };
    report(&error, command_line.log.as_deref());
    status
}

/// Everything up to the exec: leases and edits if the container asks for a share, and says what to execute.
///
/// # Errors
/// A request that cannot be honoured, or no usable low-level runtime. Without a request only the latter.
pub fn prepare(installation: &Installation, arguments: &[OsString]) -> Result<Launch, ErrorBody> {
    let program = choose(installation, &scan(arguments).invocation)?;
    Ok(Launch { program, arguments: arguments.to_vec() })
}

fn choose(installation: &Installation, invocation: &Invocation) -> Result<PathBuf, ErrorBody> {
    match invocation {
        Invocation::PassThrough => low_level::recorded(&installation.low_level_link, &installation.configuration),
        Invocation::Create(creation) => prepare_creation(installation, creation),
    }
}

fn prepare_creation(installation: &Installation, creation: &Creation) -> Result<PathBuf, ErrorBody> {
    let requested = find_request(creation)?;
    let configuration = gpool_configuration::load(&installation.configuration);
    // Nor those for which it may have a default, where it cannot be read.
    let requested = requested.filter(|its| configuration.is_ok() || !its.described.may_have_default());
    let Some(requested) = requested else {
        // A broken configuration must not stop containers that want nothing of gpool. A pod with variables by which schedulers
        // give parts of GPUs wants one, from whoever the configuration says.
        return match configuration {
            Ok(configuration) => low_level::configured(&configuration.runtime.low_level, &installation.low_level_link),
            Err(_) => low_level::recorded(&installation.low_level_link, &installation.configuration),
        };
    };
    let configuration = configuration.map_err(unusable_configuration)?;
    // Before the lease: without a low-level runtime there is nothing to lease for.
    let program = low_level::configured(&configuration.runtime.low_level, &installation.low_level_link)?;
    honour(requested, creation, &configuration)?;
    Ok(program)
}

/// A container that asks for a share, or that the scheduler of a cluster may have given one, or the host's configuration.
struct Requested {
    bundle: Bundle,
    config: Config,
    spec: Value,
    described: Described,
}

/// None for a container that is to have nothing of gpool. A bundle or file that is not there is left to the low-level runtime,
/// which says so in its own words.
fn find_request(creation: &Creation) -> Result<Option<Requested>, ErrorBody> {
    let Ok(bundle) = Bundle::open(&creation.bundle) else { return Ok(None) };
    let Some(config) = bundle.read()? else { return Ok(None) };
    if !spec::may_hold_request(&config.bytes) {
        return Ok(None);
    }
    let spec = bundle.parse(&config)?;
    let described = Described::read(&spec);
    if !described.has_request() && !described.may_be_placed() && !described.may_have_default() {
        return Ok(None);
    }
    Ok(Some(Requested { bundle, config, spec, described }))
}

fn honour(requested: Requested, creation: &Creation, configuration: &Configuration) -> Result<(), ErrorBody> {
    let Requested { bundle, config, mut spec, described } = requested;
    let described = described.into_placed_by(configuration.policy.placed_by)?;
    if !described.has_request() {
        let is_for_default = configuration.default_request.visible_devices && described.may_have_default();
        edits::without_legacy_hooks(&mut spec);
        // One that could undo its share, or cannot have one, is left as it is: it has never asked gpool for it.
        let is_fit = || bundle.check_editable(&config).is_ok() && can_be_leased(&spec, bundle.path(), configuration);
        if !is_for_default || !is_fit() {
            return Ok(());
        }
    }
    bundle.check_editable(&config)?;
    let container = Applicant {
        container_id: container_id(creation)?,
        bundle: bundle.path(),
        asked_for_parent: false,
        starts_once: false,
        is_command: false,
        asks_for_gpus: true,
        maker: waiting::maker(),
        // Engines show nothing of a runtime that has not failed; the supervisor's log has it.
        on_waiting: |_| (),
    };
    let leased = lease_into(&mut spec, &described, &container, configuration)?;
    let Some(leased) = leased else { return Ok(()) };
    bundle.replace(&config, &spec).inspect_err(|_| leased.give_back())
}

fn container_id(creation: &Creation) -> Result<ContainerId, ErrorBody> {
    match creation.container_id.as_ref().map(|id| id.to_str()) {
        Some(Some(id)) => Ok(ContainerId(id.to_owned())),
        _ => Err(ErrorBody::new(
            ErrorCode::BundleInvalid,
            "the command line names no container id in plain text",
            "give one as the last argument",
        )),
    }
}

pub(crate) fn unusable_configuration(error: ConfigurationError) -> ErrorBody {
    let lines = error.to_string();
    let text: Vec<&str> = lines.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    ErrorBody::new(ErrorCode::ConfigurationInvalid, text.join(" "), "correct the file; gpool needs it for a share")
}
