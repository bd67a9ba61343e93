//! Kubernetes' own programs. Debian packages its client alone, but its source package has all of them: they are compiled
//! here, with Debian's Go, which is unpacked and not installed. The packages that a cluster needs besides are of Debian.

use super::{Downloads, Packages, apt, call, files, limited_to, write_sources};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::succeeded;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SUITE: &str = "bookworm";
/// The last release whose source package has more than the client.
const VERSION: &str = "1.20.2";
/// Longest time for one of the programs, in seconds: the first takes four minutes where nothing else is done.
const COMPILING_S: &str = "1200";
/// How Go names it.
const PROJECT: &str = "k8s.io/kubernetes";
/// Where its build puts what it says of its version.
const VERSION_OF: &str = "k8s.io/kubernetes/vendor/k8s.io/component-base/version";

const GO: Packages = Packages { suite: SUITE, component: "main", names: &["golang-1.19-go", "golang-1.19-src"] };
const BESIDES: Packages = Packages {
    suite: SUITE,
    component: "main",
    names: &["etcd-server", "kubernetes-client", "containernetworking-plugins", "openssl"],
};
const PROGRAMS: [&str; 4] = ["kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager"];

/// The programs of a cluster.
#[derive(Debug, Clone)]
pub struct Kubernetes {
    compiled: PathBuf,
    packages: PathBuf,
}

impl Kubernetes {
    /// One of Kubernetes' own daemons.
    pub fn daemon(&self, name: &str) -> PathBuf {
        self.compiled.join(name)
    }

    /// A program of the packages.
    pub fn program(&self, name: &str) -> PathBuf {
        self.packages.join("usr/bin").join(name)
    }

    /// The directory with the plugins that make pods' networks.
    pub fn network_plugins(&self) -> PathBuf {
        self.packages.join("usr/lib/cni")
    }
}

impl Downloads {
    /// Kubernetes, if it is here.
    pub fn kubernetes(&self) -> Option<Kubernetes> {
        let compiled = Some(self.place_of_kubernetes()).filter(|place| place.is_dir())?;
        Some(Kubernetes { compiled, packages: self.unpacked(&BESIDES)? })
    }

    /// Downloads and compiles Kubernetes, unless it is here.
    ///
    /// # Errors
    /// When something cannot be reached, or does not compile; the sentence is the client's.
    pub fn fetch_kubernetes(&self) -> Result<()> {
        self.fetch(&BESIDES)?;
        self.once(&self.place_of_kubernetes(), |directory| {
            self.fetch(&GO)?;
            let go = self.unpacked(&GO).ok_or_else(|| Failure::new("Go is not here"))?;
            let sources = sources(directory)?;
            let programs = directory.join("unpacked");
            fs::create_dir_all(&programs).context(programs.display())?;
            let compiler = Compiler { go, workspace: sources };
            compiler.describe_types(directory)?;
            for name in PROGRAMS {
                compiler.compile(&format!("cmd/{name}"), &programs.join(name))?;
            }
            Ok(programs)
        })
    }

    fn place_of_kubernetes(&self) -> PathBuf {
        self.root.join(format!("kubernetes-{VERSION}"))
    }
}

/// Downloads the sources into `directory` and lays them out as a workspace of Go, which is returned.
fn sources(directory: &Path) -> Result<PathBuf> {
    write_sources(directory, "deb-src", SUITE, "main")?;
    call(apt(directory).args(["-qq", "update"]))?;
    call(apt(directory).args(["-qq", "--download-only", "source", "kubernetes"]))?;
    let found = files(directory, "gz")?.into_iter().find(|path| path.to_string_lossy().ends_with(".orig.tar.gz"));
    let archive = found.ok_or_else(|| Failure::new("Debian's source package of kubernetes has no sources"))?;
    let workspace = directory.join("workspace");
    let place = workspace.join("src/k8s.io");
    fs::create_dir_all(&place).context(place.display())?;
    call(limited_to(COMPILING_S, "tar").arg("-xf").arg(archive).arg("-C").arg(&place))?;
    let unpacked = place.join(format!("kubernetes-{VERSION}"));
    ensure(unpacked.is_dir(), || format!("Debian's kubernetes is not {VERSION}"))?;
    fs::rename(&unpacked, place.join("kubernetes")).context(unpacked.display())?;
    Ok(workspace)
}

/// Go, and Kubernetes' sources. Their vendored packages are for the way of building that Go had before modules.
struct Compiler {
    go: PathBuf,
    workspace: PathBuf,
}

impl Compiler {
    /// Makes the one generated file that the sources lack, the API server's description of all types, as their own
    /// `build/root/Makefile.generated_files` does.
    fn describe_types(&self, directory: &Path) -> Result<()> {
        const MARK: &str = "+k8s:openapi-gen=";
        const NONE_OF_ITS: [&str; 4] = ["/code-generator/", "/sample-apiserver/", "/kube-openapi/", "/gengo/"];
        let generator = directory.join("openapi-gen");
        self.compile("vendor/k8s.io/kube-openapi/cmd/openapi-gen", &generator)?;
        let mut grep = Command::new("grep");
        grep.args(["-Rl", "--include=*.go", MARK, "pkg", "cmd", "plugin", "vendor/k8s.io"]).current_dir(self.sources());
        let marked = succeeded("grep", grep.output().context("grep")?)?;
        let is_its = |file: &&str| NONE_OF_ITS.iter().all(|part| !file.contains(part));
        let packages: BTreeSet<String> = marked
            .lines()
            .filter(is_its)
            .filter_map(|file| Some(format!("{PROJECT}/{}", file.rsplit_once('/')?.0)))
            .collect();
        let packages: Vec<String> = packages.into_iter().collect();
        let mut command = self.limited(&generator);
        command.args(["--logtostderr", "-i", &packages.join(","), "-O", "zz_generated.openapi"]);
        command.args(["-p", &format!("{PROJECT}/pkg/generated/openapi")]);
        command.args(["-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"]);
        call(command.arg("-r").arg(directory.join("report")))
    }

    fn compile(&self, package: &str, into: &Path) -> Result<()> {
        let [major, minor] = [0, 1].map(|place| VERSION.split('.').nth(place).unwrap_or_default());
        let full = format!("v{VERSION}");
        let says = [("gitVersion", full.as_str()), ("gitMajor", major), ("gitMinor", minor)];
        let says = says.map(|(field, value)| format!("-X {VERSION_OF}.{field}={value}"));
        let mut command = self.limited(&self.root().join("bin/go"));
        command.args(["build", "-tags", "providerless", "-ldflags", &format!("-s -w {}", says.join(" ")), "-o"]);
        call(command.arg(into).arg(format!("{PROJECT}/{package}")))
    }

    fn limited(&self, program: &Path) -> Command {
        let mut command = limited_to(COMPILING_S, &program.display().to_string());
        command.current_dir(self.sources()).env("GOROOT", self.root()).env("GOPATH", &self.workspace);
        command.env("GO111MODULE", "off").env("GOCACHE", self.workspace.join("cache")).env("CGO_ENABLED", "0");
        command.env_remove("GOFLAGS");
        command
    }

    fn root(&self) -> PathBuf {
        self.go.join("usr/lib/go-1.19")
    }

    fn sources(&self) -> PathBuf {
        self.workspace.join("src").join(PROJECT)
    }
}
