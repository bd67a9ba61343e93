//! The slice scheduler, rule by rule.

mod alone;
mod arrivals;
mod classes;
mod gangs;
mod hung;
mod leaving;
mod lone;
mod pauses;
mod returns;
mod rules;
mod table;
