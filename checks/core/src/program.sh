#!/bin/bash
# Runs a program until its end, and prints on standard error what a launcher may hide:
#
#   program.sh PROGRAMS COMMAND...      PROGRAMS: folder of the program observe
#   . program.sh PROGRAMS COMMAND...    sets `code`, and `signalled` if a signal came
#
#   plumbline-end HOST CODE CPU CPU CPU CPU BEGIN BUSY STEAL END BUSY STEAL
#       exit code, and CPU time in all (as `times` prints it); time of the day, and CPU
#       time of the node in ticks, when the program began and when it ended
#   plumbline-left HOST PID UID NAME
#       a process of the program that still ran 5 s after it (leftovers.sh)
#
# The program is killed if this script is killed, and gets SIGTERM if this script gets
# SIGTERM, SIGINT, SIGHUP, SIGQUIT or SIGUSR1 (observe --forward). bash runs a trap when
# the program has ended.
programs=$1
shift
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    if [ "$1" != --forwarded ]; then
        exec "$programs/observe" --forward "$0" "$programs" --forwarded "$@"
    fi
    shift
fi
asked='' signalled=''
trap 'asked=yes' USR1
trap '[ -n "$asked" ] || signalled=yes' TERM
# Not $HOSTNAME: a batch job passes on that of the node where it began.
read -r host </proc/sys/kernel/hostname

# Sets REPLY to the time of the day, and the busy and stolen CPU time of the node.
read_node() {
    local user nice system steal
    # bash 4 has no such variable; some locales have a comma in it.
    REPLY=${EPOCHREALTIME-$(date +%s.%N)}
    REPLY=${REPLY/,/.}
    read -r _ user nice system _ _ _ _ steal _ </proc/stat
    REPLY+=" $((user + nice + system)) $steal"
}

export PLUMBLINE_RANK=$host.$$
# All processes of the program have the write end of this pipe, and not the file
# `others` of rank.sh. Before bash 5.1 a here-string is not a pipe.
exec {alive}<<<''
if [ -p "/proc/self/fd/$alive" ]; then read -ru "$alive"; else exec {alive}< <(:); fi
: "${others=$alive}"
read_node
begin=$REPLY
"$programs/observe" --tied 9 $$ "$@" {held}>"/proc/self/fd/$alive" {others}>&-
code=$?
read_node
# Two lines, of this shell and of the program.
times >"/proc/self/fd/$alive"
read -ru "$alive" own
read -ru "$alive" children
printf 'plumbline-end %s %s %s %s %s %s\n' "$host" "$code" "$own" "$children" \
    "$begin" "$REPLY" >&2
# It can be read at its end, when no process has it any more. (`read -t 5` would now and
# then block signals at random, a fault of bash 5.2.)
if ! read -rt 0 -u "$alive"; then
    PLUMBLINE_RANK='' timeout "${signalled:+0.}5" cat <&"$alive"
    if [ $? = 124 ]; then
        PLUMBLINE_RANK='' "${BASH_SOURCE[0]%/*}/leftovers.sh" \
            "PLUMBLINE_RANK=$PLUMBLINE_RANK" >&2
    fi
fi
if [ "${BASH_SOURCE[0]}" = "$0" ]; then exit "$code"; fi
