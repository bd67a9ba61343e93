//! The slice scheduler, rule by rule.

mod classes;
mod gangs;
mod hung;
mod pauses;
mod rules;
mod table;
