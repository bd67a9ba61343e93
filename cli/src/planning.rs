//! Files and words that describe what is not there yet: layouts, hosts, requests.

pub mod host_file;
pub mod request;
pub mod wanted;
