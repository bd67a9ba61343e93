//! Files and words that describe what is not there yet: layouts, hosts, requests.

pub mod goals;
pub mod host_file;
pub mod layout_file;
pub mod request;
