//! All devices of the host: boards, and MIG instances of them.

use crate::layout::Layout;
use crate::store::{Store, StoreError};

/// A board, and an instance of it.
pub(crate) type Place = (u32, Option<u32>);

/// All devices of the host.
#[derive(Clone, Copy)]
pub(crate) struct Devices<'a> {
    pub(crate) layout: &'a Layout,
    /// The boards, by minor number.
    pub(crate) stores: &'a [Store],
}

impl Devices<'_> {
    /// Does this with each of them. An instance that is just being taken away holds nothing, and is left out.
    pub(crate) fn each<T>(
        &self,
        mut work: impl FnMut(&Store) -> Result<T, StoreError>,
    ) -> Result<Vec<(Place, T)>, StoreError> {
        let mut all = Vec::new();
        for (index, store) in (0..).zip(self.stores) {
            all.push(((index, None), work(store)?));
        }
        for (index, instance) in self.layout.instances() {
            if let Ok(store) = Store::open_instance(self.layout.root(), (index, instance)) {
                all.push(((index, Some(instance)), work(&store)?));
            }
        }
        Ok(all)
    }

    /// Does this with one of them; none if it is not there.
    pub(crate) fn one<T>(&self, place: Place, work: impl FnOnce(&Store) -> Result<T, StoreError>) -> Option<T> {
        match place {
            (index, None) => work(self.stores.get(index as usize)?).ok(),
            (index, Some(instance)) => work(&Store::open_instance(self.layout.root(), (index, instance)).ok()?).ok(),
        }
    }
}
