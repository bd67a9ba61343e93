//! What a client's application wants to run.

use std::collections::VecDeque;

use crate::random::{Lengths, Random};

/// A request that has not been launched whole.
#[derive(Clone, Copy, Debug)]
struct Request {
    arrived_ns: u64,
    left_ns: u64,
}

/// One piece of work after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// GPU time of each.
    pub work_ns: u64,
    /// From the end of one, as the application sees it, to the next.
    pub rest_ns: u64,
}

/// One launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// GPU time of its kernel.
    pub(crate) length_ns: u64,
    /// When the request arrived whose last kernel this is.
    pub(crate) completes: Option<u64>,
}

/// An application's kernels: without end while it has demand, and those of its requests.
#[derive(Clone, Debug)]
pub struct Work {
    /// Lengths of the kernels.
    pub lengths: Lengths,
    /// Length of the next kernel, once.
    pub surprise_ns: Option<u64>,
    /// Has always work while true.
    pub demand: bool,
    /// A request for each of these comes when the one before has ended.
    pub steps: Option<Steps>,
    requests: VecDeque<Request>,
    random: Random,
}

impl Work {
    /// An application without demand and requests that draws its lengths from a sequence of its own.
    #[must_use]
    pub fn new(lengths: Lengths, random: Random) -> Self {
        Self { lengths, surprise_ns: None, demand: false, steps: None, requests: VecDeque::new(), random }
    }

    /// A request for so much GPU time arrives.
    pub(crate) fn arrive(&mut self, now_ns: u64, work_ns: u64) {
        self.requests.push_back(Request { arrived_ns: now_ns, left_ns: work_ns });
    }

    /// The process is gone, and what it was asked for with it.
    pub(crate) fn end(&mut self) {
        (self.demand, self.steps) = (false, None);
        self.requests.clear();
    }

    /// Whether something waits to be launched.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.demand || !self.requests.is_empty()
    }

    /// Arrival times of requests that have not been launched whole.
    pub(crate) fn waiting_since_ns(&self) -> impl Iterator<Item = u64> {
        self.requests.iter().map(|request| request.arrived_ns)
    }

    /// The next launch. The last kernel of a request is as long as what is left of it.
    pub(crate) fn launch(&mut self) -> Option<Launch> {
        let Some(request) = self.requests.front_mut() else {
            return self.demand.then(|| Launch {
                length_ns: self.surprise_ns.take().unwrap_or_else(|| self.lengths.draw(&mut self.random)),
                completes: None,
            });
        };
        let drawn = self.surprise_ns.take().unwrap_or_else(|| self.lengths.draw(&mut self.random));
        let length_ns = drawn.min(request.left_ns);
        request.left_ns -= length_ns;
        let completes = (request.left_ns == 0).then_some(request.arrived_ns);
        if completes.is_some() {
            self.requests.pop_front();
        }
        Some(Launch { length_ns, completes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_exactly_its_work() {
        let mut work = Work::new(Lengths::Fixed { ns: 400 }, Random::new(1));
        assert_eq!(work.launch(), None);
        work.arrive(7, 1000);
        work.arrive(9, 400);
        let launches: Vec<Launch> = std::iter::from_fn(|| work.launch()).collect();
        let of = |length_ns, completes| Launch { length_ns, completes };
        assert_eq!(launches, [of(400, None), of(400, None), of(200, Some(7)), of(400, Some(9))]);
        assert!(!work.waits());
        work.arrive(11, 400);
        (work.demand, work.steps) = (true, Some(Steps { work_ns: 1, rest_ns: 1 }));
        work.end();
        assert_eq!((work.waits(), work.launch(), work.steps), (false, None, None));
    }
}
