//! The slice scheduler, rule by rule.

mod alone;
mod classes;
mod gangs;
mod hung;
mod leaving;
mod pauses;
mod rules;
mod table;
