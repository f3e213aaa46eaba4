#!/bin/bash
# Prints facts of this node, one per line: name, tab, value. A name may be
# repeated (devices). Only facts that two nodes of one kind share: no host
# name, address or serial number. Facts that are missing, or tools that do not
# answer in time, are left out. With FILE they are written there, when all are known.
#
#   facts.sh SCRATCH LAUNCHER [FILE]
scratch=${1:-${TMPDIR:-/tmp}} launcher=$2 file=${3-}
shopt -s nullglob
if [ -n "$file" ]; then
    draft=${file%/*}/.${file##*/}.$$
    exec >"$draft" 2>/dev/null </dev/null
    trap 'rm -f "$draft"' EXIT
    trap 'exit 1' TERM
fi

fact() {  # name value
    local value
    # One line, one blank between words.
    read -r -d '' -a value <<<"$2"
    if [ ${#value[@]} -gt 0 ]; then printf '%s\t%s\n' "$1" "${value[*]}"; fi
}

from() { local text=''; [ -r "$2" ] && text=$(<"$2") && fact "$1" "$text"; }

# What they say, once.
each() {  # name file...
    local name=$1 text; shift
    [ $# -gt 0 ] && text=$(cat "$@" | sort -u) && fact "$name" "$text"
}

say() { timeout 5 "$@" 2>/dev/null; }

module() { from "$1" "/sys/module/$2/version"; }

fact kernel "$(uname -r)"
fact architecture "$(uname -m)"
if [ -r /etc/os-release ]; then
    # shellcheck disable=SC1091
    fact os "$(. /etc/os-release && echo "$PRETTY_NAME")"
fi
awk -F': *' '
    { sub(/[ \t]+$/, "", $1) }
    $1 == "processor" { cpus++ }
    $1 == "model name" || $1 == "CPU part" { model[$2] }
    $1 == "microcode" { microcode[$2] }
    $1 == "stepping" { stepping[$2] }
    END {
        for (m in model) print "cpu\t" m
        for (m in microcode) print "microcode\t" m
        for (s in stepping) print "stepping\t" s
        print "cpus\t" cpus
    }' /proc/cpuinfo
awk '$1 == "MemTotal:" { printf "memory\t%.0f GiB\n", $2 / 2^20 }' \
    /proc/meminfo
nodes=(/sys/devices/system/node/node[0-9]*)
fact numa_nodes "${#nodes[@]}"
cpu=/sys/devices/system/cpu
each governor $cpu/cpu[0-9]*/cpufreq/scaling_governor
each frequency_driver $cpu/cpu[0-9]*/cpufreq/scaling_driver
from turbo_off $cpu/intel_pstate/no_turbo
from boost $cpu/cpufreq/boost
from smt $cpu/smt/control
from huge_pages /sys/kernel/mm/transparent_hugepage/enabled

for nic in /sys/class/net/*/device; do
    name=${nic%/device} name=${name##*/}
    driver=$(readlink "$nic/driver") driver=${driver##*/}
    speed=$(cat "${nic%/device}/speed" 2>/dev/null)
    [ "${speed:--1}" -gt 0 ] 2>/dev/null || speed='?'
    version=$(cat "/sys/module/$driver/version" 2>/dev/null)
    firmware=$(say ethtool -i "$name" | sed -n 's/^firmware-version: //p')
    fact nic "$name driver ${driver:-?}${version:+ $version} $speed Mb/s \
mtu $(<"${nic%/device}/mtu")${firmware:+ firmware $firmware}"
done
for hca in /sys/class/infiniband/*; do
    text=${hca##*/}
    for file in hca_type board_id fw_ver; do
        [ -r "$hca/$file" ] && text+=" $file $(<"$hca/$file")"
    done
    fact hca "$text"
    each "hca_rate" "$hca"/ports/*/rate
done
module mlx5_driver mlx5_core
module efa_driver efa
module cxi_driver cxi_ss1
module gpu_driver nvidia
module gpu_driver amdgpu
if command -v nvidia-smi >/dev/null; then
    while read -r line; do fact gpu "$line"; done < <(say nvidia-smi \
        --query-gpu=name,vbios_version,memory.total --format=csv,noheader)
fi
for card in /sys/class/drm/card*/device; do
    [ "$(cat "$card/vendor" 2>/dev/null)" = 0x1002 ] || continue
    fact gpu "$(cat "$card/product_name" 2>/dev/null) \
device $(<"$card/device") vbios $(cat "$card/vbios_version" 2>/dev/null)"
done
from rocm /opt/rocm/.info/version

fabric=$(say fi_info --version | sed -n 's/^libfabric: *//p')
if [ -z "$fabric" ]; then
    library=$(PATH=$PATH:/sbin:/usr/sbin say ldconfig -p |
        sed -n 's/.*libfabric\.so\.1 .*=> //p' | head -n 1)
    library=$(readlink -f "${library:-/none}")
    fabric=${library##*libfabric.so.}
    [ "$fabric" != "$library" ] || fabric=''
fi
fact libfabric "$fabric"
fact ucx "$(say ucx_info -v | sed -n 's/.*[Ll]ibrary version: *//p' |
    head -n 1)"
# Connections that may wait at a listening socket, and those in the making.
for name in core/somaxconn ipv4/tcp_max_syn_backlog; do
    fact "${name#*/}" "$(say cat "/proc/sys/net/$name")"
done
if command -v "${launcher:-none}" >/dev/null; then
    fact launcher "$launcher: $(say "$launcher" --version </dev/null |
        sed -n '/[0-9]\.[0-9]/{s/^[[:space:]]*//p;q}')"
fi

# Without what is of one node only: addresses, paths, sizes of this boot.
mount=$(say findmnt -n -o FSTYPE,OPTIONS,SOURCE -T "$scratch")
if [ -n "$mount" ]; then
    read -r type options source <<<"$mount"
    options=$(tr ',' '\n' <<<"$options" | grep -E '^[a-z0-9_]+$|^(vers|'\
'rsize|wsize|proto|nconnect|stripe|data|compress|size|huge)=' | paste -sd,)
    kind=''
    device=$(readlink -f "${source%%[*}")
    block=$(readlink -f "/sys/class/block/${device##*/}")
    [ -e "$block/queue" ] || block=${block%/*}
    if [ -r "$block/queue/rotational" ]; then
        kind=' on a solid-state disk'
        [ "$(<"$block/queue/rotational")" = 0 ] || kind=' on a rotating disk'
        case ${block##*/} in nvme*) kind=' on NVMe' ;; esac
    fi
    fact scratch "$type ($options)$kind"
fi
# Here, because nothing else runs once per session on each node.
timeout 5 "${BASH_SOURCE[0]%/*}/remove_leftovers.sh"
if [ -n "$file" ]; then mv "$draft" "$file"; fi
exit 0
