//! The command line that lays out a package.

use crate::assets::{Asset, Places};
use crate::manifest::Manifest;
use crate::{debian, rpm};
use clap::{Args, Parser, Subcommand};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Lays out a package as packaging/Cargo.toml describes it, which `cargo metadata` prints on standard input.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    form: Form,
}

#[derive(Subcommand)]
enum Form {
    /// A tree for dpkg-deb
    Deb {
        #[command(flatten)]
        sources: Sources,
        /// The variant of the package
        #[arg(long)]
        variant: Option<String>,
        /// Where the tree goes
        root: PathBuf,
    },
    /// A tree and a specification for rpmbuild
    Rpm {
        #[command(flatten)]
        sources: Sources,
        /// Where the tree goes
        root: PathBuf,
        /// Where the specification goes
        specification: PathBuf,
    },
}

#[derive(Args)]
struct Sources {
    /// What `make build` has laid out
    #[arg(long)]
    stage: PathBuf,
    /// What prepare.sh has made of it
    #[arg(long)]
    prepared: PathBuf,
    /// The glibc that the programs need
    #[arg(long)]
    glibc: String,
    /// Another version than the manifest's
    #[arg(long)]
    version: Option<String>,
}

/// Runs the program.
pub fn main() -> ExitCode {
    match lay_out(Arguments::parse().form) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("gpool-package-tree: {cause}");
            ExitCode::FAILURE
        }
    }
}

fn lay_out(form: Form) -> Result<(), String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(|cause| format!("standard input: {cause}"))?;
    let manifest = Manifest::read(&text)?;
    let said = |cause: io::Error| cause.to_string();
    match form {
        Form::Deb { sources, variant, root } => {
            let deb = manifest.deb(variant.as_deref())?;
            place(&deb.assets, &manifest, &sources, &root).map_err(said)?;
            debian::write(&manifest, &deb, sources.version(&manifest), &sources.glibc, &root).map_err(said)
        }
        Form::Rpm { sources, root, specification } => {
            let assets = &manifest.metadata.generate_rpm.assets;
            let (config, plain): (Vec<Asset>, Vec<Asset>) = assets.iter().cloned().partition(|asset| asset.config);
            let configured = place(&config, &manifest, &sources, &root).map_err(said)?;
            let files = [configured.clone(), place(&plain, &manifest, &sources, &root).map_err(said)?].concat();
            let version = sources.version(&manifest);
            let text = rpm::specification(&manifest, version, &sources.glibc, &root, (&files, &configured));
            text.and_then(|text| fs::write(specification, text)).map_err(said)
        }
    }
}

impl Sources {
    fn version<'a>(&'a self, manifest: &'a Manifest) -> &'a str {
        self.version.as_deref().unwrap_or(&manifest.version)
    }
}

/// Copies the files below `root`; their places in the package.
fn place(assets: &[Asset], manifest: &Manifest, sources: &Sources, root: &Path) -> io::Result<Vec<String>> {
    let places = Places {
        manifest: manifest.directory().to_owned(),
        stage: sources.stage.clone(),
        prepared: sources.prepared.clone(),
    };
    let placed = assets.iter().map(|asset| asset.place(&places, root)).collect::<io::Result<Vec<_>>>()?;
    Ok(placed.concat())
}
