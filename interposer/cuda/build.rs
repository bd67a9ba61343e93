//! Makes the table of libcuda's entry points and links against the real library's private path.
include!("../shim_build.rs");

fn main() {
    build(&Shim {
        soname: "libcuda.so.1",
        real: "/dev/gpool/real/libcuda.so.1",
        symbols: "cuda",
        touched: Some("touched.txt"),
    });
}
