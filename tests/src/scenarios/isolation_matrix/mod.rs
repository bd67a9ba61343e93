//! What one container keeps of its memory, its time and its life beside another that takes all it can, by mechanism. Each
//! verdict is found out on the simulated GPU and held against the page that tells it to people.

mod cells;
mod page;

use super::finish_found;
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, text};
use crate::namespaces::Inside;

/// The environment may ask for all mechanisms here: Debian's docker has no annotations.
const CONFIGURATION: &str = "[policy]\ntimeslice = true\nmps = true\n[policy.env]\nallow = [\"fraction\", \"memory\", \
                             \"mode\", \"team\", \"mig-profile\"]\n";
/// A board that can be divided, and its layout in mig-parted's format.
const MODEL: &str = "A100-80GB";
const LAYOUT: &str = "version: v1\nmig-configs:\n  halves:\n    - devices: all\n      mig-enabled: true\n      mig-devices:\n        \
                      \"3g.40gb\": 2\n";
const LAYOUT_FILE: &str = "/run/gpool-halves.yaml";

/// How a container asks for half of the GPU, or for a place on it where there are no parts.
struct Mechanism {
    name: &'static str,
    env: &'static [(&'static str, &'static str)],
    /// What keeps a limit, where one is kept.
    keeper: &'static str,
}

const MECHANISMS: [Mechanism; 4] = [
    Mechanism { name: "timeslice", env: &[("GPOOL_MODE", "timeslice")], keeper: "driver" },
    Mechanism {
        name: "mps",
        env: &[("GPOOL_MODE", "mps"), ("GPOOL_TEAM", "one"), ("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "36GiB")],
        keeper: "software",
    },
    Mechanism { name: "slices", env: &[("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "36GiB")], keeper: "software" },
    Mechanism { name: "mig", env: &[("GPOOL_MIG_PROFILE", "3g.40gb")], keeper: "hardware" },
];

/// Finds out twelve of the sixteen cells; the others, jitter, are measured on a GPU or not at all.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with_model(inside, (1, MODEL), CONFIGURATION)?;
    let outcome = matrix(&host);
    finish_found(host, outcome)
}

fn matrix(host: &Host) -> Result<()> {
    let mut found = Vec::new();
    for mechanism in &MECHANISMS {
        if mechanism.name == "mig" {
            divide(host)?;
        }
        let verdicts = cells::found_out(host, mechanism)?;
        println!("    {:10} memory {:9} compute {:9} fault {}", mechanism.name, verdicts[0], verdicts[1], verdicts[2]);
        found.push((mechanism.name, verdicts));
        cells::clear(host)?;
    }
    page::compare(&found)
}

/// The GPU is free by now.
fn divide(host: &Host) -> Result<()> {
    std::fs::write(LAYOUT_FILE, LAYOUT).context(LAYOUT_FILE)?;
    let output = host.gpool(&["mig", "apply", "--file", LAYOUT_FILE, "--config", "halves"])?;
    ensure(output.status.success(), || text(&output.stderr))
}
