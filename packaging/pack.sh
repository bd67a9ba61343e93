#!/bin/sh
# Packs what `make build` has laid out: pack.sh STAGE DESTINATION [VERSION]. Writes gpool and gpool-simulated-gpu as .deb,
# and gpool as .rpm where rpmbuild is there. The same files and SOURCE_DATE_EPOCH give the same bytes. What the packages
# hold stands in Cargo.toml. PACK_LEVEL, 1 to 9, packs in less time or into less space.
set -eu
export LC_ALL=C TZ=UTC
umask 022

stage=$(realpath "$1")
destination=$2
here=$(dirname "$(realpath "$0")")
house=$(dirname "$here")
cargo=${CARGO:-cargo}
version=${3:-$(cd "$house" && "$cargo" pkgid --offline -p gpool-cli | sed 's/.*[#@]//')}
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$house" log -1 --format=%ct 2> /dev/null || echo 1767225600)}"

mkdir -p "$destination"
destination=$(realpath "$destination")
work=$destination/work
rm -rf "$work"
mkdir -p "$work"
prepared=$work/prepared
"$here/prepare.sh" "$stage" "$prepared"
(cd "$house" && "$cargo" metadata --locked --offline --no-deps --format-version 1) > "$work/metadata.json"
# The newest glibc that the programs ask for. Those that are linked statically ask for none, and objdump says so on stderr.
glibc=$(objdump -T "$prepared"/bin/* 2> /dev/null |
    grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -1)
[ -n "$glibc" ] || { echo "objdump says of no program which glibc it asks for; Debian has it in the package binutils" >&2 && exit 1; }

# tree FORM ARGUMENT...: lays a package out.
tree() {
    form=$1
    shift
    "$stage/bin/gpool-package-tree" "$form" --stage "$stage" --prepared "$prepared" --glibc "$glibc" \
        --version "$version" "$@" < "$work/metadata.json"
}

# A tree of seconds ago has other times than the same one of a minute ago; newer ones are made equal by dpkg-deb alone.
same_times() {
    find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

# Both list files in an order of their own and take times from SOURCE_DATE_EPOCH.
deb() {
    name=$1
    shift
    tree deb "$@" "$work/$name"
    same_times "$work/$name"
    dpkg-deb --root-owner-group -Zxz "-z${PACK_LEVEL:-3}" --threads-max=1 --build "$work/$name" \
        "$destination/${name}_${version}_amd64.deb" > /dev/null
}

deb gpool
deb gpool-simulated-gpu --variant simulated

if command -v rpmbuild > /dev/null; then
    tree rpm "$work/rpm-tree" "$work/gpool.spec"
    same_times "$work/rpm-tree"
    rpmbuild --quiet -bb --define "_topdir $work/rpm" --define "_rpmdir $destination" \
        --define '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' --define '_buildhost reproducible' \
        ${PACK_LEVEL:+--define "_binary_payload w$PACK_LEVEL.gzdio"} \
        --define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' \
        "$work/gpool.spec"
else
    echo "no .rpm: rpmbuild is not there; Debian has it in the package rpm" >&2
fi
rm -rf "$work"
