//! What an allocation and its end cost, in front of a driver that only counts.

use super::sheet::Sheet;
use crate::failure::{Failure, Result};
use crate::host::Host;
use crate::stand::Stand;
use serde_json::Value;
use std::path::Path;

/// Adds one round.
pub fn measure(host: &Host, sheet: &mut Sheet) -> Result<()> {
    let said = Stand::new(&host.stage, Path::new("/run/gpool-stand"))?.ask("time")?;
    for name in ["pair_0", "pair_1k", "pair_10k"] {
        let (own, native) = (numbers(&said[name]["own"])?, numbers(&said[name]["native"])?);
        sheet.add(&format!("alloc.{name}"), &own, &native)?;
    }
    Ok(())
}

fn numbers(list: &Value) -> Result<Vec<f64>> {
    let list = list.as_array().map(|list| list.iter().filter_map(Value::as_f64).collect());
    list.ok_or_else(|| Failure::new("the stand measured nothing"))
}
