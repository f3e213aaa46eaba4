#!/bin/bash
# Runs Optcast's test/run.py in a folder of links with the layout of its repository:
#
#   original.sh PREFIX PYTHON LOGS ALL_REDUCE OPTION...
#
# PREFIX has the programs, as built or as installed. The stage directory has config.yaml.
# LOGS is the folder for setting.yaml, client.log and server.log. ALL_REDUCE is the path of
# all_reduce_perf, or empty.
set -eu
prefix=$1 python=$2 logs=$3 all_reduce=$4
shift 4
shared=$logs.shared

link() {  # name folder: the file below PREFIX, if there is one
    local place
    for place in bin lib lib64 . share/optcast test reduction_server/target/release \
        nccl_plugin/src/.libs; do
        if [ -f "$prefix/$place/$1" ]; then
            mkdir -p "$shared/$2"
            ln -sf "$prefix/$place/$1" "$shared/$2/$1"
            return
        fi
    done
}

link run.py test
link optcast-reduction-server reduction_server/target/release
link libnccl-net.so nccl_plugin/src/.libs
if [ -n "$all_reduce" ]; then
    mkdir -p "$shared/test/nccl-tests/build"
    ln -sf "$all_reduce" "$shared/test/nccl-tests/build/all_reduce_perf"
fi
cp config.yaml "$shared"
# A launcher has started this script as a rank: without these variables, mpirun starts a
# program of its own. A nested mpirun of Open MPI 4 fails with them.
for name in $(compgen -e); do
    case $name in
        OMPI_MCA_orte_* | OMPI_MCA_ess* | OMPI_MCA_pmix*) unset "$name" ;;
        OMPI_MCA_* | OMPI_ALLOW_*) ;;
        OMPI_* | PMIX_* | PRTE_* | PMI_* | MPI_LOCAL*) unset "$name" ;;
    esac
done
export SLURM_OVERLAP=1
# The plots of run.py need no display.
export MPLBACKEND=agg
export LD_LIBRARY_PATH=$shared/nccl_plugin/src/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$python" "$shared/test/run.py" --shared-dir "$shared" --config "$shared/config.yaml" \
    --log-dir "$logs" --python "$python" "$@"
