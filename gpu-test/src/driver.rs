//! The driver's library, as any program uses it.

use gpool_driver_abi::cuda::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, CUcontext, CUdeviceptr,
    CUfunction, CUmodule, CUresult, CuCtxCreateV2, CuCtxSynchronize, CuDeviceGetAttribute, CuInit, CuLaunchKernel,
    CuMemAllocV2, CuMemFreeV2, CuMemGetInfoV2, CuMemcpyDtoHV2, CuMemcpyHtoDV2, CuModuleGetFunction, CuModuleLoadData,
};
use libloading::Library;
use std::ffi::{CStr, CString, c_int, c_void};
use std::fmt;
use std::ptr::null_mut;

/// Errors that a kernel which is right gets of a GPU that is not: memory that cannot be corrected (214, 226), links (220), addresses (700,
/// 716, 717), a stack (714), instructions (715, 718) that were not in the program, and what has no name (719). Source: cuda.h, CUresult. A
/// launch that takes too long (702) is none: only where a display has the GPU is there a limit.
const THE_GPUS: [CUresult; 10] = [214, 220, 226, 700, 714, 715, 716, 717, 718, 719];
/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: CUresult = 2;

/// What the driver refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverError {
    /// There is none, or it lacks a function.
    Library(String),
    /// A function gives this code.
    Code(&'static str, CUresult),
}

impl DriverError {
    /// Whether it says something of the GPU.
    pub fn is_the_gpus(&self) -> bool {
        matches!(self, Self::Code(_, code) if THE_GPUS.contains(code))
    }

    /// There is no memory left.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Code(_, OUT_OF_MEMORY))
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(cause) => write!(to, "the driver's library cannot be used ({cause})"),
            Self::Code(name, code) => write!(to, "{name} gives {code}"),
        }
    }
}

/// libcuda.so.1, started.
pub struct Driver(Library);

/// Calls a function of the driver: its type, its name, its arguments.
macro_rules! call {
    ($driver:expr, $kind:ty, $name:literal $(, $argument:expr)*) => {
        $driver.call::<$kind>($name, |function| {
            // SAFETY: arguments of the types that the driver's header names; places among them live through the call.
            unsafe { function($($argument),*) }
        })
    };
}

impl Driver {
    /// The library that the loader finds.
    ///
    /// # Errors
    /// There is none, or it does not start.
    pub fn load() -> Result<Self, DriverError> {
        // SAFETY: the driver's library; its initialisers are the driver's.
        let library = unsafe { Library::new("libcuda.so.1") };
        let driver = Self(library.map_err(|error| DriverError::Library(error.to_string()))?);
        call!(driver, CuInit, "cuInit", 0)?;
        Ok(driver)
    }

    /// Calls the function `name`, of type `F`.
    fn call<F: Copy>(&self, name: &'static str, call: impl FnOnce(F) -> CUresult) -> Result<(), DriverError> {
        // SAFETY: each caller below names the type that the driver's header has for this name.
        let function = unsafe { self.0.get::<F>(name.as_bytes()) };
        match call(*function.map_err(|error| DriverError::Library(error.to_string()))?) {
            0 => Ok(()),
            code => Err(DriverError::Code(name, code)),
        }
    }
}

/// The first GPU, with a context on it that is current.
pub struct Gpu<'a> {
    driver: &'a Driver,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// The first number of its compute capability.
    pub capability: c_int,
}

impl<'a> Gpu<'a> {
    /// Makes a context on the first GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn begin(driver: &'a Driver) -> Result<Self, DriverError> {
        let mut context: CUcontext = null_mut();
        call!(driver, CuCtxCreateV2, "cuCtxCreate_v2", &mut context, 0, 0)?;
        let attribute = |which| {
            let mut value: c_int = 0;
            call!(driver, CuDeviceGetAttribute, "cuDeviceGetAttribute", &mut value, which, 0).map(|()| value)
        };
        let multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let capability = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        Ok(Self { driver, multiprocessors: u32::try_from(multiprocessors).unwrap_or(0).max(1), capability })
    }

    /// Loads a text of PTX; the driver compiles it for the GPU that is there.
    ///
    /// # Errors
    /// The driver's.
    pub fn load(&self, text: &str) -> Result<Module, DriverError> {
        let text = CString::new(text).map_err(|error| DriverError::Library(error.to_string()))?;
        let mut module: CUmodule = null_mut();
        call!(self.driver, CuModuleLoadData, "cuModuleLoadData", &mut module, text.as_ptr().cast())?;
        Ok(Module(module))
    }

    /// A kernel of a module.
    ///
    /// # Errors
    /// The driver's.
    pub fn kernel(&self, module: &Module, name: &CStr) -> Result<Kernel, DriverError> {
        let mut function: CUfunction = null_mut();
        call!(self.driver, CuModuleGetFunction, "cuModuleGetFunction", &mut function, module.0, name.as_ptr())?;
        Ok(Kernel(function))
    }

    /// How much memory nobody has, in bytes.
    ///
    /// # Errors
    /// The driver's.
    pub fn free_bytes(&self) -> Result<u64, DriverError> {
        let (mut free, mut total) = (0_usize, 0_usize);
        call!(self.driver, CuMemGetInfoV2, "cuMemGetInfo_v2", &mut free, &mut total)?;
        Ok(free as u64)
    }

    /// Memory on the device, which is given back when nobody has it any more.
    ///
    /// # Errors
    /// The driver's, as where there is not so much.
    pub fn allocate(&self, bytes: usize) -> Result<Piece<'_>, DriverError> {
        let mut address: CUdeviceptr = 0;
        call!(self.driver, CuMemAllocV2, "cuMemAlloc_v2", &mut address, bytes)?;
        Ok(Piece { driver: self.driver, address, bytes })
    }

    /// Starts a kernel and waits until it has ended.
    ///
    /// # Errors
    /// The driver's: what a kernel does wrong is told here.
    pub fn run(
        &self,
        kernel: &Kernel,
        [blocks, threads]: [u32; 2],
        parameters: &[Parameter],
    ) -> Result<(), DriverError> {
        let mut values: Vec<*mut c_void> = parameters
            .iter()
            .map(|parameter| match parameter {
                Parameter::Word(value) => std::ptr::from_ref(value).cast_mut().cast(),
                Parameter::Long(value) => std::ptr::from_ref(value).cast_mut().cast(),
            })
            .collect();
        let (values, none) = (values.as_mut_ptr(), null_mut());
        call!(
            self.driver,
            CuLaunchKernel,
            "cuLaunchKernel",
            kernel.0,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            0,
            null_mut(),
            values,
            none
        )?;
        call!(self.driver, CuCtxSynchronize, "cuCtxSynchronize")
    }
}

/// Kernels that are loaded, for as long as the process lives.
pub struct Module(CUmodule);

/// One of them.
pub struct Kernel(CUfunction);

/// What a kernel is given.
#[derive(Clone, Copy)]
pub enum Parameter {
    Word(u32),
    Long(u64),
}

/// Memory on the device.
pub struct Piece<'a> {
    driver: &'a Driver,
    pub address: CUdeviceptr,
    bytes: usize,
}

impl Piece<'_> {
    /// Writes what it is to hold, from its beginning.
    ///
    /// # Errors
    /// The driver's, which refuses more than there is.
    pub fn put(&self, words: &[u32]) -> Result<(), DriverError> {
        let bytes = size_of_val(words);
        call!(self.driver, CuMemcpyHtoDV2, "cuMemcpyHtoD_v2", self.address, words.as_ptr().cast(), bytes)
    }

    /// All that it holds, of numbers.
    ///
    /// # Errors
    /// The driver's.
    pub fn read<N: Number>(&self) -> Result<Vec<N>, DriverError> {
        let mut numbers = vec![N::default(); self.bytes / size_of::<N>()];
        let bytes = size_of_val(numbers.as_slice());
        call!(self.driver, CuMemcpyDtoHV2, "cuMemcpyDtoH_v2", numbers.as_mut_ptr().cast(), self.address, bytes)?;
        Ok(numbers)
    }
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        let _ = call!(self.driver, CuMemFreeV2, "cuMemFree_v2", self.address);
    }
}

/// Numbers that any bytes are.
pub trait Number: Copy + Default {}
impl Number for u32 {}
impl Number for u64 {}
