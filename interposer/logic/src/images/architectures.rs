//! Which entries of a fat binary the driver may take for the devices that there are.
//!
//! Machine code runs on devices of its own major version alone, and a PTX text on those of its version or newer. Source:
//! "CUDA C++ Programming Guide", Binary Compatibility and PTX Compatibility.

/// The devices of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architectures {
    /// A bit for each major version.
    majors: u64,
    /// The newest, in tenths: 90 is 9.0, as the compiler writes it.
    newest: u32,
}

impl Architectures {
    /// Of devices that nothing is known of.
    pub const ANY: Self = Self { majors: u64::MAX, newest: u32::MAX };
    /// Of no device.
    pub const NONE: Self = Self { majors: 0, newest: 0 };

    /// With a device of this compute capability, too.
    #[must_use]
    pub fn with(self, major: u32, minor: u32) -> Self {
        let newest = major.saturating_mul(10).saturating_add(minor);
        Self { majors: self.majors | bit(major), newest: self.newest.max(newest) }
    }

    /// Whether machine code for `architecture` may run; 0 is one that is not told.
    pub(super) fn run_code(self, architecture: u32) -> bool {
        architecture == 0 || self.majors & bit(architecture / 10) != 0
    }

    /// Whether a text for `architecture` may be compiled.
    pub(super) fn compile_text(self, architecture: u32) -> bool {
        architecture <= self.newest
    }
}

/// The last one stands for all that are beyond it.
fn bit(major: u32) -> u64 {
    1 << major.min(u64::BITS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_runs_on_its_major_version_and_text_on_newer_devices() {
        let devices = Architectures::NONE.with(8, 6).with(9, 0);
        for (architecture, code, text) in [
            (0, true, true),
            (75, false, true),
            (80, true, true),
            (89, true, true),
            (90, true, true),
            (100, false, false),
        ] {
            assert_eq!(devices.run_code(architecture), code, "code for {architecture}");
            assert_eq!(devices.compile_text(architecture), text, "text for {architecture}");
        }
        for architecture in [0, 75, 120, u32::MAX] {
            assert!(Architectures::ANY.run_code(architecture) && Architectures::ANY.compile_text(architecture));
        }
    }
}
