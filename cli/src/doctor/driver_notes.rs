//! What is known of drivers, as data: branches, and versions that should not be used, each with its reason and source.
//! `docs/design/drivers.md` shows the same, which a test compares.

/// How far a branch of the driver has been tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There are shims with exactly its names, and its own libraries are loaded behind them in tests.
    Supported,
    /// It works as the newest supported one does; entry points that it adds are not counted.
    Known,
}

/// A branch of the driver: the first number of its version.
#[derive(Debug, Clone, Copy)]
pub struct Branch {
    /// Such as 550.
    pub branch: u32,
    /// How far it has been tried.
    pub standing: Standing,
}

/// Every branch of which something is known. What is not here is unknown.
pub const BRANCHES: [Branch; 8] = [
    Branch { branch: 535, standing: Standing::Supported },
    Branch { branch: 550, standing: Standing::Supported },
    Branch { branch: 555, standing: Standing::Supported },
    Branch { branch: 560, standing: Standing::Known },
    Branch { branch: 570, standing: Standing::Known },
    Branch { branch: 580, standing: Standing::Supported },
    Branch { branch: 595, standing: Standing::Known },
    Branch { branch: 615, standing: Standing::Known },
];

/// The parts of a version such as 535.104.05.
pub type Version = (u32, u32, u32);

/// Versions that should not be used.
#[derive(Debug, Clone, Copy)]
pub struct Note {
    /// The first version in which the fault was put right; it concerns earlier ones of the same branch.
    pub fixed_in: Version,
    /// The same as people write it.
    pub fixed_in_text: &'static str,
    /// What is wrong.
    pub reason: &'static str,
    /// Who says so.
    pub source: &'static str,
}

impl Note {
    /// Whether it concerns this version.
    pub fn is_about(&self, version: Version) -> bool {
        version.0 == self.fixed_in.0 && version < self.fixed_in
    }
}

/// All of them.
pub const NOTES: [Note; 2] = [
    Note {
        fixed_in: (535, 104, 5),
        fixed_in_text: "535.104.05",
        reason: "its compiler may get the comparison of a 64-bit AND with zero wrong where one side is negated",
        source: "NVIDIA's release notes of 535.104.05, 4191930",
    },
    Note {
        fixed_in: (570, 133, 20),
        fixed_in_text: "570.133.20",
        reason: "GPU accounting follows a stale pointer, which ends in a NULL pointer exception",
        source: "NVIDIA's release notes of 570.133.20",
    },
];

/// Whether a version is that of the simulated driver, unless it was told to be another.
pub fn is_simulated(text: &str) -> bool {
    text.ends_with("-simulated")
}

/// The first three numbers of a version.
pub fn parse(text: &str) -> Option<Version> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    let first = numbers.next()?.parse().ok()?;
    let second = numbers.next()?.parse().ok()?;
    // Some have two parts.
    Some((first, second, numbers.next().and_then(|text| text.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(parse("535.104.05"), Some((535, 104, 5)));
        assert_eq!((parse("580.95"), parse("none")), (Some((580, 95, 0)), None));
        for note in &NOTES {
            assert_eq!(parse(note.fixed_in_text), Some(note.fixed_in));
            assert!(!note.is_about(note.fixed_in));
        }
        assert!(
            NOTES[0].is_about((535, 54, 3)) && !NOTES[0].is_about((535, 261, 3)) && !NOTES[0].is_about((530, 1, 1))
        );
    }

    #[test]
    fn the_manual_has_every_branch_and_note() {
        let page = include_str!("../../../docs/design/drivers.md");
        for branch in BRANCHES {
            let standing = if branch.standing == Standing::Supported { "supported" } else { "known" };
            assert!(page.contains(&format!("| {} | {standing} |", branch.branch)), "{branch:?}");
        }
        for note in NOTES {
            let row = format!("| below {} | {} | {} |", note.fixed_in_text, note.reason, note.source);
            assert!(page.contains(&row), "docs/design/drivers.md lacks: {row}");
        }
    }
}
