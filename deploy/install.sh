#!/bin/sh
# Installs limpet from the directory of this script, with no network and no package manager, or removes it.
#
#   install.sh [--with-runtime | --without-runtime] [--no-start]
#   install.sh --uninstall [--keep-state]
#
# Everything goes below /opt/limpet, but for the configuration in /etc/limpet and what starts the agent: a systemd unit,
# an OpenRC service, or two lines of /etc/inittab. The runtime (containerd, an OCI runtime, CNI plugins) is installed if
# the package has it and the machine has no containerd. POSIX shell; busybox has all that is called.
set -eu

prefix=/opt/limpet
# What was installed, for --uninstall: words of "runtime", "cni", "link".
record=$prefix/installed
configuration=/etc/limpet/config.yaml
network=/etc/cni/net.d/10-limpet.conflist
rotation=/etc/logrotate.d/limpet
mark='# limpet'
# How long pods may take to end before an uninstallation.
seconds_to_end=120

say() { printf '%s\n' "$*"; }

fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

has() { command -v "$1" > /dev/null 2>&1; }

has_record() { [ -f "$record" ] && grep -q -x "$1" "$record"; }

# What starts services here: systemd, openrc, inittab, or none of them.
init_system() {
    if [ -d /run/systemd/system ]; then
        echo systemd
    elif has openrc-run || [ -x /sbin/openrc-run ]; then
        echo openrc
    elif [ -f /etc/inittab ]; then
        echo inittab
    else
        echo none
    fi
}

# Copies a file in a way that leaves either the old one or the new one, also if the power fails.
put() {
    mkdir -p "$(dirname "$3")"
    cp "$2" "$3.new"
    chmod "$1" "$3.new"
    sync
    mv -f "$3.new" "$3"
}

# The same for the text on stdin.
put_text() {
    mkdir -p "$(dirname "$2")"
    cat > "$2.new"
    chmod "$1" "$2.new"
    sync
    mv -f "$2.new" "$2"
}

install_program() {
    # An upgrade on trial would replace what is installed now.
    rm -f "$prefix/bin/limpet-upgrade.json" "$prefix"/bin/*.new
    for program in "$source"/usr/bin/*; do
        put 0755 "$program" "$prefix/bin/$(basename "$program")"
    done
    mkdir -p "$prefix/share"
    cp -R "$source/usr/share/." "$prefix/share/"
    put 0755 "$source/install.sh" "$prefix/install.sh"
    if [ ! -e /usr/local/bin/limpet ] && mkdir -p /usr/local/bin 2> /dev/null &&
        ln -s "$prefix/bin/limpet" /usr/local/bin/limpet 2> /dev/null; then
        echo link >> "$record"
    fi
}

# Copies the runtime beside the present one, before anything is replaced: there may be no room.
stage_runtime() {
    fresh=$prefix/runtime.new
    rm -rf "$fresh"
    cp -R "$source/runtime" "$fresh" || {
        rm -rf "$fresh"
        fail "the runtime cannot be copied to $prefix"
    }
    chmod 0755 "$fresh"/bin/* "$fresh"/cni/* "$fresh"/lib/ld.so
    sync
}

# Programs and libraries that run now are replaced as whole files: what runs keeps the old ones.
install_runtime() {
    mkdir -p "$prefix/runtime"
    (cd "$fresh" && find . -type d) | while read -r directory; do mkdir -p "$prefix/runtime/$directory"; done
    (cd "$fresh" && find . ! -type d) | while read -r file; do mv -f "$fresh/$file" "$prefix/runtime/$file"; done
    rm -rf "$fresh"
    put_text 0644 "$prefix/runtime/containerd.toml" << TEXT
# limpet uses containerd's native services and not CRI.
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
address = "/run/containerd/containerd.sock"
TEXT
    has_record runtime || echo runtime >> "$record"
}

# The OCI runtime of the bundle.
oci_runtime() {
    for name in runc crun; do
        if [ -x "$prefix/runtime/bin/$name" ]; then
            echo "$prefix/runtime/bin/$name"
            return
        fi
    done
}

# The shipped configuration with what differs on this machine. One that exists is kept.
install_configuration() {
    for directory in /etc/limpet /etc/limpet/manifests; do
        [ -d "$directory" ] || mkdir -m 0700 "$directory"
    done
    if [ ! -f "$configuration" ]; then
        {
            if [ "$init" = systemd ]; then
                cat "$source/etc/limpet/config.yaml"
            else
                sed 's/^cgroupDriver: systemd$/cgroupDriver: cgroupfs/' "$source/etc/limpet/config.yaml"
            fi
            if has_record runtime; then
                say "runtimeBinary: $(oci_runtime)"
            fi
        } | if has_record runtime; then
            sed "s|^cniBinaryDirectories:\$|&\\n- $prefix/runtime/cni|"
        else
            cat
        fi | put_text 0600 "$configuration"
    elif has_record runtime && ! grep -q "$prefix/runtime/cni" "$configuration"; then
        say "$configuration is kept as it is. For the runtime of this archive it needs:"
        say "    runtimeBinary: $(oci_runtime)"
        say "    cniBinaryDirectories: [$prefix/runtime/cni]"
    fi
    if has_record runtime && ! ls /etc/cni/net.d/*.conf* > /dev/null 2>&1; then
        put 0644 "$source/usr/share/doc/limpet/examples/10-limpet.conflist" "$network"
        echo cni >> "$record"
    fi
}

# Lines of a starter that keep what its program prints in /var/log, because OpenRC and init throw it away. A file that has
# grown is put aside at a start; logrotate, where it is installed, does so in between. The file is for root alone, because
# output of hooks may have secrets, and a program whose log cannot be written starts without one.
keep_log() {
    case $init in
    openrc | inittab)
        say "log=/var/log/$1.log"
        say 'if [ -f "$log" ] && [ "$(wc -c < "$log")" -gt 1048576 ]; then mv -f "$log" "$log.1"; fi'
        say 'if (umask 077 && true >> "$log") 2> /dev/null; then exec >> "$log" 2>&1; fi'
        ;;
    esac
}

install_log_rotation() {
    case $init in openrc | inittab) ;; *) return ;; esac
    mkdir -p /var/log
    [ -d /etc/logrotate.d ] || return 0
    put_text 0644 "$rotation" << TEXT
/var/log/limpet.log /var/log/limpet-containerd.log {
    size 1M
    rotate 1
    copytruncate
    missingok
    notifempty
}
TEXT
}

# Programs that start the agent and containerd, for init systems without a search path of their own.
install_starters() {
    install_log_rotation
    put_text 0755 "$prefix/bin/start-limpet" << TEXT
#!/bin/sh
export PATH=$prefix/runtime/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ulimit -n 65536 2> /dev/null
$(keep_log limpet)
exec $prefix/bin/limpet run --config $configuration
TEXT
    if has_record runtime; then
        put_text 0755 "$prefix/bin/start-containerd" << TEXT
#!/bin/sh
export PATH=$prefix/runtime/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
$(keep_log limpet-containerd)
# A system without a service manager may not have mounted it.
[ -e /sys/fs/cgroup/cgroup.controllers ] || [ -d /sys/fs/cgroup/memory ] || mount -t cgroup2 cgroup2 /sys/fs/cgroup
exec $prefix/runtime/bin/containerd --config $prefix/runtime/containerd.toml
TEXT
    fi
}

install_systemd() {
    containerd='containerd.service'
    if has_record runtime; then
        containerd='limpet-containerd.service'
        put_text 0644 /etc/systemd/system/limpet-containerd.service << TEXT
[Unit]
Description=containerd of limpet
After=local-fs.target

[Service]
Type=notify
ExecStart=$prefix/bin/start-containerd
# Containers run on while containerd restarts.
KillMode=process
Restart=always
RestartSec=1
Delegate=yes
OOMScoreAdjust=-999
LimitNOFILE=1048576
TasksMax=infinity

[Install]
WantedBy=multi-user.target
TEXT
    fi
    sed -e "s|^ExecStart=.*|ExecStart=$prefix/bin/start-limpet|" -e "s|containerd\\.service|$containerd|g" \
        "$source/usr/lib/systemd/system/limpet.service" | put_text 0644 /etc/systemd/system/limpet.service
    systemctl daemon-reload
    ! has_record runtime || systemctl enable limpet-containerd.service
    systemctl enable limpet.service
    [ "$start" = no ] || {
        ! has_record runtime || systemctl restart limpet-containerd.service
        systemctl restart limpet.service
    }
}

openrc_service() {
    put_text 0755 "/etc/init.d/$1" << TEXT
#!/sbin/openrc-run
description="$2"
supervisor=supervise-daemon
command=$3
respawn_delay=1
respawn_max=0
depend() {
    $4
}
TEXT
}

install_openrc() {
    if has_record runtime; then
        openrc_service limpet-containerd "containerd of limpet" "$prefix/bin/start-containerd" "need localmount cgroups"
        openrc_service limpet "limpet" "$prefix/bin/start-limpet" "use limpet-containerd"
        rc-update add limpet-containerd default
    else
        openrc_service limpet "limpet" "$prefix/bin/start-limpet" "use containerd; after containerd localmount"
    fi
    rc-update add limpet default
    # OpenRC compares times to notice new services: seconds, by a clock that may be wrong.
    rc-update --update
    [ "$start" = no ] || {
        ! has_record runtime || rc-service limpet-containerd restart
        rc-service limpet restart
    }
}

# One line of /etc/inittab. busybox takes the first field for a terminal, System V's init for a name of the line.
inittab_line() {
    case "$(readlink -f /sbin/init 2> /dev/null)" in
    *busybox*) say "::respawn:$2 $mark" ;;
    *) say "$1:2345:respawn:$2 $mark" ;;
    esac
}

install_inittab() {
    {
        grep -v "$mark\$" /etc/inittab || true
        ! has_record runtime || inittab_line lpc "$prefix/bin/start-containerd"
        inittab_line lp "$prefix/bin/start-limpet"
    } | put_text "$(mode_of /etc/inittab)" /etc/inittab
    [ "$start" = no ] || {
        reload_inittab
        end_daemons
    }
}

# Ends the agent (by the name of its last upgrade, too) and containerd, but not shims and loggers, by which pods run on. init starts them again, in their new
# version.
end_daemons() {
    for file in /proc/[0-9]*/cmdline; do
        case "$(tr '\0' ' ' 2> /dev/null < "$file")" in
        "$prefix/bin/limpet run "* | "$prefix/bin/limpet.new run "* | "$prefix/runtime/bin/containerd --config "*)
            pid=${file#/proc/}
            kill "${pid%/cmdline}" 2> /dev/null || true
            ;;
        esac
    done
}

mode_of() {
    stat -c %a "$1" 2> /dev/null || echo 644
}

reload_inittab() {
    if has telinit; then telinit q; else kill -HUP 1; fi
}

install() {
    [ "$(id -u)" = 0 ] || fail "run it as root"
    source=$(cd "$(dirname "$0")" && pwd)
    [ -f "$source/usr/bin/limpet" ] || fail "$source has no limpet: run it in the directory of the unpacked archive"
    [ "$source" != "$prefix" ] || fail "run the script of the new version, not the installed one"
    [ ! -e /usr/bin/limpet ] || fail "/usr/bin/limpet belongs to a package: upgrade or remove that one"
    "$source/usr/bin/limpet" --version > /dev/null 2>&1 ||
        fail "this package is for another processor: limpet does not run here ($(uname -m))"
    init=$(init_system)
    mkdir -p "$prefix"
    touch "$record"
    if [ "$runtime" = yes ] && [ ! -d "$source/runtime" ]; then
        fail "this archive has no runtime: take the one with offline in its name"
    fi
    if [ "$runtime" = auto ]; then
        runtime=no
        if [ -d "$source/runtime" ] && { has_record runtime || ! has containerd; }; then runtime=yes; fi
    fi
    [ "$runtime" = no ] || stage_runtime
    install_program
    if [ "$runtime" = yes ]; then
        install_runtime
    elif ! has_record runtime && ! has containerd; then
        say "No containerd was found: install one, or take the archive with offline in its name."
    fi
    install_configuration
    install_starters
    case $init in
    systemd) install_systemd ;;
    openrc) install_openrc ;;
    inittab) install_inittab ;;
    none)
        say "No init system was recognised. Have yours run these, and start them again when they end:"
        ! has_record runtime || say "    $prefix/bin/start-containerd"
        say "    $prefix/bin/start-limpet"
        say "Those that run already need a restart."
        ;;
    esac
    say "limpet is installed. Manifests belong into /etc/limpet/manifests; limpet doctor examines this machine."
}

# Whether containers of limpet's namespace in containerd have a shim.
has_shims() {
    for file in /proc/[0-9]*/cmdline; do
        case "$(tr '\0' ' ' 2> /dev/null < "$file")" in
        *containerd-shim-*" -namespace k8s.io "*) return 0 ;;
        esac
    done
    return 1
}

# Whether the agent says that it has no pod and no Service any more.
has_ended() {
    left=$("$limpet" --quiet pods -o name 2> /dev/null) || return 1
    left=$left$("$limpet" --quiet services -o name 2> /dev/null) || return 1
    [ -z "$left" ]
}

# Removes the manifests and waits until their pods have ended.
end_pods() {
    limpet=$prefix/bin/limpet
    if ! pods=$("$limpet" --quiet pods -o name 2> /dev/null); then
        ! has_shims || fail "containers run, and the agent that ends them does not answer: start it, or reboot without it"
        return 0
    fi
    rm -f /etc/limpet/manifests/*
    for pod in $pods; do
        # Refused for pods of manifests, which end by themselves.
        "$limpet" --quiet delete "${pod#pod/}" --wait=false > /dev/null 2>&1 || true
    done
    for service in $("$limpet" --quiet services -o name 2> /dev/null); do
        # Refused for those of manifests. With the last one its rules go.
        "$limpet" --quiet delete service "${service#*/}" -n "${service%%/*}" > /dev/null 2>&1 || true
    done
    waited=0
    while ! has_ended; do
        [ "$waited" -lt "$seconds_to_end" ] || fail "pods still run after $seconds_to_end s: see limpet pods"
        sleep 1
        waited=$((waited + 1))
    done
}

stop_services() {
    case $(init_system) in
    systemd)
        systemctl disable --now limpet.service > /dev/null 2>&1 || true
        ! has_record runtime || systemctl disable --now limpet-containerd.service > /dev/null 2>&1 || true
        rm -f /etc/systemd/system/limpet.service /etc/systemd/system/limpet-containerd.service
        systemctl daemon-reload
        ;;
    openrc)
        for service in limpet limpet-containerd; do
            [ -f "/etc/init.d/$service" ] || continue
            rc-service "$service" stop > /dev/null 2>&1 || true
            rc-update del "$service" default > /dev/null 2>&1 || true
            rm -f "/etc/init.d/$service"
        done
        ;;
    inittab)
        { grep -v "$mark\$" /etc/inittab || true; } | put_text "$(mode_of /etc/inittab)" /etc/inittab
        reload_inittab
        ;;
    esac
    end_processes
}

# Those of the processes that run programs below the prefix.
processes() {
    for exe in /proc/[0-9]*/exe; do
        case "$(readlink "$exe" 2> /dev/null)" in
        "$prefix"/*)
            pid=${exe#/proc/}
            say "${pid%/exe}"
            ;;
        esac
    done
}

# What no service manager has ended: the agent, and containerd if it came with limpet. An init that has not read its
# table again may start them once more, so the end is when none is there twice.
end_processes() {
    rm -f "$prefix/bin/start-limpet" "$prefix/bin/start-containerd"
    waited=0
    quiet=0
    while [ "$quiet" -lt 2 ] && [ "$waited" -lt 15 ]; do
        quiet=$((quiet + 1))
        for pid in $(processes); do
            kill "$pid" 2> /dev/null || true
            quiet=0
        done
        sleep 1
        waited=$((waited + 1))
    done
}

# Unmounts what is mounted at these directories and below, the last mount first.
unmount() {
    for directory in "$@"; do
        awk -v top="$directory" '$2 == top || index($2, top "/") == 1 { print $2 }' /proc/mounts
    done | sed '1!G;h;$!d' | while read -r mounted; do
        umount "$mounted" 2> /dev/null || umount -l "$mounted"
    done
}

uninstall() {
    [ "$(id -u)" = 0 ] || fail "run it as root"
    [ -f "$record" ] || fail "limpet was not installed by this script"
    end_pods
    stop_services
    "$prefix/bin/limpet" guard off > /dev/null 2>&1 || true
    ! has_record link || rm -f /usr/local/bin/limpet
    ! has_record cni || rm -f "$network"
    if has_record cni && has ip; then ip link delete limpet0 > /dev/null 2>&1 || true; fi
    unmount /run/limpet /var/lib/limpet
    ! has_record runtime || unmount /run/containerd
    if [ "$keep_state" = no ]; then
        rm -rf /etc/limpet /var/lib/limpet
        ! has_record runtime || rm -rf /var/lib/containerd /run/containerd
    fi
    rm -rf /run/limpet "$prefix"
    rm -f "$rotation" /var/log/limpet.log /var/log/limpet.log.1 /var/log/limpet-containerd.log /var/log/limpet-containerd.log.1
    # Sockets of ended listeners. Shared directories go only if nothing is left in them.
    rm -f /var/lib/kubelet/device-plugins/kubelet.sock
    for directory in /var/log/pods /var/log/containers /var/lib/kubelet/device-plugins \
        /var/lib/kubelet/plugins_registry /var/lib/kubelet /etc/cni/net.d /etc/cni /opt; do
        rmdir "$directory" > /dev/null 2>&1 || true
    done
    say "limpet is removed."
}

runtime=auto
start=yes
action=install
keep_state=no
while [ $# -gt 0 ]; do
    case $1 in
    --with-runtime) runtime=yes ;;
    --without-runtime) runtime=no ;;
    --no-start) start=no ;;
    --uninstall) action=uninstall ;;
    --keep-state) keep_state=yes ;;
    -h | --help)
        sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *) fail "unknown option: $1 (see --help)" ;;
    esac
    shift
done
$action
