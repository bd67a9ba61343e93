//! What the start of a process costs in a leased container, beside the same container under plain runc with the
//! driver's own libraries.

use super::containers::plain_options;
use super::sheet::Sheet;
use crate::failure::{Context, Failure, Result};
use crate::host::Host;
use crate::image;
use serde_json::Value;

/// Containers of each sort, in turn, and processes of each kind in one: the machine is as busy for the one as for the
/// other.
const TURNS: usize = 5;
const PROCESSES: &str = "40";
/// Where gpool mounts the libraries in the image. The loader looks elsewhere first, so the others lie there as well.
const MOUNTED: &str = "/usr/lib/x86_64-linux-gnu";
/// Alone on the GPU, any share will do; that of one turn is kept for a while after its end.
const REQUEST: [&str; 5] = ["--runtime=gpool", "-e", "GPOOL_FRACTION=0.1", "-e", "GPOOL_MEMORY=1GiB"];
const ROOM_PERMILLE: u16 = 100 * TURNS as u16;

/// Adds one round.
pub fn measure(host: &Host, sheet: &mut Sheet) -> Result<()> {
    super::wait_for_room(host, ROOM_PERMILLE)?;
    let (before, here) = (format!(":{}/", image::LIBRARIES), format!(":{MOUNTED}/"));
    let plain: Vec<String> = plain_options().iter().map(|option| option.replace(&before, &here)).collect();
    let plain: Vec<&str> = plain.iter().map(String::as_str).collect();
    let (mut native, mut own) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        native.push(times(host, &plain)?);
        own.push(times(host, &REQUEST)?);
    }
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

fn median(measured: &[Value], kind: &str) -> Result<f64> {
    let lists = measured.iter().filter_map(|one| one[kind].as_array());
    let all: Vec<f64> = lists.flatten().filter_map(Value::as_f64).collect();
    match all.is_empty() {
        true => Err(Failure::new(format!("nothing was said of {kind}"))),
        false => Ok(super::sheet::median(&all)),
    }
}
