#!/bin/bash
# Runs in front of the program in every rank: prints the host of the rank, the
# CPUs that it may use, and their cores (the first CPU of each), so that they
# can be compared with the request. Then it becomes the program, without a new
# process.
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
