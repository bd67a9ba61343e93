//! The files of the driver that a leased container gets: device nodes, libraries, and our shims in front of two.

use super::Gpu;
use super::builds::BUILDS_DIR;
use super::capabilities::{access_files, minors};
use super::kept_nvml::KeptNvml;
use super::shims::{Chosen, SHIMMED, Shims};
use gpool_configuration::Configuration;
use gpool_protocol::{BuildId, Edit};
use gpool_shared_region::REGION_DIR;
use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the driver's libraries load on their own account; mounted where the host has them.
const COMPANIONS: [&str; 6] = [
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-nvvm.so.70",
    "libnvidia-nvvm70.so.4",
    "libcudadebugger.so.1",
    "libnvidia-allocator.so.1",
];
/// What programs load beside libcuda to reach the GPU, past any shim: only where there are none.
const PAST_SHIMS: [&str; 1] = ["libnvidia-opencl.so.1"];
/// The same of those that they load by a name that ends with the driver's version. Source: what libcuda.so of 580.178.04
/// and 595.99.02 name.
const VERSIONED: [&str; 4] =
    ["libnvidia-gpucomp.so", "libnvidia-pkcs11.so", "libnvidia-pkcs11-openssl3.so", "libnvidia-tileiras.so"];
/// The driver's programs that a container gets where the host has them, and over one that the image has: they refuse
/// NVML of another driver.
const PROGRAMS: [&str; 1] = ["nvidia-smi"];
/// Where they are in a container.
const PROGRAM_DIR: &str = "/usr/bin";
/// Nodes that every GPU container needs beside its GPU, with what makes them: without nvidia-uvm CUDA does not start.
/// Source of the options: nvidia-modprobe.c, where -u makes no node but those that -c asks for.
const CONTROL_NODES: [(&str, &str); 2] =
    [("nvidiactl", "nvidia-modprobe -c 255"), ("nvidia-uvm", "nvidia-modprobe -u -c 0")];
/// What only debuggers and profilers need.
const TOOLS_NODE: &str = "nvidia-uvm-tools";
/// What a container may do with a node. No "m": it has no business making nodes of GPUs.
const ACCESS: &str = "rw";

/// A file of the driver that is not where the configuration says; the text names the key.
#[derive(Debug, thiserror::Error)]
pub enum DriverFilesError {
    /// A library is in none of the directories.
    #[error("{name} is in none of driver.library_dirs ({dirs})")]
    Library {
        /// The library.
        name: &'static str,
        /// Where it was looked for.
        dirs: String,
    },
    /// No shim is installed.
    #[error("no shim is installed, not even {path} (paths.shim_dir)")]
    Shim {
        /// Where one should be.
        path: String,
    },
    /// A library cannot be read.
    #[error("{path} cannot be read as a library ({cause}); install the driver or gpool again")]
    Unreadable {
        /// The library.
        path: String,
        /// Why not.
        cause: String,
    },
    /// The capabilities of a MIG instance are not known.
    #[error(transparent)]
    Capabilities(#[from] super::capabilities::CapabilitiesError),
    /// A device node is not there.
    #[error("{path} is no character device (driver.device_dir); {remedy} makes it, as root")]
    Node {
        /// Where it should be.
        path: String,
        /// The command that makes it.
        remedy: String,
    },
}

/// Where the driver's files and the shims are; looked at again for each container, since packages replace them.
#[derive(Debug)]
pub struct DriverFiles {
    driver: gpool_configuration::Driver,
    shim_dir: PathBuf,
    shims: Shims,
}

/// What of the driver a container gets beside its device nodes.
struct Libraries {
    edits: Vec<Edit>,
    chosen: Arc<Chosen>,
}

impl DriverFiles {
    /// Looks where the configuration says.
    ///
    /// # Errors
    /// When a library that cannot be done without, or a shim, is not there.
    pub fn find(configuration: &Configuration) -> Result<Self, DriverFilesError> {
        let (driver, shim_dir) = (configuration.driver.clone(), configuration.paths.shim_dir.clone());
        let files = Self { driver, shim_dir, shims: Shims::default() };
        files.libraries()?;
        Ok(files)
    }

    /// The driver's own libraries, in the order of [`SHIMMED`].
    ///
    /// # Errors
    /// When one is nowhere.
    pub fn real(&self) -> Result<[PathBuf; 2], DriverFilesError> {
        let [cuda, nvml] = SHIMMED.map(|(name, _)| {
            let dirs = || self.driver.library_dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>();
            let no_library = || DriverFilesError::Library { name, dirs: dirs().join(", ") };
            self.look_for(name).map(|path| resolved(&path)).ok_or_else(no_library)
        });
        Ok([cuda?, nvml?])
    }

    /// The version of the driver's libraries, where NVML's name says it. If it is another one than the kernel module's, no program
    /// can use a GPU that begins now. A libcuda may be newer, by a package for forward compatibility.
    pub fn version(&self) -> Option<String> {
        let [_, nvml] = self.real().ok()?;
        version_in(&nvml, "libnvidia-ml.so.")
    }

    /// Where NVML is kept as it last worked.
    pub fn kept_nvml(&self) -> KeptNvml {
        KeptNvml::in_directory(&self.shim_dir.join(BUILDS_DIR))
    }

    /// The shims for the driver as it is installed now.
    ///
    /// # Errors
    /// When the driver or every shim is missing.
    pub fn shims(&self) -> Result<Arc<Chosen>, DriverFilesError> {
        self.shims.for_driver(&self.shim_dir, &self.real()?)
    }

    /// Removes kept builds of shims that neither `used` names nor new containers get.
    pub fn remove_unused_shims(&self, used: impl Iterator<Item = BuildId>) {
        self.shims.remove_unused(&self.shim_dir, used);
    }

    /// A program of the driver in the first of these directories that has it.
    pub fn program(directories: &[PathBuf], name: &str) -> Option<PathBuf> {
        directories.iter().map(|directory| directory.join(name)).find(|path| path.is_file())
    }

    fn look_for(&self, name: &str) -> Option<PathBuf> {
        self.driver.library_dirs.iter().map(|dir| dir.join(name)).find(|path| path.exists())
    }

    fn libraries(&self) -> Result<Libraries, DriverFilesError> {
        let (real, chosen) = (self.real()?, self.shims()?);
        let mut edits = Vec::new();
        for (real, shim) in real.iter().zip(&chosen.shims) {
            let name = shim.library;
            edits.push(read_only_mount(real, &format!("{REGION_DIR}/real/{name}")));
            edits.push(Edit::Library { source: shim.path.display().to_string(), file_name: name.into() });
        }
        edits.extend(self.beside_the_two(&[]));
        Ok(Libraries { edits, chosen })
    }

    /// What of the driver comes along, whether there are shims in front of it or not, and of it what is in `more`.
    fn beside_the_two(&self, more: &[&str]) -> Vec<Edit> {
        let mut edits = Vec::new();
        let version = self.real().ok().and_then(|[cuda, _]| version_in(&cuda, "libcuda.so."));
        let versioned = version.iter().flat_map(|version| VERSIONED.map(|name| format!("{name}.{version}")));
        for name in COMPANIONS.iter().chain(more).map(|name| (*name).to_owned()).chain(versioned) {
            if let Some(path) = self.look_for(&name) {
                edits.push(Edit::Library { source: resolved(&path).display().to_string(), file_name: name });
            }
        }
        edits.extend(programs(&self.driver.program_dirs));
        for mount in &self.driver.mounts {
            let destination = mount.destination.as_ref().unwrap_or(&mount.source);
            let access = if mount.read_only { "ro" } else { "rw" };
            edits.push(Edit::Mount {
                source: mount.source.display().to_string(),
                destination: destination.display().to_string(),
                options: ["rbind", access, "nosuid", "nodev", "rprivate"].map(String::from).to_vec(),
            });
        }
        edits
    }

    /// The edits that bring the driver and exactly these GPUs, in NVML's order, into a container.
    ///
    /// # Errors
    /// When a device node or a library is not there.
    pub fn edits(&self, gpus: &[&Gpu]) -> Result<(Vec<Edit>, Arc<Chosen>), DriverFilesError> {
        let mut edits = self.nodes(gpus)?;
        let Libraries { edits: libraries, chosen } = self.libraries()?;
        edits.extend(libraries);
        edits.extend(environment(gpus));
        Ok((edits, chosen))
    }

    /// The edits that bring exactly these GPUs and the driver itself, and its two libraries.
    ///
    /// # Errors
    /// When a device node or a library is not there.
    pub fn edits_without_shims(&self, gpus: &[&Gpu]) -> Result<(Vec<Edit>, [PathBuf; 2]), DriverFilesError> {
        let (mut edits, real) = (self.nodes(gpus)?, self.real()?);
        for (path, (name, _)) in real.iter().zip(SHIMMED) {
            edits.push(Edit::Library { source: path.display().to_string(), file_name: name.into() });
        }
        edits.extend(self.beside_the_two(&PAST_SHIMS));
        edits.extend(environment(gpus));
        Ok((edits, real))
    }

    fn nodes(&self, gpus: &[&Gpu]) -> Result<Vec<Edit>, DriverFilesError> {
        let of_gpu = |gpu: &&Gpu| {
            let remedy = format!("nvidia-modprobe -c {}", gpu.minor);
            self.node(&format!("nvidia{}", gpu.minor), ACCESS, &remedy)
        };
        let mut edits = gpus.iter().map(of_gpu).collect::<Result<Vec<Edit>, _>>()?;
        for (name, remedy) in CONTROL_NODES {
            edits.push(self.node(name, ACCESS, remedy)?);
        }
        edits.extend(self.node(TOOLS_NODE, ACCESS, "").ok());
        for gpu in gpus {
            edits.extend(self.capability_nodes(gpu)?);
        }
        Ok(edits)
    }

    /// The two nodes that let a container use a MIG instance; none for a whole GPU.
    fn capability_nodes(&self, gpu: &Gpu) -> Result<Vec<Edit>, DriverFilesError> {
        let Some(instance) = gpu.instance() else { return Ok(Vec::new()) };
        let proc_dir = &self.driver.proc_dir;
        let minors = minors(proc_dir, gpu.minor, instance)?;
        let node = |(minor, file): (u32, PathBuf)| {
            let remedy = format!("nvidia-modprobe -f {}", file.display());
            self.node(&format!("nvidia-caps/nvidia-cap{minor}"), "r", &remedy)
        };
        minors.into_iter().zip(access_files(proc_dir, gpu.minor, instance)).map(node).collect()
    }

    /// Why the containers of one of these GPUs cannot have its instance, or would lose it when systemd loads its units
    /// anew: a node of it is missing, or its link in `links`, which is `/dev/char`.
    pub fn missing_of_instances(&self, gpus: &[Gpu], links: &Path) -> Option<String> {
        gpus.iter().find_map(|gpu| match self.capability_nodes(gpu) {
            Err(error) => Some(error.to_string()),
            Ok(nodes) => nodes.iter().find_map(|node| {
                let Edit::Device { major, minor, source, .. } = node else { return None };
                let link = links.join(format!("{major}:{minor}"));
                (!link.exists()).then(|| format!("{} does not lead to {source}", link.display()))
            }),
        })
    }

    /// Major and minor numbers of the device nodes of `gpus`; one that is not there now is left out.
    pub fn gpu_devices(&self, gpus: &[Gpu]) -> BTreeSet<(u32, u32)> {
        let number = |gpu: &Gpu| {
            let node = std::fs::metadata(self.driver.device_dir.join(format!("nvidia{}", gpu.minor))).ok()?;
            node.file_type().is_char_device().then(|| (rustix::fs::major(node.rdev()), rustix::fs::minor(node.rdev())))
        };
        gpus.iter().filter_map(number).collect()
    }

    fn node(&self, name: &str, access: &str, remedy: &str) -> Result<Edit, DriverFilesError> {
        let path = self.driver.device_dir.join(name);
        let node = std::fs::metadata(&path).ok().filter(|metadata| metadata.file_type().is_char_device());
        let missing = || DriverFilesError::Node { path: path.display().to_string(), remedy: remedy.to_owned() };
        let node = node.ok_or_else(missing)?;
        let (major, minor) = (rustix::fs::major(node.rdev()), rustix::fs::minor(node.rdev()));
        Ok(Edit::Device {
            path: format!("/dev/{name}"),
            source: path.display().to_string(),
            major: major.into(),
            minor: minor.into(),
            access: access.into(),
        })
    }
}

/// What the container's programs are told of these GPUs.
fn environment(gpus: &[&Gpu]) -> Vec<Edit> {
    // An NVIDIA wrapper behind us must not inject the driver a second time.
    let mut edits = vec![Edit::Env { name: "NVIDIA_VISIBLE_DEVICES".into(), value: "void".into() }];
    if let Some(instance) = gpus.iter().find(|gpu| gpu.instance().is_some()) {
        // The board's node is there as well: so that nobody has to guess which of its parts is meant.
        edits.push(Edit::Env { name: "CUDA_VISIBLE_DEVICES".into(), value: instance.uuid.0.clone() });
    }
    if gpus.len() > 1 {
        // CUDA puts the fastest first unless told to number GPUs as NVML does.
        edits.push(Edit::Env { name: "CUDA_DEVICE_ORDER".into(), value: "PCI_BUS_ID".into() });
    }
    edits
}

/// Through symlinks to the file itself, so that a mount shows the file and not a link into nowhere.
fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// `580.178.04` of the file `libcuda.so.580.178.04`, whose name begins so; none of one that carries no version.
fn version_in(library: &Path, name: &str) -> Option<String> {
    let version = library.file_name()?.to_str()?.strip_prefix(name)?;
    version.contains('.').then(|| version.to_owned())
}

/// The driver's programs that the host has, the first of each name.
fn programs(directories: &[PathBuf]) -> Vec<Edit> {
    let found = PROGRAMS.iter().filter_map(|name| {
        let mut places = directories.iter().map(|directory| resolved(&directory.join(name)));
        let path = places.find(|path| path.is_file())?;
        Some(read_only_mount(&path, &format!("{PROGRAM_DIR}/{name}")))
    });
    found.collect()
}

/// A bind mount that the container may read and execute from.
fn read_only_mount(source: &Path, destination: &str) -> Edit {
    Edit::Mount {
        source: source.display().to_string(),
        destination: destination.into(),
        options: ["bind", "ro", "nosuid", "nodev", "rprivate"].map(String::from).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// What would be mounted as the container's nvidia-smi.
    fn mounted(directories: &[PathBuf]) -> Vec<String> {
        let source = |edit: Edit| match edit {
            Edit::Mount { source, destination, .. } if destination == "/usr/bin/nvidia-smi" => Some(source),
            _ => None,
        };
        programs(directories).into_iter().filter_map(source).collect()
    }

    #[test]
    fn the_version_of_the_libraries_is_seen_by_their_names() {
        let root = tempfile::tempdir().unwrap();
        let mut configuration = Configuration::default();
        configuration.driver.library_dirs = vec![root.path().to_owned()];
        let files = || {
            let (driver, shim_dir) = (configuration.driver.clone(), PathBuf::new());
            DriverFiles { driver, shim_dir, shims: Shims::default() }
        };
        assert_eq!(files().version(), None, "there is none");
        let (library, link) = (root.path().join("libnvidia-ml.so.580.1.3"), root.path().join("libnvidia-ml.so.1"));
        fs::write(root.path().join("libcuda.so.1"), "").unwrap();
        fs::write(&library, "").unwrap();
        std::os::unix::fs::symlink("libnvidia-ml.so.580.1.3", &link).unwrap();
        assert_eq!(files().version().as_deref(), Some("580.1.3"));
        fs::rename(&library, &link).unwrap();
        assert_eq!(files().version(), None, "a name without a version says nothing");
    }

    #[test]
    fn what_carries_the_drivers_version_in_its_name_comes_along() {
        let root = tempfile::tempdir().unwrap();
        let file = |name: &str| fs::write(root.path().join(name), "").unwrap();
        let names =
            ["libcuda.so.580.1.2", "libnvidia-ml.so.1", "libnvidia-gpucomp.so.580.1.2", "libnvidia-nvvm70.so.4"];
        let others = ["libnvidia-gpucomp.so.550.1.2", "libnvidia-opencl.so.1"];
        names.iter().chain(&others).for_each(|name| file(name));
        std::os::unix::fs::symlink("libcuda.so.580.1.2", root.path().join("libcuda.so.1")).unwrap();
        let mut configuration = Configuration::default();
        configuration.driver.library_dirs = vec![root.path().to_owned()];
        configuration.driver.program_dirs.clear();
        let (driver, shim_dir) = (configuration.driver.clone(), configuration.paths.shim_dir.clone());
        let files = DriverFiles { driver, shim_dir, shims: Shims::default() };
        let name = |edit: Edit| if let Edit::Library { file_name, .. } = edit { file_name } else { String::new() };
        let found = |more| files.beside_the_two(more).into_iter().map(name).collect::<Vec<_>>();
        assert_eq!(found(&[]), ["libnvidia-nvvm70.so.4", "libnvidia-gpucomp.so.580.1.2"]);
        let without_shims = ["libnvidia-nvvm70.so.4", "libnvidia-opencl.so.1", "libnvidia-gpucomp.so.580.1.2"];
        assert_eq!(found(&PAST_SHIMS), without_shims, "nothing is paced there");
        assert_eq!(version_in(Path::new("/a/libcuda.so.1"), "libcuda.so."), None);
    }

    #[test]
    fn a_container_gets_every_node_that_cuda_needs_or_is_told_how_to_make_it() {
        let root = tempfile::tempdir().unwrap();
        let mut configuration = Configuration::default();
        configuration.driver.device_dir = root.path().to_owned();
        let (driver, shim_dir) = (configuration.driver.clone(), configuration.paths.shim_dir.clone());
        let files = DriverFiles { driver, shim_dir, shims: Shims::default() };
        let gpu = Gpu::sample(0);
        // Links to a character device that every machine has.
        let make = |name: &str| std::os::unix::fs::symlink("/dev/null", root.path().join(name)).unwrap();
        let needed = [
            ("nvidia0", "nvidia-modprobe -c 0 "),
            ("nvidiactl", "nvidia-modprobe -c 255 "),
            ("nvidia-uvm", "nvidia-modprobe -u -c 0 "),
        ];
        for (name, remedy) in needed {
            let refused = files.nodes(&[&gpu]).unwrap_err().to_string();
            assert!(refused.contains(&format!("/{name} is no")) && refused.contains(remedy), "{refused}");
            make(name);
        }
        assert_eq!(files.nodes(&[&gpu]).unwrap().len(), 3);
        make("nvidia-uvm-tools");
        assert_eq!(files.nodes(&[&gpu]).unwrap().len(), 4);
    }

    #[test]
    fn an_instance_needs_two_nodes_and_their_links() {
        let root = tempfile::tempdir().unwrap();
        let mut configuration = Configuration::default();
        (configuration.driver.device_dir, configuration.driver.proc_dir) = (root.path().into(), root.path().into());
        let (driver, shim_dir) = (configuration.driver.clone(), configuration.paths.shim_dir.clone());
        let files = DriverFiles { driver, shim_dir, shims: Shims::default() };
        let instance = crate::device::MigInstance {
            board: gpool_protocol::GpuUuid("GPU-0".into()),
            profile: "1g.10gb".into(),
            gpu_instance: 9,
            compute_instance: 0,
            start: 0,
            size: 1,
        };
        let gpus = [Gpu { kind: crate::device::Kind::Instance(instance), ..Gpu::sample(0) }];
        fs::create_dir_all(root.path().join("nvidia-caps")).unwrap();
        let table = "gpu0/gi9/access 84\ngpu0/gi9/ci0/access 85\n";
        fs::write(root.path().join("nvidia-caps/mig-minors"), table).unwrap();
        // Links to a character device that every machine has; its numbers are 1 and 3.
        let make = |path: &str| std::os::unix::fs::symlink("/dev/null", root.path().join(path)).unwrap();
        let missing = || files.missing_of_instances(&gpus, root.path());
        let path = "nvidia/capabilities/gpu0/mig/gi9";
        for (node, file) in [("nvidia-cap84", "access"), ("nvidia-cap85", "ci0/access")] {
            let said = missing().unwrap();
            let remedy = format!("nvidia-modprobe -f {}/{path}/{file} ", root.path().display());
            assert!(said.contains(node) && said.contains(&remedy), "{said}");
            make(&format!("nvidia-caps/{node}"));
        }
        assert!(missing().unwrap().contains("1:3 does not lead to"));
        make("1:3");
        assert_eq!(missing(), None);
        assert_eq!(files.missing_of_instances(&[Gpu::sample(0)], Path::new("/none")), None);
    }

    #[test]
    fn the_hosts_nvidia_smi_is_mounted_where_there_is_one() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for directory in ["bin", "nvidia"] {
            fs::create_dir(path(directory)).unwrap();
        }
        let directories = [path("missing"), path("bin")];
        assert!(mounted(&directories).is_empty());
        // A link to nowhere is none either.
        std::os::unix::fs::symlink(path("nvidia/nvidia-smi"), path("bin/nvidia-smi")).unwrap();
        assert!(mounted(&directories).is_empty());
        fs::write(path("nvidia/nvidia-smi"), "").unwrap();
        let file = fs::canonicalize(path("nvidia/nvidia-smi")).unwrap().display().to_string();
        assert_eq!(mounted(&directories), [file]);
    }
}
