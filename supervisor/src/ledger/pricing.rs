//! What the lines of the ledger cost: each for itself, so that all sums of the same lines are the same money.

use super::lines::{GpuPart, Line};
use gpool_configuration::Rates;
use gpool_policy::rates::{Billed, Holding, Price, RateCard};
use std::collections::HashMap;

/// What something costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// By the team's price, billionths of the currency.
    pub nanos: u64,
    /// By the price of those with whom nothing else is agreed.
    pub list_nanos: u64,
    /// GPU time that was promised or had beyond that and has no price, nanoseconds.
    pub unpriced_ns: u64,
}

impl Cost {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.nanos = self.nanos.saturating_add(other.nanos);
        self.list_nanos = self.list_nanos.saturating_add(other.list_nanos);
        self.unpriced_ns = self.unpriced_ns.saturating_add(other.unpriced_ns);
    }
}

/// Prices, and those that hold for whom while lines come by time.
#[derive(Debug)]
pub struct Pricing {
    card: RateCard,
    holding: HashMap<(i64, i64), Prices>,
}

/// A team's price, and that of others.
#[derive(Debug, Clone, Copy)]
pub struct Prices {
    /// By which it pays.
    pub contracted: Holding,
    /// By which others do.
    pub list: Holding,
}

impl Pricing {
    /// By the configuration's prices; none where it has none.
    pub fn new(rates: &Rates) -> Option<Self> {
        let price = |price: &gpool_configuration::Price| Price {
            micros_per_gpu_hour: price.per_gpu_hour.micros,
            model: price.model.clone(),
            team: price.team.clone(),
            from_unix_s: price.from.map_or(0, gpool_configuration::Day::unix_s),
        };
        let card = RateCard {
            prices: rates.price.iter().map(price).collect(),
            beyond_share_permille: rates.beyond_share.permille,
            low_priority_permille: rates.low_priority.permille,
            lent_credit_permille: rates.lent_credit.permille,
        };
        (!rates.is_empty()).then(|| Self { card, holding: HashMap::new() })
    }

    /// Which prices hold for a lease on a GPU at a moment not before the last one that was asked for them.
    pub fn holding(&mut self, of: (i64, i64), team: Option<&str>, gpu: &GpuPart, at_unix_s: u64) -> Prices {
        let asked = |whose: Option<&str>| self.card.holding(whose, &gpu.product, at_unix_s);
        let new = || Prices { contracted: asked(team), list: asked(None) };
        let known = self.holding.get(&of).copied();
        let is_over = |prices: &Prices| at_unix_s >= prices.contracted.until_unix_s.min(prices.list.until_unix_s);
        let prices = known.filter(|prices| !is_over(prices)).unwrap_or_else(new);
        self.holding.insert(of, prices);
        prices
    }

    /// What a line costs.
    pub fn cost_of(&mut self, line: &Line, team: Option<&str>, gpu: &GpuPart) -> Cost {
        let prices = self.holding(line.of, team, gpu, line.slot_unix_s);
        let billed = billed(line);
        let cost = |holding: Holding| {
            holding.micros_per_gpu_hour.map(|micros| self.card.cost_nanos(billed, micros, gpu.slices))
        };
        let contracted = cost(prices.contracted);
        Cost {
            nanos: contracted.unwrap_or(0),
            list_nanos: cost(prices.list).or(contracted).unwrap_or(0),
            unpriced_ns: match contracted {
                Some(_) => 0,
                None => gpu.part_of(billed.reserved_ns.saturating_add(billed.burst_ns)),
            },
        }
    }

    /// GPU time that a line is billed as: what it costs at a price of one for each nanosecond.
    pub fn billed_ns(&self, line: &Line, gpu: &GpuPart) -> u64 {
        self.card.billed_ns(billed(line), gpu.slices)
    }

    /// What a GPU costs for a while as a whole, billionths of the currency; none without a price.
    pub fn whole_cost_nanos(&self, gpu: &GpuPart, at_unix_s: u64, ns: u64) -> Option<u64> {
        let micros = self.card.holding(None, &gpu.product, at_unix_s).micros_per_gpu_hour?;
        Some(gpool_policy::rates::whole_cost_nanos(ns, micros, gpu.slices))
    }
}

fn billed(line: &Line) -> Billed {
    Billed {
        reserved_ns: line.amounts.reserved_ns(),
        burst_ns: line.amounts.burst_ns,
        low_ns: line.amounts.low_ns,
        lent_ns: line.amounts.lent_ns,
    }
}
