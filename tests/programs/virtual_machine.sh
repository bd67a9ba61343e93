# Becomes a machine that is emulated, so that it needs nothing of this one's processor: virtual_machine.sh TREE DISK PLACE.
# TREE has qemu and a kernel, DISK is the root file system, and PLACE a directory in which the console's output and the
# socket of answers.sh are made. Started in a mount namespace of its own.
set -eu
tree=$1 disk=$2 place=$3
# The kernel has these drivers built in, so it needs no initial RAM disk: NVMe, ext4, virtio's consoles.
kernel=$(ls "$tree"/boot/vmlinuz-*)
# Of a newer release than this machine's, with its own libraries.
mount --bind "$tree/usr" /usr
exec qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -m 2048 -smp 2 \
    -nodefaults -no-user-config -display none -no-reboot -serial "file:$place/console.log" \
    -kernel "$kernel" -drive "file=$disk,if=none,id=disk,format=raw,cache=unsafe" -device nvme,drive=disk,serial=root \
    -device virtio-serial-pci -chardev "socket,id=answers,path=$place/answers.sock,server=on,wait=on" \
    -device virtserialport,chardev=answers \
    -append "root=/dev/nvme0n1 rw console=ttyS0 loglevel=4 panic=-1 mitigations=off apparmor=0 systemd.show_status=0"
