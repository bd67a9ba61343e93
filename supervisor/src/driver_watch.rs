//! The driver's libraries may be replaced while its kernel module is in use, by a package over night: no container is started
//! from then on, and whoever looks after the host should hear it before the first one that is refused does.

use crate::events::About;
use crate::lease::Leases;
use gpool_protocol::EventKind;
use std::time::{Duration, Instant};

/// Between two looks, which read a few links.
const PERIOD: Duration = Duration::from_secs(10);

/// What was seen last.
#[derive(Debug, Default)]
pub struct DriverWatch {
    looked: Option<Instant>,
    /// The version of the libraries, where it is not the module's.
    replaced: Option<String>,
}

impl DriverWatch {
    /// Looks, unless it has lately, and tells what has changed.
    pub fn look(&mut self, leases: &Leases) {
        if self.looked.is_some_and(|looked| looked.elapsed() < PERIOD) {
            return;
        }
        self.looked = Some(Instant::now());
        if let Some((kind, message)) = leases.driver_versions().and_then(|versions| self.note(&versions)) {
            leases.events.note(kind, About::default(), message);
        }
    }

    fn note(&mut self, (libraries, module): &(String, String)) -> Option<(EventKind, String)> {
        let now = (libraries != module).then(|| libraries.clone());
        if now == self.replaced {
            return None;
        }
        self.replaced = now;
        Some(match &self.replaced {
            Some(libraries) => (
                EventKind::DriverReplaced,
                format!(
                    "the driver's libraries are of version {libraries} now and its kernel module of {module}: no \
                     container is started on a GPU, and those that run go on; boot this host when it suits you, or have \
                     all that uses GPUs end and load the module anew"
                ),
            ),
            None => (
                EventKind::DriverInOrder,
                "the driver's libraries and its kernel module are of one version again: containers are started"
                    .to_owned(),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_told_once() {
        let mut watch = DriverWatch::default();
        let to = |version: &str| (version.to_owned(), "580.1".to_owned());
        assert_eq!(watch.note(&to("580.1")), None, "in order, and never otherwise");
        let (kind, message) = watch.note(&to("580.2")).unwrap();
        assert_eq!(kind, EventKind::DriverReplaced);
        assert!(message.contains("580.2") && message.contains("580.1"), "{message}");
        assert_eq!(watch.note(&to("580.2")), None);
        assert!(watch.note(&to("580.3")).unwrap().1.contains("580.3"), "and replaced again");
        assert_eq!(watch.note(&to("580.1")).unwrap().0, EventKind::DriverInOrder);
    }
}
