#!/bin/bash
# tao_bench_client of DCPerf, as its run.py starts it in the folder of dcperf.sh. run.py
# reads neither exit code nor output: if the client ends before --test-time, a line about
# it is added to client.failed, where dcperf.sh finds it.
#
# DCPERF_CLIENT: the program
seconds=0 host='' port=''
for ((n = 1; n <= $#; n++)); do
    case ${!n} in
        --test-time=*) seconds=${!n#*=} ;;
        -s) ((n += 1)); host=${!n} ;;
        -p) ((n += 1)); port=${!n} ;;
    esac
done
# The client of 2025-06 does not end the prefix of its keys, and reads on behind it.
# Without TLS other data is there: two clients ask for different keys, and the hit ratio
# is 0.44. glibc sets new memory to the complement of this byte.
case " $* " in *' --tls '*) ;; *) export MALLOC_PERTURB_=255 ;; esac

# Sets REPLY to a time in s that no step of the clock changes.
now() {
    read -r REPLY _ </proc/uptime
    REPLY=${REPLY%.*}
}

accepts() {
    # shellcheck disable=SC2188
    (: <>"/dev/tcp/$host/$port") 2>/dev/null
}

served=''
if accepts; then served=yes; fi
now
begin=$REPLY
words=client.words.$$
"$DCPERF_CLIENT" "$@" 2>"$words" &
pid=$! code=0
# run.py sends it to a client that takes too long.
trap 'kill "$pid"' TERM
wait "$pid" || code=$?
while kill -0 "$pid" 2>/dev/null; do wait "$pid" || code=$?; done
now
ran=$((REPLY - begin))
cat "$words" >&2
last=$(tr '\r' '\n' <"$words" | grep -v '^ *$' | tail -n 1 | cut -c1-300)
rm -f "$words"
# Times of whole seconds.
if [ "$code" = 0 ] && [ "$ran" -ge $((seconds - 1)) ]; then exit 0; fi
if accepts; then
    why="tao_bench_client ended with exit code $code"
elif [ -n "$served" ]; then
    why="the server on $host:$port ended"
else
    why="no server on $host:$port: tao_bench_client ended with exit code $code"
fi
echo "$why after $ran of $seconds s of a phase; the last line of the client: $last" \
    >>client.failed
exit "$code"
