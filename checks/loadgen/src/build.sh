#!/bin/sh
# Builds the embedded memtier_benchmark: build.sh OUT, with $CC (cc) and $CFLAGS.
here=$(dirname "$0")
mkdir -p "$(dirname "$1")"
exec "$here/../../core/src/common/build.sh" "$1" "$here"/*.c
