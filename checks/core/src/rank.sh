#!/bin/bash
# Stands in front of the program in every rank: says on which host the rank
# runs, on which CPUs it may run, and which cores those are (the first CPU of
# each), so that all of it can be held against what was asked for; then
# becomes the program. No process is started for it.
#
#   plumbline-rank HOST CPUS CORES        e.g. plumbline-rank n1 0-1,64-65 0,1
#
# Not $HOSTNAME: a batch job passes on that of the node where it began.
read -r host </proc/sys/kernel/hostname
cpus='' cores=,
mapfile -t lines </proc/self/status
for line in "${lines[@]}"; do
    if [[ $line == Cpus_allowed_list:* ]]; then cpus=${line##*[[:space:]]}; fi
done
IFS=,
for part in $cpus; do
    for ((cpu = ${part%-*}; cpu <= ${part#*-}; cpu++)); do
        first=$cpu
        # A kernel that does not say (containers): every CPU is a core.
        siblings=/sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list
        if [ -r "$siblings" ]; then read -r first <"$siblings"; fi
        first=${first%%[,-]*}
        case $cores in *",$first,"*) ;; *) cores+=$first, ;; esac
    done
done
unset IFS
cores=${cores#,}
printf 'plumbline-rank %s %s %s\n' "$host" "$cpus" "${cores%,}" >&2
exec "$@"
