#!/bin/sh
# Builds optcast: build.sh OUT, with $CC (default cc) and $CFLAGS.
here=$(dirname "$0")
CFLAGS="-O3 ${CFLAGS:-}" exec "$here/../../core/src/common/build.sh" "$1" \
    "$here"/*.c
