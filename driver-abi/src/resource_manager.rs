//! The resource manager of NVIDIA's kernel driver, as far as time slices of channel groups are read and set through
//! `/dev/nvidiactl`: ioctls, structures and numbers.
//!
//! Source: open-gpu-kernel-modules 580.142 (`nvos.h`, `ctrl0000client.h`, `ctrla06c.h`, `g_kernel_channel_group_api_nvoc.c`),
//! and 580.159.04 on an H100, where each call here was answered with [`OK`].

/// The magic number of the driver's ioctls.
pub const IOCTL_MAGIC: u8 = b'F';
/// Number of the ioctl that takes a [`Control`] (NV_ESC_RM_CONTROL).
pub const ESCAPE_CONTROL: u8 = 0x2a;
/// Number of the ioctl that takes an [`Allocate`] (NV_ESC_RM_ALLOC).
pub const ESCAPE_ALLOCATE: u8 = 0x2b;
/// Major number of `/dev/nvidiactl` and the GPUs' nodes (NV_MAJOR_DEVICE_NUMBER).
pub const MAJOR: u32 = 195;
/// Minor number of `/dev/nvidiactl` (NV_CONTROL_DEVICE_MINOR).
pub const CONTROL_MINOR: u32 = 255;

/// Status of a call that did what it should (NV_OK).
pub const OK: u32 = 0;

/// A client: what everything else of a file belongs to (NV01_ROOT_CLIENT).
pub const CLASS_CLIENT: u32 = 0x41;
/// A channel group, which is what the hardware gives time slices to (KEPLER_CHANNEL_GROUP_A).
pub const CLASS_CHANNEL_GROUP: u32 = 0xa06c;
/// What a context that computes has in its channel group, and one that only copies has not (FERMI_CONTEXT_SHARE_A).
pub const CLASS_CONTEXT_SHARE: u32 = 0x9067;

/// Says of what class an object is, or what it belongs to (NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO); takes a
/// [`HandleInfo`].
pub const GET_HANDLE_INFO: u32 = 0x0d02;
/// Of [`HandleInfo::index`]: the parent's handle.
pub const HANDLE_PARENT: u32 = 1;
/// Of [`HandleInfo::index`]: the class.
pub const HANDLE_CLASS: u32 = 2;
/// Sets a channel group's time slice (NVA06C_CTRL_CMD_SET_TIMESLICE); takes a [`TimeSlice`].
pub const SET_TIME_SLICE: u32 = 0xa06c_0103;
/// Says what was set last (NVA06C_CTRL_CMD_GET_TIMESLICE); takes a [`TimeSlice`].
pub const GET_TIME_SLICE: u32 = 0xa06c_0104;

/// The first handle that a client can have; they count up over all clients of the host (RS_CLIENT_HANDLE_BASE).
pub const FIRST_CLIENT: u32 = 0xc1d0_0000;
/// How many numbers there are for clients; after the last one they begin anew (RS_CLIENT_HANDLE_DECODE_MASK + 1).
pub const CLIENT_NUMBERS: u32 = 1 << 20;
/// libcuda numbers its objects from here on. Seen in 535 to 580.
pub const FIRST_OBJECT: u32 = 0x5c00_0001;
/// The driver numbers the objects of who gives no numbers itself from here on (RS_UNIQUE_HANDLE_BASE), and has so many.
pub const FIRST_GENERATED_OBJECT: u32 = 0xcaf0_0000;
/// What a context that computes is given by libcuda, microseconds. Seen in 580.
pub const DEFAULT_TIME_SLICE_US: u64 = 2048;

/// A control call (NVOS54_PARAMETERS, 32 bytes).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Control {
    /// Handle of the client.
    pub client: u32,
    /// Handle of the object, the client's own for what is asked of the client.
    pub object: u32,
    /// Number of the call.
    pub command: u32,
    /// 0.
    pub flags: u32,
    /// Address of its structure.
    pub parameters: u64,
    /// Size of that, bytes.
    pub parameters_bytes: u32,
    /// What came of it.
    pub status: u32,
}

/// Makes an object (NVOS21_PARAMETERS, 32 bytes).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Allocate {
    /// Handle of the client; 0 for a client.
    pub root: u32,
    /// Handle of the parent; 0 for a client.
    pub parent: u32,
    /// Handle of the new object; 0 lets the driver choose one.
    pub object: u32,
    /// Its class.
    pub class: u32,
    /// Address of the class's parameters.
    pub parameters: u64,
    /// Size of those, bytes.
    pub parameters_bytes: u32,
    /// What came of it.
    pub status: u32,
}

/// Of [`GET_HANDLE_INFO`] (16 bytes).
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct HandleInfo {
    /// Handle of the object.
    pub object: u32,
    /// What is asked for.
    pub index: u32,
    /// The answer.
    pub answer: u64,
}

/// Of [`SET_TIME_SLICE`] and [`GET_TIME_SLICE`] (8 bytes).
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct TimeSlice {
    /// Microseconds.
    pub us: u64,
}

const _: () = assert!(size_of::<Control>() == 32 && size_of::<Allocate>() == 32);
const _: () = assert!(size_of::<HandleInfo>() == 16 && size_of::<TimeSlice>() == 8);
