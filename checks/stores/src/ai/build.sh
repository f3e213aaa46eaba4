#!/bin/sh
# Builds the module: build.sh OUT [MODEL], with $CC (cc) and $CFLAGS. It needs a
# C compiler and libc, no header of a server. With TORCH_PREFIX, where libtorch
# is installed, it runs TorchScript, $CXX (c++) is needed, and MODEL becomes
# ResNet-50 as TorchScript with random weights.
set -eu
out=$1 model=${2:-}
cc=${CC:-cc}
here=$(cd "$(dirname "$0")" && pwd)
flags='-O2 -pthread -fPIC -fvisibility=hidden -Wall -Wextra'
set -- "$here/api.c" "$here/values.c" "$here/run.c" "$here/commands.c" "$here/module.c"
if [ -z "${TORCH_PREFIX:-}" ]; then
    # shellcheck disable=SC2086
    $cc $flags -std=gnu11 -shared ${CFLAGS:-} -o "$out" "$@" "$here/standin.c" -lm
    exit
fi
for lib in "$TORCH_PREFIX"/lib/*-linux-gnu "$TORCH_PREFIX"/lib64 \
        "$TORCH_PREFIX"/lib; do
    [ -e "$lib/libtorch_cpu.so" ] && break
done
if [ ! -e "$lib/libtorch_cpu.so" ]; then
    echo "build.sh: $TORCH_PREFIX: no libtorch_cpu.so in its lib" >&2
    exit 1
fi
objects=$out.o
trap 'rm -rf "$objects"' EXIT
mkdir -p "$objects"
# shellcheck disable=SC2086
(cd "$objects" && $cc $flags -std=gnu11 ${CFLAGS:-} -c "$@")
# A second /usr/include would come before the headers of the C++ library,
# which look for <stdlib.h> after themselves.
include=
[ "$TORCH_PREFIX/include" -ef /usr/include ] ||
    include=$TORCH_PREFIX/include
# The headers of newer versions need C++20. Python packages before 2.6 have std::string
# of the old ABI, which shows only in the names of their functions.
language=-std=c++17
if grep -qs 'C++20 or later' "$TORCH_PREFIX/include/ATen/ATen.h"; then
    language=-std=c++20
fi
if grep -qs torchCheckFailEPKcS2_jRKSs "$lib/libc10.so"; then
    language="$language -D_GLIBCXX_USE_CXX11_ABI=0"
fi
# Not libtorch.so: with CUDA it would load the libraries of GPUs into each server.
cxx() {
    # shellcheck disable=SC2086
    ${CXX:-c++} $flags $language ${CXXFLAGS:-} \
        ${include:+-isystem "$include"} \
        -isystem "$TORCH_PREFIX/include/torch/csrc/api/include" \
        "$@" -L"$lib" -Wl,-rpath,"$lib" -Wl,--allow-shlib-undefined \
        -ltorch_cpu -lc10 -lm
}
cxx -shared -o "$out" "$here/torch.cpp" "$objects"/*.o
if [ -n "$model" ]; then
    cxx -o "$objects/resnet50" "$here/resnet50.cpp"
    "$objects/resnet50" "$model"
fi
