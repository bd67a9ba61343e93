//! Links the library as NVIDIA links libnvidia-ml: under its name, and with calls of its own functions going through
//! the dynamic linker (not DT_SYMBOLIC).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo::rustc-cdylib-link-arg={}", gpool_driver_abi::OLD_GLIBC_LIBRARIES);
}
