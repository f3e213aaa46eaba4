#!/bin/sh
# Builds plumbload: build.sh OUT, with $CC (cc) and $CFLAGS. TLS comes with it
# where OpenSSL's headers and libraries are; one line says which it is.
set -eu
out=$1
cc=${CC:-cc}
here=$(dirname "$0")
tls=
if why=$(echo '#include <openssl/ssl.h>
int main(void) { return !TLS_client_method(); }' |
         $cc -x c - -o "$out" -lssl -lcrypto 2>&1); then
    tls='-DWITH_TLS -lssl -lcrypto'
    echo 'plumbload: with TLS'
elif echo '#include <openssl/ssl.h>' | $cc -x c -E - >/dev/null 2>&1; then
    echo 'plumbload: without TLS: libssl cannot be linked'
else
    echo 'plumbload: without TLS: openssl/ssl.h not found'
fi
# The libraries come last: the linker takes from them what is missing then.
$cc -O2 -std=gnu11 -pthread -Wall -Wextra ${CFLAGS:-} -o "$out" "$here"/*.c \
    $tls -lm
