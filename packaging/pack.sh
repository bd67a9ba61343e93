#!/bin/sh
# Packs what `make build` has laid out: pack.sh STAGE DESTINATION [VERSION]. Writes gpool and gpool-simulated-gpu as .deb,
# and gpool as .rpm where rpmbuild is there. The same files and SOURCE_DATE_EPOCH give the same bytes.
set -eu
export LC_ALL=C TZ=UTC
umask 022

stage=$(realpath "$1")
destination=$2
here=$(dirname "$(realpath "$0")")
house=$(dirname "$here")
cargo=${CARGO:-cargo}
version=${3:-$(cd "$house" && "$cargo" pkgid --offline -p gpool-cli | sed 's/.*[#@]//')}
description=$(sed -n 's/^description = "\(.*\)"$/\1/p' "$here/Cargo.toml" | sed 's/^Packages: //')
region_version=$(sed -n 's/^pub const VERSION: u32 = \([0-9]*\);$/\1/p' "$house/shared-region/src/lib.rs")
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$house" log -1 --format=%ct 2> /dev/null || echo 1767225600)}"

mkdir -p "$destination"
destination=$(realpath "$destination")
work=$destination/work
rm -rf "$work"
mkdir -p "$work"

# fill FILE < TEMPLATE: the places between @ in a template.
fill() {
    sed -e "s/@VERSION@/$version/g" -e "s/@REGION_VERSION@/$region_version/g" -e "s/@LIBC@/${libc:-}/g" \
        -e "s|@DESCRIPTION@|$description|g" -e "s/@INSTALLED_SIZE@/${size:-}/g" -e "s|@TREE@|${tree:-}|g" > "$1"
}

# The newest glibc that the given files ask for.
needed_glibc() {
    objdump -T "$@" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -1
}

# What every crate in the programs asks for: its name, its licence and the licence's text.
notices() {
    (cd "$house" && "$cargo" tree --locked --offline --edges normal --prefix none --format '{p}|{l}' \
        -p gpool-cli -p gpool-supervisor -p gpool-runtime-hook -p gpool-interposer-cuda -p gpool-interposer-nvml) |
        sed -e 's/ (\*)$//' -e '/^gpool-/d' -e '/^$/d' | sort -u | while IFS='|' read -r crate licence; do
        name=$(echo "$crate" | sed 's/ v/-/; s/ .*//')
        printf -- '---- %s: %s\n\n' "$name" "$licence"
        for text in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name"/LICEN[SC]E* \
            "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name"/NOTICE*; do
            if [ -f "$text" ]; then cat "$text"; echo; fi
        done
    done
}

program() { install -D -s -m 755 -t "$tree/$2" "$1"; }
data() { install -D -m 644 "$1" "$tree/$2"; }

tree=$work/gpool
program "$stage/bin/gpool" usr/bin
program "$stage/bin/gpool-runtime" usr/bin
program "$stage/bin/gpool-supervisor" usr/sbin
program "$stage/libexec/gpool-hook" usr/libexec/gpool
program "$stage/libexec/gpool-run" usr/libexec/gpool
install -D -m 755 -t "$tree/usr/libexec/gpool" "$here/gpool-devices"
for shim in "$stage"/lib/*/libgpool-*.so; do
    data "$shim" "usr/lib/gpool/${shim#"$stage"/lib/}"
done
data "$house/configs/config.toml" etc/gpool/config.toml
data "$house/configs/oci-hooks.d/50-gpool.json" usr/share/containers/oci/hooks.d/50-gpool.json
for unit in gpool-supervisor.service gpool-supervisor.socket gpool-regions.service gpool-regions.socket \
    gpool-devices.service gpool-mps@.service; do
    data "$here/systemd/$unit" "usr/lib/systemd/system/$unit"
done
data "$here/systemd/confined.conf" usr/share/gpool/confined.conf
data "$here/systemd/gpool.sysusers" usr/lib/sysusers.d/gpool.conf
data "$here/systemd/gpool.tmpfiles" usr/lib/tmpfiles.d/gpool.conf
data "$here/systemd/60-gpool.rules" usr/lib/udev/rules.d/60-gpool.rules
"$stage/bin/gpool-package-pages" "$tree"
gzip -9n "$tree"/usr/share/man/man*/*
data "$house/LICENSE" usr/share/doc/gpool/copyright
data "$house/CHANGELOG.md" usr/share/doc/gpool/changelog
notices > "$tree/usr/share/doc/gpool/notices"
gzip -9n "$tree/usr/share/doc/gpool/changelog" "$tree/usr/share/doc/gpool/notices"
libc=$(needed_glibc "$tree/usr/bin/gpool" "$tree/usr/sbin/gpool-supervisor")

tree=$work/gpool-simulated-gpu
program "$stage/bin/gpool-simgpu" usr/bin
program "$stage/bin/gpool-tenant" usr/bin
program "$stage/simulated/nvidia-cuda-mps-control" usr/lib/gpool-simulated-gpu
for library in libcuda.so.1 libnvidia-ml.so.1; do
    data "$stage/simulated/$library" "usr/lib/gpool-simulated-gpu/$library"
done
data "$here/simulated/config.toml" usr/share/gpool-simulated-gpu/config.toml
data "$here/simulated/gpool-simgpu.service" usr/lib/systemd/system/gpool-simgpu.service
data "$here/simulated/50-simulated-gpu.conf" usr/lib/systemd/system/gpool-supervisor.service.d/50-simulated-gpu.conf
data "$here/simulated/50-simulated-devices.conf" usr/lib/systemd/system/gpool-devices.service.d/50-simulated-gpu.conf
data "$here/simulated/50-simulated-mps.conf" usr/lib/systemd/system/gpool-mps@.service.d/50-simulated-gpu.conf
data "$house/LICENSE" usr/share/doc/gpool-simulated-gpu/copyright

# Both list files in an order of their own and take times from SOURCE_DATE_EPOCH.
deb() {
    tree=$work/$1
    control=$tree/DEBIAN
    size=$(du -sk --apparent-size "$tree" | cut -f1)
    mkdir "$control"
    fill "$control/control" < "$2/control.in"
    for script in preinst postinst prerm postrm; do
        if [ -e "$2/$script" ]; then
            fill "$control/$script" < "$2/$script"
            chmod 755 "$control/$script"
        fi
    done
    if [ -d "$tree/etc" ]; then (cd "$tree" && find etc -type f -printf '/%p\n' | sort) > "$control/conffiles"; fi
    # A tree of seconds ago has other times than the same one of a minute ago; newer ones are made equal by dpkg-deb alone.
    find "$tree" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz -z3 --threads-max=1 --build "$tree" "$destination/$1_${version}_amd64.deb" > /dev/null
    rm -r "$control"
}

deb gpool "$here/debian"
deb gpool-simulated-gpu "$here/simulated"

if command -v rpmbuild > /dev/null; then
    tree=$work/gpool
    # Debian's own helper enables the units there.
    data "$here/systemd/90-gpool.preset" usr/lib/systemd/system-preset/90-gpool.preset
    find "$tree" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    fill "$work/gpool.spec" < "$here/rpm/gpool.spec.in"
    rpmbuild --quiet -bb --define "_topdir $work/rpm" --define "_rpmdir $destination" \
        --define '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' --define '_buildhost reproducible' \
        --define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' \
        "$work/gpool.spec"
else
    echo "no .rpm: rpmbuild is not there; Debian has it in the package rpm" >&2
fi
rm -rf "$work"
