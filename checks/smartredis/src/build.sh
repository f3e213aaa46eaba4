#!/bin/sh
# Builds tensorload: build.sh OUT, with the MPI compiler wrapper in $CC (mpicc)
# and $CFLAGS.
here=$(dirname "$0")
CC=${CC:-mpicc} exec "$here/../../lib/src/common/build.sh" --tls tensorload \
    "$1" "$here"/*.c
