//! A man page for each command line and completions for three shells.

use clap::{Command, Parser};
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Writes man pages and shell completions below a directory, where a package has them.
#[derive(Parser)]
struct Arguments {
    /// The root of the package
    root: PathBuf,
}

/// Where each shell looks for completions, and under which name.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "usr/share/bash-completion/completions/gpool"),
    (Shell::Zsh, "usr/share/zsh/vendor-completions/_gpool"),
    (Shell::Fish, "usr/share/fish/vendor_completions.d/gpool.fish"),
];

/// Runs the program.
pub fn main() -> ExitCode {
    let root = Arguments::parse().root;
    match write(&root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpool-package-pages: {} cannot be written ({error})", root.display());
            ExitCode::FAILURE
        }
    }
}

/// Writes everything below `root`.
///
/// # Errors
/// When a file cannot be written.
pub fn write(root: &Path) -> io::Result<()> {
    let manual = |section: &str| root.join(format!("usr/share/man/man{section}"));
    page_for_each_verb(&gpool_cli::command(), "gpool", &manual("1"))?;
    page(gpool_supervisor::command(), "gpool-supervisor", "8", &manual("8"))?;
    page(gpool_kubernetes::command(), "gpool-device-plugin", "8", &manual("8"))?;
    for (shell, path) in COMPLETIONS {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut gpool_cli::command(), "gpool", &mut script);
        place(&root.join(path), &script)?;
    }
    Ok(())
}

/// One page for `command`, and one for each of its verbs and theirs: `gpool-gpu-ls.1`.
fn page_for_each_verb(command: &Command, name: &str, directory: &Path) -> io::Result<()> {
    page(command.clone(), name, "1", directory)?;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        page_for_each_verb(verb, &format!("{name}-{}", verb.get_name()), directory)?;
    }
    Ok(())
}

fn page(command: Command, name: &str, section: &str, directory: &Path) -> io::Result<()> {
    // clap wants names that live as long as the program; this one ends when the pages are written.
    let owned: &'static str = name.to_owned().leak();
    let spaced: &'static str = name.replace('-', " ").leak();
    let shown = if section == "1" { spaced } else { owned };
    let command = command.version(env!("CARGO_PKG_VERSION")).name(owned).display_name(owned).bin_name(shown);
    let source = concat!("gpool ", env!("CARGO_PKG_VERSION"));
    let mut text = Vec::new();
    clap_mangen::Man::new(command.disable_help_subcommand(true))
        .title(owned.to_uppercase())
        .section(section)
        .source(source)
        .manual("gpool")
        .render(&mut text)?;
    place(&directory.join(format!("{name}.{section}")), &text)
}

fn place(path: &Path, content: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    fs::write(path, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page_and_every_shell_a_script() {
        let root = std::env::temp_dir().join(format!("gpool-pages-{}", std::process::id()));
        write(&root).unwrap();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        for verb in gpool_cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let page = read(&format!("usr/share/man/man1/gpool-{}.1", verb.get_name()));
            assert!(page.contains("SYNOPSIS") && page.contains(&format!("gpool {}", verb.get_name())), "{page}");
        }
        assert!(read("usr/share/man/man8/gpool-supervisor.8").contains("check"), "its options");
        assert!(read("usr/share/man/man8/gpool-device-plugin.8").contains("kubelet"), "its options");
        for (_, path) in COMPLETIONS {
            assert!(read(path).contains("runtime"), "{path}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
