#!/bin/sh
# Builds tensorload: build.sh OUT, with the MPI compiler wrapper in $CC (mpicc)
# and $CFLAGS. Its sockets, TLS and protocol code are the load generator's;
# TLS comes with it where OpenSSL's headers and libraries are.
set -eu
out=$1
cc=${CC:-mpicc}
here=$(dirname "$0")
load=$here/../../load/src
tls=
if echo '#include <openssl/ssl.h>
int main(void) { return !TLS_client_method(); }' |
        $cc -x c - -o "$out" -lssl -lcrypto 2>/dev/null; then
    tls='-DWITH_TLS -lssl -lcrypto'
fi
sources=
for name in draw engine histogram net options probe protocol report; do
    sources="$sources $load/$name.c"
done
# shellcheck disable=SC2086
$cc -O2 -std=gnu11 -pthread -Wall -Wextra '-DPROGRAM="tensorload"' \
    ${CFLAGS:-} -o "$out" "$here"/*.c $sources $tls -lm
