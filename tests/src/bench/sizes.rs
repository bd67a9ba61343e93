//! How large the programs are, and of how many crates the wrapper is made.

use super::sheet::Sheet;
use crate::failure::{Context, Result};
use crate::host::Host;
use std::fs;

/// Adds one round; every round is the same.
pub fn measure(host: &Host, sheet: &mut Sheet) -> Result<()> {
    let programs = [
        ("size.runtime", host.stage.program("gpool-runtime")),
        ("size.hook", host.stage.hook()),
        ("size.supervisor", host.stage.program("gpool-supervisor")),
        ("size.gpool", host.stage.program("gpool")),
    ];
    for (figure, path) in programs {
        let bytes = fs::metadata(&path).context(path.display())?.len();
        sheet.add(figure, &[bytes as f64 / f64::from(1 << 20)], &[])?;
    }
    // `make build` writes the list.
    let list = host.stage.program("").join("../wrapper-crates");
    let crates = fs::read_to_string(&list).context(list.display())?;
    sheet.add("size.wrapper_crates", &[crates.lines().count() as f64], &[])
}
