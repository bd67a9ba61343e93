//! The container engines that are installed know gpool's runtime, and the program that they know it by is there.

use super::{Outcome, Surroundings};
use crate::engines::{Engine, Entry, told_files};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Where an engine's program may lie.
const PROGRAM_DIRS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];

pub fn check(host: &Surroundings) -> Outcome {
    let installed = installed(host);
    // Where an engine was told by another file than its usual one, the program is often elsewhere, too.
    let state_dir = host.configuration().paths.state_dir;
    let others = told_files::read(&host.path(&state_dir.join(told_files::NAME).display().to_string()));
    if installed.is_empty() && others.is_empty() {
        let names = Engine::ALL.map(Engine::name).join(", ");
        return Outcome::warn(
            format!("none of {names} is installed where Debian's packages have them"),
            "install one, or use gpool run, which needs none; one that brings its own, as k3s does, is told of gpool by hand",
        );
    }
    let (mut knowing, mut differing, mut unread) = (Vec::new(), None, None);
    let usual = installed.iter().map(|engine| (*engine, engine.default_file().to_owned()));
    for (engine, file) in usual.chain(others) {
        match entry(host, engine, &file) {
            Err(outcome) => return outcome,
            Ok(Some((text, entry))) => match unusable(&host.path(&entry.runtime.display().to_string())) {
                None => {
                    // The one that answers reads the usual file, unless it was told otherwise.
                    let is_its = engine == Engine::Docker && file == engine.default_file();
                    if is_its && host.docker.as_ref().is_some_and(|today| !today.knows(&entry)) {
                        unread = Some(file.clone());
                    }
                    knowing.push(engine.name());
                    differing = differing.or(engine.other_cgroup_driver(&text).map(|other| (engine, file, other)));
                }
                Some(why) => {
                    return Outcome::fail(
                        format!("{} starts {}, which {why}", engine.name(), entry.runtime.display()),
                        format!(
                            "install gpool-runtime there, or run gpool runtime configure --runtime {}{} --runtime-path PATH",
                            engine.name(),
                            named(engine, &file)
                        ),
                    );
                }
            },
            Ok(None) => {}
        }
    }
    knowing.dedup();
    if let Some((engine, file, other)) = differing {
        return Outcome::warn(
            format!(
                "the runtimes gpool and {other} of {} have different cgroup drivers (SystemdCgroup), and a kubelet has one",
                engine.name()
            ),
            format!("{}; it takes that of {other} over", configured(engine, &file)),
        );
    }
    if let Some(file) = unread {
        return Outcome::warn(
            format!(
                "docker has not read {} since it was told of gpool there: it does not know the runtime so",
                file.display()
            ),
            "systemctl reload docker, and if it is the same after that, systemctl restart docker",
        );
    }
    let names: Vec<&str> = installed.iter().map(|engine| engine.name()).collect();
    if knowing.is_empty() && !super::hook::podman_calls_it(host) {
        return Outcome::warn(
            format!("no engine knows gpool's runtime ({} installed)", names.join(", ")),
            installed.first().map_or_else(String::new, |engine| configured(*engine, engine.default_file())),
        );
    }
    Outcome::ok(match knowing.as_slice() {
        [] => "podman calls gpool's hook".to_owned(),
        _ => format!("{} know{} gpool's runtime", knowing.join(", "), if knowing.len() == 1 { "s" } else { "" }),
    })
}

/// The command that tells an engine of gpool, and the one without which a running engine does not know of it.
fn configured(engine: Engine, file: &Path) -> String {
    let reload = engine.reload().map(|command| format!(", then {command}"));
    format!("gpool runtime configure --runtime {}{}{}", engine.name(), named(engine, file), reload.unwrap_or_default())
}

/// The option that names a file other than the usual one.
fn named(engine: Engine, file: &Path) -> String {
    if file == engine.default_file() { String::new() } else { format!(" --config {}", file.display()) }
}

/// The engines of this host.
pub(super) fn installed(host: &Surroundings) -> Vec<Engine> {
    Engine::ALL.into_iter().filter(|engine| is_installed(host, *engine)).collect()
}

/// Whether the engine's program is on this host.
pub(super) fn is_installed(host: &Surroundings, engine: Engine) -> bool {
    PROGRAM_DIRS.iter().any(|dir| host.path(&format!("{dir}/{}", engine.program())).is_file())
}

/// One of the engine's files, and what it says of gpool.
fn entry(host: &Surroundings, engine: Engine, path: &Path) -> Result<Option<(String, Entry)>, Outcome> {
    let text = match std::fs::read_to_string(host.path(&path.display().to_string())) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Outcome::skip(format!("{} cannot be read ({})", path.display(), error.kind()))),
    };
    let entry = engine.entry(&text).map_err(|defect| {
        Outcome::fail(
            format!("{} of {}: {defect}", path.display(), engine.name()),
            format!(
                "repair the file; gpool runtime status --runtime {}{} looks again",
                engine.name(),
                named(engine, path)
            ),
        )
    })?;
    Ok(entry.map(|entry| (text, entry)))
}

/// Why the engine cannot execute this file; none if it can.
fn unusable(path: &Path) -> Option<&'static str> {
    match std::fs::metadata(path) {
        Err(_) => Some("is not there"),
        Ok(found) if !found.is_file() || found.permissions().mode() & 0o111 == 0 => Some("is no executable file"),
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::healthy;
    use super::*;

    #[test]
    fn two_cgroup_drivers_on_one_node_are_told_of() {
        let root = tempfile::tempdir().unwrap();
        let host = healthy(root.path());
        let write = |path: &str, text: &str| {
            let path = host.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("/usr/bin/containerd", "");
        let runtimes = "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes";
        let told = |of_gpool: &str| {
            let text = format!(
                "version = 2\n[{runtimes}.runc.options]\nSystemdCgroup = true\n\
                 [{runtimes}.gpool.options]\nBinaryName = \"/usr/bin/gpool-runtime\"\n{of_gpool}"
            );
            write("/etc/containerd/config.toml", &text);
            check(&host)
        };
        let apart = told("");
        assert_eq!(apart.state, State::Warn, "{apart:?}");
        let said = format!("{} {}", apart.found, apart.remedy.unwrap_or_default());
        assert!(said.contains("gpool and runc of containerd") && said.contains("restart containerd"), "{said}");
        let alike = told("SystemdCgroup = true\n");
        assert_eq!(alike.state, State::Ok, "{alike:?}");
    }

    #[test]
    fn an_engine_that_was_told_by_another_file_is_not_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let host = healthy(root.path());
        std::fs::write(host.path("/etc/docker/daemon.json"), "{}").unwrap();
        assert_eq!(check(&host).state, State::Warn, "nobody knows it");
        let (list, file) = (host.path("/var/lib/gpool/engine-files"), Path::new("/var/snap/docker/daemon.json"));
        told_files::note(&list, Engine::Docker, file).unwrap();
        assert_eq!(check(&host).state, State::Warn, "a file that is gone says nothing");
        let file = host.path(&file.display().to_string());
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, r#"{"runtimes": {"gpool": {"path": "/usr/bin/gpool-runtime"}}}"#).unwrap();
        assert_eq!(check(&host).found, "docker knows gpool's runtime");
        // It may be in no usual place itself.
        std::fs::remove_file(host.path("/usr/bin/dockerd")).unwrap();
        assert_eq!(check(&host).found, "docker knows gpool's runtime");
        std::fs::write(&file, "{").unwrap();
        let broken = check(&host);
        assert_eq!(broken.state, State::Fail, "{broken:?}");
        assert!(broken.remedy.unwrap().contains("--runtime docker --config /var/snap/docker/daemon.json looks"));
    }

    #[test]
    fn a_reload_that_was_forgotten_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let mut host = healthy(root.path());
        let today = |runtimes: &[&str], default: &str| {
            let runtimes = runtimes.iter().map(|name| (*name).to_owned()).collect();
            Some(crate::engines::dockerd::Today { runtimes, default: default.to_owned() })
        };
        host.docker = today(&["runc"], "runc");
        let unread = check(&host);
        assert_eq!(unread.state, State::Warn, "{unread:?}");
        assert!(unread.found.contains("/etc/docker/daemon.json") && unread.remedy.unwrap().contains("reload docker"));
        host.docker = today(&["runc", "gpool"], "runc");
        assert_eq!(check(&host).state, State::Ok);
    }
}
