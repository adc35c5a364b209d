#!/bin/bash
# Notes when images go: names of containerd's, looked at again and again. Arguments: the longest time to watch, the time
# without a removal that ends it after the first (both in ms). Writes to `lines`.
cd /run/pressure || exit 1
limit=$1 quiet=$2

now() {
    time=$((${EPOCHREALTIME/./} / 1000))
}

names() {
    ctr -n k8s.io images ls -q | grep '^registry.test/' | grep -v @ | sort
}

names > before
now
start=$time last=
while ((time - start < limit)) && ! { [[ $last ]] && ((time - last > quiet)); }; do
    names > after
    now
    for name in $(comm -23 before after); do
        echo "removed ${name##*/} $((time - start))" >> lines
        last=$time
    done
    mv after before
    sleep 0.5
done
sed 's|.*/|kept |' before >> lines
echo "over $((time - start))" >> lines
