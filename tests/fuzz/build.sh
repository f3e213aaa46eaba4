#!/bin/sh
# Builds a fuzz target: build.sh TARGET OUT, with $CC (cc). FUZZER=libfuzzer
# takes clang's; else the mutator that is here.
set -eu
target=$1 out=$2
here=$(dirname "$0")
load=$here/../../checks/loadgen/src tao=$here/../../checks/taobench/src
common=$here/../../checks/core/src/common
sanitize=address,undefined driver=$here/mutate.c
if [ "${FUZZER:-}" = libfuzzer ]; then
    sanitize=fuzzer,$sanitize driver=
fi
wrap= sources=
add() { for name; do wrap="$wrap,--wrap=$name"; done; }
case $target in
ai) sources=$here/../../checks/stores/src/ai/*.c ;;
tao)
    add queue_miss poll_sleep link_close link_read link_write
    sources="$tao/cache.c $tao/values.c $tao/slow.c $tao/options.c
        $tao/stats.c $tao/threads.c $common/net.c $common/options.c
        $common/program.c" ;;
replies | probe | files)
    add _exit exit pthread_mutex_lock getaddrinfo freeaddrinfo
    sources="$here/harness.c $load/engine.c $load/histogram.c
        $load/protocol.c $load/report.c $common/net.c $common/program.c"
    case $target in
    replies) sources="$sources $load/draw.c $load/options.c $common/cluster.c
        $common/options.c $common/resp.c $common/service.c" ;;
    probe) add start_connect link_read link_write link_write_all link_close
        sources="$sources $load/draw.c $load/options.c $common/options.c
        $common/service.c" ;;
    files) sources="$sources $common/cluster.c $common/resp.c" ;;
    esac ;;
*) echo "build.sh: no target $target" >&2; exit 2 ;;
esac
# shellcheck disable=SC2086
${CC:-cc} -g -O1 -std=gnu11 -pthread -Wall -Wextra -Werror \
    -fsanitize=$sanitize -fno-sanitize-recover=all \
    ${CFLAGS:-} -o "$out" "$here/$target.c" $driver $sources \
    ${wrap:+"-Wl$wrap"} -lm
