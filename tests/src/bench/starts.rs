//! What the start of a process costs in a leased container, beside the same container under plain runc with the
//! driver's own libraries.

use super::containers::plain_options;
use super::sheet::Sheet;
use crate::failure::{Context, Failure, Result};
use crate::host::Host;
use crate::image;
use serde_json::Value;

/// Processes of each kind in one container.
const PROCESSES: &str = "200";
/// Alone on the GPU, any share will do.
const REQUEST: [&str; 5] = ["--runtime=gpool", "-e", "GPOOL_FRACTION=0.4", "-e", "GPOOL_MEMORY=1GiB"];
const ROOM_PERMILLE: u16 = 400;

/// Adds one round.
pub fn measure(host: &Host, sheet: &mut Sheet) -> Result<()> {
    super::wait_for_room(host, ROOM_PERMILLE)?;
    let plain = plain_options();
    let native = times(host, &plain.iter().map(String::as_str).collect::<Vec<_>>())?;
    let own = times(host, &REQUEST)?;
    for (figure, kind) in [("start.true_added", "true_us"), ("start.cuinit_added", "cuinit_us")] {
        let (own, native) = (median(&own, kind)?, median(&native, kind)?);
        sheet.add(figure, &[own - native], &[native])?;
    }
    Ok(())
}

fn times(host: &Host, options: &[&str]) -> Result<Value> {
    let command = [image::NAME, "gpool-tenant", "--time-starts", PROCESSES];
    let said = host.engine.docker_text(&[&["run", "--rm"], options, &command].concat())?;
    serde_json::from_str(&said).context(format!("gpool-tenant said {said:?}"))
}

fn median(measured: &Value, kind: &str) -> Result<f64> {
    let list: Option<Vec<f64>> = measured[kind].as_array().map(|list| list.iter().filter_map(Value::as_f64).collect());
    let list = list.filter(|list| !list.is_empty());
    list.map(|list| super::sheet::median(&list)).ok_or_else(|| Failure::new(format!("nothing was said of {kind}")))
}
