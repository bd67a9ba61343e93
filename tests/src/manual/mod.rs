//! The manual in `docs/`: reading its pages, and writing those that are made from the code.
//!
//! `cargo test -p gpool-tests --test documentation` checks all of it; `make reference` writes what is generated.

pub mod cli_reference;
pub mod command_lines;
pub mod configuration_reference;
pub mod markdown;
pub mod notices;
pub mod openapi;
pub mod schema;

use crate::failure::{Context, Failure, Result};
use markdown::Page;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The first lines of generated pages.
const GENERATED: &str = "<!-- Made by `make reference` from the code; a test compares. -->\n\n";

/// The repository.
#[must_use]
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"))
}

/// Every page that people read: those at the top of the repository and all of `docs/`.
///
/// # Errors
/// When one cannot be read.
pub fn pages() -> Result<Vec<Page>> {
    let mut files = Vec::new();
    let mut folders = vec![repository().join("docs")];
    let is_page = |path: &Path| path.extension().is_some_and(|extension| extension == "md");
    for entry in fs::read_dir(repository()).context("the repository")?.flatten() {
        files.extend(Some(entry.path()).filter(|path| path.is_file() && is_page(path)));
    }
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).context(folder.display())?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                // What mdbook makes of the manual.
                folders.extend(Some(path).filter(|path| !path.ends_with("book")));
            } else if is_page(&path) {
                files.push(path);
            }
        }
    }
    files.sort();
    files.into_iter().map(|file| Page::read(&file)).collect()
}

/// A file that is made from the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// Where it lies in the repository.
    pub path: &'static str,
    /// What must stand in it.
    pub text: String,
}

/// All of them.
///
/// # Errors
/// When cargo does not tell of the packages.
pub fn generated() -> Result<Vec<Generated>> {
    Ok(vec![
        Generated { path: "docs/reference/cli.md", text: format!("{GENERATED}{}", cli_reference::page()) },
        Generated {
            path: "docs/reference/configuration.md",
            text: format!("{GENERATED}{}", configuration_reference::page()),
        },
        Generated {
            path: "docs/reference/metrics.md",
            text: format!("{GENERATED}{}", gpool_supervisor::metrics_reference()),
        },
        Generated { path: "docs/reference/configuration.schema.json", text: schema::text() },
        Generated { path: "THIRD-PARTY.md", text: format!("{GENERATED}{}", notices::page()?) },
    ])
}

/// `gpool-manual`: writes every generated file that is not as it should be; `gpool-manual --licences` prints the texts of
/// the licences of others' crates.
pub fn run() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        None => write(),
        Some("--licences") => notices::texts().map(|texts| print!("{texts}")),
        Some(other) => Err(Failure::new(format!("{other} is no option; there is --licences"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("gpool-manual: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> Result<()> {
    for file in generated()? {
        let path: PathBuf = repository().join(file.path);
        if fs::read_to_string(&path).unwrap_or_default() != file.text {
            fs::write(&path, file.text).context(file.path)?;
            println!("wrote {}", file.path);
        }
    }
    Ok(())
}
