//! The time in which shares are judged: one in which this machine's processors were there.

use crate::meter::now_ns;
use crate::processor_time::ProcessorTime;

/// Where other machines took this part of the processors' time, 0 to 1, the GPU stands still for up to 2 % of the time, and
/// more where they took more: 2 % are more than a point for who is to have 60 % of it.
pub const TOO_MUCH: f64 = 0.015;

/// A window, by the meter's clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    pub from_ns: u64,
    pub to_ns: u64,
    /// The part of the processors' time that other machines took meanwhile, 0 to 1; 0 where the kernel does not say.
    pub stolen: f64,
}

impl Window {
    /// As long as `show` takes.
    pub fn during<E>(show: impl FnOnce() -> Result<(), E>) -> Result<Self, E> {
        let (before, from_ns) = (ProcessorTime::now(), now_ns());
        show()?;
        let stolen = before.zip(ProcessorTime::now()).map_or(0.0, |(before, after)| after.stolen_since(before));
        Ok(Self { from_ns, to_ns: now_ns(), stolen })
    }
}

/// One window, and others, `tries` in all, while other machines take too much; the one in which they took least. Which one that
/// is does not depend on the shares in it.
pub fn quietest<E>(tries: u32, mut next: impl FnMut() -> Result<Window, E>) -> Result<Window, E> {
    let mut last = next()?;
    let mut best = last;
    for _ in 1..tries {
        if last.stolen < TOO_MUCH {
            break;
        }
        println!("Other machines took {:.1} % of the processors' time meanwhile: once more.", last.stolen * 100.0);
        last = next()?;
        if last.stolen < best.stolen {
            best = last;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_others_disturb_is_tried_again_but_not_for_ever() {
        let quietest_of = |stolen: &[f64]| {
            let mut left = stolen.iter();
            let next = || left.next().map(|stolen| Window { from_ns: 0, to_ns: 1, stolen: *stolen }).ok_or(());
            let best = quietest(3, next).unwrap();
            (best.stolen, left.count())
        };
        assert_eq!(quietest_of(&[0.0, 0.0]), (0.0, 1));
        assert_eq!(quietest_of(&[0.04, 0.001, 0.0]), (0.001, 1));
        assert_eq!(quietest_of(&[0.04, 0.02, 0.03, 0.0]), (0.02, 1));
        assert!(quietest(1, || Err::<Window, _>("no engine")).is_err());
    }
}
