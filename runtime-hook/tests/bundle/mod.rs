//! A bundle with busybox in it, and the cgroup directories that its containers leave.

use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const BUSYBOX: &str = "/bin/busybox";

/// The real runc, or none with the reason printed.
pub fn low_level_or_skip() -> Option<PathBuf> {
    let skip = |why: &str| {
        println!("skipped: {why}");
        None
    };
    if Path::new("/proc/self").metadata().is_ok_and(|own| own.uid() != 0) {
        return skip("only root can run containers here");
    }
    if !Path::new(BUSYBOX).exists() {
        return skip("no /bin/busybox (Debian: busybox-static)");
    }
    let known = ["/usr/bin/runc", "/usr/sbin/runc", "/usr/local/sbin/runc"].map(PathBuf::from);
    known.into_iter().find(|path| path.exists()).or_else(|| skip("no runc"))
}

/// The command line of containerd's shim for a bundle, with the verb that runs to the end.
pub fn command_line(bundle: &TestBundle) -> Vec<OsString> {
    let root = bundle.dir().join("runc-root");
    let mut line = vec!["--root".into(), root.into(), "--log".into(), bundle.log().into()];
    line.extend(["--log-format", "json", "run", "--bundle"].map(OsString::from));
    line.extend([bundle.dir().into(), bundle.id().into()]);
    line
}

/// A bundle in a temporary directory.
pub struct TestBundle {
    dir: tempfile::TempDir,
    id: String,
}

impl TestBundle {
    /// A bundle whose container runs `script`; `name` tells it from the bundles of other tests.
    pub fn new(name: &str, script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bundle = Self { dir, id: format!("gpool-hook-test-{name}-{}", std::process::id()) };
        for folder in ["rootfs/bin", "rootfs/usr/lib", "rootfs/usr/lib64"] {
            std::fs::create_dir_all(bundle.dir().join(folder)).unwrap();
        }
        std::fs::copy(BUSYBOX, bundle.dir().join("rootfs/bin/busybox")).unwrap();
        std::os::unix::fs::symlink("busybox", bundle.dir().join("rootfs/bin/sh")).unwrap();
        let made = Command::new(low_level_or_skip().unwrap()).arg("spec").current_dir(bundle.dir()).status().unwrap();
        assert!(made.success());
        bundle.change(|spec| {
            spec["process"]["terminal"] = json!(false);
            spec["process"]["args"] = json!(["/bin/sh", "-c", script]);
            // Raising limits takes a capability that root lacks on some machines.
            spec["process"].as_object_mut().unwrap().remove("rlimits");
            spec["linux"]["cgroupsPath"] = json!(format!("/{}", bundle.id()));
        });
        bundle
    }

    /// The bundle's directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The container's id, also the name of its cgroup.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its config.json.
    pub fn config(&self) -> PathBuf {
        self.dir().join("config.json")
    }

    /// Where the engine reads errors.
    pub fn log(&self) -> PathBuf {
        self.dir().join("log.json")
    }

    /// Writes a file into the bundle.
    pub fn put(&self, path: &str, text: &str) {
        std::fs::write(self.dir().join(path), text).unwrap();
    }

    /// Changes config.json in place.
    pub fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut spec = serde_json::from_slice(&std::fs::read(self.config()).unwrap()).unwrap();
        change(&mut spec);
        std::fs::write(self.config(), spec.to_string()).unwrap();
    }

    /// A lease with an edit of each kind; `covered` puts a driver library over the shim as the last edit.
    pub fn granted(&self, covered: bool) -> Value {
        let path = |name: &str| self.dir().join(name).display().to_string();
        let hook = env!("CARGO_BIN_EXE_gpool-hook");
        let mut edits = json!([
            {"kind": "device", "path": "/dev/leased", "major": 1, "minor": 5, "access": "rw"},
            {"kind": "mount", "source": path("control"), "destination": "/dev/gpool/control", "options": ["bind", "ro"]},
            {"kind": "library", "source": path("shim"), "file_name": "libcuda.so.1"},
            {"kind": "env", "name": "GPOOL_TEST", "value": "from the lease"},
            {"kind": "hook", "path": hook, "env": ["GPOOL_HOOK=1"],
             "args": ["gpool-hook", "create-runtime", "01TEST", "--socket", path("s"), "--shim", path("shim")]}
        ]);
        if covered {
            edits.as_array_mut().unwrap().push(json!(
                {"kind": "mount", "source": path("driver"), "destination": "/usr/lib/libcuda.so.1", "options": ["bind"]}
            ));
        }
        json!({"lease_id": "01TEST", "gpu_uuid": "GPU-test", "edits": edits})
    }
}

impl Drop for TestBundle {
    fn drop(&mut self) {
        // runc removes these itself unless a start failed half-way.
        let Ok(controllers) = std::fs::read_dir("/sys/fs/cgroup") else { return };
        for controller in controllers.flatten() {
            let _ = std::fs::remove_dir(controller.path().join(&self.id));
        }
        let _ = std::fs::remove_dir(Path::new("/sys/fs/cgroup").join(&self.id));
    }
}
