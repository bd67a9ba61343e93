//! `gpool-tenant`: an ordinary program of the CUDA driver API. It allocates memory, launches kernels, and says on
//! stdout, as lines of JSON, what happened to it. It knows nothing of gpool, uses nothing of the other rooms, and runs
//! the same on a real and on a simulated GPU.
//!
//! Its events: `memory` (cuMemGetInfo, a line for each GPU), with `--beside` `beside`, `nvml`, `monitor`, `allocated`, `progress` each second, with `--share` and
//! `--open` `shared`, `opened` and `refused`, with `--program` `loaded` and `unloaded`, with `--graphs`
//! `graphs` after each step, with `--storm` `storm`, with `--remember` `remembered` after each pause, with
//! `--beyond` `filled`, `kept`, `again`, `rows`, `pool`, `stays` and `read-again`, with
//! `--request-rate` a `request` for each and `requests` at the end, and `error`.

mod allocator;
mod arrivals;
mod beside;
mod beyond;
mod churn;
mod context;
mod driver;
mod graphs;
mod latency;
mod memory;
mod nvml;
mod nvml_wrapped;
mod options;
mod place;
mod program;
mod programs;
mod remembering;
mod sharing;
mod starts;
mod storm;
mod work;

pub use program::run;

use serde_json::{Value, json};
use std::ffi::c_int;
use std::io::Write;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints one line. A reader who is gone ends the program.
fn say(line: &Value) {
    let mut output = std::io::stdout().lock();
    if writeln!(output, "{line}").and_then(|()| output.flush()).is_err() {
        exit(1);
    }
}

/// Whether the program stays after an error.
static OUTLIVES_ERRORS: AtomicBool = AtomicBool::new(false);

fn fail(call: &str, code: c_int) -> ! {
    say(&json!({"event": "error", "call": call, "code": code}));
    while OUTLIVES_ERRORS.load(Ordering::Relaxed) {
        std::thread::park();
    }
    exit(1)
}

fn check(call: &str, code: c_int) {
    if code != 0 {
        fail(call, code);
    }
}
