#!/bin/bash
# Removes what MPI libraries of killed jobs have left on this node: segments of
# shared memory (MPICH, Open MPI) and session folders (Open MPI, PRRTE). Jobs that
# end in order remove them; nothing else does.
#
#   remove_leftovers.sh [FOLDER_OF_SHARED_MEMORY [FOLDER_OF_TEMPORARY_FILES]]
#
# Their names do not show which program made them. So only files of this user on
# this host are removed that nothing has changed for an hour, and that no process
# has mapped or open.
shm=${1:-/dev/shm} tmp=${2:-${TMPDIR:-/tmp}}
shopt -s nullglob
# Without its domain, which only some versions write.
host=$(hostname)
host=${host%%.*}
old=()
for path in "$shm"/mpich_shm_* "$shm"/{sm,vader}_segment."$host".* \
        "$tmp"/{ompi,prte}."$host".* "$tmp"/ompi.[0-9]*; do
    pid=${path##*/ompi.}
    case $pid in
        *[!0-9]*) ;;
        *) # The folder of a program with this pid, on the host that its files name.
           rendezvous=("$path/pmix.$host."*)
           if [ -e "/proc/$pid" ] || [ ${#rendezvous[@]} = 0 ]; then continue; fi ;;
    esac
    if [ -O "$path" ] && [ -z "$(find "$path" -mmin -60 -print -quit)" ]; then
        old+=("$path")
    fi
done
if [ ${#old[@]} = 0 ]; then exit 0; fi
used=$({ cat /proc/[0-9]*/maps
         find /proc/[0-9]*/fd /proc/[0-9]*/cwd -printf '%l\n'; } 2>/dev/null)
for path in "${old[@]}"; do
    case $used in *"$path"*) ;; *) rm -rf -- "$path" ;; esac
done
exit 0
