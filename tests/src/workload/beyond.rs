//! A program that takes more than its GPU has for it, and uses all of it: what of that lies in the host's memory, whether it keeps what
//! is written there, and what happens when it is given back by every way.

use super::context::Context;
use super::driver::Driver;
use super::options::Options;
use super::{check, fail, say};
use rustix::mm::{MapFlags, ProtFlags};
use serde_json::json;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::Duration;

/// CU_POINTER_ATTRIBUTE_MEMORY_TYPE and CU_MEMORYTYPE_HOST (cuda.h).
const MEMORY_TYPE: c_int = 2;
const HOST: u32 = 1;
/// So much of each piece is written and read, at its beginning and at its end.
const BYTES: usize = 4096;
const ROW_BYTES: usize = 1000;
/// So many pieces are taken from the device's pool, within the cap.
const PIECES_OF_POOL: usize = 16;
/// Flag of cuStreamCreate, and mode of cuStreamBeginCapture: what could break one is refused in all threads.
const NON_BLOCKING: u32 = 1;
const CAPTURE_GLOBAL: c_int = 0;
/// It looks so often whether it is to read all again.
const LOOK: Duration = Duration::from_millis(20);

/// Takes pieces of --chunk-mib until one is refused, uses them, gives some back and takes them again; once more in another context, with
/// whose end all that was in the first one has gone; then stays with all of them.
pub(super) fn go(options: &Options, driver: &Driver, context: &Context) -> ! {
    context.enter();
    let before = use_all(options, driver, context);
    let (there, here): (Vec<u64>, Vec<u64>) = before.into_iter().partition(|piece| on_host(driver, &[*piece]) == 1);
    context.destroy();
    // A simulated device's addresses are a process's own. What comes next shall be where pieces in the host's memory were.
    here.iter().for_each(|piece| occupy(*piece, (options.chunk_mib as usize) << 20));
    let other = Context::create(driver, context.gpu, None, false);
    at_addresses_of_before(options, driver, &there);
    let pieces = use_all(options, driver, &other);
    let bytes = (options.chunk_mib as usize) << 20;
    let wrong = written_and_read(driver, &pieces, bytes);
    say(&json!({"event": "stays", "pieces": pieces.len(), "on_host": on_host(driver, &pieces), "wrong": wrong}));
    let is_asked = || options.pause_file.as_ref().is_some_and(|path| path.exists());
    while !is_asked() {
        std::thread::sleep(LOOK);
    }
    say(&json!({"event": "read-again", "wrong": wrong_of(driver, &pieces, bytes)}));
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// What was in a context that has gone left its addresses: what comes there now is memory of the device, and is freed as that.
fn at_addresses_of_before(options: &Options, driver: &Driver, before: &[u64]) {
    let mut taken = [0_u64; PIECES_OF_POOL];
    for address in &mut taken {
        // SAFETY: the result goes to a live place; the default stream is meant.
        check("cuMemAllocAsync", unsafe {
            (driver.allocate_async)(address, (options.chunk_mib as usize) << 20, null_mut())
        });
    }
    let (there, same) = (on_host(driver, &taken), taken.iter().filter(|address| before.contains(address)).count());
    for address in taken {
        give_back(driver, address, Way::InOrder);
    }
    say(&json!({"event": "pool", "on_host": there, "same": same}));
}

/// Has nothing else come there, if nothing is there now.
fn occupy(address: u64, bytes: usize) {
    let (nothing, private) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping, wherever it comes to lie: the place is only a wish.
    let _ = unsafe { rustix::mm::mmap_anonymous(address as *mut c_void, bytes, nothing, private) };
}

/// In the order of a stream, while another one is being captured, which that must not break.
fn beside_a_capture(driver: &Driver, bytes: usize) -> u64 {
    let (mut captured, mut own, mut graph, mut address) = (null_mut(), null_mut(), null_mut(), 0);
    // SAFETY: results go to live locals; handles are those that were given.
    unsafe {
        check("cuStreamCreate", (driver.stream_create)(&mut captured, NON_BLOCKING));
        check("cuStreamCreate", (driver.stream_create)(&mut own, NON_BLOCKING));
        check("cuStreamBeginCapture", (driver.capture_begin)(captured, CAPTURE_GLOBAL));
        check("cuMemAllocAsync", (driver.allocate_async)(&mut address, bytes, own));
        check("cuMemFreeAsync", (driver.free_async)(address, own));
        check("cuMemAllocAsync", (driver.allocate_async)(&mut address, bytes, own));
        check("cuStreamEndCapture", (driver.capture_end)(captured, &mut graph));
    }
    address
}

fn use_all(options: &Options, driver: &Driver, context: &Context) -> Vec<u64> {
    let bytes = (options.chunk_mib as usize) << 20;
    let (mut pieces, mut code) = (Vec::new(), 0);
    while code == 0 {
        let mut piece = 0;
        // SAFETY: the result goes to a live local.
        code = unsafe { (driver.allocate)(&mut piece, bytes) };
        pieces.extend((code == 0).then_some(piece));
    }
    context.report_memory();
    say(&json!({"event": "filled", "pieces": pieces.len(), "on_host": on_host(driver, &pieces), "code": code}));
    say(&json!({"event": "kept", "wrong": written_and_read(driver, &pieces, bytes)}));
    let place_of =
        |pieces: &[u64], is_there| pieces.iter().position(|piece| (on_host(driver, &[*piece]) == 1) == is_there);
    let (Some(there), Some(here)) = (place_of(&pieces, true), place_of(&pieces, false)) else {
        fail("pieces lie in one memory alone", 0)
    };

    // What was on the device and is given back is room there.
    pieces[here] = taken_again(driver, context, pieces[here], bytes, (Way::Now, Way::Now));
    say(&json!({"event": "again", "what": "device", "on_host": on_host(driver, &pieces[here..=here])}));
    for (name, ways) in [
        ("now", (Way::Now, Way::Now)),
        ("in-order", (Way::InOrder, Way::Now)),
        ("taken-in-order", (Way::Now, Way::InOrder)),
        ("both-in-order", (Way::InOrder, Way::InOrder)),
    ] {
        let again = taken_again(driver, context, pieces[there], bytes, ways);
        pieces[there] = again;
        let wrong = written_and_read(driver, &[again], bytes);
        say(&json!({"event": "again", "what": name, "on_host": on_host(driver, &[again]), "wrong": wrong}));
    }
    give_back(driver, pieces[there], Way::Now);
    pieces[there] = beside_a_capture(driver, bytes);
    say(&json!({"event": "again", "what": "beside-a-capture", "on_host": on_host(driver, &pieces[there..=there])}));
    // In rows, as wide as the driver pads them.
    give_back(driver, pieces[there], Way::Now);
    let (mut rows, mut pitch) = (0, 0);
    let height = bytes / 1024;
    // SAFETY: results go to live locals.
    check("cuMemAllocPitch", unsafe { (driver.allocate_rows)(&mut rows, &mut pitch, ROW_BYTES, height, 4) });
    let wrong = written_and_read(driver, &[rows], pitch * height);
    say(&json!({"event": "rows", "pitch": pitch, "on_host": on_host(driver, &[rows]), "wrong": wrong}));
    pieces[there] = rows;
    pieces
}

/// At once, or in the order of the default stream.
#[derive(Clone, Copy)]
enum Way {
    Now,
    InOrder,
}

fn taken_again(driver: &Driver, context: &Context, piece: u64, bytes: usize, (give, take): (Way, Way)) -> u64 {
    give_back(driver, piece, give);
    match take {
        Way::Now => context.allocate(bytes),
        Way::InOrder => {
            let mut address = 0;
            // SAFETY: the result goes to a live local; the default stream is meant.
            check("cuMemAllocAsync", unsafe { (driver.allocate_async)(&mut address, bytes, null_mut()) });
            address
        }
    }
}

fn give_back(driver: &Driver, piece: u64, way: Way) {
    // SAFETY: it was allocated and is given back once.
    let (call, code) = unsafe {
        match way {
            Way::Now => ("cuMemFree", (driver.free)(piece)),
            Way::InOrder => ("cuMemFreeAsync", (driver.free_async)(piece, null_mut())),
        }
    };
    check(call, code);
}

/// How many of the pieces lie in the host's memory, by the driver's own word.
fn on_host(driver: &Driver, pieces: &[u64]) -> usize {
    let lies = |piece: &&u64| {
        let mut kind = 0_u32;
        // SAFETY: the attribute has four bytes, which go to a live local.
        let code = unsafe { (driver.pointer_attribute)((&raw mut kind).cast::<c_void>(), MEMORY_TYPE, **piece) };
        check("cuPointerGetAttribute", code);
        kind == HOST
    };
    pieces.iter().filter(lies).count()
}

/// Bytes that are not as they were written, when all has been written: by copies to the device, on it, and by memsets.
fn written_and_read(driver: &Driver, pieces: &[u64], bytes: usize) -> usize {
    let end = (bytes - BYTES) as u64;
    for (index, piece) in pieces.iter().enumerate() {
        let (from, half) = (pattern(index), BYTES as u64 / 2);
        // SAFETY: all within a live allocation of `bytes`, and a buffer of BYTES.
        unsafe {
            check("cuMemcpyHtoD", (driver.to_device)(*piece, from.as_ptr().cast(), BYTES));
            check("cuMemcpyDtoDAsync", (driver.copy_async)(piece + end, *piece, BYTES, null_mut()));
            check("cuMemsetD8Async", (driver.set_async)(piece + end, index as u8, half as usize, null_mut()));
        }
    }
    wrong_of(driver, pieces, bytes)
}

/// What each piece has at its beginning.
fn pattern(index: usize) -> Vec<u8> {
    (0..BYTES).map(|byte| (byte * 7 + index * 31) as u8).collect()
}

/// Bytes that are not as [`written_and_read`] has written them.
fn wrong_of(driver: &Driver, pieces: &[u64], bytes: usize) -> usize {
    let end = (bytes - BYTES) as u64;
    let mut wrong = 0;
    for (index, piece) in pieces.iter().enumerate() {
        let (mut first, mut last) = (vec![0_u8; BYTES], vec![0_u8; BYTES]);
        // SAFETY: as above, the other way.
        unsafe {
            check("cuMemcpyDtoH", (driver.to_host)(first.as_mut_ptr().cast(), *piece, BYTES));
            check("cuMemcpyDtoH", (driver.to_host)(last.as_mut_ptr().cast(), piece + end, BYTES));
        }
        let want = pattern(index);
        let set = vec![index as u8; BYTES / 2];
        let wanted_last = [&set[..], &want[BYTES / 2..]].concat();
        wrong += first.iter().zip(&want).chain(last.iter().zip(&wanted_last)).filter(|(is, want)| is != want).count();
    }
    wrong
}
