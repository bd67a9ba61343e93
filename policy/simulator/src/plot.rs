//! Pictures of shares over time: one line a tenant, a point for each second.

mod svg;
mod terminal;

pub use svg::svg;
pub use terminal::terminal;
