//! What `packaging/pack.sh` cannot take from the house as it lies there: man pages and completions, made from the
//! programs' own definitions, and the trees of the packages, laid out as `Cargo.toml` says.
#![forbid(unsafe_code)]

mod assets;
mod debian;
mod manifest;
pub mod pages;
mod rpm;
pub mod tree;
