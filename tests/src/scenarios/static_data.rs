//! Programs with variables, loaded as modules and as libraries in several contexts: each variable is there and usable, by
//! the hardware's meter no byte is above the cap and each is held from load to unload or to SIGKILL, and what does not
//! fit is refused with the driver's code.

use super::{finish, start_knowing_contexts};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host};
use crate::meter::{MeterReader, usage_of};
use crate::namespaces::Inside;
use gpool_device_model::{DeviceParameters, rounded_bytes};
use std::time::{Duration, Instant};

/// A kind of program, where libraries are loaded, the contexts that there are in the end, and how many of them hold and
/// are charged for its data. A managed variable is held once.
const KINDS: [(&str, &str, u64, u64, u64); 9] = [
    ("module", "LAZY", 1, 1, 1),
    ("module", "LAZY", 2, 2, 2),
    ("module-file", "LAZY", 2, 2, 2),
    ("library", "LAZY", 3, 3, 3),
    ("library-file", "EAGER", 3, 3, 3),
    ("first-context", "LAZY", 3, 1, 3),
    ("first-context", "EAGER", 3, 3, 3),
    ("managed", "LAZY", 3, 1, 3),
    ("managed", "EAGER", 3, 1, 3),
];
/// Too large for two contexts, and too large for the third: the call that is refused.
const TOO_LARGE: [(u64, &str); 2] = [(5000, "cuLibraryLoadData"), (3500, "cuCtxCreate")];
const MIB: u64 = 1 << 20;
const DATA_MIB: u64 = 512;
/// What stands beside the large variable.
const TABLE_BYTES: u64 = 16;
const CAP_BYTES: u64 = 8192 * MIB;
const PATIENCE: Duration = Duration::from_secs(10);
/// The supervisor asks NVML once a second, and learns what a context costs from processes that have one.
const LOOKS: Duration = Duration::from_secs(3);

/// Loads each kind twice: unloaded once, and killed once.
pub fn run(inside: &Inside) -> Result<()> {
    // The account is compared to the byte, and who loads programs shows what a context costs only roughly.
    let host = start_knowing_contexts(inside)?;
    let outcome = load_all(&host);
    finish(host, outcome)
}

fn load_all(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.8"), ("GPOOL_MEMORY", "8GiB")];
    let container = host.run_container("programs", &env, &[], &["sleep", "1000"])?;
    let stand = Stand { host, container, reader: host.meter()? };
    for (kind, loading, contexts, holding, charged) in KINDS {
        let one = One { kind, loading, contexts, holding, charged };
        stand.load_and_kill(&one).context(format!("{kind}, {loading}"))?;
        stand.load_and_unload(&one).context(format!("{kind}, {loading}, unloaded"))?;
    }
    TOO_LARGE.iter().try_for_each(|(mib, call)| stand.refused(*mib, call))
}

/// A line of [`KINDS`].
struct One {
    kind: &'static str,
    loading: &'static str,
    contexts: u64,
    holding: u64,
    charged: u64,
}

impl One {
    /// What its contexts hold, with and without data in them.
    fn held_bytes(&self, with_data: bool) -> u64 {
        let contexts = self.contexts * DeviceParameters::default().context_bytes;
        let data = match self.kind {
            // The table is each context's own.
            "managed" => DATA_MIB * MIB + self.contexts * rounded_bytes(TABLE_BYTES),
            _ => self.holding * rounded_bytes(DATA_MIB * MIB + TABLE_BYTES),
        };
        contexts + if with_data { data } else { 0 }
    }

    fn charged_bytes(&self, with_data: bool) -> u64 {
        let data = self.charged * rounded_bytes(DATA_MIB * MIB + TABLE_BYTES);
        self.held_bytes(false) + if with_data { data } else { 0 }
    }
}

struct Stand<'a> {
    host: &'a Host,
    container: Container,
    reader: MeterReader,
}

impl Stand<'_> {
    fn load_and_kill(&self, one: &One) -> Result<()> {
        self.start(one, "")?;
        self.wait_until_said("\"loaded\"")?;
        self.holds(one.held_bytes(true), one.charged_bytes(true))?;
        if one.contexts == 1 {
            std::thread::sleep(LOOKS);
            self.holds(one.held_bytes(true), one.charged_bytes(true)).context("after it was looked at")?;
        }
        // Whoever takes the rest gets no more.
        let fill = ["exec", "programs", "gpool-tenant", "--chunk-mib", "64", "--seconds", "1"];
        self.host.engine.docker_text(&fill)?;
        let peak = usage_of(&self.reader.read()?, &self.container.id).bytes_peak;
        ensure(peak <= CAP_BYTES, || format!("{peak} bytes were held"))?;
        self.kill()?;
        self.holds(0, 0)
    }

    fn load_and_unload(&self, one: &One) -> Result<()> {
        self.start(one, "--unload")?;
        self.wait_until_said("\"unloaded\"")?;
        self.holds(one.held_bytes(false), one.charged_bytes(false))?;
        self.kill()?;
        self.holds(0, 0)
    }

    fn start(&self, one: &One, more: &str) -> Result<()> {
        let contexts = if one.kind.starts_with("module") { one.contexts } else { one.contexts - 1 };
        let tenant = format!(
            "CUDA_MODULE_LOADING={} exec gpool-tenant --program {} --contexts {contexts} --chunk-mib {DATA_MIB} {more} \
             > /tmp/said 2>&1",
            one.loading, one.kind
        );
        self.host.engine.docker_text(&["exec", "-d", "programs", "sh", "-c", &tenant]).map(drop)
    }

    fn wait_until_said(&self, event: &str) -> Result<()> {
        eventually(|| {
            let said = self.host.engine.docker_text(&["exec", "programs", "cat", "/tmp/said"]).unwrap_or_default();
            ensure(said.contains(event), || format!("no {event}: {said:?}"))
        })?;
        self.host.engine.docker_text(&["exec", "programs", "rm", "/tmp/said"]).map(drop)
    }

    /// The device and the account say this.
    fn holds(&self, held: u64, charged: u64) -> Result<()> {
        eventually(|| {
            let found = usage_of(&self.reader.read()?, &self.container.id).bytes_now;
            ensure(found == held, || format!("{found} bytes are held instead of {held}"))?;
            let found = self.host.lease_of(&self.container)?.memory_used_bytes;
            ensure(found == charged, || format!("{found} bytes are charged instead of {charged}"))
        })
    }

    fn kill(&self) -> Result<()> {
        self.host.engine.docker_text(&["exec", "programs", "killall", "-9", "gpool-tenant"]).map(drop)
    }

    /// A library of this size is refused at this call, and nothing of it stays.
    fn refused(&self, mib: u64, call: &str) -> Result<()> {
        let tenant = format!("gpool-tenant --program library --contexts 2 --chunk-mib {mib}; true");
        let said = self.host.engine.docker_text(&["exec", "programs", "sh", "-c", &tenant])?;
        let wanted = format!("{{\"event\":\"error\",\"call\":\"{call}\",\"code\":2}}");
        ensure(said.contains(&wanted), || format!("{mib} MiB in each context: {said}"))?;
        let peak = usage_of(&self.reader.read()?, &self.container.id).bytes_peak;
        ensure(peak <= CAP_BYTES, || format!("{peak} bytes were held"))?;
        self.holds(0, 0).context(format!("refused {call}"))
    }
}

fn eventually(check: impl Fn() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let outcome = check();
        if outcome.is_ok() || Instant::now() > deadline {
            return outcome;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
