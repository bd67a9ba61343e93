# In a virtual machine: runs each line that comes through the port of virtual_machine.sh, as root and in root's home, and
# answers with its status and the lengths of its two outputs in bytes, then the outputs.
export HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
cd /root
exec 3<> /dev/vport0p1
echo ready >&3
while IFS= read -r line <&3; do
    status=0
    sh -c "$line" > /run/answer.out 2> /run/answer.err < /dev/null 3>&- || status=$?
    echo "$status $(wc -c < /run/answer.out) $(wc -c < /run/answer.err)" >&3
    cat /run/answer.out /run/answer.err >&3
done
