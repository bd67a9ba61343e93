//! The container engines that are installed know gpool's runtime, and the program that they know it by is there.

use super::{Outcome, Surroundings};
use crate::engines::{Engine, Entry};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Where an engine's program may lie.
const PROGRAM_DIRS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];

pub fn check(host: &Surroundings) -> Outcome {
    let installed = installed(host);
    if installed.is_empty() {
        let names = Engine::ALL.map(Engine::name).join(", ");
        return Outcome::warn(
            format!("none of {names} is installed where Debian's packages have them"),
            "install one, or use gpool run, which needs none; one that brings its own, as k3s does, is told of gpool by hand",
        );
    }
    let (mut knowing, mut differing) = (Vec::new(), None);
    for engine in &installed {
        match entry(host, *engine) {
            Err(outcome) => return outcome,
            Ok(Some((text, entry))) => match unusable(&host.path(&entry.runtime.display().to_string())) {
                None => {
                    knowing.push(engine.name());
                    differing = differing.or(engine.other_cgroup_driver(&text).map(|other| (*engine, other)));
                }
                Some(why) => {
                    return Outcome::fail(
                        format!("{} starts {}, which {why}", engine.name(), entry.runtime.display()),
                        format!(
                            "install gpool-runtime there, or run gpool runtime configure --runtime {} --runtime-path PATH",
                            engine.name()
                        ),
                    );
                }
            },
            Ok(None) => {}
        }
    }
    if let Some((engine, other)) = differing {
        return Outcome::warn(
            format!(
                "the runtimes gpool and {other} of {} have different cgroup drivers (SystemdCgroup), and a kubelet has one",
                engine.name()
            ),
            format!("{}; it takes that of {other} over", configured(engine)),
        );
    }
    let names: Vec<&str> = installed.iter().map(|engine| engine.name()).collect();
    if knowing.is_empty() && !super::hook::podman_calls_it(host) {
        return Outcome::warn(
            format!("no engine knows gpool's runtime ({} installed)", names.join(", ")),
            configured(installed[0]),
        );
    }
    Outcome::ok(match knowing.as_slice() {
        [] => "podman calls gpool's hook".to_owned(),
        _ => format!("{} know{} gpool's runtime", knowing.join(", "), if knowing.len() == 1 { "s" } else { "" }),
    })
}

/// The command that tells an engine of gpool, and the one without which a running engine does not know of it.
fn configured(engine: Engine) -> String {
    let reload = engine.reload().map(|command| format!(", then {command}"));
    format!("gpool runtime configure --runtime {}{}", engine.name(), reload.unwrap_or_default())
}

/// The engines of this host.
pub(super) fn installed(host: &Surroundings) -> Vec<Engine> {
    Engine::ALL.into_iter().filter(|engine| is_installed(host, *engine)).collect()
}

/// Whether the engine's program is on this host.
pub(super) fn is_installed(host: &Surroundings, engine: Engine) -> bool {
    PROGRAM_DIRS.iter().any(|dir| host.path(&format!("{dir}/{}", engine.program())).is_file())
}

/// The engine's file, and what it says of gpool.
fn entry(host: &Surroundings, engine: Engine) -> Result<Option<(String, Entry)>, Outcome> {
    let path = engine.default_file();
    let text = match std::fs::read_to_string(host.path(&path.display().to_string())) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Outcome::skip(format!("{} cannot be read ({})", path.display(), error.kind()))),
    };
    let entry = engine.entry(&text).map_err(|defect| {
        Outcome::fail(
            format!("{} of {}: {defect}", path.display(), engine.name()),
            format!("repair the file; gpool runtime status --runtime {} looks again", engine.name()),
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
}
