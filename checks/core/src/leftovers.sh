#!/bin/bash
# Ends the processes of this node that have a variable in their environment, and prints
# a line for each:
#
#   leftovers.sh NAME=VALUE
#
#   plumbline-left HOST PID UID NAME
read -r host </proc/sys/kernel/hostname

# Sends them a signal. 1: there are none.
send() {  # signal
    local pid folder name user
    mapfile -t folders < <(grep -lzsx -- "$mark" /proc/[0-9]*/environ)
    for folder in "${folders[@]%/environ}"; do
        pid=${folder#/proc/}
        if [ "$1" = TERM ]; then
            read -r name <"$folder/comm"
            user=$(stat -c %u "$folder")
            printf 'plumbline-left %s %s %s %s\n' "$host" "$pid" "$user" "$name"
        fi
        kill "-$1" "$pid"
    done
    [ "${#folders[@]}" -gt 0 ]
} 2>/dev/null

mark=$1
send TERM || exit 0
# More than once: they may start others meanwhile.
for round in {1..40}; do
    sleep 0.05
    if [ "$round" -le 20 ]; then send 0; else send KILL; fi || exit 0
done
