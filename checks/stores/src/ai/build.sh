#!/bin/sh
# Builds the module: build.sh OUT, with $CC (cc) and $CFLAGS. It needs a C
# compiler and libc, no header of a server.
set -eu
out=$1
cc=${CC:-cc}
here=$(dirname "$0")
$cc -O2 -std=gnu11 -pthread -fPIC -shared -fvisibility=hidden -Wall -Wextra \
    ${CFLAGS:-} -o "$out" "$here"/*.c -lm
