//! Programs with variables: each is found, as large as it is declared, and keeps what is written to it.

use super::context::Context;
use super::driver::{Driver, Libraries};
use super::options::Options;
use super::{check, fail, say};
use serde_json::json;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::Duration;

const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const INVALID_HANDLE: c_int = 400;
const NOT_FOUND: c_int = 500;
/// Where programs are that are loaded from files.
const FILE: &CStr = c"/tmp/program.ptx";
/// A variable beside the large one, and its bytes.
const TABLE: &str = ".const .align 4 .u32 table[4] = {1, 2, 3, 4};";
const TABLE_BYTES: usize = 16;

/// A variable's address and size.
type Found = (u64, usize);

/// How a program is loaded and used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// cuModuleLoadData in each context.
    Module,
    /// cuModuleLoad in each context.
    ModuleFile,
    /// cuLibraryLoadData, before the last context is made, and used in each.
    Library,
    /// The same with cuLibraryLoadFromFile.
    LibraryFile,
    /// As a library that is used in the first context only.
    FirstContext,
    /// As a library whose variable is managed.
    Managed,
}

/// A PTX text with these declarations, and its zero.
pub(super) fn text(declarations: &str) -> String {
    format!(".version 6.0\n.target sm_50\n.address_size 64\n{declarations}\n\0")
}

fn libraries() -> &'static Libraries {
    static LIBRARIES: OnceLock<Libraries> = OnceLock::new();
    LIBRARIES.get_or_init(Libraries::load)
}

/// A library, or none yet.
pub(super) struct Library(usize);

impl Library {
    pub(super) fn new() -> Self {
        Self(0)
    }

    fn handle(&self) -> *mut c_void {
        self.0 as *mut c_void
    }

    /// The driver's answer.
    pub(super) fn load(&mut self, text: &str) -> c_int {
        let (place, image): (*mut usize, _) = (&mut self.0, text.as_ptr());
        // SAFETY: a handle fits the live place; the text ends with a zero; there are no options.
        unsafe { (libraries().load)(place.cast(), image.cast(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0) }
    }

    fn load_file(&mut self) -> c_int {
        let (place, path): (*mut usize, _) = (&mut self.0, FILE.as_ptr());
        // SAFETY: as above.
        unsafe { (libraries().load_file)(place.cast(), path, null_mut(), null_mut(), 0, null_mut(), null_mut(), 0) }
    }

    /// The driver's answer.
    pub(super) fn unload(&self) -> c_int {
        // SAFETY: takes any handle.
        unsafe { (libraries().unload)(self.handle()) }
    }

    /// A variable of the current context.
    pub(super) fn global(&self, name: &CStr) -> Found {
        let (code, found) = self.asked(name, false);
        check("cuLibraryGetGlobal", code);
        found
    }

    fn asked(&self, name: &CStr, is_managed: bool) -> (c_int, Found) {
        let (mut address, mut bytes) = (0, 0);
        let ask = if is_managed { libraries().managed } else { libraries().global };
        // SAFETY: results go to live locals; the name ends with a zero.
        let code = unsafe { ask(&mut address, &mut bytes, self.handle(), name.as_ptr()) };
        (code, (address, bytes))
    }
}

fn module_global(driver: &Driver, module: *mut c_void, name: &CStr) -> (c_int, Found) {
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: results go to live locals; the name ends with a zero.
    let code = unsafe { (driver.module_global)(&mut address, &mut bytes, module, name.as_ptr()) };
    (code, (address, bytes))
}

/// Loads a program of this kind, uses its variables, says so, and stays.
pub(super) fn load(options: &Options, driver: &Driver, contexts: &[Context], kind: Kind) -> ! {
    let bytes = (options.chunk_mib as usize) << 20;
    let attribute = if kind == Kind::Managed { ".attribute(.managed) " } else { "" };
    let image = text(&format!(".visible .global {attribute}.align 8 .b8 hog[{bytes}];\n{TABLE}"));
    let path = FILE.to_string_lossy();
    std::fs::write(&*path, image.trim_end_matches('\0')).unwrap_or_else(|_| fail("write", -1));
    match kind {
        Kind::Module | Kind::ModuleFile => modules(options, driver, contexts, &image, kind),
        _ => library(options, driver, contexts, &image, kind),
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn modules(options: &Options, driver: &Driver, contexts: &[Context], image: &str, kind: Kind) {
    let (mut modules, mut variables) = (Vec::new(), Vec::new());
    for context in contexts {
        context.enter();
        let mut module = null_mut();
        // SAFETY: the result goes to a live local; text and path end with a zero.
        let code = unsafe {
            match kind {
                Kind::ModuleFile => (driver.module_load_file)(&mut module, FILE.as_ptr()),
                _ => (driver.module_load)(&mut module, image.as_ptr().cast()),
            }
        };
        check("cuModuleLoad", code);
        let (code, hog) = module_global(driver, module, c"hog");
        check("cuModuleGetGlobal", code);
        let (code, table) = module_global(driver, module, c"table");
        check("cuModuleGetGlobal", code);
        expect("no such variable", module_global(driver, module, c"third").0, NOT_FOUND);
        modules.push(module);
        variables.push([hog, table]);
    }
    use_variables(options, driver, &variables);
    let mut none = null_mut();
    let huge = text(&format!(".global .b8 hog[{}];", total_bytes(driver)));
    // SAFETY: the result goes to a live local; the text ends with a zero.
    expect("too large", unsafe { (driver.module_load)(&mut none, huge.as_ptr().cast()) }, OUT_OF_MEMORY);
    say(&json!({"event": "loaded", "contexts": contexts.len()}));
    if options.unload {
        for (context, module) in contexts.iter().zip(modules) {
            context.enter();
            // SAFETY: takes any handle.
            check("cuModuleUnload", unsafe { (driver.module_unload)(module) });
            expect("an unloaded module", module_global(driver, module, c"hog").0, INVALID_HANDLE);
        }
        say(&json!({"event": "unloaded"}));
    }
}

fn library(options: &Options, driver: &Driver, contexts: &[Context], image: &str, kind: Kind) {
    let mut library = Library::new();
    let code = if kind == Kind::LibraryFile { library.load_file() } else { library.load(image) };
    check("cuLibraryLoadData", code);
    let later = Context::create(driver, 0, None, false);
    let mut variables = Vec::new();
    for context in contexts.iter().chain([&later]) {
        context.enter();
        let (code, hog) = library.asked(c"hog", kind == Kind::Managed);
        check("cuLibraryGetGlobal", code);
        variables.push([hog, library.global(c"table")]);
        expect("of the other kind", library.asked(c"table", true).0, NOT_FOUND);
        expect("no such variable", library.asked(c"third", false).0, NOT_FOUND);
        if kind == Kind::FirstContext {
            break;
        }
    }
    if kind == Kind::Managed {
        let is_one = variables.iter().all(|[hog, _]| *hog == variables[0][0]);
        expect("one managed variable for all contexts", c_int::from(is_one), 1);
        variables.truncate(1);
    }
    use_variables(options, driver, &variables);
    let huge = text(&format!(".global .b8 hog[{}];", total_bytes(driver)));
    expect("too large", Library::new().load(&huge), OUT_OF_MEMORY);
    say(&json!({"event": "loaded", "contexts": contexts.len() + 1}));
    if options.unload {
        check("cuLibraryUnload", library.unload());
        expect("an unloaded library", library.asked(c"hog", false).0, INVALID_HANDLE);
        say(&json!({"event": "unloaded"}));
    }
}

/// Writes another mark to both ends of each large variable, and then finds all of them there.
fn use_variables(options: &Options, driver: &Driver, variables: &[[Found; 2]]) {
    let expected = ((options.chunk_mib as usize) << 20, TABLE_BYTES);
    let ends = |(address, bytes): Found| [address, address + bytes as u64 - 8];
    for (mark, [hog, table]) in (1_u64..).zip(variables) {
        expect("sizes", c_int::from((hog.1, table.1) == expected), 1);
        for end in ends(*hog) {
            // SAFETY: the source is live and as large as said.
            check("cuMemcpyHtoD", unsafe { (driver.to_device)(end, (&raw const mark).cast(), 8) });
            // SAFETY: refused before anything is read.
            let beyond = unsafe { (driver.to_device)(end, (&raw const mark).cast(), hog.1 + 1) };
            expect("beyond its end", beyond, INVALID_VALUE);
        }
        // SAFETY: takes any address.
        expect("freed by its address", unsafe { (driver.free)(hog.0) }, INVALID_VALUE);
    }
    for (mark, [hog, _]) in (1_u64..).zip(variables) {
        for end in ends(*hog) {
            let mut found = 0_u64;
            // SAFETY: the place is live and as large as said.
            check("cuMemcpyDtoH", unsafe { (driver.to_host)((&raw mut found).cast(), end, 8) });
            expect("what was written", c_int::from(found == mark), 1);
        }
    }
}

/// The memory that there is at all.
fn total_bytes(driver: &Driver) -> usize {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both results go to live locals.
    check("cuMemGetInfo", unsafe { (driver.memory_info)(&mut free, &mut total) });
    total
}

fn expect(what: &str, found: c_int, wanted: c_int) {
    if found != wanted {
        fail(what, found);
    }
}
