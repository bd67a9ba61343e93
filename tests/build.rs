//! Links the tenant with what it needs of glibc where an image has an older one.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bin=gpool-tenant={}", gpool_driver_abi::OLD_GLIBC_LIBRARIES);
}
