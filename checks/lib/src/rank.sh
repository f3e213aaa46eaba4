#!/bin/bash
# Stands in front of the program in every rank: says on which host the rank
# runs, so that the number of ranks and hosts can be held against what was
# asked for, then becomes the program.
printf 'plumbline-rank %s\n' "$HOSTNAME" >&2
exec "$@"
