//! Sets of GPUs.

/// Some of the GPUs of a host, by index. At most 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerSet(u64);

impl ServerSet {
    /// The most GPUs that a host may have.
    pub const LIMIT: usize = 64;

    /// One GPU.
    #[must_use]
    pub fn one(index: usize) -> Self {
        [index].into_iter().collect()
    }

    /// Whether a GPU is among them.
    #[must_use]
    pub fn contains(self, index: usize) -> bool {
        index < Self::LIMIT && self.0 >> index & 1 == 1
    }

    /// How many.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Their indices, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let index = left.trailing_zeros() as usize;
            // Takes the lowest one out.
            left &= left.checked_sub(1)?;
            Some(index)
        })
    }

    /// Those of both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether any is among both.
    pub(super) fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Adds one; an index at or above [`LIMIT`](Self::LIMIT) is left out.
    pub fn insert(&mut self, index: usize) {
        if index < Self::LIMIT {
            self.0 |= 1 << index;
        }
    }
}

impl FromIterator<usize> for ServerSet {
    fn from_iter<I: IntoIterator<Item = usize>>(indices: I) -> Self {
        let mut set = Self::default();
        indices.into_iter().for_each(|index| set.insert(index));
        set
    }
}
