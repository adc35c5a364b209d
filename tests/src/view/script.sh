#!/bin/sh
# What a container finds, by sections. It stays until SIGTERM, unless it is called with "once".
self=/proc/$$
section() { echo "== $1"; }
can() { what=$1; shift; if "$@" > /tmp/.said 2>&1; then echo "$what: yes"; else echo "$what: no"; fi; }
kind() { stat -c '%n %F %a %u:%g' "$@" 2> /dev/null; }

section environment; tr '\0' '\n' < $self/environ
section command; tr '\0' '\n' < $self/cmdline
section process
grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Umask)' $self/status | tr '\t' ' '
echo "oom_score_adj: $(cat $self/oom_score_adj)"
echo "directory: $(readlink $self/cwd)"
[ $$ = 1 ] && echo "process 1: itself" || echo "process 1: $(tr '\0' ' ' < /proc/1/cmdline)"
for n in 0 1 2; do f=$(readlink $self/fd/$n); echo "descriptor $n: ${f%%:*}"; done
section limits; cat $self/limits
section names; hostname; cat /proc/sys/kernel/domainname
section namespaces; for n in $self/ns/*; do echo "${n##*/} $(readlink $n)"; done
section hosts; cat /etc/hosts
section hostname; cat /etc/hostname
section resolv.conf; cat /etc/resolv.conf
section mounts; cat $self/mountinfo
section devices; find /dev ! -type d ! -path '/dev/pts/*' ! -path '/dev/shm/*' | while read -r f; do stat -c '%n %F %a %u:%g %t:%T' "$f"; done
section files; kind / /etc /etc/hosts /etc/hostname /etc/resolv.conf /dev /dev/shm /dev/termination-log /run/termination /tmp
section network; for n in /sys/class/net/*; do echo "${n##*/} $(cat "$n/mtu" 2> /dev/null)"; done
section sysctls
for n in net.ipv4.ip_local_port_range net.ipv4.ping_group_range net.ipv4.ip_unprivileged_port_start net.ipv4.tcp_syncookies \
    net.ipv4.ip_forward net.core.somaxconn kernel.shm_rmid_forced kernel.shmmni kernel.sem kernel.msgmax fs.mqueue.msg_max; do
    echo "$n = $(cat /proc/sys/$(echo $n | tr . /) 2> /dev/null | tr '\t' ' ')"
done
section cgroup
cat $self/cgroup
for f in memory/memory.limit_in_bytes memory/memory.soft_limit_in_bytes memory/memory.swappiness memory/memory.oom_control cpu/cpu.shares \
    cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us pids/pids.max cpuset/cpuset.cpus; do
    echo "$f = $(cat /sys/fs/cgroup/$f 2> /dev/null | head -n 1)"
done
cat /sys/fs/cgroup/devices/devices.list 2> /dev/null
section rights
can "make a device" mknod /tmp/.device c 1 3
can "change an owner" sh -c 'touch /tmp/.own && chown 7:7 /tmp/.own'
can "change root" chroot / true
can "a user namespace" unshare -U true
can "a mount namespace" unshare -m true
can "mount" sh -c 'mkdir -p /tmp/.mount && mount -t tmpfs none /tmp/.mount'
can "a higher priority" nice -n -5 true
can "a port below 1024" timeout 1 nc -l -p 81 -w 0
can "write to the root" touch /.written
can "write to /proc/sys" sh -c 'cat /proc/sys/kernel/domainname > /proc/sys/kernel/domainname'
can "write to the cgroup" sh -c 'echo $$ > /sys/fs/cgroup/memory/cgroup.procs'
can "read /proc/kcore" head -c 1 /proc/kcore
can "read /proc/keys" grep -q . /proc/keys
section volumes
find /volumes 2> /dev/null | grep -v '/\.limpet-written' | sort | while read -r f; do
    if [ -L "$f" ]; then echo "$f -> $(readlink "$f")"; continue; fi
    kind "$f"
    [ -f "$f" ] && head -c 300 "$f" 2> /dev/null | sed "s|^|$f: |" && echo
done
for d in /volumes/*; do
    [ -d "$d" ] || continue
    if touch "$d/.limpet-written" 2> /dev/null; then stat -c "written in $d: %a %u:%g" "$d/.limpet-written"; else echo "not written in $d"; fi
done
section end
[ "$1" = once ] && exit 0
trap 'exit 0' TERM
sleep 100000 & wait
