//! Of which build a program is.

use std::sync::OnceLock;

static BUILD: OnceLock<&'static str> = OnceLock::new();

/// The version as people and packages have it: the release, and behind a `+` the commit where a package was made of one.
#[must_use]
pub fn version() -> &'static str {
    BUILD.get().copied().unwrap_or(env!("CARGO_PKG_VERSION"))
}

/// Says which build the program is; the first word of a program's `main`. That takes it from `GPOOL_VERSION`, which is set for packages
/// alone: no library is compiled anew for another commit.
pub fn is_build(version: Option<&'static str>) {
    if let Some(version) = version.filter(|version| !version.is_empty()) {
        let _ = BUILD.set(version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_not_packed_is_of_the_release() {
        for nothing in [None, Some("")] {
            is_build(nothing);
            assert_eq!(version(), env!("CARGO_PKG_VERSION"));
        }
        is_build(Some("0.1.0+20261130212350.gef0ec203"));
        assert_eq!(version(), "0.1.0+20261130212350.gef0ec203");
    }
}
