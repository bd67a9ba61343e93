//! A bill in the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification (focus.finops.org): column ids of its chapter
//! "Columns", numbers and times as its attributes "Numeric Format" and "Date/Time Format" have them.

use crate::commands::usage::{at, moment};
use crate::exit::{ExitStatus, Failure};
use crate::money::{exact, exact_hours, exact_micros};
use crate::output::csv;
use gpool_protocol::{Charge, Charges};
use jiff::ToSpan;
use jiff::tz::TimeZone;
use serde_json::json;

/// Columns that are mandatory, those that are recommended or conditional and known here, and at the end gpool's own.
const COLUMNS: [&str; 54] = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "Tags",
    "x_BurstGpuHours",
    "x_Class",
    "x_ContainerId",
    "x_CostCenter",
    "x_EnergyKwh",
    "x_Estimated",
    "x_IdleReservedGpuHours",
    "x_LeaseId",
    "x_LentGpuHours",
    "x_Mechanism",
    "x_MemoryGibHours",
    "x_Pod",
    "x_Priority",
    "x_Project",
    "x_ReservedGpuHours",
    "x_UsedGpuHours",
    "x_UserId",
];

/// What a quantity is measured in.
const UNIT: &str = "GPU-Hours";

/// Whether all can be written that the form demands: a currency of ISO 4217, and a price in every row.
///
/// # Errors
/// Says what is missing, and what to write where.
pub fn check(charges: &Charges) -> Result<(), Failure> {
    let is_code = |code: &String| code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_uppercase());
    let refused = |sentence: String| Err(Failure::Refused(ExitStatus::Failed, format!("gpool: {sentence}")));
    if !charges.currency.as_ref().is_some_and(is_code) {
        let now = charges.currency.as_deref().unwrap_or("none, as there are no prices");
        return refused(format!(
            "FOCUS has costs in a currency of ISO 4217, and [rates] currency is {now}; write its three letters, for example EUR, \
             beside the prices"
        ));
    }
    match super::unpriced(charges) {
        0 => Ok(()),
        rows => refused(format!(
            "{} FOCUS has a price in each row; add a [[rates.price]], with per_gpu_hour = \"0\" where nothing is asked",
            super::unpriced_words(rows)
        )),
    }
}

/// Writes it, with `site` as who bills.
pub fn render(charges: &Charges, site: &str) -> String {
    let currency = charges.currency.as_deref().unwrap_or_default();
    csv(&COLUMNS, charges.rows.iter().map(|row| fields(row, currency, site)))
}

fn fields(row: &Charge, currency: &str, site: &str) -> Vec<String> {
    let or_null = |name: &Option<String>| name.clone().unwrap_or_default();
    let (month_begins, month_ends) = month(row.begins_unix_s);
    // What is sold: a model, or an instance of one, by how it is shared and how urgent it is.
    let part = row.mig_profile.as_deref().unwrap_or("gpu");
    let sku = format!("{}/{part}/{}/{}", row.product, row.mechanism, row.priority);
    let price = |micros: Option<u64>| micros.map(exact_micros).unwrap_or_default();
    let cost = exact(row.cost_nanos);
    let value = |name: &str| match name {
        "BilledCost" | "ContractedCost" | "EffectiveCost" => cost.clone(),
        "BillingAccountId" | "BillingAccountName" | "InvoiceIssuerName" | "ProviderName" => site.to_owned(),
        "BillingCurrency" => currency.to_owned(),
        "BillingPeriodEnd" => month_ends.clone(),
        "BillingPeriodStart" => month_begins.clone(),
        "ChargeCategory" => "Usage".to_owned(),
        // Null: nothing here corrects an earlier period.
        "ChargeClass" => String::new(),
        "ChargeDescription" => description(row),
        "ChargeFrequency" => "Usage-Based".to_owned(),
        "ChargePeriodEnd" => moment(row.ends_unix_s),
        "ChargePeriodStart" => moment(row.begins_unix_s),
        "ConsumedQuantity" => exact_hours(row.used_gpu_ns),
        "ConsumedUnit" | "PricingUnit" => UNIT.to_owned(),
        "ContractedUnitPrice" => price(row.price_micros),
        "ListCost" => exact(row.list_cost_nanos),
        "ListUnitPrice" => price(row.list_price_micros),
        "PricingCategory" => "Standard".to_owned(),
        "PricingQuantity" => exact_hours(row.billed_gpu_ns),
        "PublisherName" | "ServiceName" => "gpool".to_owned(),
        "ResourceId" => row.gpu_uuid.to_string(),
        "ResourceName" => row.product.clone(),
        "ResourceType" => if row.mig_profile.is_some() { "MIG instance" } else { "GPU fraction" }.to_owned(),
        "ServiceCategory" => "Compute".to_owned(),
        "ServiceSubcategory" => "Containers".to_owned(),
        // The same price, whatever it is now and for whom: neither may be in it.
        "SkuId" | "SkuPriceId" => sku.clone(),
        "SkuMeter" => "GPU time reserved or used beyond that".to_owned(),
        "SubAccountId" | "SubAccountName" => or_null(&row.team),
        "Tags" => tags(row),
        "x_BurstGpuHours" => exact_hours(row.burst_gpu_ns),
        "x_Class" => row.class.clone(),
        "x_ContainerId" => row.container_id.to_string(),
        "x_CostCenter" => or_null(&row.cost_center),
        // A kilowatt hour is 3.6 million joules.
        "x_EnergyKwh" => exact_hours(row.energy_millijoules.saturating_mul(1000)),
        "x_Estimated" => row.is_estimated.to_string(),
        "x_IdleReservedGpuHours" => exact_hours(row.idle_gpu_ns),
        "x_LeaseId" => row.lease_id.to_string(),
        "x_LentGpuHours" => exact_hours(row.lent_gpu_ns),
        "x_Mechanism" => row.mechanism.clone(),
        // A MiB second is 1e9 / 1024 of a GiB's nanosecond.
        "x_MemoryGibHours" => exact_hours(mib_seconds_as_gib_ns(row.memory_cap_mib_s)),
        "x_Pod" => or_null(&row.pod),
        "x_Priority" => row.priority.clone(),
        "x_Project" => or_null(&row.project),
        "x_ReservedGpuHours" => exact_hours(row.reserved_gpu_ns),
        "x_UsedGpuHours" => exact_hours(row.used_gpu_ns),
        "x_UserId" => row.uid.to_string(),
        _ => String::new(),
    };
    COLUMNS.map(value).into()
}

fn mib_seconds_as_gib_ns(mib_s: u64) -> u64 {
    u64::try_from(u128::from(mib_s) * 1_000_000_000 / 1024).unwrap_or(u64::MAX)
}

/// In words, so that nobody has to look anything up.
fn description(row: &Charge) -> String {
    let what = match &row.mig_profile {
        Some(profile) => format!("instance {profile} of {}", row.product),
        None => row.product.clone(),
    };
    format!("GPU time of {what} by {} for container {}", row.mechanism, row.container_id.short())
}

/// Keys and values as JSON, null where there are none.
fn tags(row: &Charge) -> String {
    let named = [("project", &row.project), ("cost_center", &row.cost_center)];
    let named = named.into_iter().filter_map(|(name, value)| Some((name, json!(value.as_ref()?))));
    // Those that gpool says by itself have its name in front.
    let always = [("gpool/workload_type", json!(row.class)), ("gpool/user", json!(row.uid.to_string()))];
    let all: serde_json::Map<String, serde_json::Value> =
        named.chain(always).map(|(name, value)| (name.to_owned(), value)).collect();
    serde_json::Value::Object(all).to_string()
}

/// When the month of a moment begins and ends.
fn month(unix_s: u64) -> (String, String) {
    let first = at(unix_s).to_zoned(TimeZone::UTC).date().first_of_month();
    let next = first.checked_add(1.month()).unwrap_or(first);
    (format!("{first}T00:00:00Z"), format!("{next}T00:00:00Z"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_column_is_filled_as_the_specification_has_it() {
        let mut sample = sample();
        assert!(
            refusal(&sample).contains("1 of these rows have no price") && refusal(&sample).contains("per_gpu_hour")
        );
        sample.rows[1].price_micros = Some(0);
        assert!(check(&sample).is_ok());
        for currency in [None, Some("credits".to_owned()), Some("eur".to_owned())] {
            let other = Charges { currency, ..sample.clone() };
            assert!(refusal(&other).contains("[rates] currency"), "{}", refusal(&other));
        }
        let drawn = render(&sample, "gpu-host-1");
        let rows = drawn.lines().map(fields_of).collect::<Vec<_>>();
        let by_name: BTreeMap<&str, &str> =
            rows[0].iter().map(String::as_str).zip(rows[1].iter().map(String::as_str)).collect();
        let want = [
            ("BilledCost", "7"),
            ("BillingPeriodStart", "2026-11-01T00:00:00Z"),
            ("BillingPeriodEnd", "2026-12-01T00:00:00Z"),
            ("ChargePeriodEnd", "2026-11-02T00:00:00Z"),
            ("ChargeClass", ""),
            ("ConsumedQuantity", "2"),
            ("ContractedUnitPrice", "2"),
            ("ListCost", "8.75"),
            ("PricingQuantity", "3.5"),
            ("ProviderName", "gpu-host-1"),
            ("ServiceSubcategory", "Containers"),
            ("SkuId", "NVIDIA H100 80GB HBM3/gpu/slice/guaranteed"),
            ("SubAccountId", "vision"),
            ("x_MemoryGibHours", "4"),
        ];
        for (name, value) in want {
            assert_eq!(by_name.get(name), Some(&value), "{name}");
        }
        let tags: serde_json::Value = serde_json::from_str(by_name["Tags"]).unwrap();
        assert_eq!(tags["cost_center"], "4711");
        assert!(rows.iter().all(|row| row.len() == COLUMNS.len()));
        // What may not be null is not, whoever pays.
        let nullable = ["ChargeClass", "SubAccountId", "SubAccountName"];
        for (name, value) in rows[0].iter().zip(&rows[2]) {
            assert!(!value.is_empty() || nullable.contains(&name.as_str()) || name.starts_with("x_"), "{name}");
        }
        assert!(COLUMNS.is_sorted(), "each is there once");
    }

    fn refusal(charges: &Charges) -> String {
        match check(charges) {
            Err(Failure::Refused(ExitStatus::Failed, sentence)) => sentence,
            other => panic!("{other:?}"),
        }
    }

    /// Reads a line of CSV back.
    fn fields_of(line: &str) -> Vec<String> {
        let (mut fields, mut quoted, mut letters) = (vec![String::new()], false, line.chars().peekable());
        while let Some(letter) = letters.next() {
            match letter {
                '"' if quoted && letters.peek() == Some(&'"') => {
                    fields.last_mut().unwrap().push(letters.next().unwrap())
                }
                '"' => quoted = !quoted,
                ',' if !quoted => fields.push(String::new()),
                other => fields.last_mut().unwrap().push(other),
            }
        }
        fields
    }
}
