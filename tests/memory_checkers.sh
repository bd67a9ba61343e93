#!/bin/bash
# Checkers of memory and threads that take long, each where this machine has it: Miri on the tests of what the shims do,
# the sanitizers with more rounds than `make test` gives them, valgrind on the shim as it was built.
set -eu
cd "$(dirname "$0")/.."

has_nightly() { cargo +nightly --version > /dev/null 2>&1; }

if has_nightly && cargo +nightly miri --version > /dev/null 2>&1; then
    # What needs the kernel or the C library stays out: Miri has no foreign functions.
    MIRIFLAGS="-Zmiri-ignore-leaks -Zmiri-permissive-provenance" \
        cargo +nightly miri test --locked --quiet --target-dir target/miri -p gpool-shared-region
    MIRIFLAGS="-Zmiri-ignore-leaks -Zmiri-permissive-provenance" \
        cargo +nightly miri test --locked --quiet --target-dir target/miri -p gpool-interposer-logic --lib -- \
        credit:: handles::tests::a_ estimates:: lookup:: arrays:: pools:: physical:: copies:: limits::
else
    echo "skipped: this toolchain has no miri"
fi

tests/sanitizers.sh long

if command -v valgrind > /dev/null; then
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    cc -O2 -shared -fPIC -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic tests/programs/null_driver.c -o "$made/libnull.so"
    shim=$PWD/target/gpool/lib/535/libgpool-cuda.so
    valgrind --quiet --error-exitcode=9 target/gpool/bin/gpool-shim-stand "$shim" "$made/libnull.so" work
    valgrind --quiet --error-exitcode=9 target/gpool/bin/gpool-shim-stand "$shim" "$made/libnull.so" crowd 20
    for seed in 1 2 3 5 6 7; do
        valgrind --quiet --error-exitcode=9 target/gpool/bin/gpool-shim-stand "$shim" "$made/libnull.so" garbage "$seed"
    done
else
    echo "skipped: no valgrind"
fi
