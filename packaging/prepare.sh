#!/bin/sh
# Makes of what `make build` has laid out what packages hold in its place: prepare.sh STAGE DIRECTORY. Programs without
# symbols, man pages and completions, and the licences of what is linked in. `cargo deb` and `cargo generate-rpm` find
# them in target/gpool/package.
set -eu
export LC_ALL=C
umask 022

stage=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
house=$(dirname "$here")
cargo=${CARGO:-cargo}
rm -rf "$2"
mkdir -p "$2"
directory=$(realpath "$2")

# What every crate in the programs asks for: its name, its licence and the licence's text.
notices() {
    (cd "$house" && "$cargo" tree --locked --offline --edges normal --prefix none --format '{p}|{l}' \
        -p gpool-cli -p gpool-supervisor -p gpool-kubernetes -p gpool-gpu-test -p gpool-runtime-hook -p gpool-interposer-cuda -p gpool-interposer-nvml) |
        sed -e 's/ (\*)$//' -e '/^gpool-/d' -e '/^$/d' | sort -u | while IFS='|' read -r crate licence; do
        name=$(echo "$crate" | sed 's/ v/-/; s/ .*//')
        printf -- '---- %s: %s\n\n' "$name" "$licence"
        for text in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name"/LICEN[SC]E* \
            "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name"/NOTICE*; do
            if [ -f "$text" ]; then cat "$text"; echo; fi
        done
    done
}

for program in bin/gpool bin/gpool-runtime bin/gpool-supervisor bin/gpool-device-plugin libexec/gpool-hook libexec/gpool-run \
    libexec/gpool-gpu-test bin/gpool-simgpu \
    bin/gpool-tenant simulated/nvidia-cuda-mps-control; do
    install -D -s -m 755 -t "$directory/bin" "$stage/$program"
done
"$stage/bin/gpool-package-pages" "$directory"
documents=$directory/usr/share/doc/gpool
install -D -m 644 "$house/CHANGELOG.md" "$documents/changelog"
notices > "$documents/notices"
gzip -9n "$directory"/usr/share/man/man*/* "$documents"/*
