//! What the driver does when a GPU is divided: the board's state changes, a device of the instance's size comes or goes,
//! and so do the files of its capabilities.

use crate::capabilities::write_instances;
use crate::layout::Layout;
use crate::store::Store;
use gpool_device_model::MigRefusal;
use std::fs;

/// One board, for who may divide it.
#[derive(Debug)]
pub struct Board<'a> {
    /// Where everything lies.
    pub layout: &'a Layout,
    /// Its minor number.
    pub minor: u32,
    /// Its state.
    pub store: &'a Store,
}

/// What else can go wrong: the state cannot be read or written.
#[derive(Debug)]
pub enum DivideError {
    /// The driver refuses.
    Refused(MigRefusal),
    /// The simulation itself fails; the sentence says how.
    Failed(String),
}

impl From<MigRefusal> for DivideError {
    fn from(refusal: MigRefusal) -> Self {
        Self::Refused(refusal)
    }
}

fn failed(cause: impl std::fmt::Display) -> DivideError {
    DivideError::Failed(cause.to_string())
}

impl Board<'_> {
    /// Turns MIG on or off; false if that has to wait until nobody uses the board.
    ///
    /// # Errors
    /// The board has no MIG, or instances.
    pub fn set_mode(&self, is_on: bool) -> Result<bool, DivideError> {
        let set = self.store.update(|device, _| {
            device.parameters().mig_model().ok_or(MigRefusal::NotSupported)?;
            let is_busy = !device.processes().is_empty();
            device.mig.set(is_on, is_busy)
        });
        Ok(set.map_err(failed)??)
    }

    /// Makes a GPU instance at a start, or at the first that is free, and says which it is.
    ///
    /// # Errors
    /// Why the driver does not.
    pub fn create(&self, profile_id: u32, start: Option<u8>) -> Result<u32, DivideError> {
        let made = self.store.update(|device, _| {
            let model = device.parameters().mig_model().ok_or(MigRefusal::NotSupported)?;
            device.mig.create(model, profile_id, start)
        });
        let id = made.map_err(failed)??;
        self.write()?;
        Ok(id)
    }

    /// Makes the compute instance of a GPU instance: from now on programs can use it.
    ///
    /// # Errors
    /// Why the driver does not.
    pub fn create_compute(&self, id: u32) -> Result<(), DivideError> {
        let parameters = self.store.read(|device| {
            let model = device.parameters().mig_model()?;
            let profile = model.profile(device.mig.instance(id)?.profile_id)?;
            Some(device.parameters().of_instance(model, profile, id))
        });
        let parameters = parameters.map_err(failed)?.ok_or(MigRefusal::Invalid)?;
        self.store.update(|device, _| device.mig.set_compute(id, true)).map_err(failed)??;
        // An error from here on leaves an instance that nobody can use; taking it away clears it.
        Store::create_instance(self.layout.root(), (self.minor, id), parameters).map_err(failed)?;
        self.write()
    }

    /// Takes the compute instance of a GPU instance away.
    ///
    /// # Errors
    /// Somebody uses it, or it is not there.
    pub fn destroy_compute(&self, id: u32) -> Result<(), DivideError> {
        let path = self.layout.instance(self.minor, id);
        if let Ok(own) = Store::open_instance(self.layout.root(), (self.minor, id)) {
            let is_closed = own.update(gpool_device_model::Device::close).map_err(failed)?;
            if !is_closed {
                return Err(MigRefusal::InUse.into());
            }
        }
        self.store.update(|device, _| device.mig.set_compute(id, false)).map_err(failed)??;
        match fs::remove_file(&path) {
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => return Err(failed(cause)),
            Ok(()) | Err(_) => {}
        }
        self.write()
    }

    /// Takes a GPU instance away.
    ///
    /// # Errors
    /// Its compute instance is there, or it is not there itself.
    pub fn destroy(&self, id: u32) -> Result<(), DivideError> {
        self.store.update(|device, _| device.mig.destroy(id)).map_err(failed)??;
        self.write()
    }

    fn write(&self) -> Result<(), DivideError> {
        let mig = self.store.read(|device| device.mig.clone()).map_err(failed)?;
        write_instances(self.layout, self.minor, &mig).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_device_model::{DeviceParameters, MigModel};

    fn is(refusal: MigRefusal) -> impl Fn(DivideError) -> bool {
        move |error| matches!(error, DivideError::Refused(its) if its == refusal)
    }

    #[test]
    fn an_instance_has_a_device_while_it_is_there_and_nobody_takes_it_from_under_a_process() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let board = DeviceParameters::standard(0).with_model(MigModel::named("A100-80GB").unwrap());
        let store = Store::create(layout.root(), board).unwrap();
        let board = Board { layout: &layout, minor: 0, store: &store };
        assert!(is(MigRefusal::NotSupported)(board.create(19, None).unwrap_err()));
        assert!(board.set_mode(true).unwrap());
        let id = board.create(9, Some(0)).unwrap();
        board.create_compute(id).unwrap();
        assert_eq!(layout.instances(), [(0, id)]);
        let own = Store::open_instance(layout.root(), (0, id)).unwrap();
        assert_eq!(own.read(|device| device.parameters().memory_bytes >> 20).unwrap(), 40192);
        let context = own.update(|device, now_ns| device.create_context(now_ns, 7, "/a")).unwrap().unwrap();
        assert!(is(MigRefusal::InUse)(board.destroy(id).unwrap_err()));
        assert!(is(MigRefusal::InUse)(board.destroy_compute(id).unwrap_err()));
        own.update(|device, now_ns| device.destroy_context(now_ns, context)).unwrap();
        board.destroy_compute(id).unwrap();
        assert!(own.update(|device, now_ns| device.create_context(now_ns, 7, "/a")).unwrap().is_err());
        board.destroy(id).unwrap();
        assert!(layout.instances().is_empty());
        assert!(board.set_mode(false).unwrap());
    }

    #[test]
    fn a_board_without_mig_is_not_divided() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let store = Store::create(layout.root(), DeviceParameters::standard(0)).unwrap();
        let board = Board { layout: &layout, minor: 0, store: &store };
        assert!(is(MigRefusal::NotSupported)(board.set_mode(true).unwrap_err()));
    }
}
