//! How the shims go with the driver of a host.

use crate::identity::BuildId;
use serde::{Deserialize, Serialize};

/// The answer to `GET /v1/driver`: the driver as it is installed, and the shims that a container would get now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverView {
    /// Version of the driver that is loaded; empty on a host without a GPU.
    pub version: String,
    /// The driver's libcuda and libnvidia-ml, links resolved.
    pub libraries: Vec<String>,
    /// The shims.
    pub shims: Vec<ShimView>,
    /// Names that the shims export and the driver lacks: programs find them and get an error. None when there are shims
    /// for this driver.
    pub missing: Vec<String>,
    /// Entry points of the driver that take part in what a lease counts and that the shims do not answer: a program that
    /// calls them is not counted there.
    pub uncounted: Vec<String>,
    /// Entry points of libcuda of which this version of gpool does not know whether they count.
    pub unclassified: Vec<String>,
}

/// A shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimView {
    /// The library that it stands in for.
    pub library: String,
    /// Its file on the host.
    pub path: String,
    /// The generation of the driver whose names it exports.
    pub generation: String,
    /// Which build it is; none if its linker has not written that down.
    pub build_id: Option<BuildId>,
}
