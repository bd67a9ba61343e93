//! The configuration in force. A reload puts another one in its place as a whole; what cannot change while the supervisor
//! runs keeps its old value until it is started again.

use gpool_configuration::{
    Audit, Configuration, ConfigurationError, Difference, Driver, Effect, Ledger, Policy, Queue, Socket, differences,
    flat, load,
};
use gpool_protocol::{ChangedKey, ConfigurationView, Reloaded};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The configuration in force, and the file that it comes from.
pub struct Settings {
    path: PathBuf,
    current: RwLock<Arc<Configuration>>,
    /// What was read at the start, or by the last reload that was not refused; some of it may wait for a restart.
    taken_over: RwLock<Arc<Configuration>>,
    /// Why the files cannot be used, if they could not when that was tried last.
    unusable: RwLock<Option<String>>,
    /// Held while the files are tried and what came of it is noted.
    trying: Mutex<()>,
}

impl Settings {
    /// What was read from `path` at the start.
    pub fn new(path: PathBuf, configuration: Configuration) -> Self {
        let configuration = Arc::new(configuration);
        let (current, taken_over) = (RwLock::new(configuration.clone()), RwLock::new(configuration));
        Self { path, current, taken_over, unusable: RwLock::default(), trying: Mutex::default() }
    }

    /// What the next start has to begin with if the files cannot be used then.
    pub fn taken_over(&self) -> Arc<Configuration> {
        self.taken_over.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// While it is held nobody else tries the files.
    pub fn trying(&self) -> MutexGuard<'_, ()> {
        self.trying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the files could be used when that was tried last; if not, why.
    pub fn unusable(&self) -> Option<String> {
        self.unusable.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what has come of trying that. Whether it is another thing than before.
    pub fn note_unusable(&self, unusable: Option<String>) -> bool {
        let mut known = self.unusable.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = *known != unusable;
        *known = unusable;
        is_new
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The configuration in force now. Whoever holds it while another takes its place finishes with the old one.
    pub fn current(&self) -> Arc<Configuration> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For whoever asks what holds.
    pub fn view(&self) -> ConfigurationView {
        let keys = flat(&self.current()).into_iter().map(|(key, value)| (key, value.to_string())).collect();
        ConfigurationView { path: self.path.display().to_string(), keys, unusable: self.unusable() }
    }

    /// Reads the files again and puts into force what may change now.
    ///
    /// # Errors
    /// When the files cannot be used; the configuration in force stays as it is.
    pub fn reload(&self) -> Result<Reloaded, ConfigurationError> {
        let _alone = self.trying();
        let wanted = load(&self.path).inspect_err(|error| {
            self.note_unusable(Some(error.to_string()));
        })?;
        self.note_unusable(None);
        let old = self.current();
        let new = in_force(&old, &wanted);
        let reloaded = Reloaded {
            applied: differences(&old, &new).into_iter().map(told).collect(),
            needs_restart: differences(&new, &wanted).into_iter().map(told).collect(),
        };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        *self.taken_over.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(wanted);
        Ok(reloaded)
    }
}

/// `wanted` but for the keys that need a restart ([`Effect::Restart`]): places that are in use, and the driver.
fn in_force(old: &Configuration, wanted: &Configuration) -> Configuration {
    let wanted = wanted.clone();
    let is_counted = old.ledger.is_kept() || wanted.first_that_counts().is_none();
    let new = Configuration {
        socket: Socket { group: wanted.socket.group, ..old.socket.clone() },
        driver: Driver {
            compat: wanted.driver.compat,
            memory_limits: wanted.driver.memory_limits,
            ..old.driver.clone()
        },
        runtime: wanted.runtime,
        // What these need is set up at the start: a right that is given up otherwise, and threads.
        policy: Policy { mps: old.policy.mps, timeslice_shares: old.policy.timeslice_shares, ..wanted.policy },
        default_request: wanted.default_request,
        class: wanted.class,
        lease: wanted.lease,
        spill: wanted.spill,
        queue: Queue {
            half_life_days: if is_counted { wanted.queue.half_life_days } else { old.queue.half_life_days },
            ..wanted.queue
        },
        overflow: wanted.overflow,
        preemption: wanted.preemption,
        latency: wanted.latency,
        run_time: wanted.run_time,
        // What the ledger does not count bounds nobody: it begins with the next start.
        quota: if is_counted { wanted.quota } else { old.quota.clone() },
        reservation: wanted.reservation,
        mig: wanted.mig,
        health: wanted.health,
        team: wanted.team,
        rates: wanted.rates,
        ledger: Ledger { path: old.ledger.path.clone(), ..wanted.ledger },
        audit: Audit { directory: old.audit.directory.clone(), ..wanted.audit },
        ..old.clone()
    };
    debug_assert!(differences(old, &new).iter().all(|change| Effect::of(&change.key) != Effect::Restart));
    new
}

fn told(difference: Difference) -> ChangedKey {
    ChangedKey { key: difference.key, old: difference.old, new: difference.new }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_configuration::catalogue;
    use std::collections::BTreeSet;
    use std::fs;

    fn settings(text: &str) -> (tempfile::TempDir, Settings) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        fs::write(&path, text).unwrap();
        let configuration = load(&path).unwrap();
        (directory, Settings::new(path, configuration))
    }

    fn keys(changes: &[ChangedKey]) -> Vec<&str> {
        changes.iter().map(|change| change.key.as_str()).collect()
    }

    #[test]
    fn what_may_change_is_in_force_at_once_and_the_rest_is_named() {
        let (directory, settings) = settings("");
        let file = directory.path().join("config.toml");
        fs::write(&file, "[lease]\nhold_ms = 5\n[paths]\nrun_dir = \"/run/other\"\n").unwrap();
        fs::create_dir(directory.path().join("conf.d")).unwrap();
        fs::write(directory.path().join("conf.d/10.toml"), "[class.train]\nfail_open = false\n").unwrap();
        let reloaded = settings.reload().unwrap();
        assert_eq!(keys(&reloaded.applied), ["class.train.fail_open", "lease.hold_ms"]);
        assert_eq!(keys(&reloaded.needs_restart), ["paths.run_dir"]);
        let now = settings.current();
        assert!(now.lease.hold_ms == 5 && !now.class.train.fail_open);
        assert_eq!(now.paths, Configuration::default().paths);
        assert_eq!(settings.view().keys["lease.hold_ms"], "5");
        let again = settings.reload().unwrap();
        assert_eq!((again.applied.len(), keys(&again.needs_restart)), (0, vec!["paths.run_dir"]));
    }

    #[test]
    fn hours_are_bounded_when_there_is_a_ledger_that_counts_them() {
        let (directory, settings) = settings("[ledger]\npath = \"\"\n");
        let with_hours = "[quota.no_team]\nleases = 3\ngpu_hours = \"5/day\"\n";
        fs::write(directory.path().join("config.toml"), with_hours).unwrap();
        let reloaded = settings.reload().unwrap();
        assert_eq!(keys(&reloaded.needs_restart), ["ledger.path", "quota.no_team.gpu_hours", "quota.no_team.leases"]);
        assert!(reloaded.applied.is_empty() && settings.current().quota.is_empty());
    }

    #[test]
    fn files_that_cannot_be_used_change_nothing() {
        let (directory, settings) = settings("[lease]\nhold_ms = 5\n");
        let before = settings.current();
        for text in ["[lease]\nhold_ms = 6\n[clas]\n", "[lease]\nhold_ms = 6\n[class.batch]\nhang_seconds = 0\n", "[["]
        {
            fs::write(directory.path().join("config.toml"), text).unwrap();
            assert!(settings.reload().is_err(), "{text}");
            assert_eq!(settings.current(), before);
        }
    }

    /// A configuration in which every key differs from the default, and the keys that it takes over now.
    #[test]
    fn each_key_changes_when_the_manual_says_so() {
        let text = r#"
            [paths]
            run_dir = "/a"
            shim_dir = "/b"
            state_dir = "/s"
            hook = "/c"
            [socket]
            path = "/d"
            group = "other"
            [driver]
            nvml = "/e"
            gpus = ["GPU-51313131-0000-4000-8000-000000000000"]
            min_memory = "8GiB"
            headroom_bytes = 1
            library_dirs = ["/i"]
            compat = "image"
            program_dirs = ["/j"]
            device_dir = "/f"
            proc_dir = "/l"
            context_bytes = 1
            memory_limits = false
            mount = [{ source = "/g" }]
            [runtime]
            low_level = ["/k"]
            supervisor_patience_seconds = 5
            [policy]
            classes = ["batch"]
            unenforced = true
            rootless_group = "gpu"
            timeslice = true
            timeslice_shares = true
            mps = true
            namespace_teams = true
            counted_pods = true
            counted_memory_percent = 105
            placed_by = "kai"
            env.allow = []
            [default_request]
            fraction = "0.25"
            memory = "8GiB"
            class = "notebook"
            priority = "burst"
            visible_devices = true
            [lease]
            hold_ms = 1
            [spill]
            memory = "1GiB"
            [queue]
            places = 5
            longest_wait_seconds = 6
            keep_seconds = 7
            backfill = false
            half_life_days = 7
            [overflow]
            after_seconds = 9
            clear_seconds = 10
            [preemption]
            enabled = true
            after_seconds = 4
            grace_seconds = 5
            least_run_seconds = 6
            signal = "SIGUSR1"
            action = "suspend"
            [latency]
            action = "hold"
            hold_seconds = 30
            [run_time]
            notice_seconds = 8
            signal = "none"
            [quota]
            default_team = { gpus = "1", memory = "1GiB", leases = 1, gpu_hours = "1/day", container_gpus = "1", container_memory = "1GiB" }
            no_team = { gpus = "1", memory = "1GiB", leases = 1, gpu_hours = "1/day", container_gpus = "1", container_memory = "1GiB" }
            default_user = { gpus = "1", memory = "1GiB", leases = 1, gpu_hours = "1/day", container_gpus = "1", container_memory = "1GiB" }
            team.vision.gpus = "1"
            user.1000.leases = 1
            [health]
            drain_xids = [8]
            contained_faults = 3
            poll_seconds = 9
            drain_on = ["thermal"]
            thermal_seconds = 10
            [reservation.serving]
            users = [7]
            [team.vision]
            cost_center = "4711"
            shares = 2
            [rates]
            currency = "EUR"
            beyond_share = "0.5"
            low_priority = "0.5"
            lent_credit = "0.5"
            price = [{ per_gpu_hour = "1" }]
            [audit]
            directory = "/n"
            keep_days = 5
            most_mib = 65
            [ledger]
            path = "/m"
            minute_days = 7
            hour_days = 80
            [mig]
            layout = "/h"
            config = "other"
            windows = ["Sun 02:00-04:00"]"#;
        let class = "fail_open = false\nliar_action = \"event\"\nbypass_action = \"kill\"\nhang_action = \"stop\"\n\
                     hang_seconds = 9\nhang_seconds_latency_waits = 3\nfailed_action = \"stop\"\nidle_action = \"yield\"\nidle_seconds = 5\n\
                     idle_grace_seconds = 6\nlongest_run_seconds = 7\n";
        let classes: String =
            ["latency", "batch", "notebook", "train"].map(|name| format!("\n[class.{name}]\n{class}")).concat();
        let (_directory, settings) = settings(&(text.to_owned() + &classes));
        let wanted = settings.current();
        let old = Configuration::default();
        let all = differences(&old, &wanted);
        // Of teams, users and reservations there are as many tables as the file has.
        let named = |key: &str| {
            ["quota.team", "quota.user", "reservation", "team"]
                .into_iter()
                .find(|all| key.starts_with(&format!("{all}.")))
        };
        let changed: BTreeSet<&str> = all.iter().map(|it| named(&it.key).unwrap_or(&it.key)).collect();
        let known = catalogue();
        assert_eq!(changed, known.iter().map(|key| key.name.as_str()).collect(), "a key is missing here");
        let new = in_force(&old, &wanted);
        for change in &all {
            let applied = differences(&old, &new).iter().any(|applied| applied.key == change.key);
            assert_eq!(applied, Effect::of(&change.key) != Effect::Restart, "{}", change.key);
        }
    }
}
