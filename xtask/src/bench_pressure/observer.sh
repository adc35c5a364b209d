#!/bin/bash
# Watches the pods of `cargo xtask bench pressure`: each has the FIFO of its name open for writing while a process of it lives.
# It starts no process, so that it sees on when memory, the disk or process ids are used up.
#
# Arguments: the longest time to watch, the time without an event that ends it once the hog has ended (both in ms), the hog,
# further names. Before the file `go` is there it writes to `ready`, then, with times from that moment on, to `lines`.
LC_ALL=C
cd /run/pressure || exit 1
limit=$1 quiet=$2 hog=$3
shift 3
declare -A file was
mkfifo never begin "$@"
exec 8<>never 7<>begin
for name; do
    # A reading end alone waits for a writer; one that is both does not.
    exec {both}<>"$name"
    exec {end}<"$name"
    exec {both}>&-
    file[$name]=$end was[$name]=ended
done

now() {
    time=$((${EPOCHREALTIME/./} / 1000))
}

look() {
    now
    for name in "${!file[@]}"; do
        # Without a writer there is an end to read; with one there is nothing.
        if read -r -t 0 -u "${file[$name]}"; then is=ended; else is=began; fi
        [[ $is == "${was[$name]}" ]] && continue
        was[$name]=$is last=$time
        echo "$is $name $((time - start))" >> "$1"
    done
}

now
start=$time
: > ready
until [[ -e go ]]; do
    look ready
    read -r -t 0.2 -u 8
done
now
start=$time last=$time
for name in "${!file[@]}"; do
    [[ ${was[$name]} == began ]] && echo "began $name 0" >> lines
done
# The hog waits for this line.
echo >&7
while ((time - start < limit)) && ! { [[ ${was[$hog]} == ended ]] && ((time - last > quiet)); }; do
    look lines
    read -r -t 0.2 -u 8
done
echo "over $((time - start))" >> lines
