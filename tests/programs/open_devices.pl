# Opens every device to a cgroup of version 2 behind its manager's back: takes away the programs that the kernel asks there
# and puts one that allows everything in their place. open_devices.pl CGROUP
use strict;
use warnings;

# Of the kernel's include/uapi/linux/bpf.h.
my ($PROG_LOAD, $PROG_ATTACH, $PROG_DETACH, $PROG_GET_FD_BY_ID, $PROG_QUERY) = (5, 8, 9, 13, 16);
my ($PROG_TYPE_CGROUP_DEVICE, $CGROUP_DEVICE, $ALLOW_MULTI) = (15, 6, 2);
my $SYS_bpf = 321;

# Calls bpf(2). The kernel writes answers into $_[1], made as long as the longest form of its attributes.
sub bpf {
    my $command = $_[0];
    $_[1] = pack("a160", $_[1]);
    my $result = syscall($SYS_bpf, $command, $_[1], 160);
    die "bpf command $command: $!\n" if $result < 0;
    return $result;
}

opendir(my $cgroup, $ARGV[0]) or die "$ARGV[0]: $!\n";
my $target = fileno($cgroup);
my $ids = "\0" x (4 * 64);
my $query = pack("LLLLPL", $target, $CGROUP_DEVICE, 0, 0, $ids, 64);
bpf($PROG_QUERY, $query);
my $count = unpack("x24 L", $query);
for my $id (unpack("L$count", $ids)) {
    my $program = bpf($PROG_GET_FD_BY_ID, pack("L", $id));
    bpf($PROG_DETACH, pack("LLL", $target, $program, $CGROUP_DEVICE));
}
# r0 = 1; exit
my $instructions = pack("CCsl", 0xb7, 0, 0, 1) . pack("CCsl", 0x95, 0, 0, 0);
my $licence = "GPL\0";
my $program = bpf($PROG_LOAD, pack("LLPP", $PROG_TYPE_CGROUP_DEVICE, 2, $instructions, $licence));
bpf($PROG_ATTACH, pack("LLLL", $target, $program, $CGROUP_DEVICE, $ALLOW_MULTI));
print "$count\n";
