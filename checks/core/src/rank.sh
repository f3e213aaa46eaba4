#!/bin/bash
# Runs the program of a rank (program.sh). Before, it prints the host of the rank, the
# CPUs that it may use, their cores (the first CPU of each) and sockets, so that
# they can be compared with the request:
#
#   rank.sh PROGRAMS SCRATCH LAUNCHER COMMAND...
#
#   plumbline-rank HOST CPUS CORES SOCKETS    e.g. n1 0-1,64-65 0,1 0
#   plumbline-gpu HOST ADDRESS CPUS NEAR  only if PLUMBLINE_GPUS is cuda or rocm;
#                                         NEAR: CPUs of the GPU's NUMA node
#
# The first rank of a node starts the observer of the node (PROGRAMS/observe) and
# leaves its facts in PROGRAMS/facts (facts.sh).
#
# OMB chooses the visible GPU with the number LOCAL_RANK, which srun and PALS do
# not set: all ranks would use the first GPU. So it is set here.
#
# PLUMBLINE_RANK_CPUS has the CPUs of each rank of a node (extra gpu_cores), e.g.
# 0-13:14-27: the launcher binds no rank, and each rank binds itself.
#
programs=$1 scratch=$2 launcher=$3
shift 3
# Signals of the launcher, which program.sh explains.
if [ "$1" != --forwarded ]; then
    exec "$programs/observe" --forward "$0" "$programs" "$scratch" "$launcher" \
        --forwarded "$@"
fi
shift
# By default CUDA numbers GPUs by speed, and nvidia-smi by address.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
# Slurm's is last, because mpirun in a batch job passes on that of the script.
for name in OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID PALS_LOCAL_RANKID \
    MV2_COMM_WORLD_LOCAL_RANK MVP_COMM_WORLD_LOCAL_RANK FLUX_TASK_LOCAL_ID \
    SLURM_LOCALID; do
    if [ -n "${!name}" ]; then
        export LOCAL_RANK=${!name}
        break
    fi
done
if [ -n "$PLUMBLINE_RANK_CPUS" ]; then
    IFS=: read -ra near <<<"$PLUMBLINE_RANK_CPUS"
    if [ -z "$LOCAL_RANK" ]; then
        echo "gpu_cores: the launcher does not pass a rank its number on the node" \
            "($0 has the variables of known launchers)" >&2
        exit 1
    fi
    error=$(taskset -cp "${near[LOCAL_RANK]}" $$ 2>&1) || {
        echo "gpu_cores: rank $LOCAL_RANK of the node cannot run on the CPUs" \
            "${near[LOCAL_RANK]}: ${error##*$'\n'}" >&2
        exit 1
    }
fi
read -r host </proc/sys/kernel/hostname
cpus='' cores=, sockets=,
mapfile -t lines </proc/self/status
for line in "${lines[@]}"; do
    if [[ $line == Cpus_allowed_list:* ]]; then cpus=${line##*[[:space:]]}; fi
done
IFS=,
for part in $cpus; do
    for ((cpu = ${part%-*}; cpu <= ${part#*-}; cpu++)); do
        first=$cpu
        # A kernel that does not say (containers): every CPU is a core.
        siblings=/sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list
        if [ -r "$siblings" ]; then read -r first <"$siblings"; fi
        first=${first%%[,-]*}
        case $cores in *",$first,"*) ;; *) cores+=$first, ;; esac
        socket=/sys/devices/system/cpu/cpu$cpu/topology/physical_package_id
        if [ -r "$socket" ]; then
            read -r socket <"$socket"
            case $sockets in *",$socket,"*) ;; *) sockets+=$socket, ;; esac
        fi
    done
done
unset IFS
cores=${cores#,} sockets=${sockets#,}
printf 'plumbline-rank %s %s %s %s\n' "$host" "$cpus" "${cores%,}" "${sockets%,}" >&2
visible='' address=''
case $PLUMBLINE_GPUS in
cuda)
    IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
    if [ -z "$CUDA_VISIBLE_DEVICES" ]; then
        mapfile -t visible < <(timeout 20 nvidia-smi --query-gpu=index \
            --format=csv,noheader)
    fi
    ;;
rocm)
    IFS=, read -ra visible <<<"${ROCR_VISIBLE_DEVICES:-$HIP_VISIBLE_DEVICES}"
    if [ -z "${visible[*]}" ]; then
        mapfile -t visible < <(timeout 20 rocm-smi --showbus |
            sed -n 's/^GPU\[\([0-9]*\)\].*/\1/p')
    elif [ ${#visible[@]} = 1 ]; then
        # The launcher gave this rank one GPU, which may have another number
        # for rocm-smi.
        visible=''
    fi
    ;;
esac
if [ -n "${visible[*]}" ] && [ -n "$LOCAL_RANK" ]; then
    gpu=${visible[LOCAL_RANK % ${#visible[@]}]}
    case $PLUMBLINE_GPUS in
    cuda) smi=(nvidia-smi -i "$gpu" --query-gpu=pci.bus_id --format=csv,noheader) ;;
    rocm) smi=(rocm-smi -d "$gpu" --showbus) ;;
    esac
    address=$(timeout 20 "${smi[@]}" | grep -io -m1 '[0-9a-f]\{4,8\}:[0-9a-f:]*\.[0-9]')
fi
if [ -n "$PLUMBLINE_GPUS" ]; then
    # The domain of an address has eight digits for nvidia-smi, four for Linux.
    near=${address,,} near=/sys/bus/pci/devices/${near: -12}/local_cpulist
    if [ -r "$near" ]; then read -r near <"$near"; else near=''; fi
    printf 'plumbline-gpu %s %s %s %s\n' "$host" "${address:--}" "$cpus" "$near" >&2
fi
observer=''
if [ "${LOCAL_RANK:-0}" = 0 ]; then
    # Some launchers signal all processes of a rank.
    exec {others}> >(trap '' TERM INT HUP QUIT USR1 USR2; exec "$programs/observe")
    observer=$!
fi
# shellcheck source=checks/core/src/program.sh
. "${BASH_SOURCE[0]%/*}/program.sh" "$programs" "$@"
if [ -n "$observer" ]; then
    exec {others}>&-
    wait "$observer"
    facts=$programs/facts/$host
    if [ -z "$signalled" ] && [ ! -e "$facts" ]; then
        timeout 20 "${BASH_SOURCE[0]%/*}/facts.sh" "$scratch" "$launcher" "$facts"
    fi
fi
exit "$code"
