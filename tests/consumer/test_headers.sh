#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every public header compiles by itself, as C11 and as C++17, without extensions and without warnings, and OpenSHMEM's
# generic names are there in both.
# That for MPI is tried where MPI is there.
# usage: test_headers.sh INCLUDE_DIR
set -eu
include=$1
flags="-Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only -I$include"
count=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for header in "$include"/expar/*.h; do
    name=expar/$(basename "$header")
    mpi=""
    if [ "$name" = expar/mpi.h ]; then
        mpi=$(mpicc --showme:incdirs 2>/dev/null) || continue
        # shellcheck disable=SC2086 # a list of folders
        mpi=$(printf -- '-isystem %s ' $mpi)
    fi
    # shellcheck disable=SC2086 # the flags are words
    echo "#include <$name>" | cc -std=c11 -Wstrict-prototypes $flags $mpi -x c - || { echo "$name is not C11" >&2; exit 1; }
    # shellcheck disable=SC2086
    echo "#include <$name>" | c++ -std=c++17 $flags $mpi -x c++ - || { echo "$name is not C++17" >&2; exit 1; }
    count=$((count + 1))
done
[ "$count" -ge 5 ]

{
    echo "#include <expar/shmem.h>"
    echo "namespace generic {"
    sed -n 's/^#define \(shmem_[a-z0-9_]*\)(.*/using ::\1;/p' "$include/expar/shmem_generic.h"
    echo "}"
} >"$work/generic.cpp"
[ "$(wc -l <"$work/generic.cpp")" -ge 60 ] || { echo "found too few generic names" >&2; exit 1; }
# shellcheck disable=SC2086
c++ -std=c++17 $flags "$work/generic.cpp" || { echo "a generic name of C is none in C++" >&2; exit 1; }
