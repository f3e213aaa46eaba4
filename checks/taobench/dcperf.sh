#!/bin/bash
# The servers or one client of a job of DCPerf's TaoBench:
#
#   dcperf.sh DCPERF FOLDER server SCRIPT OPTION...
#   dcperf.sh DCPERF FOLDER client NUMBER [OPTION...]
#
# DCPerf writes into its own folder. So each process has a new FOLDER with links to DCPERF.
# A client without options runs the commands that the script has written for it; with
# options it is `run.py client`. Clients wait until their server accepts connections.
set -eu
dcperf=$1 folder=$2 role=$3
shift 3

# Seconds that a client waits for its server.
limit=300

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
            *) ln -s "$path" "$folder/benchmarks/tao_bench" ;;
        esac
    done
    cd "$folder"
}

# The CPUs of this node, an interface, and its speed in Mb/s; -1: the kernel does not
# report it.
network() {
    local name=eth0
    while [ $# -gt 0 ]; do
        case $1 in
            --interface-name) name=${2-} ;;
            --interface-name=*) name=${1#*=} ;;
        esac
        shift
    done
    echo "$(nproc) $name $(cat "/sys/class/net/$name/speed" 2>/dev/null || echo -1)"
}

wait_for() {  # what command...
    local what=$1 deadline=$((SECONDS + limit))
    shift
    until "$@" 2>/dev/null; do
        if [ "$SECONDS" -gt "$deadline" ]; then
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
    network "$@" >network.txt
    hostname >host.new
    mv host.new host.txt
    exec "packages/tao_bench/$1" "${@:2}"
fi

number=$1
shift
# FOLDER of the server: it is the first program of the step.
server=${folder%.*.dcperf}.0.dcperf
wait_for "the script of the servers did not start" test -s "$server/host.txt"
host=$(<"$server/host.txt")
if [ $# -gt 0 ]; then
    wait_for "$host does not accept connections" accepts "$host" 11211
    exec packages/tao_bench/run.py client --server-hostname "$host" "$@"
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
for pid in "${pids[@]}"; do wait "$pid"; done
