//! The command's own view of the host: its mount namespace.

use super::device_folder;
use super::plan::{Mount, Plan};
use super::unprepared;
use crate::mounted;
use gpool_protocol::ErrorBody;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where the region and the driver's own libraries are mounted.
const REGION: &str = "/dev/gpool";
/// The kernel's cgroups: through them a process leaves the one by which it is known to be the lease's.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Makes everything that `plan` says in a new mount namespace of this process.
///
/// # Errors
/// A mount that the kernel refuses. The namespace goes with the process, so nothing is left.
pub fn make(plan: &Plan) -> Result<(), ErrorBody> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|error| unprepared("no mount namespace can be made", error))?;
    // What the host mounts later, home directories for example, is seen; what is mounted here is not seen there.
    attach(None, Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_SLAVE, None)?;
    attach(Some("proc"), Path::new("/proc"), Some("proc"), STRICT, None)?;
    device_folder::make(&plan.nodes)?;
    make_room(&plan.mounts)?.into_iter().try_for_each(bind)?;
    hide_leases(&plan.run_dir, &plan.socket)?;
    plan.guarded.iter().chain([&PathBuf::from(CGROUPS)]).try_for_each(|place| guard(place))
}

const STRICT: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// `mount(2)` with the place in its error.
pub fn attach(
    source: Option<&str>,
    target: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    data: Option<&str>,
) -> Result<(), ErrorBody> {
    mount(source, target, kind, flags, data)
        .map_err(|error| unprepared(format!("{} cannot be mounted", target.display()), error))
}

/// Binds `source`, which may be a file, over `target`.
pub fn bind_at(source: &Path, target: &Path, flags: MsFlags) -> Result<(), ErrorBody> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND | flags, None::<&str>)
        .map_err(|error| unprepared(format!("{} cannot be mounted at {}", source.display(), target.display()), error))
}

/// Where programs put what they write as they go.
const WRITTEN_BY_ALL: [&str; 4] = ["/tmp", "/var/tmp", "/run", "/dev"];

/// Makes a place for each mount that has none; the mounts that have one then. On the host nothing is made: a directory
/// that lacks a name is covered by itself with a scratch layer on top, and is read-only then. Where the kernel has no such
/// layers, what can be done without is left out.
fn make_room(mounts: &[Mount]) -> Result<Vec<&Mount>, ErrorBody> {
    let lacking = |mount: &&Mount| !mount.destination.exists() && !mount.destination.starts_with("/dev");
    let covered: BTreeSet<PathBuf> =
        mounts.iter().filter(lacking).filter_map(|mount| nearest_directory(&mount.destination)).collect();
    let region = Path::new(REGION);
    make_directory(region)?;
    let (mut layers, mut refused) = (Vec::new(), Ok(()));
    if !covered.is_empty() {
        attach(Some("gpool-scratch"), region, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=700"))?;
        for (index, directory) in covered.iter().enumerate() {
            refused = overlay(directory, &region.join(index.to_string()))?;
            if refused.is_err() {
                break;
            }
            layers.push(directory);
        }
        // The layers keep what they need of it; the command shall not find it.
        umount2(region, MntFlags::MNT_DETACH)
            .map_err(|error| unprepared("the scratch layer stays in the way", error))?;
    }
    let has_place = |mount: &Mount| mount.destination.exists() || mount.destination.starts_with("/dev");
    let kept = match refused {
        Ok(()) => mounts.iter().collect(),
        Err(error) => indispensable(mounts, has_place).ok_or(error)?,
    };
    kept.iter().filter(|mount| !mount.destination.exists()).try_for_each(|mount| make_place(mount))?;
    layers.into_iter().filter(|directory| is_closed(directory)).try_for_each(|directory| close(directory))?;
    Ok(kept)
}

/// Whether a directory that is covered is read-only from then on: not where every program writes.
fn is_closed(directory: &Path) -> bool {
    directory != Path::new("/") && !WRITTEN_BY_ALL.iter().any(|place| directory.starts_with(place))
}

/// Lets nobody write into a layer: it goes with the command, and what root had installed would be lost without a word.
fn close(directory: &Path) -> Result<(), ErrorBody> {
    attach(None, directory, None, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, None)
}

/// The mounts that have a place, if the others can be done without: what they bring is mounted elsewhere too, where the
/// host has it, or it is a file of the host that the command sees under its own name. None if they cannot.
fn indispensable(mounts: &[Mount], has_place: impl Fn(&Mount) -> bool) -> Option<Vec<&Mount>> {
    let (kept, lacking): (Vec<&Mount>, Vec<&Mount>) = mounts.iter().partition(|mount| has_place(mount));
    let is_elsewhere = |mount: &Mount| kept.iter().any(|other| other.source == mount.source);
    let is_itself = |mount: &Mount| mount.source.file_name() == mount.destination.file_name();
    lacking.into_iter().all(|mount| is_elsewhere(mount) || is_itself(mount)).then_some(kept)
}

fn nearest_directory(path: &Path) -> Option<PathBuf> {
    path.ancestors().skip(1).find(|ancestor| ancestor.is_dir())?.canonicalize().ok()
}

/// Covers `directory` by itself with a layer in `scratch` on top. What is mounted below it, as the driver's libraries are
/// in many a container, is no part of a lower layer, and is mounted again. That the kernel makes no such layer here is the
/// inner error: then nothing is covered.
fn overlay(directory: &Path, scratch: &Path) -> Result<Result<(), ErrorBody>, ErrorBody> {
    let (upper, work) = (scratch.join("upper"), scratch.join("work"));
    [scratch, &upper, &work].into_iter().try_for_each(make_directory)?;
    let lower = directory.to_string_lossy().replace('\\', "\\\\").replace(':', "\\:").replace(',', "\\,");
    let data = format!("lowerdir={lower},upperdir={},workdir={}", upper.display(), work.display());
    // The layer's own directory shall look as the one that it covers.
    let mode = directory.metadata().map_or(0o755, |found| found.mode() & 0o7777);
    let _ = std::fs::set_permissions(&upper, std::os::unix::fs::PermissionsExt::from_mode(mode));
    let mut held = Vec::new();
    for point in points_below(directory)? {
        match device_folder::hold(&point) {
            Ok(its) => held.push((point, its)),
            // It has gone since, or is another user's file system, which the command does not reach either.
            Err(error) if [ErrorKind::NotFound, ErrorKind::PermissionDenied].contains(&error.kind()) => {}
            Err(error) => return Err(unprepared(format!("{} cannot be kept", point.display()), error)),
        }
    }
    let covered = attach(Some("gpool-scratch"), directory, Some("overlay"), MsFlags::empty(), Some(&data));
    if covered.is_err() {
        return Ok(covered);
    }
    held.iter()
        .try_for_each(|(point, held)| bind_at(&device_folder::through(held, Path::new("")), point, MsFlags::empty()))?;
    Ok(Ok(()))
}

/// Everything that is mounted below `place`, outer ones first.
fn points_below(place: &Path) -> Result<Vec<PathBuf>, ErrorBody> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(|error| unprepared("the mount table", error))?;
    Ok(mounted::below(&table, place).into_iter().map(|rest| place.join(rest.trim_start_matches('/'))).collect())
}

/// A directory, or an empty file, as the source is.
fn make_place(mount: &Mount) -> Result<(), ErrorBody> {
    if mount.source.is_dir() {
        return make_directory(&mount.destination);
    }
    mount.destination.parent().map_or(Ok(()), make_directory)?;
    let made = File::create(&mount.destination);
    made.map(drop).map_err(|error| unprepared(format!("{} cannot be made", mount.destination.display()), error))
}

pub fn make_directory(path: &Path) -> Result<(), ErrorBody> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| unprepared(format!("{} cannot be made", path.display()), error))
}

fn bind(mount: &Mount) -> Result<(), ErrorBody> {
    let (source, target) = (&mount.source, &mount.destination);
    // Also where both are one file, as on a host whose driver lies where containers want it: it is made read-only here,
    // and the look at the mount table finds it.
    let recursive = if mount.has("rbind") { MsFlags::MS_REC } else { MsFlags::empty() };
    bind_at(source, target, recursive)?;
    attach(None, target, None, MsFlags::MS_PRIVATE | recursive, None)?;
    let names = [
        ("ro", MsFlags::MS_RDONLY),
        ("nosuid", MsFlags::MS_NOSUID),
        ("nodev", MsFlags::MS_NODEV),
        ("noexec", MsFlags::MS_NOEXEC),
    ];
    let flags = names.iter().filter(|(name, _)| mount.has(name)).fold(MsFlags::empty(), |all, (_, flag)| all | *flag);
    attach(None, target, None, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | flags, None)
}

/// Covers the directory with the files of all leases by one that holds only the socket, if that lies in it.
fn hide_leases(run_dir: &Path, socket: &Path) -> Result<(), ErrorBody> {
    let within = socket.strip_prefix(run_dir).ok();
    let held = within.map(|_| device_folder::hold(socket)).transpose();
    let held = held.map_err(|error| unprepared(format!("{} cannot be found", socket.display()), error))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    attach(Some("gpool"), run_dir, Some("tmpfs"), flags, Some("mode=755,size=64k"))?;
    if let Some(held) = held {
        socket.parent().map_or(Ok(()), make_directory)?;
        File::create(socket).map_err(|error| unprepared(format!("{} cannot be made", socket.display()), error))?;
        bind_at(&device_folder::through(&held, Path::new("")), socket, MsFlags::empty())?;
    }
    attach(None, run_dir, None, MsFlags::MS_PRIVATE | MsFlags::MS_REC, None)?;
    attach(None, run_dir, None, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | flags, None)
}

/// Makes a place and all that is mounted below it read-only, if it is there.
fn guard(place: &Path) -> Result<(), ErrorBody> {
    let Ok(place) = place.canonicalize() else { return Ok(()) };
    if place == Path::new("/") {
        return Ok(());
    }
    bind_at(&place, &place, MsFlags::MS_REC)?;
    attach(None, &place, None, MsFlags::MS_PRIVATE | MsFlags::MS_REC, None)?;
    for point in [place.clone()].into_iter().chain(points_below(&place)?) {
        let strict = if point.starts_with(CGROUPS) { STRICT } else { MsFlags::MS_NOSUID | MsFlags::MS_NODEV };
        attach(None, &point, None, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | strict, None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_every_program_writes_it_goes_on_writing() {
        for (directory, is_read_only) in
            [("/usr/lib64", true), ("/opt/driver/lib", true), ("/", false), ("/tmp", false), ("/run/somebody", false)]
        {
            assert_eq!(is_closed(Path::new(directory)), is_read_only, "{directory}");
        }
    }

    #[test]
    fn without_layers_only_what_is_also_elsewhere_is_left_out() {
        let mount = |source: &str, destination: &str| Mount {
            source: source.into(),
            destination: destination.into(),
            options: Vec::new(),
        };
        let mut mounts = vec![
            mount("/usr/lib/gpool/580/libgpool-cuda.so", "/usr/lib/libcuda.so.1"),
            mount("/usr/lib/gpool/580/libgpool-cuda.so", "/usr/local/nvidia/lib64/libcuda.so.1"),
            mount("/usr/local/nvidia/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
            mount("/run/gpool/leases/x/control", "/dev/gpool/control"),
        ];
        let has_place =
            |mount: &Mount| mount.destination.starts_with("/usr/local") || mount.destination.starts_with("/dev");
        let kept = indispensable(&mounts, has_place).unwrap();
        assert_eq!(kept, [&mounts[1], &mounts[3]]);
        mounts.remove(1);
        assert_eq!(indispensable(&mounts, has_place), None, "the shim would be nowhere");
    }
}
