//! `gpool export`

use clap::Subcommand;

/// Verbs of `gpool export`.
#[derive(Debug, Clone, Subcommand)]
pub enum ExportVerb {
    /// Print the lines of slurm.conf and gres.conf by which Slurm counts this host's GPUs and knows what they are
    Slurm {
        /// The node's name in slurm.conf [default: the host's, up to the first dot]
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// What one GPU is worth in the count, as in gpool-job
        #[arg(
            long,
            value_name = "N",
            default_value_t = 10,
            value_parser = parse_parts,
            allow_negative_numbers = true
        )]
        per_gpu: u16,
        /// Print nothing but the count of those GPUs that take new leases now, for a HealthCheckProgram
        #[arg(long, conflicts_with = "node")]
        in_service: bool,
    },
    /// Print what this host's GPUs are as labels of a Kubernetes node, one a line
    Labels,
}

/// So many equal parts of a GPU that each is a whole number of hundredths.
fn parse_parts(text: &str) -> Result<u16, String> {
    let parts = text.parse().ok().filter(|parts| (1..=100).contains(parts) && 100 % parts == 0);
    parts.ok_or_else(|| "it is 1, 2, 4, 5, 10, 20, 25, 50 or 100".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_parts_of_whole_hundredths() {
        for parts in [1, 2, 4, 5, 10, 20, 25, 50, 100] {
            assert_eq!(parse_parts(&parts.to_string()), Ok(parts));
        }
        for wrong in ["0", "3", "200", "-10", "ten", ""] {
            assert!(parse_parts(wrong).is_err(), "{wrong}");
        }
    }
}
