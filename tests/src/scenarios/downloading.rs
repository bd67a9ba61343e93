//! What takes long to download, fetched while something else goes on.

use super::{booted_systemd, engines, whole_images};
use crate::failure::Failure;

/// Fetches the whole systems that scenarios look into. What cannot be had is told; its scenario tries once more and skips
/// what it does not get.
pub fn fetch_systems() {
    let images = || whole_images::fetch().unwrap_or_else(|failure| vec![failure]);
    let failures: Vec<Failure> = std::thread::scope(|scope| {
        let images = scope.spawn(images);
        let others = [engines::current::fetch(), booted_systemd::fetch()].into_iter().filter_map(Result::err);
        let others: Vec<Failure> = others.collect();
        images.join().unwrap_or_default().into_iter().chain(others).collect()
    });
    failures.iter().for_each(|failure| eprintln!("not fetched: {failure}"));
}
