//! Devices, copies, memsets and graphs.

use super::driver::Driver;
use super::{checked, expected, meter};
use crate::failure::{Result, ensure};
use gpool_driver_abi::cuda::*;
use std::ffi::CStr;
use std::ptr::null_mut;

const WORDS: usize = 1 << 20;
const BYTES: usize = WORDS * 4;
/// 2 us and a nanosecond for each kilobyte.
const WHOLE_NS: u64 = 2_000 + BYTES as u64 / 1_000;
const HALF_NS: u64 = 2_000 + BYTES as u64 / 2 / 1_000;
const KERNEL_NS: u64 = 700_000;
const BOTH: [CUdevice; 2] = [0, 1];

fn numbers(from: u32) -> Vec<u32> {
    (from..).take(WORDS).collect()
}

/// What the second device has executed since `before`, when it had executed that much, in time and in pieces.
fn executed(before: (u64, u64)) -> Result<(u64, u64)> {
    let meter = meter(1)?;
    let pieces = meter.owners.values().map(|usage| usage.kernels).sum::<u64>();
    Ok((meter.busy_ns - before.0, pieces - before.1))
}

/// On the second device: the first one must see nothing of it.
pub(super) fn transfers_take_time_and_move_bytes() -> Result<()> {
    let driver = Driver::start()?;
    devices_are_told_apart(&driver)?;
    let context = driver.context(1)?;
    let (a, b, stream) = (driver.memory(BYTES)?, driver.memory(BYTES)?, driver.stream()?);
    let (sent, mut back) = (numbers(7), vec![0_u32; WORDS]);
    let before = executed((0, 0))?;
    // SAFETY: all host memory is live and of this size, also while the queue is worked off.
    unsafe {
        checked("cuMemcpyHtoD", (driver.to_device)(a, sent.as_ptr().cast(), BYTES))?;
        checked("cuMemcpyDtoDAsync", (driver.within_async)(b, a, BYTES, stream))?;
        checked("cuMemcpyDtoH", (driver.to_host)(back.as_mut_ptr().cast(), b, BYTES))?;
    }
    ensure(back == sent, || "a copy within the device changed the bytes".to_owned())?;
    let copied = executed(before)?;
    ensure(copied == (WHOLE_NS, 1), || format!("a copy of {BYTES} bytes took {copied:?}, not {WHOLE_NS} ns"))?;
    // SAFETY: as above.
    unsafe {
        checked("cuMemsetD32", (driver.fill_words)(b, 0xfeed_beef, WORDS / 2))?;
        checked("cuMemcpyDtoHAsync", (driver.to_host_async)(back.as_mut_ptr().cast(), b, BYTES, stream))?;
        checked("cuMemcpyHtoDAsync", (driver.to_device_async)(a, back.as_ptr().cast(), BYTES, stream))?;
    }
    driver.wait()?;
    let is_half = back[..WORDS / 2].iter().all(|word| *word == 0xfeed_beef) && back[WORDS / 2..] == sent[WORDS / 2..];
    ensure(is_half, || "a memset of half a buffer set something else".to_owned())?;
    let set = executed(before)?;
    ensure(set == (WHOLE_NS + HALF_NS, 2), || format!("with a memset and host copies it was {set:?}"))?;
    // SAFETY: the addresses are refused or live.
    unsafe {
        expected("a copy past the end", (driver.within)(a, b + 4, BYTES), CUDA_ERROR_INVALID_VALUE)?;
        expected("a crooked memset", (driver.fill_words)(a + 1, 0, 4), CUDA_ERROR_INVALID_VALUE)?;
        checked("cuMemcpy", (driver.copy)(b, a, BYTES))?;
    }
    driver.wait()?;
    let unified = executed(before)?;
    ensure(unified == (2 * WHOLE_NS + HALF_NS, 3), || format!("with a unified copy it was {unified:?}"))?;
    let first = meter(0)?;
    ensure(first.busy_ns == 0 && first.owners.is_empty(), || format!("the first device saw {first:?}"))?;
    driver.destroy(context)
}

/// Rows and blocks move what is between their edges and nothing else; a peer copy needs both contexts.
pub(super) fn rows_and_blocks_move_their_bytes() -> Result<()> {
    let driver = Driver::start()?;
    let context = driver.context(1)?;
    let (a, b, stream) = (driver.memory(BYTES)?, driver.memory(BYTES)?, driver.stream()?);
    let (sent, mut back) = (numbers(7), vec![0_u32; WORDS]);
    let before = executed((0, 0))?;
    // 500 rows of 1 KiB out of rows of 4 KiB, to the third row on the other side.
    let rows = CUDA_MEMCPY2D {
        srcMemoryType: CU_MEMORYTYPE_DEVICE,
        srcDevice: a,
        srcPitch: 4096,
        dstMemoryType: CU_MEMORYTYPE_UNIFIED,
        dstDevice: b,
        dstPitch: 8192,
        dstY: 2,
        WidthInBytes: 1024,
        Height: 500,
        // SAFETY: numbers and pointers, for which zero is a value.
        ..unsafe { std::mem::zeroed() }
    };
    // SAFETY: all host memory is live and of this size.
    unsafe {
        checked("cuMemcpyHtoD", (driver.to_device)(a, sent.as_ptr().cast(), BYTES))?;
        checked("cuMemsetD32", (driver.fill_words)(b, 0, WORDS))?;
        checked("cuMemcpy2D", (driver.rows)(&rows))?;
        checked("cuMemcpyDtoH", (driver.to_host)(back.as_mut_ptr().cast(), b, BYTES))?;
    }
    let is_right = |(index, word): (usize, &u32)| {
        let (row, column) = (index / 2048, index % 2048);
        let is_moved = (2..502).contains(&row) && column < 256;
        *word == if is_moved { sent[(row - 2) * 1024 + column] } else { 0 }
    };
    ensure(back.iter().enumerate().all(is_right), || "a copy of rows moved something else".to_owned())?;
    let moved_ns = 2_000 + 500 * 1024 / 1_000;
    let so_far = executed(before)?;
    ensure(so_far == (WHOLE_NS + moved_ns, 2), || format!("a copy of rows took {so_far:?}"))?;
    // Two layers of 16 rows back to the host: no time on the device.
    let block = CUDA_MEMCPY3D {
        srcMemoryType: CU_MEMORYTYPE_DEVICE,
        srcDevice: a,
        srcPitch: 4096,
        srcHeight: 32,
        dstMemoryType: CU_MEMORYTYPE_HOST,
        dstHost: back.as_mut_ptr().cast(),
        dstPitch: 64,
        dstHeight: 16,
        WidthInBytes: 64,
        Height: 16,
        Depth: 2,
        // SAFETY: as above.
        ..unsafe { std::mem::zeroed() }
    };
    // SAFETY: as above; the last two calls are refused.
    unsafe {
        checked("cuMemcpy3DAsync", (driver.block_async)(&block, stream))?;
        driver.wait()?;
        let outside = CUDA_MEMCPY2D { Height: 512, ..rows };
        expected("rows past the end", (driver.rows)(&outside), CUDA_ERROR_INVALID_VALUE)?;
        expected("a peer without a context", (driver.peer)(b, null_mut(), a, context, 64), CUDA_ERROR_INVALID_CONTEXT)?;
    }
    let is_block = (0..2 * 16 * 16).all(|index| {
        let (layer, row, column) = (index / 256, index / 16 % 16, index % 16);
        back[index] == sent[layer * 32 * 1024 + row * 1024 + column]
    });
    ensure(is_block && executed(before)? == so_far, || "a block came back otherwise than it went".to_owned())?;
    // SAFETY: both addresses are live.
    checked("cuMemcpyPeer", unsafe { (driver.peer)(b, context, a, context, BYTES) })?;
    driver.wait()?;
    let peer = executed(before)?;
    ensure(peer == (2 * WHOLE_NS + moved_ns, 3), || format!("with a peer copy it was {peer:?}"))?;
    driver.destroy(context)
}

fn devices_are_told_apart(driver: &Driver) -> Result<()> {
    let (mut count, mut device, mut current) = (0, 0, 0);
    let (mut uuids, mut buses) = ([CUuuid { bytes: [0; 16] }; 2], [0; 2]);
    // SAFETY: all results go to live locals.
    unsafe {
        checked("cuDeviceGetCount", (driver.device_count)(&mut count))?;
        expected("cuDeviceGet of a third", (driver.device_get)(&mut device, 2), CUDA_ERROR_INVALID_DEVICE)?;
        for ((uuid, bus), device) in uuids.iter_mut().zip(&mut buses).zip(BOTH) {
            checked("cuDeviceGetUuid", (driver.device_uuid)(uuid, device))?;
            let attribute = CU_DEVICE_ATTRIBUTE_PCI_BUS_ID;
            checked("cuDeviceGetAttribute", (driver.device_attribute)(bus, attribute, device))?;
        }
    }
    ensure(count == 2, || format!("there are {count} devices"))?;
    ensure(uuids[0] != uuids[1] && buses == [1, 2], || format!("two devices are {uuids:?} on {buses:?}"))?;
    let context = driver.context(1)?;
    // SAFETY: the result goes to a live local.
    checked("cuCtxGetDevice", unsafe { (driver.context_device)(&mut current) })?;
    ensure(current == 1, || format!("a context on device 1 is on {current}"))?;
    driver.destroy(context)
}

/// Nothing happens at the capture, everything at each launch, and copies with the host take no time there either.
pub(super) fn graphs_do_their_work_at_each_launch() -> Result<()> {
    let driver = Driver::start()?;
    let context = driver.context(1)?;
    let (a, b) = (driver.memory(BYTES)?, driver.memory(BYTES)?);
    let (stream, kernel) = (driver.stream()?, driver.kernel()?);
    let (mut sent, mut back) = (numbers(1), vec![0_u32; WORDS]);
    let before = executed((0, 0))?;
    let (mut graph, mut executable) = (null_mut(), null_mut());
    let mut parameters = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: 0,
        hUploadStream: null_mut(),
        hErrNode_out: null_mut(),
        result_out: CUDA_GRAPH_INSTANTIATE_ERROR,
    };
    let (from, to) = (sent.as_mut_ptr(), back.as_mut_ptr());
    // SAFETY: all host memory is live and of this size until the graph was launched for the last time.
    unsafe {
        let mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        checked("cuStreamBeginCapture", (driver.capture_begin)(stream, mode))?;
        checked("cuMemcpyHtoDAsync", (driver.to_device_async)(a, from.cast(), BYTES, stream))?;
        checked("cuLaunchKernel", driver.launch(kernel, stream, KERNEL_NS))?;
        checked("cuMemcpyDtoDAsync", (driver.within_async)(b, a, BYTES, stream))?;
        checked("cuMemcpyDtoHAsync", (driver.to_host_async)(to.cast(), b, BYTES, stream))?;
        checked("cuStreamEndCapture", (driver.capture_end)(stream, &mut graph))?;
        checked("instantiate", (driver.graph_instantiate)(&mut executable, graph, &mut parameters))?;
        checked("cuGraphUpload", (driver.graph_upload)(executable, stream))?;
    }
    driver.wait()?;
    // SAFETY: the place is live, and read past the compiler's knowledge since the driver has its address.
    let untouched = unsafe { to.read_volatile() } == 0;
    ensure(untouched && executed(before)? == (0, 0), || "a capture did what it should write down".to_owned())?;
    ensure(parameters.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS, || format!("{parameters:?}"))?;
    for (launch, start) in [(1, 100), (2, 5_000)] {
        // SAFETY: as above; the lengths are those of the vectors, which nobody else uses meanwhile.
        let (sent, back) = unsafe {
            from.copy_from_nonoverlapping(numbers(start).as_ptr(), WORDS);
            checked("cuGraphLaunch", (driver.graph_launch)(executable, stream))?;
            driver.wait()?;
            (std::slice::from_raw_parts(from, WORDS), std::slice::from_raw_parts(to, WORDS))
        };
        ensure(sent == back, || format!("launch {launch} of a graph did not copy"))?;
        let so_far = executed(before)?;
        let wanted = (launch * (KERNEL_NS + WHOLE_NS), launch * 2);
        ensure(so_far == wanted, || format!("{launch} launches of a graph took {so_far:?}, not {wanted:?}"))?;
    }
    driver.destroy(context)
}

/// As the real driver does, so that an interposer that mixes contexts up fails here.
pub(super) fn objects_belong_to_their_context() -> Result<()> {
    let driver = Driver::start()?;
    let first = driver.context(0)?;
    let (event, kernel, stream) = (driver.event()?, driver.kernel()?, driver.stream()?);
    let second = driver.context(1)?;
    let (other_event, other_stream) = (driver.event()?, driver.stream()?);
    let mut milliseconds = 0.0;
    // SAFETY: all handles are live.
    unsafe {
        expected("an event elsewhere", (driver.event_record)(event, other_stream), CUDA_ERROR_INVALID_HANDLE)?;
        expected("a kernel elsewhere", driver.launch(kernel, other_stream, 1), CUDA_ERROR_INVALID_HANDLE)?;
        checked("cuEventRecord", (driver.event_record)(event, stream))?;
        checked("cuEventRecord", (driver.event_record)(other_event, other_stream))?;
        driver.wait()?;
        let code = (driver.event_elapsed)(&mut milliseconds, event, other_event);
        expected("a time between two devices", code, CUDA_ERROR_INVALID_HANDLE)?;
    }
    driver.destroy(second)?;
    driver.destroy(first)
}

/// A program that is built with per-thread default streams gets the variants for them by the plain names.
pub(super) fn per_thread_variants_are_found() -> Result<()> {
    let driver = Driver::start()?;
    let wanted: [(&CStr, u64, &CStr); 6] = [
        (c"cuMemcpyDtoDAsync", CU_GET_PROC_ADDRESS_DEFAULT, c"cuMemcpyDtoDAsync_v2"),
        (c"cuMemcpyDtoDAsync", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, c"cuMemcpyDtoDAsync_v2_ptsz"),
        (c"cuMemcpy", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, c"cuMemcpy_ptds"),
        (c"cuLaunchKernelEx", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, c"cuLaunchKernelEx_ptsz"),
        (c"cuLaunchCooperativeKernel", CU_GET_PROC_ADDRESS_DEFAULT, c"cuLaunchCooperativeKernel"),
        (c"cuGraphUpload", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, c"cuGraphUpload_ptsz"),
    ];
    for (name, flags, symbol) in wanted {
        let mut found = null_mut();
        // SAFETY: the name ends with a zero, and the result goes to a live local.
        let code = unsafe { (driver.find)(name.as_ptr(), &mut found, 12_020, flags, null_mut()) };
        checked("cuGetProcAddress", code)?;
        let right = driver.library.address(symbol)?;
        ensure(found == right, || format!("{name:?} with flags {flags} is not {symbol:?}"))?;
    }
    Ok(())
}
