//! Tenants of several GPUs beside others whose requests come to each of these at different times, in virtual time.

mod requests;
mod world;
