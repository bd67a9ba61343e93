//! Links the library as NVIDIA links libcuda: under its name, and bound to its own functions (DT_SYMBOLIC).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rustc-cdylib-link-arg={}", gpool_driver_abi::OLD_GLIBC_LIBRARIES);
}
