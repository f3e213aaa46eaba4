#!/bin/sh
# Builds tao_server: build.sh OUT, with $CC (default cc). TLS comes with it
# where OpenSSL's headers and libraries are; one line says which it is.
set -eu
out=$1
cc=${CC:-cc}
here=$(dirname "$0")
tls=
if echo '#include <openssl/ssl.h>
int main(void) { return !TLS_server_method(); }' |
        $cc -x c - -o "$out" -lssl -lcrypto 2>/dev/null; then
    tls='-DWITH_TLS -lssl -lcrypto'
    echo 'tao_server: with TLS'
elif echo '#include <openssl/ssl.h>' | $cc -x c -E - >/dev/null 2>&1; then
    echo 'tao_server: without TLS: libssl cannot be linked'
else
    echo 'tao_server: without TLS: openssl/ssl.h not found'
fi
# The libraries come last: the linker takes from them what is missing then.
$cc -O2 -std=gnu11 -pthread -Wall -Wextra -Werror -o "$out" "$here"/*.c $tls
