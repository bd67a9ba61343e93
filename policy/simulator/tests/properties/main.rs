//! What holds in any scenario: properties of the slice scheduler, searched for a counterexample in random scenarios.
//!
//! Every scenario follows from its seed. The properties that one run can show are judged together in [`search`], which
//! prints how close the worst run came to each bound; those that need another run of the same scenario beside it, with
//! something changed, have modules of their own.

mod busy;
mod ceiling;
mod charges;
mod fluid;
mod generate;
mod greedy;
mod lag;
mod metamorphic;
mod observe;
mod overrun;
mod replay;
mod search;
mod tenant_death;
mod waits;
mod weights;
