#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each header of NVSHMEM's names compiles by itself, as C11 and C++17, without warnings. The whole compiles with kernels
# for the CPU, too, and after MPI's header where that is there.
# usage: test_headers.sh ROOT
set -eu
include=$1/include
flags="-Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only -I$include -I$include/expar/compat"
fail() {
    echo "$1" >&2
    exit 1
}
for header in "$include"/expar/compat/*.h "$include"/expar/compat/parts/*.h; do
    name=${header#"$include"/}
    # shellcheck disable=SC2086 # the flags are words
    echo "#include <$name>" | cc -std=c11 -Wstrict-prototypes $flags -x c - || fail "$name is not C11"
    # shellcheck disable=SC2086
    echo "#include <$name>" | c++ -std=c++17 $flags -x c++ - || fail "$name is not C++17"
done
# shellcheck disable=SC2086
echo "#include <nvshmemx.h>" | cc -std=c11 $flags -DEXPAR_NVSHMEM_CPU_KERNELS -x c - || fail "kernels are not C11"
# shellcheck disable=SC2086
echo "#include <nvshmemx.h>" | c++ -std=c++17 $flags -DEXPAR_NVSHMEM_CPU_KERNELS -x c++ - || fail "kernels are not C++17"
if mpi=$(mpicc --showme:incdirs 2>/dev/null); then
    # shellcheck disable=SC2086 # a list of folders
    mpi=$(printf -- '-isystem %s ' $mpi)
    # shellcheck disable=SC2086
    printf '#include <mpi.h>\n#include <nvshmemx.h>\n' | cc -std=c11 $flags $mpi -x c - || fail "a start by MPI does not compile"
fi
