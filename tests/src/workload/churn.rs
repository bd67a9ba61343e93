//! A program that gives back what it has taken, and takes it again.

use super::context::Context;
use super::options::Options;
use std::time::Duration;

/// Allocates a piece and frees it again and again in each of its threads, with a pause of `pause_us` behind each.
pub(super) fn churn(options: &Options, context: &Context, pause_us: u64) {
    let (bytes, pause) = ((options.chunk_mib as usize) << 20, Duration::from_micros(pause_us));
    let rest = || match pause.is_zero() {
        true => {}
        false => std::thread::sleep(pause),
    };
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                context.enter();
                loop {
                    let address = context.try_to_allocate(bytes);
                    rest();
                    if let Some(address) = address {
                        context.free(address);
                        rest();
                    }
                }
            });
        }
    });
}
