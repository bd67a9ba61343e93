# Makes the root of the file system $1 that of this mount namespace, as a machine has it after a boot, and becomes its
# systemd. Started as the first process of namespaces of its own.
set -eu
root=$1
mount --bind "$root" "$root"
cd "$root"
mkdir -p var/lib/docker old-root
mount -t proc proc proc
# Read-only: the kernel's devices are not this system's, so it starts no udev.
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 dev dev
mount -t tmpfs -o mode=755,nosuid,nodev run run
mount -t tmpfs tmp tmp
# Docker's layers cannot lie on layers.
mount -t tmpfs docker var/lib/docker
node() { mknod -m 666 "dev/$1" c "$2" "$3"; }
node null 1 3
node zero 1 5
node full 1 7
node random 1 8
node urandom 1 9
node tty 5 0
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs shm dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
pivot_root . old-root
umount -l /old-root
# As systemd does on a machine, and not where it is told that it is in a container.
mount --make-rshared /
exec env -i container=gpool PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --show-status=0 \
    < /dev/null > /dev/null 2>&1
