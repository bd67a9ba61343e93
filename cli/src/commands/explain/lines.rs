//! `gpool explain --format csv`

use crate::output;
use gpool_protocol::{GpuExplanation, LeaseExplanation, Priority, ShareErrorBound};

/// What is promised of its share on one GPU. An older supervisor tells bounds of everybody; they hold for who has its turns from gpool and
/// comes behind nobody.
pub fn bounds<'a>(explanation: &LeaseExplanation, gpu: &'a GpuExplanation) -> &'a [ShareErrorBound] {
    let is_first = explanation.priority == Priority::Guaranteed && explanation.beyond_budget.is_none();
    if is_first && explanation.mechanism.has_shims() { &gpu.share_error } else { &[] }
}

/// A line for each bound on each GPU, in millionths of a GPU and with its window; one line for a GPU on which nothing is promised.
pub fn render_csv(explanation: &LeaseExplanation) -> String {
    const HEADER: [&str; 14] = [
        "container_id",
        "lease_id",
        "gpu_uuid",
        "state",
        "cause",
        "behind_container_id",
        "waited_ns",
        "lag_ns",
        "charged_gpu_ns",
        "weight_sum_permille",
        "turn_bound_ns",
        "longest_turn_ns",
        "window_ns",
        "bound_ppm",
    ];
    let rows = explanation.gpus.iter().flat_map(|gpu| {
        let standing = output::to_value(&gpu.standing);
        let field = |name: &str| match &standing[name] {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Object(object) => object["kind"].as_str().unwrap_or_default().to_owned(),
            serde_json::Value::Number(number) => number.to_string(),
            _ => String::new(),
        };
        let row = vec![
            explanation.container_id.to_string(),
            explanation.lease_id.to_string(),
            gpu.gpu_uuid.to_string(),
            field("state"),
            field("cause"),
            field("behind"),
            field("waited_ns"),
            gpu.lag_ns.to_string(),
            gpu.charged_gpu_ns.to_string(),
            gpu.weight_sum_permille.to_string(),
            gpu.turn_bound_ns.to_string(),
            gpu.longest_turn_ns.to_string(),
        ];
        let with_bound =
            |bound: &ShareErrorBound| [&row[..], &[bound.window_ns.to_string(), bound.bound_ppm.to_string()]].concat();
        match bounds(explanation, gpu) {
            [] => vec![[&row[..], &[String::new(), String::new()]].concat()],
            bounds => bounds.iter().map(with_bound).collect(),
        }
    });
    output::csv(&HEADER, rows)
}

#[cfg(test)]
mod tests {
    use super::super::tests::explanation;
    use super::*;
    use gpool_protocol::Mechanism;

    #[test]
    fn csv_has_a_line_for_each_bound() {
        let text = render_csv(&explanation());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0].split(',').count()), (4, lines[1].split(',').count()));
        for nothing in [
            LeaseExplanation { priority: Priority::Scavenger, ..explanation() },
            LeaseExplanation { mechanism: Mechanism::Exclusive, ..explanation() },
        ] {
            let text = render_csv(&nothing);
            assert!(text.lines().count() == 2 && text.ends_with(",13000000,13000000,,\n"), "{text}");
        }
        assert!(lines[1].contains(",waiting,ceiling,b7c1") && lines[1].ends_with(",1000000000,26000"), "{}", lines[1]);
    }
}
