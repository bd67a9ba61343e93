//! Variables of modules and libraries: where they are, how large, and what they take of the devices.

use super::driver::Driver;
use super::{checked, expected, meter};
use crate::failure::{Result, ensure};
use gpool_driver_abi::cuda::*;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

/// Flags of a section: takes memory and may be written, or is machine code.
const DATA: u64 = 3;
const CODE: u64 = 6;
/// `st_info` and `st_other` of a variable and of a kernel.
const VARIABLE: [u8; 2] = [0x11, 0];
const KERNEL: [u8; 2] = [0x12, 0x10];
const HEADER_BYTES: usize = 64;
const VARIABLE_BYTES: u64 = 6 << 20;
const CODE_BYTES: u64 = 1 << 20;

type OfHandle = unsafe extern "C" fn(*mut c_void) -> CUresult;
type Global = unsafe extern "C" fn(*mut CUdeviceptr, *mut usize, *mut c_void, *const c_char) -> CUresult;
type LibraryLoad = unsafe extern "C" fn(
    *mut CUlibrary,
    *const c_void,
    *mut c_int,
    *mut *mut c_void,
    c_uint,
    *mut c_int,
    *mut *mut c_void,
    c_uint,
) -> CUresult;

/// What each device holds.
fn held() -> Result<[u64; 2]> {
    let of = |index| meter(index).map(|meter| meter.owners.values().map(|usage| usage.bytes_now).sum::<u64>());
    Ok([of(0)?, of(1)?])
}

/// A variable's address and size.
fn global(driver: &Driver, function: &CStr, handle: *mut c_void, name: &CStr) -> Result<(CUdeviceptr, usize)> {
    let ask: Global = driver.library.function(function)?;
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: results go to live locals, and the name ends with a zero; so below.
    unsafe {
        checked("global", ask(&mut address, &mut bytes, handle, name.as_ptr()))?;
        expected("no place", ask(null_mut(), null_mut(), handle, name.as_ptr()), CUDA_ERROR_INVALID_VALUE)?;
        checked("size alone", ask(null_mut(), &mut bytes, handle, name.as_ptr()))?;
        expected("no such", ask(&mut address, &mut bytes, handle, c"none".as_ptr()), CUDA_ERROR_NOT_FOUND)?;
    }
    Ok((address, bytes))
}

/// The sections that take memory are held, shared memory is not, and a variable is as large as its symbol says.
pub(super) fn of_a_cubin_are_held_until_it_is_unloaded() -> Result<()> {
    let driver = Driver::start()?;
    let unload: OfHandle = driver.library.function(c"cuModuleUnload")?;
    let context = driver.context(0)?;
    let (before, image) = (held()?[0], cubin());
    let (mut module, mut kernel) = (null_mut(), null_mut());
    // SAFETY: results go to live locals; the image is a whole file.
    unsafe {
        checked("cuModuleLoadData", (driver.module_load)(&mut module, image.as_ptr().cast()))?;
        checked("cuModuleGetFunction", (driver.module_function)(&mut kernel, module, c"work".as_ptr()))?;
    }
    let taken = held()?[0] - before;
    // In pages of 2 MiB.
    ensure(taken == VARIABLE_BYTES + 2 * CODE_BYTES, || format!("a cubin takes {taken} bytes"))?;
    let (address, bytes) = global(&driver, c"cuModuleGetGlobal_v2", module, c"field")?;
    ensure(bytes as u64 == VARIABLE_BYTES, || format!("a variable of {bytes} bytes"))?;
    let (sent, mut back) = ([5_u32; 4], [1_u32; 4]);
    let end = address + VARIABLE_BYTES - 16;
    // SAFETY: the places are live and as large as said.
    unsafe {
        checked("cuMemcpyDtoH", (driver.to_host)(back.as_mut_ptr().cast(), end, 16))?;
        ensure(back == [0; 4], || format!("it begins as {back:?}"))?;
        checked("cuMemcpyHtoD", (driver.to_device)(end, sent.as_ptr().cast(), 16))?;
        checked("cuMemcpyDtoH", (driver.to_host)(back.as_mut_ptr().cast(), end, 16))?;
        ensure(back == sent, || format!("{back:?} came back"))?;
        checked("cuModuleUnload", unload(module))?;
        let gone = (driver.to_host)(back.as_mut_ptr().cast(), end, 16);
        expected("a variable that is gone", gone, CUDA_ERROR_INVALID_VALUE)?;
    }
    ensure(held()?[0] == before, || "a cubin that is unloaded holds memory".to_owned())?;
    driver.destroy(context)
}

/// A library takes nothing of a device before a context there needs it, and gives all back at once.
pub(super) fn of_a_library_are_on_each_device_that_needs_them() -> Result<()> {
    let driver = Driver::start()?;
    let load: LibraryLoad = driver.library.function(c"cuLibraryLoadData")?;
    let unload: OfHandle = driver.library.function(c"cuLibraryUnload")?;
    let contexts = [driver.context(0)?, driver.context(1)?];
    let text = c".version 8.0\n.target sm_80\n.global .align 8 .f64 pairs[1024][512];\n.entry work() { ret; }\n";
    let (before, mut library) = (held()?, null_mut());
    let (none, nothing) = (null_mut(), null_mut());
    // SAFETY: the result goes to a live local; the text ends with a zero; there are no options.
    let loaded = unsafe { load(&mut library, text.as_ptr().cast(), none, nothing, 0, none, nothing, 0) };
    checked("cuLibraryLoadData", loaded)?;
    ensure(held()? == before, || "a library takes memory before it is needed".to_owned())?;
    // The second device's context is current.
    let (_, bytes) = global(&driver, c"cuLibraryGetGlobal", library, c"pairs")?;
    ensure(bytes == 4 << 20, || format!("a variable of {bytes} bytes"))?;
    ensure(held()? == [before[0], before[1] + (4 << 20)], || format!("the devices hold {:?}", held()))?;
    driver.destroy(contexts[1])?;
    let set: OfHandle = driver.library.function(c"cuCtxSetCurrent")?;
    // SAFETY: no pointers that are read.
    checked("cuCtxSetCurrent", unsafe { set(contexts[0]) })?;
    global(&driver, c"cuLibraryGetGlobal", library, c"pairs")?;
    ensure(held()?[0] == before[0] + (4 << 20), || format!("the devices hold {:?}", held()))?;
    // SAFETY: as above.
    checked("cuLibraryUnload", unsafe { unload(library) })?;
    ensure(held()?[0] == before[0], || format!("the devices hold {:?}", held()))?;
    driver.destroy(contexts[0])
}

/// A file with a variable, a kernel of so many bytes, and shared memory.
fn cubin() -> Vec<u8> {
    let names = b"\0.nv.global\0.text.work\0.nv.shared.work\0field\0work\0tile\0";
    let name = |text: &[u8]| names.windows(text.len()).position(|part| part == text).unwrap_or_default() as u32;
    let symbol = |text: &[u8], kind: [u8; 2], section: u16, bytes: u64| {
        [&name(text).to_le_bytes()[..], &kind, &section.to_le_bytes(), &[0; 8], &bytes.to_le_bytes()].concat()
    };
    let symbols = [
        symbol(b"field\0", VARIABLE, 1, VARIABLE_BYTES),
        symbol(b"work\0t", KERNEL, 2, CODE_BYTES),
        symbol(b"tile\0", VARIABLE, 3, 48 << 10),
    ]
    .concat();
    let names_at = HEADER_BYTES as u64;
    let symbols_at = names_at + names.len() as u64;
    let section = |text: &[u8], kind: u32, flags: u64, at: u64, bytes: u64, link: u32| {
        let words = [&name(text).to_le_bytes()[..], &kind.to_le_bytes()].concat();
        let rest = [&flags.to_le_bytes()[..], &[0; 8], &at.to_le_bytes(), &bytes.to_le_bytes()].concat();
        [&words[..], &rest, &link.to_le_bytes(), &[0; 20]].concat()
    };
    let sections = [
        vec![0; 64],
        section(b".nv.global\0", 8, DATA, 0, VARIABLE_BYTES, 0),
        section(b".text.work\0", 8, CODE, 0, CODE_BYTES, 0),
        section(b".nv.shared.work\0", 8, DATA, 0, 48 << 10, 0),
        section(b"\0", 2, 0, symbols_at, symbols.len() as u64, 5),
        section(b"\0", 3, 0, names_at, names.len() as u64, 0),
    ];
    let mut header = vec![0; HEADER_BYTES];
    header[..5].copy_from_slice(b"\x7fELF\x02");
    header[40..48].copy_from_slice(&(symbols_at + symbols.len() as u64).to_le_bytes());
    header[58..60].copy_from_slice(&64_u16.to_le_bytes());
    header[60..62].copy_from_slice(&(sections.len() as u16).to_le_bytes());
    header[62..64].copy_from_slice(&5_u16.to_le_bytes());
    [header, names.to_vec(), symbols, sections.concat()].concat()
}
