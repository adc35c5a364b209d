#!/bin/sh
# What the containers of the sets run: `serve PORT…`, `keep DIRECTORY [PORT…]`, `idle`, `print TEXT` or `fail CODE`.
trap 'exit 0' TERM
listen() {
    mkdir -p /tmp/www
    cat /proc/sys/kernel/hostname > /tmp/www/index.html
    for port; do
        case $port in [0-9]*) httpd -p "$port" -h /tmp/www ;; esac
    done
}
what=$1
shift
case $what in
serve) listen "$@" ;;
keep)
    # The first one that has the directory leaves its name.
    [ -e "$1/owner" ] || cat /proc/sys/kernel/hostname > "$1/owner"
    shift
    [ $# = 0 ] || listen "$@"
    ;;
print) echo "$@"; exit 0 ;;
fail) exit "$1" ;;
esac
sleep 100000 & wait
