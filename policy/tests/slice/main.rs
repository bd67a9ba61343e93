//! The slice scheduler, rule by rule.

mod classes;
mod hung;
mod pauses;
mod rules;
mod table;
