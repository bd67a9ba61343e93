//! Names of the parties the scheduler deals with.

/// A tenant of one GPU: one lease, whatever number of processes and contexts it has.
///
/// The number is chosen by the caller and never reused while the tenant is joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u64);

impl std::fmt::Display for TenantId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
