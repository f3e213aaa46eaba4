#!/bin/bash
# The servers or one client of a job of DCPerf's TaoBench:
#
#   dcperf.sh DCPERF FOLDER server SECONDS SCRIPT OPTION...
#   dcperf.sh DCPERF FOLDER client NUMBER [OPTION...]
#
# DCPerf writes into its own folder. So each process has a new FOLDER with links to DCPERF.
# A client without options runs the commands that the script has written for it; with
# options it is `run.py client`. Clients wait until their server accepts connections.
#
# DCPerf's scripts go on if a program that they started fails. So this script prints
# `failed: TEXT` and ends if the servers end before SECONDS, which warm-up and test last
# at least, or a client before its own time (dcperf_client.sh).
set -eu
home=${BASH_SOURCE[0]%/*}
dcperf=$1 folder=$2 role=$3
shift 3

# Seconds that a client waits for its server; more seconds than a job has.
limit=300 forever=1000000000

make_folder() {
    local path
    mkdir -p "$folder/packages" "$folder/benchmarks/tao_bench"
    for path in "$dcperf"/{benchpress,benchpress_cli.py,benchmark_installs.txt}; do
        if [ -e "$path" ]; then ln -s "$path" "$folder"; fi
    done
    ln -s "$dcperf/packages/tao_bench" "$folder/packages"
    for path in "$dcperf"/benchmarks/tao_bench/*; do
        case $path in
            *.csv | */client_instructions.txt | */perf.data) ;;
            */tao_bench_client) ;;
            *) ln -s "$path" "$folder/benchmarks/tao_bench" ;;
        esac
    done
    export DCPERF_CLIENT=$dcperf/benchmarks/tao_bench/tao_bench_client
    ln -s "$home/dcperf_client.sh" "$folder/benchmarks/tao_bench/tao_bench_client"
    cd "$folder"
}

# The commit of DCPerf; without git, a checksum of its scripts and programs.
version() {
    local text=''
    if [ -e "$dcperf/.git" ]; then
        text=$(git -c safe.directory='*' -C "$dcperf" log -1 --format=%cs-%h \
            2>/dev/null) || text=''
    fi
    if [ -z "$text" ]; then
        text=sha256-$(cat packages/tao_bench/*.py \
            benchmarks/tao_bench/tao_bench_server "$DCPERF_CLIENT" 2>/dev/null |
            sha256sum | cut -c1-8)
    fi
    echo "$text"
}

# Sets REPLY to a time in s that no step of the clock changes.
now() {
    read -r REPLY _ </proc/uptime
    REPLY=${REPLY%.*}
}

fail() {  # text
    echo "failed: $*"
    # All processes of DCPerf are in the process group of this script (program.sh).
    trap '' TERM
    kill -TERM 0
    exit 1
}

# Fails if a client in FOLDER ended too early. At the end of run_standalone.py clients
# lose their servers.
check_clients() {  # seconds that this script runs, of which the servers must serve
    local line
    if [ "$1" -ge "$2" ]; then
        line=$(grep -m 1 '^tao_bench_client ' client.failed)
    else
        line=$(head -n 1 client.failed)
    fi 2>/dev/null || line=''
    if [ -n "$line" ]; then fail "$line"; fi
}

# Waits for programs; sets REPLY to the time that this took.
await() {  # seconds pid...
    local seconds=$1 begin pid code
    shift
    now
    begin=$REPLY
    for pid; do
        while kill -0 "$pid" 2>/dev/null; do
            now
            check_clients $((REPLY - begin)) "$seconds"
            sleep 0.5
        done
        code=0
        wait "$pid" || code=$?
        if [ "$code" != 0 ]; then exit "$code"; fi
    done
    now
    REPLY=$((REPLY - begin))
    check_clients "$REPLY" "$seconds"
}

wait_for() {  # what command...
    local what=$1 deadline
    shift
    now
    deadline=$((REPLY + limit))
    until "$@" 2>/dev/null; do
        now
        if [ "$REPLY" -gt "$deadline" ]; then
            echo "failed: $what after $limit s"
            return 1
        fi
        sleep 1
    done
}

accepts() {  # host port
    # shellcheck disable=SC2188
    (: <>"/dev/tcp/$1/$2")
}

# The lines below "Client NUMBER:" in the file of the script.
commands_of() {  # number file
    sed -n "/^Client $1:/,/^\$/p" "$2" | sed 1d | grep .
}

field() {  # name line: a value of the JSON in a command
    sed -E "s/.*\"$1\": \"?([^\",}]*).*/\1/" <<<"$2"
}

make_folder
if [ "$role" = server ]; then
    seconds=$1 script=$2
    shift 2
    version >version.txt
    hostname >host.new
    mv host.new host.txt
    "packages/tao_bench/$script" "$@" &
    await "$seconds" $!
    if [ "$REPLY" -lt "$seconds" ]; then
        last=$(tail -qn 1 tao-bench-server-*.log 2>/dev/null | tail -n 1) || last=''
        fail "the servers of $script ended after $REPLY of at least $seconds s; their" \
            "last line: $last"
    fi
    exit 0
fi

number=$1
shift
# FOLDER of the server: it is the first program of the step.
server=${folder%.*.dcperf}.0.dcperf
wait_for "the script of the servers did not start" test -s "$server/host.txt"
host=$(<"$server/host.txt")
if [ $# -gt 0 ]; then
    wait_for "$host does not accept connections" accepts "$host" 11211
    packages/tao_bench/run.py client --server-hostname "$host" "$@" &
    await "$forever" $!
    exit 0
fi
instructions=$server/benchmarks/tao_bench/client_instructions.txt
wait_for "the script of the servers wrote no commands for client $number" \
    commands_of $((number + 1)) "$instructions" >/dev/null
pids=()
while read -r line; do
    host=$(field server_hostname "$line") port=$(field server_port_number "$line")
    wait_for "$host does not accept connections on port $port" accepts "$host" "$port"
    sh -c "$line" >"client_${#pids[@]}.log" 2>&1 &
    pids+=($!)
done <<<"$(commands_of $((number + 1)) "$instructions")"
await "$forever" "${pids[@]}"
