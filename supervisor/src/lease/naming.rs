//! Which lease a person means by an id, or the beginning of one.

use super::book::{Book, Lease};
use super::record::Record;
use gpool_protocol::{ErrorBody, ErrorCode, LEASE_UNKNOWN_REMEDY, LeaseId};

/// Leases that are named where an id means more than one.
const NAMED_LEASES: usize = 4;

impl Book {
    /// The lease that `text` means: a lease id or container id, or a prefix of one that means no other.
    ///
    /// # Errors
    /// Unknown, not unique, or one that can be looked at alone: a kept place, or a lease that is not taken over.
    pub fn find(&mut self, text: &str) -> Result<&mut Lease, ErrorBody> {
        match self.running(text) {
            Ok(id) => self.exactly(&id.0),
            Err(error) if error.code == ErrorCode::LeaseUnknown => Err(self.why_not_running(text).unwrap_or(error)),
            Err(error) => Err(error),
        }
    }

    /// The same without a look at kept places and leases that are not taken over.
    ///
    /// # Errors
    /// Unknown, or not unique.
    pub fn running(&self, text: &str) -> Result<LeaseId, ErrorBody> {
        meant(self.leases.values().map(|lease| &lease.record), text)
    }

    fn why_not_running(&self, text: &str) -> Option<ErrorBody> {
        let conflict = |message: String, remedy| Some(ErrorBody::new(ErrorCode::LeaseConflict, message, remedy));
        if let Some(held) = self.held.iter().find(|held| held.record.is_meant_by(text)) {
            let container = held.record.container_id.short();
            let message = format!("container {container} has ended, and its place is kept for a restart");
            return conflict(message, "start it again, or wait until the place is free");
        }
        let record = self.stranded_one(text)?;
        let why = self.stranded_for.get(&record.lease_id).map_or("it was not looked at yet", String::as_str);
        let message = format!("container {} is not under this supervisor: {why}", record.container_id.short());
        conflict(message, "make its GPU answer again (gpool gpu ls), or stop the container")
    }
}

fn unknown(text: &str) -> ErrorBody {
    ErrorBody::new(ErrorCode::LeaseUnknown, format!("no lease or container has the id {text:?}"), LEASE_UNKNOWN_REMEDY)
}

/// The lease among `records` that a person means by `text`. A lease's own id is gpool's and means that lease. Container ids
/// are chosen by whoever makes the container: one user's must not be taken for another's, so a whole one comes before those
/// that begin with it among the containers of one user only.
fn meant<'a>(records: impl Iterator<Item = &'a Record>, text: &str) -> Result<LeaseId, ErrorBody> {
    let found: Vec<&Record> = records.filter(|record| record.is_meant_by(text)).collect();
    let is_one_users = found.windows(2).all(|pair| pair[0].owner_uid == pair[1].owner_uid);
    let of_container = || found.iter().find(|record| is_one_users && record.container_id.0 == text);
    if let Some(record) = found.iter().find(|record| record.lease_id.0 == text).or_else(of_container) {
        return Ok(record.lease_id.clone());
    }
    match found.as_slice() {
        [] => Err(unknown(text)),
        [one] => Ok(one.lease_id.clone()),
        several if is_one_users => Err(ErrorBody::new(
            ErrorCode::LeaseConflict,
            format!("{text:?} means {} leases", several.len()),
            "give more of the id",
        )),
        several => {
            // Whoever would fill a screen with such containers is named with the first of them.
            let named: Vec<String> = (several.iter().take(NAMED_LEASES))
                .map(|record| {
                    format!(
                        "{} (container {}, user {})",
                        record.lease_id,
                        record.container_id.short(),
                        record.owner_uid
                    )
                })
                .collect();
            Err(ErrorBody::new(
                ErrorCode::LeaseConflict,
                format!("{text:?} means {} leases of different users, such as {}", several.len(), named.join(" and ")),
                "give the lease id, which gpool ps --format wide shows",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::book::Held;
    use super::super::record::sample;
    use super::*;
    use gpool_protocol::ContainerId;
    use std::time::Instant;

    #[test]
    fn a_place_that_is_kept_is_told_from_a_container_that_was_never_there() {
        let held = Held { record: sample(), gpus: vec![0], until: Instant::now() };
        let mut book = Book { held: vec![held], ..Book::default() };
        let refused = book.find(&sample().container_id.0).map(drop).unwrap_err();
        assert_eq!(refused.code, ErrorCode::LeaseConflict);
        assert!(refused.message.contains("is kept for a restart"), "{refused}");
        let never = book.find("never").map(drop).unwrap_err();
        assert_eq!(never.code, ErrorCode::LeaseUnknown);
        assert!(never.remedy.ends_with("gpool explain \"$(docker inspect -f '{{.Id}}' NAME)\""), "{never}");
    }

    #[test]
    fn an_id_means_a_lease_of_one_user_only() {
        let record = |lease: &str, container: &str, owner_uid: u32| Record {
            lease_id: LeaseId(lease.into()),
            container_id: ContainerId(container.into()),
            owner_uid,
            ..sample()
        };
        let used_before = Book::default().exactly("01A").map(|_| ()).unwrap_err();
        assert!(
            used_before.code == ErrorCode::LeaseUnknown && used_before.remedy.contains("create the container anew")
        );
        let own = [record("01A", "9b2117a1dc85", 0), record("01B", "9b2117", 0), record("02C", "77", 0)];
        let meant_of = |others: &[Record], text: &str| meant(own.iter().chain(others), text).map(|id| id.0);
        for (text, lease) in [("01A", "01A"), ("02", "02C"), ("9b2117", "01B"), ("9b2117a", "01A")] {
            assert_eq!(meant_of(&[], text).as_deref(), Ok(lease), "{text}");
        }
        assert_eq!(meant_of(&[], "9b").unwrap_err().remedy, "give more of the id");
        for text in ["", "x"] {
            assert_eq!(meant_of(&[], text).unwrap_err().code, ErrorCode::LeaseUnknown);
        }
        // A user who names a container as another's is shown, or as a lease.
        let forged = [record("03D", "9b2117a1dc", 1000), record("03E", "01A", 1000)];
        let refused = meant_of(&forged, "9b2117a1dc").unwrap_err();
        assert_eq!(refused.code, ErrorCode::LeaseConflict);
        for named in ["01A (container 9b2117a1dc85, user 0)", "03D (container 9b2117a1dc, user 1000)"] {
            assert!(refused.message.contains(named), "{refused}");
        }
        assert_eq!(meant_of(&forged, "01A").as_deref(), Ok("01A"), "a lease's own id");
        assert_eq!(meant_of(&forged, "9b2117a1dc85").as_deref(), Ok("01A"));
    }
}
