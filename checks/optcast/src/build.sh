#!/bin/sh
# Builds optcast: build.sh OUT, with $CC (default cc) and $CFLAGS.
here=$(dirname "$0")
CFLAGS="-O3 ${CFLAGS:-}" exec "$here/../../lib/src/common/build.sh" optcast \
    "$1" "$here"/*.c
