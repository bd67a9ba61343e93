//! The slice scheduler, rule by rule.

mod classes;
mod rules;
mod table;
