//! Where a path really lies: two paths lead to the same files where one is a bind mount of the other's.

use crate::mounted::unescape;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount, as proc_pid_mountinfo(5) has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    id: u64,
    parent: u64,
    /// Major and minor number of the file system.
    device: String,
    /// Which directory of the file system is mounted.
    root: PathBuf,
    point: PathBuf,
    /// What file system it is, `ext4`.
    kind: String,
}

/// A place in a file system, by whatever path it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    device: String,
    path: PathBuf,
    kind: String,
}

impl Location {
    /// Whether it is a procfs in which processes are, or the directory of one of them: through `root` and `cwd` there one comes
    /// to all files of theirs.
    pub fn shows_processes(&self) -> bool {
        let first = self.path.components().nth(1).map(|part| part.as_os_str().to_string_lossy().into_owned());
        let is_process =
            |name: &str| name.bytes().all(|byte| byte.is_ascii_digit()) || name == "self" || name == "thread-self";
        self.kind == "proc" && first.as_deref().is_none_or(is_process)
    }

    /// Whether one of both lies in the other, or they are the same.
    pub fn meets(&self, other: &Self) -> bool {
        self.device == other.device && (self.path.starts_with(&other.path) || other.path.starts_with(&self.path))
    }
}

/// The mounts of one mount namespace.
#[derive(Debug, Default)]
pub struct MountTable(Vec<Mount>);

impl MountTable {
    /// Reads a table; lines that are none are passed over.
    pub fn parse(table: &[u8]) -> Self {
        Self(table.split(|byte| *byte == b'\n').filter_map(mount).collect())
    }

    /// Where `path` lies, which is absolute and without symbolic links. None if no mount of the table holds it.
    pub fn location(&self, path: &Path) -> Option<Location> {
        let is_known = |id: u64| self.0.iter().any(|mount| mount.id == id);
        let is_root =
            |mount: &&Mount| mount.point == Path::new("/") && (mount.parent == mount.id || !is_known(mount.parent));
        let mut own = self.0.iter().find(is_root)?;
        // As the kernel walks: into the first mount on the way, and from there on; what it covers is never come to.
        let below = |above: &Mount| {
            let on_the_way = self
                .0
                .iter()
                .filter(|mount| mount.parent == above.id && mount.id != above.id && path.starts_with(&mount.point));
            on_the_way.min_by_key(|mount| mount.point.as_os_str().len())
        };
        // A table that goes round is none of the kernel's.
        for _ in 0..self.0.len() {
            match below(own) {
                Some(next) => own = next,
                None => break,
            }
        }
        let rest = path.strip_prefix(&own.point).ok()?;
        Some(Location { device: own.device.clone(), path: own.root.join(rest), kind: own.kind.clone() })
    }

    /// What is mounted below `path`, and where each of that lies.
    pub fn below(&self, path: &Path) -> Vec<(PathBuf, Location)> {
        let inside = self.0.iter().filter(|mount| mount.point != path && mount.point.starts_with(path));
        let located = |mount: &Mount| {
            let (device, path, kind) = (mount.device.clone(), mount.root.clone(), mount.kind.clone());
            (mount.point.clone(), Location { device, path, kind })
        };
        inside.map(located).collect()
    }
}

fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let [id, parent, device, root, point] = [(); 5].map(|()| fields.next());
    // Behind as many optional fields as there are.
    let kind = fields.skip_while(|field| *field != b"-").nth(1);
    let (id, parent, device, root, point, kind) = (id?, parent?, device?, root?, point?, kind?);
    let text = |field: &[u8]| String::from_utf8(field.to_vec()).ok();
    let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescape(field)));
    Some(Mount {
        id: text(id)?.parse().ok()?,
        parent: text(parent)?.parse().ok()?,
        device: text(device)?,
        root: path(root),
        point: path(point),
        kind: text(kind)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                         30 21 0:25 / /run rw - tmpfs tmpfs rw\n\
                         31 21 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
                         40 21 0:30 / /srv/a\\040volume rw - cgroup2 cgroup2 rw\n\
                         41 21 0:25 /gpool /srv/own rw - tmpfs tmpfs rw\n\
                         42 41 0:77 / /srv/own/leases/01/region rw - tmpfs gpool rw\n\
                         43 21 8:2 / /srv/over rw - ext4 /dev/sdb rw\n\
                         44 43 0:50 / /srv/over rw - tmpfs tmpfs rw\n";

    #[test]
    fn a_path_lies_where_its_mount_leads() {
        let table = MountTable::parse(TABLE.as_bytes());
        let at = |path: &str| {
            let location = table.location(Path::new(path)).unwrap();
            format!("{} {}", location.device, location.path.display())
        };
        for (path, location) in [
            ("/", "8:1 /"),
            ("/srv/x", "8:1 /srv/x"),
            ("/run/gpool/gpool.sock", "0:25 /gpool/gpool.sock"),
            ("/srv/own/gpool.sock", "0:25 /gpool/gpool.sock"),
            ("/srv/a volume/x", "0:30 /x"),
            ("/srv/own/leases/01/region/control", "0:77 /control"),
            ("/srv/over/x", "0:50 /x"),
        ] {
            assert_eq!(at(path), location, "{path}");
        }
        assert_eq!(MountTable::parse(b"").location(Path::new("/")), None);
    }

    #[test]
    fn a_procfs_shows_processes_and_its_other_directories_do_not() {
        let table = "21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
                     22 21 0:5 / /proc rw shared:13 master:2 - proc proc rw\n\
                     23 21 0:5 /sys/net /srv/net rw - proc proc rw\n\
                     24 21 8:1 /proc /srv/proc rw - ext4 /dev/sda1 rw\n";
        let table = MountTable::parse(table.as_bytes());
        let shows = |path: &str| table.location(Path::new(path)).unwrap().shows_processes();
        assert!(["/proc", "/proc/1", "/proc/1/root", "/proc/self/fd"].into_iter().all(shows));
        let others = ["/", "/srv/net", "/srv/proc", "/srv/proc/1", "/proc/driver/nvidia", "/proc/sys", "/proc/meminfo"];
        assert!(!others.into_iter().any(shows));
    }

    #[test]
    fn places_meet_where_one_leads_to_the_other() {
        let table = MountTable::parse(TABLE.as_bytes());
        let meet = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|path| table.location(Path::new(path)).unwrap());
            one.meets(&other) && other.meets(&one)
        };
        assert!(
            meet("/run/gpool", "/srv/own") && meet("/run", "/srv/own/x") && meet("/sys/fs/cgroup", "/srv/a volume")
        );
        assert!(!meet("/run/other", "/srv/own") && !meet("/", "/run") && !meet("/srv/x", "/srv/y"));
        let below: Vec<PathBuf> = table.below(Path::new("/srv/own")).into_iter().map(|(point, _)| point).collect();
        assert_eq!(below, [Path::new("/srv/own/leases/01/region")]);
    }
}
