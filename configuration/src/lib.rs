//! `/etc/gpool/config.toml`: its keys, their defaults, and errors that name the line.
//!
//! An absent or empty file works. Unknown keys are refused with the nearest known one.
#![forbid(unsafe_code)]

mod file;
mod keys;

pub use file::{ConfigurationError, DEFAULT_PATH, load, parse};
pub use keys::{
    BypassAction, ClassName, ClassPolicy, Classes, Compat, Configuration, Driver, DriverMount, EnvPolicy,
    HANG_SECONDS_MAX, HangAction, Lease, LiarAction, Paths, Policy, Runtime, Socket,
};
