//! Models of the region's protocol: the shims' own code on loom's atomics, which tries every order in which its threads
//! may run and see each other's writes. Built with `--cfg loom` alone; `make models` runs them.
//!
//! A model's threads stand for threads of one process, for processes of a lease, or for the supervisor. What the kernel
//! does is modelled: a futex is a queue behind a lock and nobody is woken for nothing, so a lost wake-up is a deadlock;
//! a record lock is a word that one process can hold; the bell is a counter behind a lock. The supervisor reads with
//! pread and clears with pwrite, which is modelled word by word and in ascending order. Time does not pass: no time-out
//! helps a thread that waits for something that was lost.
#![cfg(loom)]

mod bursts;
mod credit;
mod gate;
mod handles;
mod lease;
mod memory;
mod mutex;
mod parking;
mod physical;
mod pieces;
mod registration;
