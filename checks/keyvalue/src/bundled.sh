#!/bin/bash
# A store under the load generator that comes with it:
#   bundled.sh STORE BIN OPERATION SIZE CLIENTS REQUESTS
# Starts BIN/STORE-server, loads it, asks it what it really served, stops it.
# On a unix socket in a folder of our own: nothing can reach it from outside,
# no port can be taken, and no password would show in a list of processes.
set -euo pipefail
store=$1 bin=$2 operation=$3 size=$4 clients=$5 requests=$6
# Not in the stage directory: a socket's path may have 107 characters.
home=$(mktemp -d "${TMPDIR:-/tmp}/plumbline.XXXXXX")
server=
client=
stop() {
    for process in $client $server; do
        kill "$process" 2>/dev/null && wait "$process" || :
    done
    rm -rf "$home"
}
trap stop EXIT
trap 'exit 143' TERM INT HUP
socket=$home/socket

"$bin/$store-server" --port 0 --unixsocket "$socket" --unixsocketperm 700 \
    --dir "$home" --save '' --appendonly no --daemonize no \
    --maxmemory-policy noeviction >"$home/log" 2>&1 &
server=$!
ask() { "$bin/$store-cli" -s "$socket" "$@"; }
for _ in {1..300}; do
    [ "$(ask ping 2>/dev/null || :)" != PONG ] || break
    if ! kill -0 "$server" 2>/dev/null; then
        echo "$store-server ended before it answered:" \
             "$(tail -n 1 "$home/log")" >&2
        exit 1
    fi
    sleep 0.1
done
[ "$(ask ping)" = PONG ] || {
    echo "$store-server did not answer in 30 s: $(tail -n 1 "$home/log")" >&2
    exit 1
}
load() { # TEST REQUESTS
    # In the background: the shell hears a signal only while it waits.
    "$bin/$store-benchmark" -s "$socket" -t "$1" -d "$size" -c "$clients" \
        -n "$2" -r 1000 --csv &
    client=$!
    wait "$client"
    client=
}
# Twenty sets for each of the thousand keys leave none of them out.
load set 20000 >"$home/fill"
ask config resetstat >/dev/null
load "$operation" "$requests" >"$home/csv"
info=$(ask info all | tr -d '\r')
value() { sed -n "s/^$1//p" <<<"$info" | head -n 1; }
version=$(value "${store}_version:")
calls=$(value "cmdstat_$operation:calls=")
echo "# store $store ${version:-$(value redis_version:)}"
echo "# operation $operation size $size calls ${calls%%,*}" \
     "misses $(value keyspace_misses:) evicted $(value evicted_keys:)"
cat "$home/csv"
kill -0 "$server" || { echo "$store-server died under load" >&2; exit 1; }
