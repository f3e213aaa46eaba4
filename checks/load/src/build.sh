#!/bin/sh
# Builds plumbload: build.sh OUT, with $CC (cc) and $CFLAGS.
here=$(dirname "$0")
exec "$here/../../lib/src/common/build.sh" --tls plumbload "$1" "$here"/*.c
