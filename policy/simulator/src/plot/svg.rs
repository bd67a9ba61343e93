//! An SVG with a panel for each run.

use std::fmt::Write;

use crate::Outcome;

const WIDTH: usize = 900;
const PANEL_HEIGHT: usize = 220;
const LEFT: usize = 60;
const RIGHT: usize = 170;
const TOP: usize = 34;
const BOTTOM: usize = 30;
/// The colours of Okabe & Ito (2008), which people with colour blindness can tell apart.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933"];
const PPM: f64 = 1e6;

/// Draws the shares of each run over time, with what each tenant is entitled to as a dotted line.
#[must_use]
pub fn svg(scenario: &str, outcomes: &[Outcome]) -> String {
    let height = PANEL_HEIGHT * outcomes.len().max(1);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (index, outcome) in outcomes.iter().enumerate() {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "<g transform=\"translate(0 {})\">", index * PANEL_HEIGHT);
        panel(&mut text, scenario, outcome);
        text.push_str("</g>\n");
    }
    text.push_str("</svg>\n");
    text
}

fn panel(text: &mut String, scenario: &str, outcome: &Outcome) {
    let title = format!("{scenario}, seed {}: {}", outcome.seed, outcome.design.name());
    let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"20\" font-weight=\"bold\">{}</text>", escaped(&title));
    for percent in [0, 25, 50, 75, 100] {
        let y = y_of(percent as f64 * PPM / 100.0);
        let right = WIDTH - RIGHT;
        let _ = writeln!(text, "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>");
        let (x, y) = (LEFT - 8, y + 4.0);
        let _ = writeln!(text, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{percent} %</text>");
    }
    let seconds = outcome.tenants.iter().map(|tenant| tenant.shares_ppm.len()).max().unwrap_or(0);
    let y = PANEL_HEIGHT - 8;
    let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"{y}\">0 s</text>");
    let x = WIDTH - RIGHT;
    let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{seconds} s</text>");
    for (index, tenant) in outcome.tenants.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let entitled_y = y_of(f64::from(tenant.share.weight_permille) * 1000.0);
        let right = WIDTH - RIGHT;
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" y1=\"{entitled_y:.1}\" x2=\"{right}\" y2=\"{entitled_y:.1}\" stroke=\"{colour}\" \
             stroke-dasharray=\"2 4\"/>"
        );
        let points: Vec<String> = tenant
            .shares_ppm
            .iter()
            .enumerate()
            .map(|(second, &ppm)| format!("{:.1},{:.1}", x_of(second as f64 + 0.5, seconds), y_of(ppm as f64)))
            .collect();
        let points = points.join(" ");
        let _ =
            writeln!(text, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>");
        let (x, y) = (WIDTH - RIGHT + 10, TOP + 12 + 16 * index);
        let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{}</text>", escaped(&tenant.name));
    }
}

fn x_of(second: f64, seconds: usize) -> f64 {
    LEFT as f64 + second / seconds.max(1) as f64 * (WIDTH - LEFT - RIGHT) as f64
}

fn y_of(ppm: f64) -> f64 {
    let height = (PANEL_HEIGHT - TOP - BOTTOM) as f64;
    TOP as f64 + height * (1.0 - ppm.min(PPM) / PPM)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_drawing() {
        assert_eq!(escaped("a<b>&c"), "a&lt;b&gt;&amp;c");
    }

    #[test]
    fn the_whole_device_is_the_top_line() {
        assert_eq!(y_of(PPM), TOP as f64);
        assert_eq!(y_of(0.0), (PANEL_HEIGHT - BOTTOM) as f64);
        assert_eq!(x_of(60.0, 60), (WIDTH - RIGHT) as f64);
    }
}
