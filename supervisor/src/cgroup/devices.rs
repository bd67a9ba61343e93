//! Taking device nodes from a cgroup that may open them now. Granting is always in config.json, where the low-level
//! runtime reads it; this is for revocation alone. A descriptor that is open already stays usable, since the kernel asks
//! at `open` and `mknod` only: who has one must be ended as well.

use super::bpf::{
    ACCESS_TYPE, AND, ATTRIBUTE_WORDS, BPF_CGROUP_DEVICE, CHARACTER_DEVICE, EXIT, Instruction, JUMP_UNLESS_EQUAL,
    LOAD_WORD, MAJOR, MINOR, MOVE, bpf, load, number,
};
use super::directories;
use rustix::fs::{Mode, OFlags, open};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Of bpf(2) in linux/bpf.h.
const BPF_PROG_ATTACH: nix::libc::c_long = 8;
const BPF_F_ALLOW_MULTI: u32 = 2;

/// A program of somebody else's above the cgroup lets no other be put below it: one that is there without a flag that allows it
/// (kernel/bpf/cgroup.c, hierarchy_allows_attach).
#[derive(Debug)]
pub struct HeldAbove;

impl fmt::Display for HeldAbove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a device program above its cgroup, such as that of Slurm's ConstrainDevices, lets none be added")
    }
}

impl std::error::Error for HeldAbove {}

/// Whether [`deny`] failed because of a program above the cgroup.
pub fn is_held_above(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<HeldAbove>())
}

/// Denies the character devices with these major and minor numbers to the cgroup `path` and all below it. Where a
/// version 1 hierarchy of devices has the cgroup, said again it changes nothing; on version 2 each time puts another
/// program beside those that are there, all of which have to allow an access.
///
/// # Errors
/// No hierarchy controls the devices of this cgroup, or the kernel refuses.
pub fn deny(path: &str, devices: &BTreeSet<(u32, u32)>) -> io::Result<()> {
    let directories = directories(path);
    let first: Vec<_> = directories.iter().map(|it| it.join("devices.deny")).filter(|file| file.exists()).collect();
    for file in &first {
        for (major, minor) in devices {
            // One line for each write: the kernel takes no more (devcgroup_update_access).
            std::fs::write(file, format!("c {major}:{minor} rwm"))?;
        }
    }
    // On a hybrid host both versions have the cgroup, and the first one's rule is enough.
    let second = directories.iter().find(|directory| directory.join("cgroup.controllers").exists());
    match (first.is_empty(), second) {
        (false, _) => Ok(()),
        (true, Some(directory)) => attach(directory, devices),
        (true, None) => Err(io::Error::other("no hierarchy controls the devices of its cgroup")),
    }
}

/// Whether a cgroup of version 1, found by its folder, may open one of the devices again: somebody gave it back.
pub fn is_given_back(path: &str, devices: &BTreeSet<(u32, u32)>) -> bool {
    let list = |directory: &PathBuf| std::fs::read_to_string(directory.join("devices.list")).unwrap_or_default();
    directories(path).iter().any(|directory| list(directory).lines().any(|line| allows(line, devices)))
}

/// Whether a line of devices.list, such as `c 195:0 rw` or `a *:* rwm`, allows to open one of the devices.
fn allows(line: &str, devices: &BTreeSet<(u32, u32)>) -> bool {
    let mut words = line.split_whitespace();
    let (Some(kind), Some(numbers)) = (words.next(), words.next()) else { return false };
    let Some((major, minor)) = numbers.split_once(':') else { return false };
    let is = |said: &str, number: u32| said == "*" || said.parse() == Ok(number);
    matches!(kind, "c" | "a") && devices.iter().any(|device| is(major, device.0) && is(minor, device.1))
}

/// The program that denies the devices and allows everything else.
fn program(devices: &BTreeSet<(u32, u32)>) -> Vec<Instruction> {
    let load = |to: u8, offset| Instruction::of(LOAD_WORD, (to, 1), offset, 0);
    let with = |code, register, offset, immediate| Instruction::of(code, (register, 0), offset, immediate);
    let answer = |word| [with(MOVE, 0, 0, word), with(EXIT, 0, 0, 0)];
    let mut all = vec![load(2, ACCESS_TYPE), with(AND, 2, 0, 0xffff), load(3, MAJOR), load(4, MINOR)];
    for (major, minor) in devices {
        // Numbers of devices have 12 and 20 bits.
        all.push(with(JUMP_UNLESS_EQUAL, 2, 4, CHARACTER_DEVICE));
        all.push(with(JUMP_UNLESS_EQUAL, 3, 3, major.cast_signed()));
        all.push(with(JUMP_UNLESS_EQUAL, 4, 2, minor.cast_signed()));
        all.extend(answer(0));
    }
    all.extend(answer(1));
    all
}

/// Puts the program beside those that the low-level runtime and systemd have attached. It stays until the cgroup goes.
fn attach(directory: &Path, devices: &BTreeSet<(u32, u32)>) -> io::Result<()> {
    let cgroup = open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let loaded = load(&program(devices))?;
    let mut attribute = [0u32; ATTRIBUTE_WORDS];
    attribute[..4].copy_from_slice(&[
        number(cgroup.as_fd()),
        number(loaded.as_fd()),
        BPF_CGROUP_DEVICE,
        BPF_F_ALLOW_MULTI,
    ]);
    bpf(BPF_PROG_ATTACH, &mut attribute).map(drop).map_err(of_attaching)
}

/// Whoever may not call bpf(2), or has too few rights, was told so when the program was loaded.
fn of_attaching(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(nix::libc::EPERM) => io::Error::new(io::ErrorKind::PermissionDenied, HeldAbove),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_gives_a_device_back_is_known() {
        let gpu = BTreeSet::from([(195, 0)]);
        for (line, gives) in [
            ("c 195:0 rw", true),
            ("c 195:* rwm", true),
            ("a *:* rwm", true),
            ("c 195:1 rw", false),
            ("c 1950:0 rw", false),
            ("b 195:0 rw", false),
            ("c 195", false),
            ("", false),
        ] {
            assert_eq!(allows(line, &gpu), gives, "{line}");
        }
    }

    /// Runs the program as the kernel would, for one access; its answer.
    fn run(program: &[Instruction], kind: u32, major: u32, minor: u32) -> i32 {
        let mut registers = [0i64; 5];
        let mut at = 0;
        loop {
            let Instruction { code, registers: named, offset, immediate } = program[at];
            let to = usize::from(named & 0xf);
            at += 1;
            match code {
                LOAD_WORD => {
                    registers[to] = i64::from(match offset {
                        ACCESS_TYPE => 0x3_0000 | kind,
                        MAJOR => major,
                        MINOR => minor,
                        _ => panic!("nothing lies at {offset}"),
                    });
                }
                AND => registers[to] &= i64::from(immediate),
                MOVE => registers[to] = immediate.into(),
                JUMP_UNLESS_EQUAL if registers[to] != i64::from(immediate) => at += offset as usize,
                JUMP_UNLESS_EQUAL => {}
                EXIT => return registers[0] as i32,
                _ => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn the_program_denies_its_devices_and_nothing_else() {
        let program = program(&BTreeSet::from([(195, 0), (195, 3)]));
        let device = CHARACTER_DEVICE.cast_unsigned();
        for (kind, major, minor, answer) in [
            (device, 195, 0, 0),
            (device, 195, 3, 0),
            (device, 195, 1, 1),
            (device, 195, 255, 1),
            (device, 1, 3, 1),
            (1, 195, 0, 1),
        ] {
            assert_eq!(run(&program, kind, major, minor), answer, "{kind} {major}:{minor}");
        }
    }

    #[test]
    fn a_program_that_may_be_loaded_and_not_added_is_held_by_one_above() {
        let refused = |errno| io::Error::from_raw_os_error(errno);
        assert!(is_held_above(&of_attaching(refused(nix::libc::EPERM))));
        assert!(!is_held_above(&of_attaching(refused(nix::libc::E2BIG))) && !is_held_above(&refused(nix::libc::EPERM)));
    }

    #[test]
    fn a_cgroup_that_nothing_controls_is_an_error() {
        let error = deny("/gpool-no-such-cgroup", &BTreeSet::from([(195, 0)])).unwrap_err();
        assert!(error.to_string().contains("no hierarchy"), "{error}");
    }
}
