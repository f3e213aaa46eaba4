#!/bin/bash
# Runs a program with its launcher several times and records output, exit code
# and times of each repetition. Used in front of the launcher:
#
#   measure.sh [OPTION VALUE]... -- LAUNCHER ... PROGRAM ...
#   . measure.sh [OPTION VALUE]... -- FUNCTION    a function of the job script
#     --repetitions N      how often (1)
#     --accept CODES   exit codes that count as success (0)
#     --validate OPTS  one more, untimed run with these options at the end
#
# Writes into the current folder: run.REPETITION.out and .err, and runs.tsv
# with a line per repetition: repetition rc wall user system (times in s). Ends
# with the first exit code that was not accepted, so that a scheduler sees it,
# too. If the disk of the folder is full, it writes disk.full
# (checks/core/guards.py). If the folder has files of an earlier execution, it makes
# a new folder in it, again.XXXXXX.
set -u
repetitions=1 accept=0 validate=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        --repetitions) repetitions=$2 ;;
        --accept) accept=$2 ;;
        --validate) validate=$2 ;;
        *) echo "measure.sh: unknown option $1" >&2; exit 2 ;;
    esac
    shift 2
done
shift
status=0 src=${BASH_SOURCE[0]%/*}
TIMEFORMAT='%R %U %S'
# A scheduler may not pass on the session's: the times would have a comma.
export LC_ALL=C

if ! mkdir .ran 2>/dev/null && [ -d .ran ]; then
    cd "$(mktemp -d "$PWD/again.XXXXXX")" || exit 1
    echo "measure.sh: the files of this execution are in $PWD" >&2
fi

# When this script ends, even by SIGKILL, the pipe ends, and with it this one.
export PLUMBLINE_LAUNCHERS=$PWD/.launchers
coproc remover {
    exec setsid "$src/remove_session_folders.sh" \
        "$PLUMBLINE_LAUNCHERS" 2>/dev/null
}
remover_pid=$! end=${remover[1]}
# A launcher starts only when this one has left the process group: a signal to the
# group that ends the launcher does not end this one, too.
read -r _ <&"${remover[0]}"
# The processes of this job have it (others.c, leftovers.sh).
read -r PLUMBLINE_JOB </proc/sys/kernel/random/uuid
export PLUMBLINE_JOB

# A full disk takes what is said of it, too: room for that is kept from the
# start. Not by free blocks: a quota or the number of files may be it.
room() { head -c 65536 /dev/zero >"$1" 2>/dev/null; }

full() {
    rm -f .room .probe
    local free
    free=$(df -P . | awk 'NR == 2 { print $4 " KiB of " $6 " are free" }')
    echo "$(hostname): $PWD: nothing more can be written ($free)" >disk.full
    if [ "$status" = 0 ]; then status=1; fi
}

# What the run wrote before is doubtful when no more can be written now.
check_room() {
    if ! room .probe; then full; fi
    rm -f .probe
}

if ! { room .room && : >runs.tsv; } 2>/dev/null; then full; exit 1; fi

# Becomes the launcher, unless it is a function of the job script.
launch() {
    if declare -F "$1" >/dev/null; then "$@"; return; fi
    (echo "$BASHPID" >>"$PLUMBLINE_LAUNCHERS"; exec "$@")
}

# Ends processes that a launcher which failed has left on this node.
end_leftovers() {
    PLUMBLINE_JOB='' "$src/leftovers.sh" "PLUMBLINE_JOB=$PLUMBLINE_JOB"
}

one() {  # repetition command...
    local name="run.$1" repetition=$1 rc times='' line
    shift
    export PLUMBLINE_RUN=$name
    { time launch "$@" >"$name.out" 2>"$name.err" </dev/null {end}>&-; rc=$?; } 2>times.txt
    while read -r line; do times=$line; done <times.txt
    # shellcheck disable=SC2086
    printf '%s\t%s\t%s\t%s\t%s\n' "$repetition" "$rc" $times >>runs.tsv || full
    check_room
    cat "$name.out"
    cat "$name.err" >&2
    case " $accept " in
        *" $rc "*) ;;
        *) end_leftovers >/dev/null
           if [ "$status" = 0 ]; then status=$rc; fi ;;
    esac
}

for ((r = 1; r <= repetitions; r++)); do
    one "$r" "$@"
    # A failed run fails the case; and who was killed starts no other.
    if [ "$status" != 0 ] || ! kill -0 "$PPID"; then break; fi
done

if [ -n "$validate" ] && [ "$status" = 0 ]; then
    # Validation has a run of its own: comparing buffers between iterations
    # changes what lies in the caches, and with it the figures.
    # shellcheck disable=SC2086
    launch "$@" $validate >validate.out 2>validate.err </dev/null {end}>&-
    echo $? >validate.rc
    check_room
fi
rm -f .room
exec {end}>&-
wait "$remover_pid"
exit "$status"
