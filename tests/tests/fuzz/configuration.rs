//! The configuration file.

use super::mutation::feed;
use std::path::Path;

fn search(times: usize) {
    feed("configuration", times, |bytes| {
        // A file that is no text is refused when it is read.
        let text = String::from_utf8_lossy(bytes);
        if let Err(error) = gpool_configuration::parse(Path::new("/etc/gpool/config.toml"), &text) {
            assert!(error.to_string().contains("/etc/gpool/config.toml"), "{error}");
        }
    });
}

#[test]
fn no_configuration_breaks_its_reader() {
    search(3000);
}

#[test]
#[ignore = "long"]
fn no_configuration_breaks_its_reader_for_long() {
    search(300_000);
}
