#!/bin/sh
# Builds a C program with this library: build.sh [--tls] NAME OUT SOURCE...,
# with $CC (cc) and $CFLAGS. With --tls the program speaks TLS if OpenSSL's
# headers and libraries are installed; one line reports which.
set -eu
with_tls=
if [ "$1" = --tls ]; then
    with_tls=yes
    shift
fi
name=$1 out=$2
shift 2
cc=${CC:-cc}
here=$(dirname "$0")
define='' libraries=''
if [ -z "$with_tls" ]; then
    :
elif echo '#include <openssl/ssl.h>
int main(void) { return !TLS_method(); }' |
        $cc -x c - -o "$out" -lssl -lcrypto 2>/dev/null; then
    define=-DWITH_TLS libraries='-lssl -lcrypto'
    echo "$name: with TLS"
elif echo '#include <openssl/ssl.h>' | $cc -x c -E - >/dev/null 2>&1; then
    echo "$name: without TLS: libssl cannot be linked"
else
    echo "$name: without TLS: openssl/ssl.h not found"
fi
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
# The libraries come last: the linker takes from them what is missing then.
# shellcheck disable=SC2086
$cc $flags -o "$out" "$@" $libraries -lm
