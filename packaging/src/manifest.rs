//! The manifest as `cargo metadata` shows it, with the tables of cargo-deb and cargo-generate-rpm.

use crate::assets::Asset;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PACKAGE: &str = "gpool-packaging";

#[derive(Deserialize)]
struct Workspace {
    packages: Vec<serde_json::Value>,
}

/// What a package is made of.
#[derive(Deserialize)]
pub struct Manifest {
    pub version: String,
    pub description: String,
    pub license: String,
    manifest_path: PathBuf,
    pub metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Metadata {
    pub deb: Deb,
    pub generate_rpm: Rpm,
}

/// `[package.metadata.deb]`, and what one of its variants says in its place.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Deb {
    pub name: String,
    #[serde(default)]
    pub maintainer: String,
    #[serde(default)]
    pub revision: String,
    pub depends: String,
    pub recommends: String,
    #[serde(default)]
    pub suggests: String,
    #[serde(default)]
    pub section: String,
    #[serde(default)]
    pub priority: String,
    pub extended_description: String,
    pub maintainer_scripts: PathBuf,
    pub conf_files: Vec<String>,
    pub assets: Vec<Asset>,
    #[serde(default)]
    variants: BTreeMap<String, Deb>,
    /// Of what cargo-deb writes in place of the licence.
    #[serde(default, rename = "copyright")]
    _copyright: IgnoredAny,
    #[serde(default, rename = "license-file")]
    _license_file: IgnoredAny,
}

/// `[package.metadata.generate-rpm]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rpm {
    pub name: String,
    pub release: String,
    #[serde(rename = "auto-req")]
    pub auto_req: String,
    pub pre_install_script: PathBuf,
    pub post_install_script: PathBuf,
    pub pre_uninstall_script: PathBuf,
    pub post_uninstall_script: PathBuf,
    pub requires: BTreeMap<String, String>,
    pub recommends: BTreeMap<String, String>,
    pub assets: Vec<Asset>,
}

impl Manifest {
    /// Reads what `cargo metadata` has printed.
    ///
    /// # Errors
    /// Says what is not as it should be.
    pub fn read(text: &str) -> Result<Self, String> {
        let workspace: Workspace = serde_json::from_str(text).map_err(|cause| format!("cargo metadata: {cause}"))?;
        let found = workspace.packages.into_iter().find(|package| package["name"] == PACKAGE);
        let found = found.ok_or_else(|| format!("cargo metadata does not list {PACKAGE}"))?;
        serde_json::from_value(found).map_err(|cause| format!("packaging/Cargo.toml: {cause}"))
    }

    /// The directory that sources are relative to.
    pub fn directory(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("."))
    }

    /// The Debian package, or the variant of it that has this name.
    ///
    /// # Errors
    /// When there is no such variant.
    pub fn deb(&self, variant: Option<&str>) -> Result<Deb, String> {
        let plain = &self.metadata.deb;
        let Some(variant) = variant else { return Ok(plain.clone()) };
        let found =
            plain.variants.get(variant).ok_or_else(|| format!("packaging/Cargo.toml has no variant {variant}"))?;
        let or = |own: &String, other: &String| if own.is_empty() { other.clone() } else { own.clone() };
        Ok(Deb {
            maintainer: or(&found.maintainer, &plain.maintainer),
            section: or(&found.section, &plain.section),
            priority: or(&found.priority, &plain.priority),
            ..found.clone()
        })
    }
}
