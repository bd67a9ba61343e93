//! The command line.

use super::allocator::Allocator;
use super::programs::Kind;
use super::sharing::Way;
use clap::{Parser, ValueEnum};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Allocate memory on a GPU, launch kernels, and report on stdout.
///
/// A piece of work is a kernel (--kernel-us), with a copy and a memset behind it (--copy-mib), or a graph of such
/// kernels (--graph), or copies alone (--only-copies). It is launched over and over, or when a request comes (--request-rate). --launch-batch 1
/// synchronises after every kernel.
#[derive(Debug, Parser)]
#[command(name = "gpool-tenant")]
pub(super) struct Options {
    /// How long each kernel runs.
    #[arg(long, default_value_t = 500)]
    pub(super) kernel_us: u64,
    /// Capture so many kernels as a graph and launch that.
    #[arg(long, value_name = "KERNELS")]
    pub(super) graph: Option<NonZeroU32>,
    /// After each kernel copy so much within the device, and set as much.
    #[arg(long, value_name = "MIB")]
    pub(super) copy_mib: Option<NonZeroU32>,
    /// No kernel and no memset: copy that much as rows, and as much from the context to itself as if it were another.
    #[arg(long, requires = "copy_mib")]
    pub(super) only_copies: bool,
    /// Work only on requests, which come at random with this mean rate for each thread (a Poisson process).
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub(super) request_rate: Option<f64>,
    /// Pieces of work of one request.
    #[arg(long, value_name = "PIECES", default_value = "10")]
    pub(super) request_pieces: NonZeroU32,
    /// The same seed gives the same arrivals.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Do the same on every visible GPU, not on the first only.
    #[arg(long)]
    pub(super) all_gpus: bool,
    /// Contexts on each GPU, all of them at work.
    #[arg(long, default_value = "1")]
    pub(super) contexts: NonZeroU32,
    /// Threads that launch, in each context.
    #[arg(long, default_value_t = 1)]
    pub(super) threads: u32,
    /// Synchronise after so many kernels; absent: only to keep at most 1000 outstanding.
    #[arg(long)]
    pub(super) launch_batch: Option<u64>,
    /// How to synchronise.
    #[arg(long, value_enum, default_value_t = WaitBy::Context)]
    pub(super) wait_by: WaitBy,
    /// Be busy for so long after each synchronisation.
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub(super) think_us: u64,
    /// The size of one allocation.
    #[arg(long, default_value_t = 64)]
    pub(super) chunk_mib: u64,
    /// How to allocate.
    #[arg(long, value_enum, default_value_t = Allocator::Alloc)]
    pub(super) allocator: Allocator,
    /// How much to allocate on each GPU; absent: until it is refused.
    #[arg(long)]
    pub(super) allocate_mib: Option<u64>,
    /// Try one more allocation so often after a refusal.
    #[arg(long, default_value_t = 1000)]
    pub(super) retry_allocation_ms: u64,
    /// While this file exists, launch nothing.
    #[arg(long)]
    pub(super) pause_file: Option<PathBuf>,
    /// How long to run; 0: for ever.
    #[arg(long, default_value_t = 0)]
    pub(super) seconds: u64,
    /// Stay after an error of the driver, and do nothing more.
    #[arg(long)]
    pub(super) outlive_errors: bool,
    /// Say what NVML shows of the device's memory.
    #[arg(long)]
    pub(super) nvml: bool,
    /// First take --beside-mib through this library of the driver's, and wait until it is told of as taken.
    #[arg(long, value_name = "LIBRARY", requires = "beside_mib")]
    pub(super) beside: Option<String>,
    /// How much.
    #[arg(long, value_name = "MIB")]
    pub(super) beside_mib: Option<usize>,
    /// Only allocate and free --chunk-mib again and again, in --threads threads, with such a pause behind each.
    #[arg(long, value_name = "US")]
    pub(super) churn: Option<u64>,
    /// Have a file of so much memory of the host, which takes a while to be closed at the end, as a driver's do.
    #[arg(long, value_name = "MIB")]
    pub(super) slow_end_mib: Option<u64>,
    /// Only make one piece of memory (--chunk-mib) that another process opens, start that one, and stay.
    #[arg(long, value_enum, value_name = "WAY")]
    pub(super) share: Option<Way>,
    /// Be that other one.
    #[arg(long, value_enum, value_name = "WAY", requires = "from")]
    pub(super) open: Option<Way>,
    /// What to open: a descriptor or a handle.
    #[arg(long)]
    pub(super) from: Option<String>,
    /// Only load a program with variables of --chunk-mib together, use them, and stay.
    #[arg(long, value_enum, value_name = "KIND")]
    pub(super) program: Option<Kind>,
    /// The same, but unload it before.
    #[arg(long, requires = "program")]
    pub(super) unload: bool,
    /// Only keep so much in the GPU's memory, and say after each pause (--pause-file) how much of it is wrong.
    #[arg(long, value_name = "MIB", requires = "pause_file")]
    pub(super) remember: Option<usize>,
    /// Only take pieces of --chunk-mib until one is refused, use all of them, give some back and take them again, and stay; once the
    /// --pause-file is there, read all of them again.
    #[arg(long)]
    pub(super) beyond: bool,
    /// Only do with graphs that allocate what these steps say, and say after each what is held.
    #[arg(long, value_name = "STEPS")]
    pub(super) graphs: Option<String>,
    /// Only start programs like this one that allocate by all ways, eight at a time, and kill so many of them.
    #[arg(long, value_name = "KILLS")]
    pub(super) storm: Option<u32>,
    /// Only start `true`, and a program that does nothing but cuInit, for each line of input, and say how long each took.
    #[arg(long)]
    pub(super) time_starts: bool,
    /// Only say how large the device is, make a context, say what the driver answered, and stay if it made one.
    #[arg(long)]
    pub(super) take_place: bool,
    /// Be that program.
    #[arg(long)]
    pub(super) only_start: bool,
    /// Only write zeros over this part of a file, `PATH:OFFSET:BYTES`, again and again.
    #[arg(long, value_name = "PART")]
    pub(super) erase: Option<Part>,
    /// Only look: so many times, a fifth of a second apart, say what NVML shows of the device's processes and use.
    #[arg(long, value_name = "TIMES")]
    pub(super) monitor: Option<u32>,
    /// The same, asked by the crate nvml-wrapper.
    #[arg(long, value_name = "TIMES")]
    pub(super) monitor_by_crate: Option<u32>,
}

/// How a program waits for its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum WaitBy {
    /// cuCtxSynchronize.
    Context,
    /// cuMemcpyDtoH, which returns behind what was launched.
    Copy,
    /// cuStreamQuery until that says that all has ended.
    Query,
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) offset: u64,
    pub(super) bytes: usize,
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut pieces = text.rsplitn(3, ':');
        let (bytes, offset, path) = (pieces.next(), pieces.next(), pieces.next());
        let read = || Some(Part { path: path?.into(), offset: offset?.parse().ok()?, bytes: bytes?.parse().ok()? });
        read().ok_or_else(|| format!("{text:?} is no PATH:OFFSET:BYTES"))
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().map_err(|cause| format!("{text:?} is not a rate: {cause}"))?;
    let is_possible = rate.is_finite() && rate > 0.0;
    is_possible.then_some(rate).ok_or_else(|| format!("{text:?} is not a rate: give requests per second, above 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from([&["gpool-tenant"], arguments].concat())
    }

    #[test]
    fn a_part_of_a_file_has_a_place_and_a_length() {
        let part = parse(&["--erase", "/a:b:128:16"]).unwrap().erase;
        assert_eq!(part, Some(Part { path: "/a:b".into(), offset: 128, bytes: 16 }));
        assert!(parse(&["--erase", "/a:16"]).is_err());
    }

    #[test]
    fn without_options_it_launches_single_kernels_on_one_gpu() {
        let options = parse(&[]).unwrap();
        assert_eq!((options.kernel_us, options.threads, options.contexts.get()), (500, 1, 1));
        assert!(options.graph.is_none() && options.copy_mib.is_none() && options.request_rate.is_none());
        assert!(!options.all_gpus && options.allocate_mib.is_none());
    }

    #[test]
    fn work_is_chosen_by_options_that_go_together() {
        let options = parse(&["--graph", "20", "--copy-mib", "4", "--request-rate", "12.5", "--all-gpus"]).unwrap();
        assert_eq!(options.graph.map(NonZeroU32::get), Some(20));
        assert_eq!(options.copy_mib.map(NonZeroU32::get), Some(4));
        assert_eq!((options.request_rate, options.request_pieces.get()), (Some(12.5), 10));
        assert!(options.all_gpus);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_option() {
        for (option, value) in [
            ("--graph", "0"),
            ("--contexts", "0"),
            ("--request-rate", "0"),
            ("--request-rate", "inf"),
            ("--allocator", "x"),
        ] {
            let refused = parse(&[option, value]).unwrap_err().to_string();
            assert!(refused.contains(option), "{refused}");
        }
    }
}
