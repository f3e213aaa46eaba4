#!/bin/bash
# Stands in front of the program in every rank: says on which host the rank
# runs, so that the number of ranks and hosts can be held against what was
# asked for, then becomes the program.
#
# Not $HOSTNAME: a batch job passes on that of the node where it began.
read -r host </proc/sys/kernel/hostname
printf 'plumbline-rank %s\n' "$host" >&2
exec "$@"
