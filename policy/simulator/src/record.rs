//! What the device's meter has shown in the course of a run.

/// A stretch of time in which a tenant's kernels executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// First nanosecond.
    pub start_ns: u64,
    /// First nanosecond after it.
    pub end_ns: u64,
}

/// The execution of one tenant, from the meter: stretches in order, none touching the next.
#[derive(Clone, Debug, Default)]
pub struct Execution {
    stretches: Vec<Ran>,
    /// What was received before each stretch.
    before_ns: Vec<u64>,
    received_ns: u64,
}

impl Execution {
    pub(crate) fn add(&mut self, start_ns: u64, end_ns: u64) {
        match self.stretches.last_mut().filter(|last| last.end_ns == start_ns) {
            Some(last) => last.end_ns = end_ns,
            None => {
                self.stretches.push(Ran { start_ns, end_ns });
                self.before_ns.push(self.received_ns);
            }
        }
        self.received_ns += end_ns - start_ns;
    }

    /// The stretches.
    #[must_use]
    pub fn stretches(&self) -> &[Ran] {
        &self.stretches
    }

    /// GPU time received in all.
    #[must_use]
    pub fn received_ns(&self) -> u64 {
        self.received_ns
    }

    /// GPU time received before `at_ns`.
    #[must_use]
    pub fn received_before(&self, at_ns: u64) -> u64 {
        let begun = self.stretches.partition_point(|ran| ran.start_ns < at_ns);
        let Some(index) = begun.checked_sub(1) else { return 0 };
        let ran = self.stretches[index];
        self.before_ns[index] + ran.end_ns.min(at_ns) - ran.start_ns
    }
}

/// A change of what a tenant's application wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It has work without end from now on.
    On,
    /// It has no longer.
    Off,
    /// It wants so much GPU time more.
    Request(u64),
    /// Its process has ended, and what it wanted and had not received is wanted by nobody any more.
    Gone,
}

/// The history of one run, by tenant in the order of the world's clients.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Who ran when.
    pub executions: Vec<Execution>,
    /// What was wanted when.
    pub wanted: Vec<Vec<(u64, Wanted)>>,
    /// Time in which somebody had work, waiting or on the device.
    pub work_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_received_before_a_moment() {
        let mut execution = Execution::default();
        execution.add(10, 20);
        execution.add(20, 25);
        execution.add(40, 50);
        assert_eq!(execution.stretches().len(), 2);
        let received = [0, 10, 15, 25, 30, 45, 99].map(|at| execution.received_before(at));
        assert_eq!(received, [0, 0, 5, 15, 15, 20, 25]);
        assert_eq!(execution.received_ns(), 25);
    }
}
