//! Prometheus' text format: all figures of a family together, below its meaning and its kind.

use super::families::{FAMILIES, Family};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Figures by family.
#[derive(Debug, Default)]
pub struct Page {
    figures: BTreeMap<Family, String>,
}

impl Page {
    /// Adds a figure with the family's labels in their order.
    pub fn add(&mut self, family: Family, labels: &[(&str, &str)], value: f64) {
        let described = family.description();
        debug_assert!(labels.iter().map(|(name, _)| *name).eq(described.labels.iter().copied()), "{}", described.name);
        let lines = self.figures.entry(family).or_default();
        lines.push_str(described.name);
        for (index, (name, label)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            // Writing to a string cannot fail.
            let _ = write!(lines, "{before}{name}=\"{}\"", escaped(label));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(lines, "{after} {value}");
    }

    /// The text; families without a figure are left out.
    pub fn finish(self) -> String {
        let mut text = String::new();
        for (family, described) in FAMILIES {
            if let Some(lines) = self.figures.get(family) {
                let (name, help, kind) = (described.name, described.help, described.kind.word());
                let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
            }
        }
        text
    }
}

/// A label's value between its quotation marks.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
