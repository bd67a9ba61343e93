//! Puts the supervisor's edits into config.json.
//!
//! The file is changed as a JSON value: order, unknown fields and integers of any size stay as the engine wrote
//! them. Typed structures only build the new fragments.

use crate::devices::{self, Device, Nodes};
use crate::fields::{fragment, list, object};
use crate::image::Image;
use crate::libraries::{self, Copies};
use crate::nvidia_devices::NvidiaDevices;
use crate::spec::INJECTED;
use crate::toolkit_hooks;
use gpool_protocol::{Edit, ErrorBody, ErrorCode, LeaseId, Seal, is_counted_annotation};
use oci_spec::runtime::{HookBuilder, MountBuilder};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// How libraries are mounted.
const LIBRARY_OPTIONS: [&str; 5] = ["bind", "ro", "nosuid", "nodev", "rprivate"];
/// Where a lease's files are in a container.
const REGION_DIR: &str = "/dev/gpool";
/// Where programs look for an MPS daemon that is not named.
pub const MPS_DIR: &str = "/tmp/nvidia-mps";
/// The loader's list of what to load into every program.
const PRELOAD: &str = "/etc/ld.so.preload";
/// What a group of MPS clients has in common with its server.
const SHARED_MEMORY: &str = "/dev/shm";
/// Hooks of NVIDIA's legacy mode, which inject a driver of their own after ours.
const LEGACY_HOOKS: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];

/// Refuses what no edit can make safe. Asked before the supervisor is, so that nothing is reserved in vain.
pub fn check(spec: &Value) -> Result<(), ErrorBody> {
    for part in ["process", "linux", "root"] {
        if !spec[part].is_object() {
            return Err(ErrorBody::new(
                ErrorCode::BundleInvalid,
                format!("config.json has no {part} section, so this is no Linux container that could hold a share"),
                "remove the request, or start a Linux container",
            ));
        }
    }
    Ok(())
}

/// The path of a hook of NVIDIA's legacy mode.
fn legacy_hook(hook: &Value) -> Option<&str> {
    hook["path"].as_str().filter(|path| LEGACY_HOOKS.iter().any(|name| path.contains(name)))
}

fn legacy_hooks(spec: &Value) -> impl Iterator<Item = &str> {
    spec["hooks"]["prestart"].as_array().into_iter().flatten().filter_map(legacy_hook)
}

/// Whether docker's `--gpus`, or a file of hooks, has added one.
pub fn has_legacy_hook(spec: &Value) -> bool {
    legacy_hooks(spec).next().is_some()
}

/// Takes out what docker's `--gpus` or a file of hooks has added: it would put a driver library over the lease's.
pub fn without_legacy_hooks(spec: &mut Value) {
    if let Some(hooks) = spec.pointer_mut("/hooks/prestart").and_then(Value::as_array_mut) {
        hooks.retain(|hook| legacy_hook(hook).is_none());
    }
}

/// Refuses a container that has a folder of the host as its /dev: what a lease puts there would be made in that folder, and
/// stay when the container has ended.
pub fn check_dev(spec: &Value) -> Result<(), ErrorBody> {
    let mounts = spec["mounts"].as_array().into_iter().flatten();
    let is_bound = |mount: &&Value| {
        let options = mount["options"].as_array().into_iter().flatten().filter_map(Value::as_str);
        mount["type"] == "bind" || options.into_iter().any(|option| matches!(option, "bind" | "rbind"))
    };
    let at_dev = |mount: &&Value| {
        let place = mount["destination"].as_str().unwrap_or_default();
        same_path(place, "/dev") || same_path(place, REGION_DIR)
    };
    match mounts.filter(is_bound).find(at_dev) {
        None => Ok(()),
        Some(mount) => Err(ErrorBody::new(
            ErrorCode::ShimNotOnTop,
            format!(
                "{} of the host is mounted as {} of the container, and a lease's files would be made and stay there",
                mount["source"].as_str().unwrap_or("a folder"),
                mount["destination"].as_str().unwrap_or("/dev")
            ),
            "give the container the devices that it needs one by one with --device",
        )),
    }
}

/// Refuses an image whose /dev leads elsewhere: runc 1.1.5 follows such a link on the host when it makes `/dev/fd` and the
/// like, and the driver's own library would not be at the one place where it may be.
pub fn check_image(image: &Image) -> Result<(), ErrorBody> {
    if !image.is_link("/dev") {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::ShimNotOnTop,
        "/dev is a symbolic link in the image, and what a lease puts there could come to lie elsewhere",
        "use an image whose /dev is no link",
    ))
}

/// The container's root as config.json names it, made absolute with the bundle's path.
pub fn root_path(spec: &Value, bundle: &Path) -> Result<PathBuf, ErrorBody> {
    match spec["root"]["path"].as_str() {
        Some(path) if !path.is_empty() => Ok(bundle.join(path)),
        _ => Err(ErrorBody::new(
            ErrorCode::BundleInvalid,
            "config.json has no root.path, so the image's libraries cannot be found",
            "the container engine has to write a valid bundle",
        )),
    }
}

/// Applies `edits` in their order and marks `spec` as holding those of `lease`.
pub fn apply(spec: &mut Value, image: &Image, lease: &LeaseId, edits: &[Edit]) -> Result<(), ErrorBody> {
    let leased: Vec<Device<'_>> = edits.iter().filter_map(leased_device).collect();
    let nodes = Nodes::of(spec);
    devices::inject(spec, &leased, nodes, &NvidiaDevices::of_host())?;
    let copies = Copies::find(image, &spec["process"])?;
    toolkit_hooks::spare(spec, &file_names(edits));
    for edit in edits {
        match edit {
            Edit::Device { .. } => {}
            Edit::Mount { source, destination, options } if destination == MPS_DIR => mask(spec, source, options)?,
            Edit::Mount { source, destination, options } => mount(spec, source, destination, options)?,
            Edit::Library { source, file_name } => library(spec, image, &copies, source, file_name)?,
            Edit::Env { name, value } => set_env(spec, name, value)?,
            Edit::Hook { path, args, env } => {
                let mut env = env.clone();
                if env.is_empty() {
                    // Without env a low-level runtime may give a hook that of the image, LD_PRELOAD included.
                    env.push("GPOOL_HOOK=1".into());
                }
                let hook = fragment(HookBuilder::default().path(path).args(args.clone()).env(env).build())?;
                let hooks = list(spec, &["hooks", "createRuntime"])?;
                if !hooks.contains(&hook) {
                    hooks.push(hook);
                }
            }
        }
    }
    let annotations = object(spec, &["annotations"])?;
    annotations.insert(INJECTED.to_owned(), Value::String(lease.0.clone()));
    // The supervisor has seen the seal. From here on low-level runtimes and hooks hand annotations to others.
    for (_, value) in annotations.iter_mut().filter(|(key, _)| is_counted_annotation(key)) {
        if let Value::String(text) = value {
            *text = Seal::taken_off(text).0.to_owned();
        }
    }
    Ok(())
}

/// The names of the lease's libraries, under which programs look for them.
pub fn file_names(edits: &[Edit]) -> Vec<&str> {
    let mut names = Vec::new();
    for edit in edits {
        if let Edit::Library { file_name, .. } = edit {
            names.push(file_name.as_str());
        }
    }
    names
}

fn leased_device(edit: &Edit) -> Option<Device<'_>> {
    match edit {
        Edit::Device { path, source, major, minor, access } => {
            let source = if source.is_empty() { path } else { source };
            Some(Device { path, source, major: *major, minor: *minor, access })
        }
        _ => None,
    }
}

/// Appends a bind mount. Later mounts lie on top, so an earlier one at the same place is taken out, not kept.
fn mount(spec: &mut Value, source: &str, destination: &str, options: &[String]) -> Result<(), ErrorBody> {
    let mounts = list(spec, &["mounts"])?;
    let is_there = |mount: &Value| mount["destination"].as_str().is_some_and(|path| same_path(path, destination));
    // Volumes may lie below the engine's own /dev/shm: what takes its place stays under them.
    let place = mounts.iter().position(is_there).filter(|_| destination == SHARED_MEMORY);
    mounts.retain(|mount| !is_there(mount));
    let built = MountBuilder::default().destination(destination).typ("bind").source(source).options(options);
    mounts.insert(place.unwrap_or(mounts.len()), fragment(built.build())?);
    Ok(())
}

/// Mounts nothing to be seen over the MPS folder. In a folder of the host that lies there no place is made for it: without
/// one there is nothing to cover.
fn mask(spec: &mut Value, source: &str, options: &[String]) -> Result<(), ErrorBody> {
    let mounts = list(spec, &["mounts"])?;
    mounts.retain(|mount| mount["destination"].as_str().is_none_or(|path| !same_path(path, MPS_DIR)));
    let above = |mount: &Value| {
        let place = Path::new(mount["destination"].as_str()?);
        let rest = Path::new(MPS_DIR).strip_prefix(place).ok()?;
        let is_bound = mount["type"] == "bind" || mount["options"].as_array()?.iter().any(|option| option == "rbind");
        is_bound.then(|| Path::new(mount["source"].as_str().unwrap_or_default()).join(rest))
    };
    match mounts.iter().rev().find_map(above) {
        // A file or a link that somebody has put there is no folder of a daemon's either.
        Some(place) if !place.symlink_metadata().is_ok_and(|found| found.is_dir()) => Ok(()),
        _ => mount(spec, source, MPS_DIR, options),
    }
}

/// Takes out what has another library loaded into every program of the container, as HAMi does with its own: that would count the
/// same memory a second time, and hold it to another cap.
pub fn without_preloads(spec: &mut Value) {
    if let Some(mounts) = spec.get_mut("mounts").and_then(Value::as_array_mut) {
        mounts.retain(|mount| !mount["destination"].as_str().is_some_and(|path| same_path(path, PRELOAD)));
    }
}

fn same_path(a: &str, b: &str) -> bool {
    // Compares component by component: double and trailing slashes do not count.
    Path::new(a).components().eq(Path::new(b).components())
}

fn library(spec: &mut Value, image: &Image, copies: &Copies, source: &str, file_name: &str) -> Result<(), ErrorBody> {
    let mut places = libraries::destinations(image, copies, file_name)?;
    for place in libraries::foreign_mounts(list(spec, &["mounts"])?, file_name) {
        if !places.iter().any(|known| same_path(known, &place)) {
            places.push(place);
        }
    }
    let options = LIBRARY_OPTIONS.map(String::from);
    places.iter().try_for_each(|place| mount(spec, source, place, &options))
}

fn set_env(spec: &mut Value, name: &str, value: &str) -> Result<(), ErrorBody> {
    let env = list(spec, &["process", "env"])?;
    let names_it = |entry: &str| entry.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
    env.retain(|entry| !entry.as_str().is_some_and(names_it));
    env.push(Value::String(format!("{name}={value}")));
    Ok(())
}

#[cfg(test)]
#[path = "edits_tests.rs"]
mod tests;
