#!/bin/bash
# The program of rank.sh on a node with servers or clients: it runs until SIGTERM.
#
#   observer.sh [SECONDS FILE]
#
# FILE.HOST.csv gets a row every SECONDS: seconds since 1970, then ticks of the CPUs that
# it may use: in user mode, in the system (with interrupts, proc_stat(5)), idle, stolen.
trap 'exit 0' TERM
# observe --forward passes it on as SIGTERM. Some launchers signal all processes of a rank.
trap '' USR1
# `read` from it waits without a new process. A signal that comes right before it is
# only noticed after it: so no wait is long.
exec {never}<> <(:)
while [ $# = 0 ]; do read -rt 0.5 -u "$never"; done
read -r host </proc/sys/kernel/hostname
while read -r name text; do
    if [ "$name" = Cpus_allowed_list: ]; then usable=$text; fi
done </proc/self/status
declare -A is_usable
IFS=,
for part in $usable; do
    for ((cpu = ${part%-*}; cpu <= ${part#*-}; cpu++)); do is_usable[cpu$cpu]=yes; done
done
unset IFS
exec >"$2.${host%%.*}.csv" || exit
echo at,user,system,idle,steal
while :; do
    # bash 4 has no such variable; some locales have a comma in it.
    at=${EPOCHREALTIME-$(date +%s.%N)} sums=(0 0 0 0)
    while read -r name user nice system idle wait interrupt soft steal _; do
        if [[ $name != cpu* ]]; then break; fi
        if [ -n "${is_usable[$name]}" ]; then
            ((sums[0] += user + nice, sums[1] += system + interrupt + soft,
              sums[2] += idle + wait, sums[3] += steal))
        fi
    done </proc/stat
    printf '%s,%d,%d,%d,%d\n' "${at/,/.}" "${sums[@]}"
    read -rt "$1" -u "$never"
done
