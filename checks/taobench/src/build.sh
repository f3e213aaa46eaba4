#!/bin/sh
# Builds tao_server: build.sh OUT, with $CC (default cc) and $CFLAGS.
here=$(dirname "$0")
exec "$here/../../lib/src/common/build.sh" --tls tao_server "$1" "$here"/*.c
