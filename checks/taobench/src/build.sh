#!/bin/sh
# Builds tao_server: build.sh OUT, with $CC (default cc) and $CFLAGS.
here=$(dirname "$0")
exec "$here/../../core/src/common/build.sh" "$1" "$here"/*.c
