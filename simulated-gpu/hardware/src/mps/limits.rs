//! How limits are written: percentages, and memory by device.

/// Reads `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`; what is no percentage limits nothing.
#[must_use]
pub fn percentage_of(text: &str) -> Option<u32> {
    let whole = text.trim().split('.').next()?.parse().ok()?;
    (1..=100).contains(&whole).then_some(whole)
}

/// Reads `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, for example `0=4G,1=512M`: number of a device and bytes. What cannot be read
/// limits nothing.
#[must_use]
pub fn pinned_limits(text: &str) -> Vec<(usize, u64)> {
    let one = |part: &str| {
        let (device, bytes) = part.split_once('=')?;
        Some((device.trim().parse().ok()?, bytes_of(bytes.trim())?))
    };
    text.split(',').filter_map(one).collect()
}

/// Reads `4G`, `512M`, `64K` or plain bytes.
pub(super) fn bytes_of(text: &str) -> Option<u64> {
    let units = [("G", 30), ("M", 20), ("K", 10)];
    let upper = text.to_ascii_uppercase();
    let upper = upper.strip_suffix('B').unwrap_or(&upper);
    let unit = units.iter().find_map(|(suffix, shift)| Some((upper.strip_suffix(suffix)?, *shift)));
    let (number, shift) = unit.unwrap_or((upper, 0));
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_limit_limits_nothing() {
        assert_eq!(
            (percentage_of("30"), percentage_of(" 30.5 "), percentage_of("100")),
            (Some(30), Some(30), Some(100))
        );
        assert_eq!(
            (percentage_of("0"), percentage_of("101"), percentage_of("x"), percentage_of("")),
            (None, None, None, None)
        );
        assert_eq!(pinned_limits("0=4G,1=512M"), [(0, 4 << 30), (1, 512 << 20)]);
        assert_eq!(pinned_limits("0=4GB, x=1, 2=64k, 3"), [(0, 4 << 30), (2, 64 << 10)]);
        assert!(pinned_limits("").is_empty());
        assert_eq!((bytes_of("17"), bytes_of("99999999999G")), (Some(17), None));
    }
}
