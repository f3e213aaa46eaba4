# Functions of job scripts with servers and clients (bash). checks/services/script.py
# writes the commands of a test case, which call these functions:
#
#   run_and_stop                  one repetition; measure.sh calls it
#     run_services()                  of the test case
#       begin_services                  folder of secrets, password
#       watch LAUNCHER...               the observer of the nodes
#       server INDEX LAUNCHER...        a server, in the background
#       wait_for_servers LIMIT COUNT    until each has printed its line
#       begin_step NAME LIMIT [gate]    a phase of the clients
#       client NUMBER NAME RANKS LAUNCHER...
#                                       a client or an MPI program, in the background
#       end_step                        until all clients have ended
#       finish_services                 record and output
#
# Each function returns 1 after a line `service: ...` on standard error. Files begin
# with $PLUMBLINE_RUN (run.REPETITION):
#   .server0.line .server0.log        line and output of a server
#   .STEP.0.out .STEP.0.err           output of a client
#   .record                           servers, clients and steps (parser.py)
#
# Before: $python, $services (folder of this file), $programs (that of observe.c), and
# the array `tied`: words in front of a program that ends with its parent.
umask 077
# Without site-packages and variables of Python: only the standard library is needed.
python=("$python" -S -E "$services/node.py")
# It ends with the job script, or with the launcher's daemon on its node.
node=("${tied[@]}" "${python[@]}")
# In front of a program of the job: reports its end and its CPU time.
program=("$services/../core/src/program.sh" "$programs")
ask=("${program[@]}" "${python[@]}")
# In front of a launcher (script.py).
guard=(setsid "$programs/observe" --tied 15 0)
# Seconds for servers to end after SIGUSR1 and all processes after SIGTERM, and to name
# the cause of a failure.
usr1_timeout=5 stop_timeout=12 cause_timeout=2

# The nodes of the job, one per line. PLUMBLINE_NODES="n1 n2" replaces those of the
# scheduler; the script must run on the first one.
nodes() {  # [group of a heterogeneous job]...
    if [ -n "${PLUMBLINE_NODES-}" ]; then
        # shellcheck disable=SC2086
        printf '%s\n' $PLUMBLINE_NODES
    elif [ -n "${SLURM_JOB_NODELIST-}" ]; then
        local group list
        for group in "${@:-}"; do
            list=SLURM_JOB_NODELIST_HET_GROUP_$group
            scontrol show hostnames "${!list-$SLURM_JOB_NODELIST}"
        done
    elif [ -n "${PBS_NODEFILE-}" ]; then
        awk '!seen[$1]++ { print $1 }' "$PBS_NODEFILE"
    else
        hostname
    fi
}

# Sets REPLY to the time in seconds since 1970; bash 4 has no such variable.
now() { REPLY=${EPOCHREALTIME-$(date +%s.%N)}; }

# Waits for 50 ms, without a new process. (`read -t` would now and then block signals at
# random, a fault of bash 5.2.)
pause() { read -ru "$ticks" || sleep 0.05; }

fail() {
    echo "service: $*" >&2
    return 1
}

begin_services() {
    if [ "${#nodes[@]}" -lt "$node_count" ]; then
        fail "servers and clients need $node_count nodes, but the job has" \
            "${#nodes[@]} (${nodes[*]}): run the job script in a larger job"
        return
    fi
    # A trap may run in a function without standard error.
    exec {messages}>&2
    run=$PWD/$PLUMBLINE_RUN stopped='' outputs=()
    servers=() clients=() watchers=() counted='' host=() port=() place=()
    secrets=$(mktemp -d "$PWD/secrets.private.XXXXXX") || {
        fail "cannot create a folder for the secrets of the run in $PWD"
        return
    }
    note "$secrets"
    exec {ticks}< <(exec "$programs/observe" --tied 9 $$ "$programs/observe" --tick 50)
    exec {lock}>"$secrets/lock"
    hostname >&"$lock"
    flock -n "$lock"
    if [ -n "$with_password" ]; then
        head -c 32 /dev/urandom | sha256sum | cut -c1-48 >"$secrets/password"
    fi
    rm -f "$run".*.line "$run.record"
    : >"$run.observers"
}

# Notes a launcher or a folder for remove_session_folders.sh; on a full disk only a
# folder is left.
note() {  # pid or path
    if [ -n "${PLUMBLINE_LAUNCHERS-}" ]; then echo "$1" >>"$PLUMBLINE_LAUNCHERS"; fi
} 2>/dev/null

watch() {
    "$@" >>"$run.observers" </dev/null &
    watchers+=("$!")
    note "$!"
}

# Whether the observer of each node waits for its signal.
observers_are_ready() {
    local line count=0
    while read -r line; do ((count += 1)); done <"$run.observers"
    [ "$count" -ge "$node_count" ]
}

server() {
    local index=$1
    shift
    "$@" >"$run.server$index.line" 2>"$run.server$index.log" </dev/null &
    servers[index]=$!
    note "$!"
}

# Whether a process of this script runs. In a trap, bash does not take notice of the end
# of its processes, and `kill -0` succeeds for them.
running() {
    local text
    read -r text <"/proc/$1/stat" && [[ ${text##*) } == [!ZX]" $$ "* ]]
} 2>/dev/null

# Sets REPLY to the first line of a file that begins so, without this beginning.
# It starts no process. 1: there is none.
first_line() {  # beginning file
    local beginning=$1
    while read -r; do
        if [ "${REPLY#"$beginning"}" != "$REPLY" ]; then
            REPLY=${REPLY#"$beginning"}
            return
        fi
    done <"$2"
    return 1
} 2>/dev/null

# Fails if a server or an observer has ended or reported a failure.
check_servers() {
    local index pid
    for index in "${!servers[@]}"; do
        if ! first_line 'failed: ' "$run.server$index.line"; then
            if running "${servers[index]}"; then continue; fi
            wait "${servers[index]}"
            REPLY="the launcher of server $index ended with exit code $?"
        fi
        fail "$REPLY$(disk_hint); the last lines of $run.server$index.log: $(
            last_lines "$run.server$index.log")"
        return
    done
    for pid in "${watchers[@]}"; do
        if running "$pid"; then continue; fi
        wait "$pid"
        fail "the observers of the nodes ended early with exit code $?; read the" \
            'output of their launcher above'
        return
    done
}

last_lines() {  # file
    local text own
    text=$(grep -v '^plumbline-\|^ *$' "$1")
    # A launcher's report of a failed rank follows the last words of the rank.
    own=$(sed '/^[-=]\{40,\}$/,$d; /^srun: /d; /^slurmstepd: /d' <<<"$text")
    tail -n 3 <<<"${own:-$text}" | paste -sd'|' | sed 's/|/ | /g'
}

wait_for_servers() {
    local limit=$1 index deadline=$((SECONDS + $1)) separator=''
    counted='['
    if [ "${#servers[@]}" != "$2" ]; then
        fail "the job script starts ${#servers[@]} of $2 servers: see its lines" \
            '`server NUMBER ...`'
        return
    fi
    for index in "${!servers[@]}"; do
        until first_line '{' "$run.server$index.line"; do
            check_servers || return
            if [ "$SECONDS" -gt "$deadline" ]; then
                fail "server $index was not ready in $limit s; the last lines of" \
                    "$run.server$index.log: $(last_lines "$run.server$index.log")"
                return
            fi
            pause
        done
        echo "# service server {$REPLY" >>"$run.record"
        host[index]=$(field address) port[index]=$(field port)
        place[index]=$(field node)
        counted+=$separator${REPLY##*'"counters": '}
        counted=${counted%\}} separator=', '
    done
    counted+=']'
    until observers_are_ready; do
        check_servers || return
        if [ "$SECONDS" -gt "$deadline" ]; then
            fail "the observers of the nodes did not start in $limit s; read the" \
                'output of their launcher above'
            return
        fi
        pause
    done
}

field() {  # name: the value of a field in REPLY
    local text=${REPLY#*"\"$1\": "}
    text=${text%%[,\}]*} text=${text%\"}
    printf '%s' "${text#\"}"
}

# Writes a file with servers and password, for clients.
service_file() {  # name index...
    local name=$1 index
    shift
    {
        for index; do
            if [ "${port[index]}" = 0 ]; then
                echo "server unix:${host[index]}"
            else
                echo "server ${host[index]} ${port[index]}"
            fi
        done
        if [ -n "$server_user" ]; then echo "user $server_user"; fi
        if [ -n "$with_password" ]; then
            echo "password $(<"$secrets/password")"
        fi
        if [ -n "$is_cluster" ]; then echo cluster; fi
        if [ -n "$gate" ]; then echo gate; fi
    } >"$secrets/$name"
}

# Asks all servers (checks/services/ask.py). A Unix socket is reached on its own node
# only.
ask() {  # action
    local index text separator='['
    if ! declare -F on_node >/dev/null; then
        "${ask[@]}" "$1" "$run" "$secrets" "${asked[@]}" "${!servers[@]}"
        return
    fi
    for index in "${!servers[@]}"; do
        text=$(on_node "$index" "${ask[@]}" "$1" "$run" "$secrets" "${asked[@]}" \
            "$index") || { echo "$text"; return 1; }
        if [ -n "$text" ]; then
            printf '%s%s' "$separator" "${text:1:-1}"
            separator=,
        fi
    done
    if [ "$separator" = , ]; then echo ']'; fi
}

form_cluster() {
    local text
    text=$(ask cluster) || { fail "the servers cannot form a cluster: $text"; return; }
    counted=''
}

begin_step() {  # name limit [gate]: the clients start together
    local index
    step=$1 step_limit=$2 gate=${3-} clients=() gates=() names=() ranks=()
    service_file service "${!host[@]}"
    for index in "${!host[@]}"; do
        service_file "service$index" "$index"
        service_file "service.${place[index]}" "$index"
    done
    # Those after the step before it, if that has just ended.
    if [ -z "$counted" ]; then count || return; fi
    before=$counted files=() errors=()
    now
    began=$REPLY
}

client() {
    local number=$1 name=$2 base=$run.$step.$1
    ranks[number]=$3
    shift 3
    printf '+' >&2
    printf ' %q' "$@" >&2
    echo >&2
    if [ -n "$gate" ]; then
        mkfifo "$secrets/$step.$number"
        exec {gates[number]}<>"$secrets/$step.$number"
        "$@" >"$base.out" 2>"$base.err" <"$secrets/$step.$number" &
    else
        "$@" >"$base.out" 2>"$base.err" </dev/null &
    fi
    clients[number]=$! names[number]=$name
    note "$!"
    files+=("$base.out") errors+=("$base.err")
}

end_step() {  # [check]: its output is not part of the result
    local number deadline=$((SECONDS + step_limit)) closed=${#gates[@]} code
    while [ ${#clients[@]} -gt 0 ]; do
        if [ "$closed" -gt 0 ]; then open_gates; fi
        for number in "${!clients[@]}"; do
            if running "${clients[number]}"; then continue; fi
            wait "${clients[number]}"
            code=$?
            unset "clients[number]"
            if [ "$code" != 0 ]; then
                fail_of_client "$number" "$code"
                return
            fi
        done
        check_servers || return
        if [ "$SECONDS" -gt "$deadline" ]; then
            fail "step $step: $(join ', ' "${names[@]}") did not" \
                "$([ "$closed" = 0 ] && echo end || echo become ready) in $step_limit s"
            return
        fi
        if [ ${#clients[@]} -gt 0 ]; then pause; fi
    done
    now
    local ended=$REPLY
    check_ranks client started || return
    check_ranks end 'reported their end; find what killed the others' || return
    if [ -z "${1-}" ]; then outputs=("${files[@]}"); fi
    count || return
    {
        sed -n "s/.*plumbline-client /# service client $step /p" "${errors[@]}"
        printf '# service step {"name": "%s", "began": %s, "ended": %s, ' "$step" \
            "$began" "$ended"
        printf '"before": %s, "after": %s}\n' "$before" "$counted"
    } >>"$run.record"
}

# Each process reports its CPUs (node.py) and its end (program.sh), because a launcher
# may end with 0 although a process is missing.
check_ranks() {  # kind of line, what the processes did
    local number reports
    for number in "${!ranks[@]}"; do
        reports=$(grep -c "plumbline-$1 " "$run.$step.$number.err")
        if [ "$reports" != "${ranks[number]}" ]; then
            fail "step $step: $reports of ${ranks[number]} processes of" \
                "${names[number]} $2"
            return
        fi
    done
}

join() {  # separator word...
    local separator=$1 text=$2
    shift 2
    printf '%s' "$text" "${@/#/$separator}"
}

# Lets all clients start when each has reported that it waits.
open_gates() {
    local number
    for number in "${!gates[@]}"; do
        first_line ready "$run.$step.$number.err" || return 0
    done
    for number in "${!gates[@]}"; do
        echo go >&"${gates[number]}"
        exec {gates[number]}>&-
    done
    now
    gates=() closed=0 began=$REPLY
}

# Sets `counted` to the counters of all servers.
count() {
    counted=$(ask counters) && return
    find_dead_server || return
    fail "${counted:-the counters of the servers cannot be read; read the lines above}"
}

# A server that died fails its clients, too: it is the cause to name.
find_dead_server() {
    local deadline=$((SECONDS + cause_timeout))
    while [ "$SECONDS" -lt "$deadline" ]; do
        check_servers || return
        pause
    done
}

fail_of_client() {  # number code
    local how="ended with exit code $2"
    # Some launchers have larger exit codes of their own.
    if [ "$2" -gt 128 ] && [ "$2" -le 192 ]; then
        how="was killed by signal $(($2 - 128))"
    fi
    find_dead_server || return
    if first_line 'failed: ' "$run.$step.$1.out"; then
        fail "$REPLY"
    else
        fail "${names[$1]} $how; the last lines of" \
            "$run.$step.$1.err: $(last_lines "$run.$step.$1.err")"
    fi
}

# The servers end also if a step fails: measure.sh waits for the launchers. The check
# records servers that did not end by themselves (service.py).
run_and_stop() {
    local index
    run_services
    local code=$?
    stop_services
    if [ "$code" = 0 ]; then
        for index in "${!servers[@]}"; do
            first_line stopped "$run.server$index.line" ||
                echo "plumbline-killed $index" >&2
        done
    fi
    return "$code"
}

# That the disk of a server is full, by its own words: it may have removed its file.
disk_hint() {
    local index
    for index in "${!servers[@]}"; do
        if tail -n 20 "$run.server$index.log" |
            grep -qE 'No space left|[Qq]uota exceeded|Short write'; then
            first_line '{' "$run.server$index.line" || return
            printf '; the disk of %s on %s is full: free space there, or set another %s' \
                "$(field scratch)" "$(field node)" "scratch in the site's system.py"
            return
        fi
    done
}

finish_services() {
    local text pid
    if [ "${asked[2]}" != off ]; then
        text=$(ask saved) || { fail "$text$(disk_hint)"; return; }
    fi
    check_servers || return
    # The observers end before the servers, and count their CPU time.
    kill -USR1 "${watchers[@]}"
    have_ended "$stop_timeout" "${watchers[@]}" || {
        fail "the observers of the nodes did not end in $stop_timeout s"
        return
    }
    for pid in "${watchers[@]}"; do
        wait "$pid" || {
            fail "the observers of the nodes ended with exit code $?"
            return
        }
    done
    watchers=()
    cat "$run.record" "${outputs[@]}"
    grep -hE '^plumbline-(end|left) ' "$run".*.err >&2
    return 0
}

# Stops everything. Launchers pass SIGUSR1 on, and servers then end by themselves.
# Then one SIGTERM to each launcher, because a second one makes some of them leave
# processes behind.
stop_services() {
    trap '' TERM INT HUP
    if [ -n "${stopped-yes}" ]; then return; fi
    stopped=yes
    local pid
    local serving=("${watchers[@]}" "${servers[@]}")
    local all=("${clients[@]}" "${serving[@]}")
    for pid in "${serving[@]}"; do kill -USR1 "$pid"; done
    for pid in "${clients[@]}"; do kill -TERM "$pid"; done
    rm -rf "$secrets"
    if ! have_ended "$usr1_timeout" "${all[@]}"; then
        for pid in "${serving[@]}"; do kill -TERM "$pid"; done
        have_ended "$stop_timeout" "${all[@]}"
    fi
    for pid in "${all[@]}"; do
        kill -KILL "$pid"
        wait "$pid"
    done
    # Their remote shells wait for a node that was lost.
    if [ "${#watchers[@]}" -gt 0 ]; then end_leftovers >/dev/null; fi
    exec {lock}>&- {ticks}<&- {messages}>&-
    messages=2
    trap terminated TERM INT HUP
} 2>/dev/null

have_ended() {  # seconds pid...
    local pid deadline=$((SECONDS + $1))
    shift
    for pid; do
        while running "$pid"; do
            if [ "$SECONDS" -ge "$deadline" ]; then return 1; fi
            pause
        done
    done
}

terminated() {
    fail 'the job script was ended by SIGTERM, sent because of the time limit, a' \
        'cancelled job or a failed node' 2>&"${messages:-2}"
    exit 143
}
trap stop_services EXIT
trap terminated TERM INT HUP
