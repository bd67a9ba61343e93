//! What a request would have now, by all that a grant looks at, without granting it.

use super::deadline::check_in_time;
use super::grant::Leases;
use super::placing::LOOK_PATIENCE;
use super::room::{Room, Scene, tally_of};
use crate::clock;
use gpool_protocol::{ContainerId, ErrorBody, LeaseRequest, Mechanism, Request, Trial, TrialRequest};
use std::time::Instant;

/// A container that there is none of, so that no place is kept for it and it stands behind all that wait.
const NOBODY: &str = "nobody";

/// The request of a container that is not there. Whether it would have something now does not depend on how long it would wait.
pub fn of_nobody(trial: TrialRequest) -> LeaseRequest {
    LeaseRequest {
        container_id: ContainerId(NOBODY.to_owned()),
        request: Request { wait_seconds: None, ..trial.request },
        asked_for_parent: false,
        starts_once: true,
        memory_of_all: false,
        unenforced: false,
        container_uid: None,
        in_pod: None,
        pod: None,
        container_dir: None,
    }
}

impl Leases {
    /// What `asked` would have if it were granted now. Nothing is noted, nor does anybody wait for what ends by itself in a moment; what
    /// others were seen to hold up to a second ago is looked at once more where `may_look` says so.
    ///
    /// # Errors
    /// Why it would be refused.
    pub fn try_out(&self, asked: &LeaseRequest, uid: u32, may_look: bool) -> Result<Trial, ErrorBody> {
        self.check_can_be(asked)?;
        match self.try_now(asked, uid) {
            Err(refusal) if may_look && self.may_be_free_by_now(&refusal) => {
                self.occupants.look_again(Instant::now() + LOOK_PATIENCE);
                self.try_now(asked, uid)
            }
            outcome => outcome,
        }
    }

    fn try_now(&self, asked: &LeaseRequest, uid: u32) -> Result<Trial, ErrorBody> {
        let book = self.book();
        let gpus = self.gpus_for_new();
        check_in_time(asked, self.run_of(asked, None), clock::now_ns())?;
        let scene = Scene { is_imagined: true, ..self.scene(&book, None, &gpus) };
        let room = self.room_for(asked, uid, &scene, None);
        let room = room.map_err(|refusal| self.with_out_of_use(refusal, (asked, uid), &book));
        let room = match room {
            Err(refusal) => return Err(self.with_moment(refusal, (asked, uid), &scene)),
            Ok(room) => room,
        };
        self.check_hours_are_read(None, &tally_of((asked, uid), room.counts(), (&gpus, &book)))?;
        let Room { served, placed, has_no_hours, .. } = room;
        if served.mechanism == Mechanism::Mps {
            self.check_serves_mps()?;
        }
        let instance = placed.indices.first().and_then(|place| gpus[*place].instance());
        Ok(Trial {
            uid,
            mechanism: served.mechanism,
            gpu_uuids: scene.uuids_of(&placed.indices),
            mig_profile: instance.map(|instance| instance.profile.clone()),
            fraction_permille: match served.mechanism {
                Mechanism::Slice | Mechanism::Mps | Mechanism::TimeSlice => served.request.fraction_permille,
                Mechanism::Exclusive | Mechanism::Mig => 1000,
            },
            memory_bytes: placed.memory_bytes,
            beyond_budget: has_no_hours,
        })
    }
}
