//! Leases of running containers that could not be taken over, as the socket shows them: they keep their places, so whoever
//! looks at a GPU must find them, and nobody may take their files for leftovers.

use super::book::Book;
use super::record::Record;
use super::view::view_of_record;
use gpool_protocol::{LeaseState, LeaseView};

/// A stranded lease. No supervisor opens or closes its gate.
pub fn view(record: &Record) -> LeaseView {
    let view = view_of_record(record);
    let enforcement = if view.enforcement == "co-operative" { "none".to_owned() } else { view.enforcement };
    let init_pid = record.init.map(|init| init.pid);
    LeaseView { state: LeaseState::Stranded, init_pid, cgroup: record.cgroup.clone(), enforcement, ..view }
}

impl Book {
    /// The stranded lease that `text` means, by a beginning of its id or its container's.
    pub fn stranded_one(&self, text: &str) -> Option<&Record> {
        self.stranded.iter().find(|record| record.is_meant_by(text))
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_ahead::ReadAhead;
    use super::super::record::sample;
    use super::*;
    use gpool_protocol::{ErrorCode, LeaseId, Mechanism};

    #[test]
    fn a_stranded_lease_is_shown_with_its_place_and_as_paced_by_nobody() {
        let whole = Record { lease_id: LeaseId("02".into()), mechanism: Mechanism::Exclusive, ..sample() };
        let mut book = Book { stranded: vec![sample(), whole], ..Book::default() };
        let shown = book.views(&ReadAhead::default());
        let [sliced, whole] = shown.as_slice() else { panic!("{shown:?}") };
        assert_eq!(
            (sliced.state, sliced.fraction_permille, sliced.memory_cap_bytes),
            (LeaseState::Stranded, 300, 4 << 30)
        );
        assert_eq!((sliced.enforcement.as_str(), whole.enforcement.as_str()), ("none", "hardware"));
        assert_eq!(sliced.cgroup.as_deref(), Some("/docker/c"));
        assert_eq!(book.view_of("01").unwrap(), *sliced);
        assert_eq!(book.view_of("").unwrap_err().code, ErrorCode::LeaseUnknown);
        let id = sample().lease_id;
        book.stranded_for.insert(id.clone(), "its GPU GPU-7 is gone".into());
        let refused = book.find(&id.0).map(drop).unwrap_err();
        assert_eq!(refused.code, ErrorCode::LeaseConflict, "nobody can change it");
        assert!(refused.message.ends_with("is not under this supervisor: its GPU GPU-7 is gone"), "{refused}");
    }
}
