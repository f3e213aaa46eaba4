#!/bin/sh
# Builds tensorload: build.sh OUT, with the MPI compiler wrapper in $CC (mpicc)
# and $CFLAGS. With $SMARTREDIS_PREFIX its client is SmartRedis' library, which
# is in C++: $CXX (c++) and $CXXFLAGS. Headers and libraries of SmartRedis,
# redis-plus-plus and hiredis are below that prefix, as in a view of Spack.
set -eu
here=$(dirname "$0")
out=$1
set -- "$here"/*.c
if [ -n "${SMARTREDIS_PREFIX:-}" ]; then
    # shellcheck disable=SC2086
    ${CXX:-c++} -O2 -std=c++17 -Wall -Wextra ${CXXFLAGS:-} \
        -isystem "$SMARTREDIS_PREFIX/include" \
        -c "$here/smartredis.cpp" -o "$out.smartredis.o"
    set -- "$@" -DWITH_SMARTREDIS "$out.smartredis.o"
    for folder in lib lib64; do
        set -- "$@" "-L$SMARTREDIS_PREFIX/$folder" \
            "-Wl,-rpath,$SMARTREDIS_PREFIX/$folder"
    done
    set -- "$@" -lsmartredis -lstdc++
fi
CC=${CC:-mpicc} exec "$here/../../core/src/common/build.sh" "$out" "$@"
