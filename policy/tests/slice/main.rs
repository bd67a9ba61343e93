//! The slice scheduler, rule by rule.

mod classes;
mod hung;
mod rules;
mod table;
