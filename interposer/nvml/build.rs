//! Makes the table of libnvidia-ml's entry points and links against the real library's private path.
include!("../shim_build.rs");

fn main() {
    build(&Shim {
        soname: "libnvidia-ml.so.1",
        real: "/dev/gpool/real/libnvidia-ml.so.1",
        symbols: "nvml",
        touched: None,
    });
}
