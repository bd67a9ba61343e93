//! What GPU time costs: which price holds when, and what a lease owes by it.

use crate::mechanism::{Suitable, words};

/// Nanoseconds of an hour.
const HOUR_NS: u128 = 3_600_000_000_000;
/// Billionths of a currency in a millionth.
const NANOS_OF_A_MICRO: u128 = 1000;

/// What an hour of a whole GPU costs, for whom, of which model and from when on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Price {
    /// Millionths of the currency.
    pub micros_per_gpu_hour: u64,
    /// Words of the GPU's name; none: every model that has no price of its own.
    pub model: Option<String>,
    /// Whose; none: every team's that has no price of its own, and of leases without one.
    pub team: Option<String>,
    /// From when on, Unix seconds.
    pub from_unix_s: u64,
}

/// All prices, and how much of them is asked for what; parts in thousandths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RateCard {
    /// The prices, in any order.
    pub prices: Vec<Price>,
    /// Of time beyond a guaranteed lease's share.
    pub beyond_share_permille: u16,
    /// Of time that leases of lower priorities have, who are promised nothing.
    pub low_priority_permille: u16,
    /// Given back, of time of a share that was left and others had.
    pub lent_credit_permille: u16,
}

/// What a lease was promised and had, in nanoseconds of a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Billed {
    /// Promised.
    pub reserved_ns: u64,
    /// Had beyond that.
    pub burst_ns: u64,
    /// Of that, while its priority was one that is promised nothing.
    pub low_ns: u64,
    /// Of what was promised, had by others.
    pub lent_ns: u64,
}

/// The price that holds at a moment, and until when it does at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// Millionths of the currency for an hour of a whole GPU; none: there is no price.
    pub micros_per_gpu_hour: Option<u64>,
    /// When another may hold, Unix seconds.
    pub until_unix_s: u64,
}

impl RateCard {
    /// What an hour of a GPU of this product name costs a team at a moment. A price of the team goes before one of every team,
    /// then the one that says most of the model, by words, then the later one. Without a team it is what is asked for where nothing else is agreed.
    #[must_use]
    pub fn holding(&self, team: Option<&str>, product: &str, at_unix_s: u64) -> Holding {
        let is_meant = |price: &&Price| {
            let is_of_model = price.model.as_ref().is_none_or(|model| {
                Suitable { models: vec![model.clone()], ..Suitable::default() }.has_what_it_is(product, 0)
            });
            is_of_model && price.team.as_deref().is_none_or(|its| Some(its) == team)
        };
        let meant = || self.prices.iter().filter(is_meant);
        let begun = meant().filter(|price| price.from_unix_s <= at_unix_s);
        let holds = begun.max_by_key(|price| {
            (price.team.is_some(), price.model.as_deref().map_or(0, |model| words(model).count()), price.from_unix_s)
        });
        let later = meant().map(|price| price.from_unix_s).filter(|from| *from > at_unix_s);
        Holding {
            micros_per_gpu_hour: holds.map(|price| price.micros_per_gpu_hour),
            until_unix_s: later.min().unwrap_or(u64::MAX),
        }
    }

    /// What a lease owes for time of a GPU, or of an instance that is `slices` of its `of_slices`, at a price, in billionths of
    /// the currency, rounded to the nearest.
    #[must_use]
    pub fn cost_nanos(&self, billed: Billed, micros_per_gpu_hour: u64, slices: (u8, u8)) -> u64 {
        priced(self.billed_permille_ns(billed), micros_per_gpu_hour, slices)
    }

    /// As how much time of a whole GPU that is billed, nanoseconds: a price times this is what is owed.
    #[must_use]
    pub fn billed_ns(&self, billed: Billed, (slices, of_slices): (u8, u8)) -> u64 {
        let whole = 1000 * u128::from(of_slices.max(1));
        let ns = (self.billed_permille_ns(billed) * u128::from(slices) + whole / 2) / whole;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// The same in thousandths of a nanosecond of the GPU or instance. What is given back is part of what was promised.
    fn billed_permille_ns(&self, billed: Billed) -> u128 {
        let part = |ns: u64, permille: u16| u128::from(ns) * u128::from(permille);
        let low_ns = billed.low_ns.min(billed.burst_ns);
        let beyond = part(billed.burst_ns - low_ns, self.beyond_share_permille);
        let asked = part(billed.reserved_ns, 1000) + beyond + part(low_ns, self.low_priority_permille);
        asked.saturating_sub(part(billed.lent_ns, self.lent_credit_permille))
    }
}

/// What so much time of a GPU or of an instance costs as a whole, whoever has it, in billionths of the currency.
#[must_use]
pub fn whole_cost_nanos(ns: u64, micros_per_gpu_hour: u64, slices: (u8, u8)) -> u64 {
    priced(u128::from(ns) * 1000, micros_per_gpu_hour, slices)
}

fn priced(permille_ns: u128, micros_per_gpu_hour: u64, (slices, of_slices): (u8, u8)) -> u64 {
    // A line of the ledger is an hour at most, but times up to a thousand years and prices up to a million an hour fit.
    let whole = 1000 * HOUR_NS * u128::from(of_slices.max(1));
    let nanos = (permille_ns * u128::from(slices)).saturating_mul(u128::from(micros_per_gpu_hour) * NANOS_OF_A_MICRO);
    u64::try_from((nanos.saturating_add(whole / 2)) / whole).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const H: u64 = 3_600_000_000_000;

    fn price(micros: u64, model: Option<&str>, team: Option<&str>, from_unix_s: u64) -> Price {
        let text = |text: &str| text.to_owned();
        Price { micros_per_gpu_hour: micros, model: model.map(text), team: team.map(text), from_unix_s }
    }

    fn card(prices: Vec<Price>) -> RateCard {
        RateCard { prices, beyond_share_permille: 1000, low_priority_permille: 400, lent_credit_permille: 0 }
    }

    #[test]
    fn the_nearest_price_holds_and_says_until_when() {
        let card = card(vec![
            price(1, None, None, 0),
            price(2, None, None, 100),
            price(3, Some("H100"), None, 50),
            price(4, None, Some("vision"), 200),
            price(5, Some("H100"), Some("vision"), 300),
            price(6, Some("H100 NVL"), None, 0),
        ]);
        let holding = |team, product, at| {
            let holding = card.holding(team, product, at);
            (holding.micros_per_gpu_hour.unwrap(), holding.until_unix_s)
        };
        assert_eq!(holding(None, "NVIDIA L4", 99), (1, 100));
        assert_eq!(holding(None, "NVIDIA L4", 100), (2, u64::MAX));
        assert_eq!(holding(None, "NVIDIA H100 80GB HBM3", 49), (1, 50));
        assert_eq!(holding(None, "NVIDIA H100 80GB HBM3", 400), (3, u64::MAX), "the model's, though another is later");
        assert_eq!(holding(None, "NVIDIA H100 NVL", 400), (6, u64::MAX), "what says more, though another is later");
        assert_eq!(holding(Some("speech"), "NVIDIA H100 80GB HBM3", 400).0, 3);
        assert_eq!(holding(Some("vision"), "NVIDIA H100 80GB HBM3", 199), (3, 200));
        assert_eq!(holding(Some("vision"), "NVIDIA H100 80GB HBM3", 250), (4, 300), "the team's before the model's");
        assert_eq!(holding(Some("vision"), "NVIDIA H100 80GB HBM3", 300), (5, u64::MAX));
        assert_eq!(card_of_later().holding(None, "NVIDIA L4", 6).micros_per_gpu_hour, None, "none holds yet");
    }

    fn card_of_later() -> RateCard {
        card(vec![price(1, None, None, 7)])
    }

    #[test]
    fn what_is_blocked_or_had_whichever_is_more_is_what_it_costs() {
        let card = card(Vec::new());
        let euro = 1_000_000_000;
        let cost = |billed: Billed| card.cost_nanos(billed, 2_500_000, (1, 1));
        let idle = Billed { reserved_ns: 2 * H, ..Billed::default() };
        assert_eq!(cost(idle), 5 * euro);
        assert_eq!(cost(Billed { burst_ns: H, ..idle }), 15 * euro / 2);
        assert_eq!(cost(Billed { burst_ns: H, low_ns: H, ..Billed::default() }), euro);
        let lent = Billed { lent_ns: H, ..idle };
        assert_eq!(cost(lent), 5 * euro, "without a credit, who reserves pays");
        let credit = RateCard { lent_credit_permille: 1000, ..card.clone() };
        assert_eq!(credit.cost_nanos(lent, 2_500_000, (1, 1)), 5 * euro / 2);
        assert_eq!(card.cost_nanos(idle, 7_000_000, (3, 7)), 6 * euro, "an instance by its slices");
        let billed = Billed { reserved_ns: 7 * H, burst_ns: 7 * H, low_ns: 7 * H, lent_ns: 7 * H };
        assert_eq!(card.billed_ns(billed, (3, 7)), 42 * H / 10, "1.4 times three hours");
        assert_eq!(credit.billed_ns(billed, (3, 7)), 12 * H / 10);
        assert_eq!(whole_cost_nanos(H, 2_500_000, (1, 1)), 5 * euro / 2);
        assert_eq!(card.cost_nanos(Billed { reserved_ns: 1_000_000, ..idle }, 2_500_000, (1, 1)), 694, "0.69 of 1e-6");
    }

    proptest! {
        #[test]
        fn no_time_and_no_price_overflows_and_nobody_is_paid(
            reserved_ns in 0..u64::MAX, burst_ns in 0..u64::MAX, lent in 0u16..=1000, price in 0u64..=1_000_000_000_000,
            credit in 0u16..=1000, slices in 1u8..=7,
        ) {
            let card = RateCard { lent_credit_permille: credit, ..card(Vec::new()) };
            let lent_ns = (u128::from(reserved_ns) * u128::from(lent) / 1000) as u64;
            let billed = Billed { reserved_ns, burst_ns, low_ns: burst_ns / 2, lent_ns };
            let cost = card.cost_nanos(billed, price, (slices, 7));
            let without = card.cost_nanos(Billed { lent_ns: 0, ..billed }, price, (slices, 7));
            prop_assert!(cost <= without);
            let reserved = card.cost_nanos(Billed { burst_ns: 0, lent_ns: 0, ..billed }, price, (slices, 7));
            prop_assert!(reserved <= without);
        }

        /// With whatever was had beyond a share paid and what was lent given back at the full price, all that leases owe and
        /// what nobody had are what the GPU costs.
        #[test]
        fn money_ties_out_where_what_is_lent_is_given_back(
            shares in proptest::collection::vec((0u64..300, 0u64..500), 1..4), wall_s in 1u64..3600,
        ) {
            use crate::ledger::{Held, settle};
            let wall_ns = wall_s * 1_000_000_000;
            let held: Vec<Held> = shares.iter().map(|(reserved, used)| Held {
                reserved_ns: wall_ns / 1000 * reserved, used_ns: wall_ns / 1000 * used.min(&(1000 / shares.len() as u64)),
            }).collect();
            let card = RateCard { lent_credit_permille: 1000, ..card(Vec::new()) };
            let owed: u64 = settle(wall_ns, &held).iter().map(|its| {
                let billed = Billed {
                    reserved_ns: its.reserved_ns(), burst_ns: its.burst_ns, low_ns: 0, lent_ns: its.lent_ns,
                };
                card.cost_nanos(billed, 3_600_000, (1, 1))
            }).sum();
            let had: u64 = settle(wall_ns, &held).iter().map(|its| its.used_ns() + its.idle_ns).sum();
            let want = whole_cost_nanos(had, 3_600_000, (1, 1));
            prop_assert!(owed.abs_diff(want) <= held.len() as u64, "{owed} {want}");
        }
    }
}
