//! Launch tokens refilled by feedback from utilisation, after the published source of HAMi-core's utilisation watcher
//! (`multiprocess_utilization_watcher.c`).
//!
//! Every launch takes as many tokens as its grid has blocks. Every 120 ms a watcher compares the tenant's utilisation
//! over the last second, in percent, with its share, moves the refill by a step that grows with the difference, and
//! refills. Nobody gets more than the share, also while the device is idle.

use std::collections::{BTreeMap, VecDeque};

use gpool_policy::TenantId;
use gpool_policy::slice::{Command, Input};

use super::ungated::{AHEAD_NS, BURST_NS};
use crate::client::NO_GATE_NS;
use crate::gatekeeper::Gatekeeper;
use crate::scenario::TenantPlan;

const TICK_NS: u64 = 120_000_000;
const WINDOW_NS: u64 = 1_000_000_000;
/// Streaming multiprocessors, as an H100 has.
const PROCESSORS: i64 = 132;
const THREADS_PER_PROCESSOR: i64 = 2048;
/// The bucket's size, doubled when it turns out to be too small.
const BUCKET: i64 = PROCESSORS * THREADS_PER_PROCESSOR * 32;
/// Differences below this many percent count as this many.
const LEAST_DIFFERENCE: i64 = 5;
/// Blocks of a grid per microsecond that it usually takes, so that a full bucket is a whole device for one tick. This is
/// an assumption of the model, as grids say nothing about time; with fewer blocks the feedback swings more.
const BLOCKS_PER_US: i64 = BUCKET * 1000 / TICK_NS.cast_signed();

struct Bucket {
    limit_percent: i64,
    blocks: i64,
    tokens: i64,
    size: i64,
    refill: i64,
    /// Times and what the tenant had had by then.
    samples: VecDeque<(u64, u64)>,
    joined: bool,
    stopped: bool,
}

impl Bucket {
    fn new(plan: &TenantPlan) -> Self {
        let percent = plan.share.limit_permille.unwrap_or(plan.share.weight_permille) / 10;
        let typical_us = i64::try_from(plan.lengths.typical_ns() / 1000).unwrap_or(i64::MAX / 1000);
        Self {
            limit_percent: i64::from(percent.max(1)),
            blocks: (typical_us * BLOCKS_PER_US).max(1),
            tokens: 0,
            size: BUCKET,
            refill: 0,
            samples: VecDeque::new(),
            joined: false,
            stopped: false,
        }
    }

    fn tick(&mut self, now_ns: u64, usage_ns: u64) {
        self.samples.push_back((now_ns, usage_ns));
        while self.samples.len() > 1 && self.samples[0].0 + WINDOW_NS < now_ns {
            self.samples.pop_front();
        }
        let (since_ns, before_ns) = self.samples[0];
        let percent = (usage_ns - before_ns) * 100 / (now_ns - since_ns).max(1);
        let percent = i64::try_from(percent).unwrap_or(100);
        if self.refill == self.size && self.tokens < 0 {
            self.size *= 2;
            self.refill = self.size;
        }
        let difference = (self.limit_percent - percent).abs().max(LEAST_DIFFERENCE);
        let mut step = PROCESSORS * PROCESSORS * THREADS_PER_PROCESSOR * difference / 2560;
        if difference > self.limit_percent / 2 {
            step = step * difference * 2 / (self.limit_percent + 1);
        }
        let moved = if percent <= self.limit_percent { self.refill + step } else { self.refill - step };
        self.refill = moved.clamp(0, self.size);
        self.tokens = (self.tokens + self.refill).min(self.size);
    }
}

pub(super) struct FeedbackTokens {
    buckets: BTreeMap<TenantId, Bucket>,
    next_ns: u64,
}

impl FeedbackTokens {
    pub(super) fn new(tenants: &[TenantPlan]) -> Self {
        let ids = (0..).map(TenantId);
        Self { buckets: ids.zip(tenants.iter().map(Bucket::new)).collect(), next_ns: TICK_NS }
    }
}

impl Gatekeeper for FeedbackTokens {
    fn handle(&mut self, _now_ns: u64, input: Input, commands: &mut Vec<Command>) {
        if let Input::Join { tenant, .. } = input
            && let Some(bucket) = self.buckets.get_mut(&tenant)
        {
            bucket.joined = true;
            commands.push(Command::Open { tenant, until_ns: NO_GATE_NS, depth_ns: AHEAD_NS, burst_ns: BURST_NS });
        }
    }

    fn next_timer(&self) -> Option<u64> {
        Some(self.next_ns)
    }

    fn wake(&mut self, now_ns: u64, usage_ns: &dyn Fn(TenantId) -> u64, commands: &mut Vec<Command>) {
        if now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + TICK_NS;
        for (&tenant, bucket) in self.buckets.iter_mut().filter(|(_, bucket)| bucket.joined) {
            bucket.tick(now_ns, usage_ns(tenant));
            if bucket.stopped && bucket.tokens > 0 {
                bucket.stopped = false;
                commands.push(Command::Open { tenant, until_ns: NO_GATE_NS, depth_ns: AHEAD_NS, burst_ns: BURST_NS });
            }
        }
    }

    fn admit(&mut self, tenant: TenantId, wanted: u64) -> u64 {
        let Some(bucket) = self.buckets.get_mut(&tenant) else { return wanted };
        let mut admitted = 0;
        while admitted < wanted && bucket.tokens > 0 {
            bucket.tokens -= bucket.blocks;
            admitted += 1;
        }
        bucket.stopped = admitted == 0;
        admitted
    }
}
