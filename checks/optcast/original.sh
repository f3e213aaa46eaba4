#!/bin/bash
# Runs Optcast's test/run.py in a folder of links with the layout of its repository:
#
#   original.sh LOGS PYTHON RUN_PY SERVER PLUGIN ALL_REDUCE OPTION...
#
# LOGS is the folder for setting.yaml, client.log and server.log. RUN_PY, SERVER, PLUGIN
# and ALL_REDUCE (all_reduce_perf, or empty) are paths of the installed files. The stage
# directory has config.yaml.
set -eu
logs=$1 python=$2
shift 2
shared=$logs.shared
for path in test/run.py reduction_server/target/release/optcast-reduction-server \
    nccl_plugin/src/.libs/libnccl-net.so test/nccl-tests/build/all_reduce_perf; do
    if [ -n "$1" ]; then
        mkdir -p "$shared/${path%/*}"
        ln -sf "$1" "$shared/$path"
    fi
    shift
done
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
# Open MPI 5 does not accept run.py's -bind-to with one hyphen.
cat >"$shared/mpirun" <<'END'
#!/bin/bash
exec mpirun "${@/#-bind-to/--bind-to}"
END
chmod +x "$shared/mpirun"
exec "$python" "$shared/test/run.py" --shared-dir "$shared" --config "$shared/config.yaml" \
    --log-dir "$logs" --python "$python" --mpirun "$shared/mpirun" "$@"
