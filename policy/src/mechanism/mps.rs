//! What a container is given of an MPS server, and what a server gives at most.

/// The part of a GPU's threads that goes with a share, in per cent: 1.2 times the share, rounded up, so that clients whose
/// kernels leave processors unused fill them for each other; at most all.
///
/// It is a ceiling. Nothing is reserved: who is alone has no more than this, and beside others less if they are many.
#[must_use]
pub fn active_thread_percent(fraction_permille: u16) -> u8 {
    let percent = (u32::from(fraction_permille) * 12).div_ceil(100);
    u8::try_from(percent.clamp(1, 100)).unwrap_or(100)
}

/// No server has more clients on a GPU, as NVIDIA's documentation of MPS says of Volta and later. Some newer drivers take more;
/// a client that they all take in is what is promised.
pub const MPS_CLIENTS: usize = 48;

/// What is kept of each GPU for its MPS server: what its clients can have is the rest, and fractions are of that, before the server
/// runs and while it does. The simulated one holds 32 MiB; NVIDIA's is said to hold about as much.
pub const MPS_SERVER_BYTES: u64 = 64 << 20;

/// What one container of an MPS server has, or the server gives to any client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MpsLimits {
    /// Of a GPU's threads, in per cent.
    pub percent: u8,
    /// Of the memory of each GPU.
    pub memory_bytes: u64,
}

impl MpsLimits {
    /// What a server has to give to serve all of these: the most of each. A client's own variables lower that to its part,
    /// so a client without them has as much as the largest.
    #[must_use]
    pub fn of_server(clients: impl IntoIterator<Item = Self>) -> Self {
        clients.into_iter().fold(Self::default(), |most, one| Self {
            percent: most.percent.max(one.percent),
            memory_bytes: most.memory_bytes.max(one.memory_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_a_fifth_more_than_the_share_and_at_most_all() {
        let percents: Vec<u8> = [10, 100, 300, 333, 834, 1000].map(active_thread_percent).to_vec();
        assert_eq!(percents, [2, 12, 36, 40, 100, 100]);
    }

    #[test]
    fn a_server_gives_as_much_as_its_largest_client_has() {
        let of = |percent, memory_bytes| MpsLimits { percent, memory_bytes };
        assert_eq!(MpsLimits::of_server([of(36, 4), of(24, 8)]), of(36, 8));
        assert_eq!(MpsLimits::of_server([]), of(0, 0));
    }
}
