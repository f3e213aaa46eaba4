#!/bin/sh
# Builds a C program with this library: build.sh OUT SOURCE..., with $CC (cc) and
# $CFLAGS.
set -eu
out=$1
shift
cc=${CC:-cc}
here=$(dirname "$0")
define=''
# One compiler per source, all at once.
flags="-O2 -std=gnu11 -pthread -Wall -Wextra ${CFLAGS:-}"
objects=$out.objects
trap 'rm -rf "$objects"' EXIT
mkdir -p "$objects"
set -- "$@" "$here"/*.c
for word; do
    case $word in -D*) define="$define $word" ;; esac
done
number=0 compilers=
for word; do
    shift
    case $word in
        *.c)
            number=$((number + 1))
            object=$objects/$number.o
            # shellcheck disable=SC2086
            $cc $flags $define -c -o "$object" "$word" &
            compilers="$compilers $!"
            word=$object ;;
    esac
    set -- "$@" "$word"
done
failed=
for compiler in $compilers; do
    wait "$compiler" || failed=yes
done
if [ -n "$failed" ]; then exit 1; fi
# shellcheck disable=SC2086
$cc $flags -o "$out" "$@" -lm
