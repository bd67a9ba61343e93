//! What a request has to be for anything to be granted, wherever there is room.

use super::ends::check_run_time;
use super::entitlement::{check_cap, check_class};
use super::grant::Leases;
use gpool_protocol::{ErrorBody, ErrorCode, LeaseRequest, Request};

impl Leases {
    /// Whether a request could be granted at all.
    ///
    /// # Errors
    /// Values that cannot be, or a class that this host denies; or nothing is started here.
    pub fn check_can_be(&self, asked: &LeaseRequest) -> Result<(), ErrorBody> {
        self.check_values(asked).and_then(|()| self.check_driver())
    }

    /// Whether a request could be granted wherever things are started.
    ///
    /// # Errors
    /// Values that cannot be, or a class that this host denies.
    pub fn check_values(&self, asked: &LeaseRequest) -> Result<(), ErrorBody> {
        asked.request.check()?;
        check_cap(asked.request.memory)?;
        check_class(&self.configuration(), asked.request.class)?;
        let Request { run_seconds, class, .. } = asked.request;
        check_run_time(run_seconds, class, self.longest_run_seconds(class))
    }

    /// The versions of the driver's libraries and of its kernel module; none while that of the libraries is not known, as
    /// between the removal of a package and the next one.
    pub fn driver_versions(&self) -> Option<(String, String)> {
        let gpus = self.gpus();
        Some((self.files.version()?, gpus.first()?.driver_version.clone()))
    }

    /// The same if they are of two versions.
    pub fn replaced_driver(&self) -> Option<(String, String)> {
        self.driver_versions().filter(|(version, module)| version != module)
    }

    /// Libraries that were replaced while the kernel module was in use work with it no more.
    ///
    /// # Errors
    /// So it is, and nothing is started here until the host is in order again.
    pub fn check_driver(&self) -> Result<(), ErrorBody> {
        self.replaced_driver().map_or(Ok(()), |(version, module)| {
            let cause = format!("the driver's libraries are of version {version} and its kernel module of {module}");
            let remedy = "boot this host, or have all that uses GPUs end and load the module anew";
            Err(ErrorBody::new(ErrorCode::NoGpu, cause, remedy))
        })
    }
}
