#!/bin/bash
# Checkers of memory, each where this machine has it: Miri and AddressSanitizer on the tests of what the shims do,
# valgrind on the shim as it was built, with threads that do a bit of everything.
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

if has_nightly; then
    # Tests leak what threads may look at for ever.
    RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0 \
        cargo +nightly test --locked --quiet --target x86_64-unknown-linux-gnu --target-dir target/asan \
        -p gpool-shared-region -p gpool-interposer-logic
else
    echo "skipped: no nightly toolchain, so no AddressSanitizer"
fi

if command -v valgrind > /dev/null; then
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    cc -O2 -shared -fPIC -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic tests/programs/null_driver.c -o "$made/libnull.so"
    valgrind --quiet --error-exitcode=9 target/gpool/bin/gpool-shim-stand \
        "$PWD/target/gpool/lib/libgpool-cuda.so" "$made/libnull.so" work
    for seed in 1 2 3 5 6 7; do
        valgrind --quiet --error-exitcode=9 target/gpool/bin/gpool-shim-stand \
            "$PWD/target/gpool/lib/libgpool-cuda.so" "$made/libnull.so" garbage "$seed"
    done
else
    echo "skipped: no valgrind"
fi
