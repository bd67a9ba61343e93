//! A program that has something in the GPU's memory, thinks for as long as its pause file is there, and then looks whether it is all
//! still there.

use super::context::Context;
use super::driver::Driver;
use super::options::Options;
use super::{check, say};
use serde_json::json;
use std::time::{Duration, Instant};

/// It looks so often whether it is to go on.
const LOOK: Duration = Duration::from_millis(2);

/// Writes so much, and reads it after each pause, for ever. The first call after one is a copy to the GPU, as that of a server to which a
/// request has come.
pub(super) fn remember(options: &Options, driver: &Driver, context: &Context, mib: usize) -> ! {
    context.enter();
    let words = (mib << 20) / size_of::<u64>();
    let written: Vec<u64> = (0..words as u64).map(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let bytes = words * size_of::<u64>();
    let (address, asked) = (context.allocate(bytes), context.allocate(size_of::<u64>()));
    // SAFETY: as many bytes as both sides have.
    check("cuMemcpyHtoD", unsafe { (driver.to_device)(address, written.as_ptr().cast(), bytes) });
    let is_paused = || options.pause_file.as_ref().is_some_and(|path| path.exists());
    let mut read = vec![0_u64; words];
    for round in 0_u64.. {
        while is_paused() {
            std::thread::sleep(LOOK);
        }
        let begun = Instant::now();
        // SAFETY: the eight bytes of a live local go to eight bytes of the device's.
        check("cuMemcpyHtoD", unsafe { (driver.to_device)(asked, (&raw const round).cast(), size_of::<u64>()) });
        let first_ms = begun.elapsed().as_millis() as u64;
        read.fill(0);
        // SAFETY: as above, the other way.
        check("cuMemcpyDtoH", unsafe { (driver.to_host)(read.as_mut_ptr().cast(), address, bytes) });
        let wrong = read.iter().zip(&written).filter(|(read, written)| read != written).count();
        say(&json!({"event": "remembered", "round": round, "wrong": wrong, "first_ms": first_ms}));
        while !is_paused() {
            std::thread::sleep(LOOK);
        }
    }
    unreachable!("rounds are counted for ever")
}
