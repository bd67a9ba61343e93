#!/bin/bash
# AddressSanitizer and ThreadSanitizer, whose runtimes the stable toolchain brings: on the CUDA shim as a library, used by
# threads of gpool-shim-stand before a driver that does nothing, and on the tests of what the shims do. Then on a program
# with a fault for each, which it must find: a checker that looks at nothing finds nothing either. With `long` on a copy of the
# code with such faults, too, which the stand and the tests have to run into.
#
# `sanitizers.sh [long]`; after `make build`. What a toolchain lacks is skipped by name. The standard library is built
# without the checkers and stays so; the shims use none of it.
set -eu
cd "$(dirname "$0")/.."

rounds=1000 seeds="1 2 3 5 6 7" copies=
if [ "${1:-}" = long ]; then
    rounds=20000 seeds=$(seq 48) copies=yes
fi

repository=$PWD
made=$repository/target/sanitizers
faulty=$made/faulty
target=$(rustc -vV | sed -n 's/^host: //p')
libraries=$(rustc --print target-libdir)
log=$made/log
mkdir -p "$made"

# These options are no stable ones. The names are of the crates that get them, so that nobody else's build script takes
# the compiler for a nightly one; ___ is what cargo asks the compiler about.
export RUSTC_BOOTSTRAP=___,libc,zstd_sys,gpool_driver_abi,gpool_shared_region,gpool_interposer_logic,gpool_shim_cuda,gpool_shim_stand,two_faults
# Names and lines in reports.
export CARGO_PROFILE_GUEST_STRIP=none CARGO_PROFILE_GUEST_DEBUG=line-tables-only CARGO_PROFILE_DEV_DEBUG=line-tables-only
# Four shims: what makes the one that is shipped small finds no faults.
export CARGO_PROFILE_GUEST_LTO=off CARGO_PROFILE_GUEST_CODEGEN_UNITS=16
# Tests: with some optimisation; without, they take longer to run than that takes.
export CARGO_PROFILE_DEV_OPT_LEVEL=1
export CARGO_INCREMENTAL=0
# What is made for the life of the process, and by tests for the life of a thread, is not freed.
export ASAN_OPTIONS=detect_leaks=0:allow_addr2line=1 TSAN_OPTIONS=allow_addr2line=1
# For tests alone: what the frame of a test program does is not reported.
frame=$TSAN_OPTIONS:suppressions=$repository/tests/thread_suppressions.txt

die() {
    echo "sanitizers: $*" >&2
    exit 1
}

# Runs a command and keeps what it says in $log.
run() { "$@" > "$log" 2>&1; }

passes() {
    run "$@" || { cat "$log" >&2; die "$checker: $* failed"; }
}

# The command must fail, and with a report of $fault. A race is one only when threads meet, which on a busy machine of two
# processors a whole run of a test may not see.
finds() {
    local times=5
    while run "$@"; do
        times=$((times - 1))
        if [ $times = 0 ]; then die "$checker did not find the $fault that was put in, with $*"; fi
    done
    grep -q "$checker: $fault" "$log" || { cat "$log" >&2; die "$checker: $* failed otherwise than by a $fault"; }
}

# Cargo in the directory $1, for the checker; what is built lies in $2.
cargo_in() {
    local directory=$1 built=$2 verb=$3
    shift 3
    (cd "$directory" && RUSTFLAGS="$flags" cargo "$verb" --locked --quiet --target "$target" --target-dir "$built" "$@")
}

shim() { cargo_in "$1" "$2" build --profile guest -p gpool-interposer-cuda; }
tests() {
    TSAN_OPTIONS=$frame cargo_in "$repository" "$1" test -p gpool-shared-region -p gpool-interposer-logic --lib \
        -- --test-threads=1 "${@:2}"
}
faulty_tests() {
    TSAN_OPTIONS=$frame cargo_in "$faulty" "$1" test -p gpool-interposer-logic --lib -- --test-threads=1 "${@:2}"
}
stand() { "$made/stand-$kind" "$1/$target/guest/libgpool_shim_cuda.so" "$made/libnull.so" "${@:2}"; }

# One lock that orders nothing, and one read beyond a variable. The copies keep their times, so that nothing is compiled
# twice.
lock=interposer/logic/src/futex.rs size=interposer/logic/src/memory.rs
make_faults() {
    rm -rf "$faulty"
    mkdir "$faulty"
    # The folders of the workspace's members, without which cargo takes no part of it.
    sed -n 's/^    "\([^"/]*\).*",$/\1/p' Cargo.toml | sort -u | xargs tar -cf - Cargo.toml Cargo.lock | tar -xf - -C "$faulty"
    sed -i 's/Ordering::Acquire/Ordering::Relaxed/; s/Ordering::Release/Ordering::Relaxed/' "$faulty/$lock"
    sed -i 's|^    let granule: u64 = .*|&\n    core::hint::black_box(unsafe { *core::hint::black_box(\&raw const bytes).add(1) });|' \
        "$faulty/$size"
    for file in "$lock" "$size"; do
        if cmp -s "$file" "$faulty/$file"; then die "no fault could be put into $file"; fi
    done
}

check() {
    checker=$1 kind=$2 fault=$3
    local short=$4 found=$5
    if ! compgen -G "$libraries/librustc-*_rt.$short.a" > /dev/null; then
        echo "skipped: this toolchain has no runtime of $checker"
        return
    fi
    flags="-Zsanitizer=$kind -Cunsafe-allow-abi-mismatch=sanitizer"
    local built=$made/$kind
    passes rustc --edition 2024 --crate-name two_faults $flags -o "$made/two-faults-$kind" tests/programs/two_faults.rs
    finds "$made/two-faults-$kind" "$kind"
    # The stand as it was built, with the runtime in it, which the shim finds there.
    passes rustc --edition 2024 --crate-name gpool_shim_stand -Cpanic=abort -Clink-arg=-Wl,--export-dynamic $flags \
        --extern "gpool_tests=$repository/target/release/libgpool_tests.rlib" \
        -Ldependency="$repository/target/release/deps" -o "$made/stand-$kind" tests/src/bin/gpool-shim-stand.rs
    passes shim "$repository" "$built"
    # Built otherwise than the two programs above, so that it could have come without.
    nm --undefined-only "$built/$target/guest/libgpool_shim_cuda.so" | grep -q "__${short}_" ||
        die "the shim was built without $checker"
    passes stand "$built" work
    passes stand "$built" displays
    passes stand "$built" crowd "$rounds"
    for seed in $seeds; do passes stand "$built" garbage "$seed"; done
    # What has one thread is not ThreadSanitizer's.
    local which=()
    if [ "$kind" = thread ]; then which=(futex:: pieces:: memory:: registration:: gate::); fi
    passes tests "$built" "${which[@]}"
    if [ ! "$copies" ]; then
        echo "$checker: nothing in the shim and its tests, and the $fault of another program"
        return
    fi
    # What has no fault put in is compiled already; what has must look newer than that.
    if [ ! -e "$built-faulty" ]; then
        rm -rf "$built-begun"
        cp -a "$built" "$built-begun"
        mv "$built-begun" "$built-faulty"
    fi
    touch "$faulty/$lock" "$faulty/$size"
    passes shim "$faulty" "$built-faulty"
    finds stand "$built-faulty" crowd 100
    finds faulty_tests "$built-faulty" "$found"
    echo "$checker: nothing in the shim and its tests, and the $fault that was put in"
}

[ -e target/release/libgpool_tests.rlib ] || die "nothing is built; run make build"
# Suppressions go by names, which the runtimes have from one of these.
command -v llvm-symbolizer > /dev/null || command -v addr2line > /dev/null || die "no addr2line: install binutils"
cc -O2 -shared -fPIC -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic tests/programs/null_driver.c -o "$made/libnull.so"
if [ "$copies" ]; then make_faults; fi
check AddressSanitizer address stack-buffer-overflow asan memory::
check ThreadSanitizer thread "data race" tsan futex::
