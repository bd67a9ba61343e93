//! The environment of a command that runs beside another one.

use crate::run::description::{self, Person, is_about_gpus};
use std::ffi::OsString;

/// By which a program knows the terminal that it is on, and that is its caller's.
const TERMINAL: &str = "TERM";

/// In which order programs count GPUs: the share's, where it has several.
const ORDER: &str = "CUDA_DEVICE_ORDER";

/// Variables by name and value.
type Variables = Vec<(OsString, OsString)>;

/// `its` are the variables with which the other command, of user `uid`, was started: so is this one. Root that runs something as somebody
/// else, perhaps itself, in place of that user, has its own: what a user has put into PATH or PYTHONPATH shall not run as another one. The
/// share's are added to them.
pub fn of(its: Variables, uid: u32, other: Option<&Person>) -> Variables {
    beside(its, std::env::var_os(TERMINAL), other.filter(|person| person.uid != uid), |person| {
        description::of_caller(person).collect()
    })
}

fn beside(
    its: Variables,
    terminal: Option<OsString>,
    other: Option<&Person>,
    of_caller: impl FnOnce(&Person) -> Variables,
) -> Variables {
    match other {
        None => its.into_iter().chain(terminal.map(|name| (TERMINAL.into(), name))).collect(),
        Some(person) => {
            let share = its.into_iter().filter(|(name, _)| is_about_gpus(name) || name == ORDER);
            of_caller(person).into_iter().chain(share).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn variables(list: &[&str]) -> Variables {
        list.iter().filter_map(|entry| entry.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect()
    }

    fn named(list: Variables) -> BTreeMap<String, String> {
        // Of a name that is there twice the last one holds, as for what starts a program.
        list.into_iter().map(|(name, value)| (name.into_string().unwrap(), value.into_string().unwrap())).collect()
    }

    #[test]
    fn it_has_the_other_one_s_and_the_terminal_of_its_caller() {
        let its = || variables(&["PATH=/home/alice/bin", "NVIDIA_VISIBLE_DEVICES=void", "TERM=dumb"]);
        let nobody_else = |terminal: Option<&str>| {
            named(beside(its(), terminal.map(OsString::from), None, |_| panic!("it is no other user's")))
        };
        assert_eq!(nobody_else(None), named(its()));
        assert_eq!(nobody_else(Some("xterm"))["TERM"], "xterm");
        assert_eq!(nobody_else(Some("xterm"))["PATH"], "/home/alice/bin");
    }

    #[test]
    fn what_one_user_has_set_does_not_run_as_another() {
        let its = [
            "PYTHONPATH=/home/alice",
            "CUDA_MPS_PIPE_DIRECTORY=/m",
            "CUDA_VISIBLE_DEVICES=MIG-1",
            "HOME=/a",
            "CUDA_DEVICE_ORDER=P",
        ];
        let root = Person { name: "root".into(), uid: 0, gid: 0, groups: vec![0], home: "/root".into() };
        let seen = named(beside(variables(&its), None, Some(&root), |_| variables(&["PATH=/bin", "HOME=/root"])));
        let want = [
            "PATH=/bin",
            "HOME=/root",
            "CUDA_MPS_PIPE_DIRECTORY=/m",
            "CUDA_VISIBLE_DEVICES=MIG-1",
            "CUDA_DEVICE_ORDER=P",
        ];
        assert_eq!(seen, named(variables(&want)));
    }

    #[test]
    fn the_same_user_by_name_is_no_other() {
        let alice = Person { name: "alice".into(), uid: 1000, gid: 1, groups: vec![1], home: "/a".into() };
        assert_eq!(named(of(variables(&["MINE=1"]), 1000, Some(&alice)))["MINE"], "1");
    }
}
