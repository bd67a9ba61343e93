//! The key `p99`: how long requests are to take at most.

use crate::class::Class;
use crate::error::{ErrorBody, ErrorCode};
use crate::mechanism::Mode;
use crate::quantity::{format_short_time, parse_short_time};
use crate::request::{Request, RequestError};

/// The least that can be promised, in nanoseconds.
const LEAST_P99_NS: u64 = 1_000_000;
/// The most.
const MOST_P99_NS: u64 = 4_000_000_000;

/// Reads one.
pub fn parse_p99(text: &str) -> Result<u64, String> {
    let ns = parse_short_time(text).map_err(|error| error.to_string())?;
    let can_be = (LEAST_P99_NS..=MOST_P99_NS).contains(&ns);
    can_be.then_some(ns).ok_or_else(|| "a p99 lies between 1ms and 4s, for example 20ms".to_owned())
}

/// Whether such a promise goes with a class.
///
/// # Errors
/// It cannot be kept to, or nobody waits for the answers of such a class.
pub fn check_p99(p99_ns: Option<u64>, class: Class) -> Result<(), RequestError> {
    let Some(ns) = p99_ns else { return Ok(()) };
    let wrong = |message: String, remedy: &str| Err(ErrorBody::new(ErrorCode::RequestInvalid, message, remedy));
    if !(LEAST_P99_NS..=MOST_P99_NS).contains(&ns) {
        return wrong(format!("a p99 of {} cannot be", format_short_time(ns)), "ask for 1ms to 4s, for example 20ms");
    }
    if class != Class::Latency {
        return wrong(
            format!("p99 does not go with class={}, which lets others go first", class.text()),
            "ask for class=latency, or leave p99 out",
        );
    }
    Ok(())
}

impl Request {
    /// The shims alone tell when requests begin and end.
    pub(super) fn check_promise(&self) -> Result<(), RequestError> {
        check_p99(self.p99_ns, self.class)?;
        if self.p99_ns.is_some() && !matches!(self.mode, Mode::Auto | Mode::Slice) {
            return Err(ErrorBody::new(
                ErrorCode::RequestInvalid,
                format!("p99 does not go with mode={}, in which nobody sees how long requests take", self.mode.text()),
                "leave p99 out, or ask for mode=slice",
            ));
        }
        Ok(())
    }
}
