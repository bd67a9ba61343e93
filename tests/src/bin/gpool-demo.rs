//! `gpool-demo`: the main job, shown and judged, see [`gpool_tests::demo`].

fn main() -> std::process::ExitCode {
    gpool_tests::demo::run()
}
