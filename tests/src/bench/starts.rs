//! What the start of a process costs in a leased container, beside the same container under plain runc with the
//! driver's own libraries; and what it costs on the stand, where nothing else differs.

use super::containers::plain_options;
use super::sheet::Sheet;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::Host;
use crate::image;
use crate::stand::Stand;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout};

/// Processes of each kind in each container. One of each starts after the other, so that the machine is as busy for the
/// one as for the other.
const TURNS: usize = 200;
/// Not counted: they bring files and caches up.
const WARM_UP: usize = 10;
/// Where gpool mounts the libraries in the image. The loader looks elsewhere first, so the others lie there as well.
const MOUNTED: &str = "/usr/lib/x86_64-linux-gnu";
/// Alone on the GPU, any share will do.
const REQUEST: [&str; 5] = ["--runtime=gpool", "-e", "GPOOL_FRACTION=0.1", "-e", "GPOOL_MEMORY=1GiB"];
const ROOM_PERMILLE: u16 = 100;

/// Adds one round.
pub fn measure(host: &Host, sheet: &mut Sheet) -> Result<()> {
    super::wait_for_room(host, ROOM_PERMILLE)?;
    let (before, here) = (format!(":{}/", image::LIBRARIES), format!(":{MOUNTED}/"));
    let plain: Vec<String> = plain_options().iter().map(|option| option.replace(&before, &here)).collect();
    let plain: Vec<&str> = plain.iter().map(String::as_str).collect();
    let (mut native, mut own) = (Starter::new(host, &plain)?, Starter::new(host, &REQUEST)?);
    let (mut natives, mut owns) = (Vec::new(), Vec::new());
    for turn in 0..WARM_UP + TURNS {
        let (first, second) = (native.times()?, own.times()?);
        if turn >= WARM_UP {
            natives.push(first);
            owns.push(second);
        }
    }
    native.end()?;
    own.end()?;
    for (figure, kind) in [("start.true_added", "true_us"), ("start.cuinit_added", "cuinit_us")] {
        let (own, native) = (median(&owns, kind)?, median(&natives, kind)?);
        sheet.add(figure, &[own - native], &[native])?;
    }
    let said = Stand::new(&host.stage, Path::new("/run/gpool-stand"))?.starts()?;
    let [own, native] = ["own", "native"].map(|way| said[way].as_array().map(Vec::as_slice).unwrap_or_default());
    let (own, native) = (middle(own)?, middle(native)?);
    sheet.add("start.shim_added", &[own - native], &[native])
}

/// A container that starts processes when it is asked to.
struct Starter {
    engine: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Starter {
    fn new(host: &Host, options: &[&str]) -> Result<Self> {
        let command = [image::NAME, "gpool-tenant", "--time-starts"];
        let mut engine = host.engine.start_talking(&[&["run", "--rm", "-i"], options, &command].concat())?;
        let (Some(ask), Some(answers)) = (engine.stdin.take(), engine.stdout.take()) else {
            return Err(Failure::new("docker has no input and output"));
        };
        Ok(Self { engine, ask, answers: BufReader::new(answers) })
    }

    /// How long one of each kind took, in microseconds.
    fn times(&mut self) -> Result<Value> {
        self.ask.write_all(b"\n").context("gpool-tenant")?;
        let mut said = String::new();
        self.answers.read_line(&mut said).context("gpool-tenant")?;
        serde_json::from_str(&said).context(format!("gpool-tenant said {said:?}"))
    }

    fn end(mut self) -> Result<()> {
        drop(self.ask);
        let status = self.engine.wait().context("docker")?;
        ensure(status.success(), || format!("docker ended with {status}"))
    }
}

fn median(measured: &[Value], kind: &str) -> Result<f64> {
    middle(&measured.iter().map(|one| one[kind].clone()).collect::<Vec<_>>())
}

fn middle(measured: &[Value]) -> Result<f64> {
    let all: Vec<f64> = measured.iter().filter_map(Value::as_f64).collect();
    match all.is_empty() {
        true => Err(Failure::new("no start was measured")),
        false => Ok(super::sheet::median(&all)),
    }
}
