#!/bin/sh
# Makes this mount namespace a machine that has a driver, Python and root, and nothing of gpool's, and runs the suite for a
# real GPU there from its bundle.
#
#     bare_machine.sh STAGE BUNDLE KIND RESULTS [OPTION...]
#
# KIND: no-cgroups, the driver in a read-only folder of its own and no cgroup mounted;
#       mounted-driver, the driver mounted file by file over empty ones in the loader's directory, cgroups read-only;
#       no-layers, as the first with cgroups, on files over which the kernel makes no further overlay.
set -eu
stage=$1 bundle=$2 kind=$3 results=$4
shift 4
libraries=/usr/lib/x86_64-linux-gnu state=/run/gpool-simgpu version=535.000.00-simulated

layer() {
    mkdir -p "/run/layers/$1/upper" "/run/layers/$1/work"
    mount -t overlay -o "lowerdir=$2,upperdir=/run/layers/$1/upper,workdir=/run/layers/$1/work" layer "$2"
}

rm -rf $state
mkdir -p /run/layers
mount -t tmpfs layers /run/layers
layer usr /usr

"$stage/bin/gpool-simgpu" &
simulated=$!
trap 'kill $simulated' EXIT
while [ ! -e $state/dev/nvidiactl ]; do sleep 0.05; done
mkdir -p $state/lib
cp "$stage/simulated/libcuda.so.1" "$stage/simulated/libnvidia-ml.so.1" $state/lib

# The nodes where a driver has them.
mkdir -p /run/dev
mount -t tmpfs -o mode=755 dev /run/dev
for name in null zero full random urandom tty; do
    : > /run/dev/$name
    mount --bind /dev/$name /run/dev/$name
done
mkdir /run/dev/shm /run/dev/pts
mount -t tmpfs shm /run/dev/shm
ln -s /proc/self/fd /run/dev/fd
cp -a $state/dev/. /run/dev
mount --move /run/dev /dev

if [ "$kind" = mounted-driver ]; then
    for name in libcuda libnvidia-ml; do
        : > $libraries/$name.so.$version
        ln -sf $name.so.$version $libraries/$name.so.1
        mount --bind $state/lib/$name.so.1 $libraries/$name.so.$version
        mount -o remount,bind,ro $libraries/$name.so.$version
    done
else
    mkdir -p /usr/local/nvidia/lib64
    mount -t tmpfs driver /usr/local/nvidia
    mkdir /usr/local/nvidia/lib64
    cp $state/lib/* /usr/local/nvidia/lib64
    mount -o remount,ro /usr/local/nvidia
    export LD_LIBRARY_PATH=/usr/local/nvidia/lib64
fi
case $kind in
no-cgroups) umount --recursive --lazy /sys/fs/cgroup ;;
mounted-driver)
    umount --recursive --lazy /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -o remount,bind,ro /sys/fs/cgroup
    ;;
no-layers) layer libraries $libraries ;;
esac
suite() {
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" \
        "$bundle/run" --simulated --budget 600 --out "$results" "$@"
}

# One that is killed half-way, and one that finds what that has left.
suite --stages memory &
killed=$!
while [ ! -e /run/gpool/gpool.sock ]; do
    kill -0 $killed
    sleep 0.05
done
kill -KILL $killed
wait $killed || true
(suite "$@")
for left in /usr/bin/gpool /usr/lib/gpool /etc/gpool; do
    if [ -e $left ]; then
        echo "left behind: $left"
        exit 1
    fi
done
