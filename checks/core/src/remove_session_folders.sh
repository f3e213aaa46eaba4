#!/bin/bash
# Removes the session folders of Open MPI that killed launchers of this job have
# left on this node. measure.sh starts it at its begin:
#
#   remove_session_folders.sh FILE <PIPE >PIPE
#
# It writes a line when it runs, which no signal to the process group ends any more.
# FILE: the pids of the launchers, and folders of secrets, one per line. Standard input
# ends when measure.sh ends, even if it is killed. Only folders of this user are removed whose names have
# the pid of such a launcher, and only after the end of the launcher.
set -u
# In seconds; a launcher that ends later keeps its folder (remove_leftovers.sh).
timeout=30
trap '' TERM INT HUP
echo ready
exec >/dev/null
while read -r _; do :; done
SECONDS=0
[ -f "$1" ] || exit 0
tmp=${TMPDIR:-/tmp}
# Without its domain, which only some versions write.
read -r host </proc/sys/kernel/hostname
host=${host%%.*}
shopt -s nullglob
# In one look: a process that has ended may go between two.
runs() {
    local text
    read -r text <"/proc/$1/stat" && [[ ${text##*) } != [ZX]* ]]
}
while read -r pid; do
    case $pid in
        # The secrets of a job with services.
        */secrets.private.*) rm -rf -- "$pid"; continue ;;
    esac
    while runs "$pid" && [ "$SECONDS" -lt "$timeout" ]; do sleep 0.1; done
    if runs "$pid"; then continue; fi
    # Of Open MPI 5, and of version 4 below a folder that all its launchers share.
    for folder in "$tmp/ompi.$pid" "$tmp"/ompi."$host"*."$UID"/pid."$pid"; do
        if [ -d "$folder" ] && [ -O "$folder" ]; then
            rm -rf -- "$folder"
            case $folder in */pid.*) rmdir -- "${folder%/*}" ;; esac
        fi
    done
done <"$1" 2>/dev/null
rm -f -- "$1"
exit 0
