//! What strangers hand to gpool, mutated from a corpus of our own: no panic, no hang, bounded memory.
//!
//! A panic ends the test's process; the input at fault is then the file that it names below `target/tmp`. The searches
//! are the same in every run; `make test-long` goes on for longer.

mod configuration;
mod mutation;
mod requests;
mod wrapper;
