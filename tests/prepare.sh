#!/bin/bash
# Says what this machine lacks, and installs it from Debian's packages: only what is missing, without starting a
# service, never removing anything.
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH

# What must be there: a file or command, and the package that brings it.
needs="
/usr/bin/docker          docker.io
/usr/sbin/dockerd        docker.io
/usr/sbin/runc           runc
/usr/bin/crun            crun
/bin/busybox             busybox-static
/usr/sbin/ip             iproute2
/usr/bin/cc              gcc
/usr/include/stdlib.h    libc6-dev
"
# What only the tests need, the other engines above all: `prepare.sh test`.
if [ "${1:-}" = test ]; then
    needs="$needs
/usr/bin/ctr             containerd
/usr/bin/podman          podman
/usr/bin/conmon          conmon
/usr/bin/docker-compose  docker-compose
/usr/bin/mmdebstrap      mmdebstrap
/usr/bin/newuidmap       uidmap
/usr/bin/bwrap           bubblewrap
/usr/bin/ch-run          charliecloud-runtime
/usr/bin/curl            curl
/usr/bin/python3         python3
/usr/bin/ps              procps
/usr/sbin/mke2fs         e2fsprogs
/usr/bin/prometheus      prometheus
/usr/bin/promtool        prometheus
/usr/bin/socat           socat
"
fi

# What `make package` needs, which the tests run: `prepare.sh package`.
if [ "${1:-}" = test ] || [ "${1:-}" = package ]; then
    needs="$needs
/usr/bin/rpmbuild        rpm
/usr/bin/objdump         binutils
"
fi

missing_packages() {
    while read -r file package; do
        [ -n "$file" ] || continue
        [ -e "$file" ] || { [ "$file" = /usr/sbin/ip ] && [ -e /sbin/ip ]; } || echo "$package"
    done <<< "$needs" | sort -u
}

# A dynamic busybox would need libraries that the image does not have.
busybox_is_dynamic() { [ -e /bin/busybox ] && ldd /bin/busybox > /dev/null 2>&1; }

cgroup_version() {
    local v1 v2
    v1=$(grep -c ' - cgroup ' /proc/self/mountinfo || true)
    v2=$(grep -c ' - cgroup2 ' /proc/self/mountinfo || true)
    case "$v1,$v2" in
        0,0) echo none ;;
        0,*) echo 2 ;;
        *,0) echo 1 ;;
        *) echo '1 (hybrid)' ;;
    esac
}

packages=$(missing_packages)
if busybox_is_dynamic; then packages=$(printf '%s\nbusybox-static\n' "$packages" | sort -u); fi
packages=$(echo $packages)

lacks=
[ "$(id -u)" = 0 ] || lacks="$lacks root"
command -v cargo > /dev/null || lacks="$lacks cargo"
[ "$(cgroup_version)" != none ] || lacks="$lacks cgroups"
if [ -n "$packages" ] && ! command -v apt-get > /dev/null; then lacks="$lacks apt"; fi

echo "gpool: missing: ${lacks:-nothing}; packages to install: ${packages:-none}; cgroup version $(cgroup_version)"

if [ -n "$lacks" ]; then
    for what in $lacks; do
        case $what in
            root) echo "  root: containers, namespaces and packages need it; run this as root" ;;
            cargo) echo "  cargo: install a Rust toolchain (rustup.rs), 1.90 or newer, and have it in PATH" ;;
            cgroups) echo "  cgroups: no cgroup hierarchy is mounted; containers cannot run here" ;;
            apt) echo "  apt: this is no Debian; install by hand what these packages bring: $packages" ;;
        esac
    done >&2
    exit 1
fi
[ -n "$packages" ] || exit 0

# Without this, apt would start docker.service on a host with systemd. A policy that is there is kept.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
# shellcheck disable=SC2086 # one word a package
apt-get -qq install -y --no-install-recommends --no-remove -o Dpkg::Use-Pty=0 $packages > /dev/null
left=$(missing_packages)
if [ -n "$left" ]; then
    echo "gpool: still missing after the installation:" $left >&2
    exit 1
fi
