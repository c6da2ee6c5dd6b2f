#!/bin/busybox sh
# The first process of the test machine: finds its two NVDIMMs, then does what the kernel command line says.
#
#   everdram.do=hello   says so and turns itself off
#   everdram.do=steps   runs /steps, a line each: name|seconds|command; says how each ended; turns itself off
#   everdram.do=serve   checks the pool, then serves it on the channel `door` until that closes; with
#                       everdram.fabric=yes also over soft-RoCE, to writers here that say what was acknowledged
#
# The first NVDIMM becomes fsdax with ext4 under /mnt/pmem, the second devdax. Both are made on the first boot
# and found again on later ones: what is on them after the power was cut is the point. Lines that start with
# `@@` are read by the host.
export PATH=/bin:/usr/bin:/usr/sbin:/sbin HOME=/root TMPDIR=/tmp
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /tmp /mnt/pmem /root /etc
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
ulimit -n 20000

# Turns the machine off in a way that qemu's exit code tells: not 0.
fail() {
    echo "@@ failed: $*"
    printf '\001' | dd of=/dev/port bs=1 seek=244 conv=notrunc 2>/dev/null
    poweroff -f
}

word() {
    tr ' ' '\n' </proc/cmdline | sed -n "s/^everdram\.$1=//p"
}

if [ "$(word do)" = hello ]; then
    echo "@@ hello"
    poweroff -f
fi
for module in $(cat /modules); do
    insmod "$module" || echo "module $module was refused"
done
ip link set lo up
# Soft-RoCE for the steps over a fabric, on a network that leads nowhere. Where the machine's name has no address,
# libfabric does not list provider verbs.
if [ -x /usr/bin/rdma ]; then
    hostname everdram
    printf '127.0.0.1 localhost\n10.77.0.1 everdram\n' >/etc/hosts
    { ip link add dum0 type dummy && ip addr add 10.77.0.1/24 dev dum0 && ip link set dum0 up &&
        rdma link add rxe0 type rxe netdev dum0; } >/tmp/roce 2>&1 || echo "@@ no soft-RoCE: $(tr '\n' ' ' </tmp/roce)"
fi

if [ "$(word fresh)" = yes ]; then
    ndctl create-namespace -f -e namespace0.0 -m fsdax -M mem --no-autolabel >/tmp/ndctl 2>&1 || { cat /tmp/ndctl; fail "no fsdax namespace"; }
    ndctl create-namespace -f -e namespace1.0 -m devdax -M mem --no-autolabel >/tmp/ndctl 2>&1 || { cat /tmp/ndctl; fail "no devdax namespace"; }
    mkfs.ext4 -q -F -b 4096 /dev/pmem0 || fail "no file system"
fi
mount -t ext4 -o dax=always /dev/pmem0 /mnt/pmem || fail "no DAX mount"
[ -c /dev/dax1.0 ] || fail "no devdax device"
echo "@@ up linux $(uname -r) at $(cut -d' ' -f1 /proc/uptime) s, $(mount | grep pmem), caches: $(cat /sys/bus/nd/devices/region?/persistence_domain 2>/dev/null | tr '\n' ' ')"

run_steps() {
    while IFS='|' read -r name limit command; do
        echo "@@ begin $name"
        begun=$(cut -d. -f1 /proc/uptime)
        timeout -s KILL "$limit" sh -c "$command" </dev/null 2>&1
        echo "@@ end $? $(($(cut -d. -f1 /proc/uptime) - begun)) $name"
    done </steps
}

# Puts values over soft-RoCE, each under a key of its own: with its request, or into memory of the pool.
write_over_fabric() {
    number=$(date +%s)000$1
    while :; do
        number=$((number + 10))
        length=$((number % 3 * 30000 + 100))
        everdram remote verbs://10.77.0.1:7700 put "remote:$number" "$(printf "%0${length}d" "$number")" >/dev/null 2>&1 &&
            echo "@@ acknowledged $number ."
    done
}

serve() {
    pool=$(word pool)
    for port in /sys/class/virtio-ports/*; do
        [ "$(cat "$port/name")" = door ] && exec 3<>"/dev/$(basename "$port")"
    done
    ip link set eth0 up
    ip addr add 10.0.2.15/24 dev eth0
    if [ "$(word fresh)" != yes ]; then
        everdram check --json "$pool" || fail "everdram check of $pool"
    fi
    if [ "$(word fabric)" = yes ]; then
        export EVERDRAM_PASSWORD=secret EVERDRAM_FABRIC=verbs://10.77.0.1:7700
        export EVERDRAM_FABRIC_TRUST_PEERS=true EVERDRAM_FABRIC_LEND_BYTES=16MiB
        for writer in 1 2 3; do write_over_fabric $writer & done
    fi
    everdram serve --json --until-stdin-closes --bind 10.0.2.15 --allow-open-network \
        --port "$(word port)" --pool "$pool" --medium pmem --engine "$(word engine)" <&3 >&3 || fail "everdram serve ended with $?"
}

case "$(word do)" in
steps) run_steps ;;
serve) serve ;;
*) fail "nothing to do" ;;
esac
umount /mnt/pmem
poweroff -f
