#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The names of all public calls, one a line. In a preprocessed header a declaration is the attribute of EXPAR_API, a
# type, a name and a parenthesis. The header mpi.h is read as it stands, since it needs MPI; generic names are macros.
# usage: declared.sh INCLUDE_DIR [expar|shmem|nvshmem [functions]]
# which: those of expar.h and mpi.h, of shmem.h, or of the library of compat/nvshmem.h; the first two by default.
# functions: only those that the library of that name has
set -eu
include=$1
which=${2:-"expar shmem"}

functions_of() {
    case $1 in nvshmem) header=compat/parts/library ;; *) header=$1 ;; esac
    echo "#include <expar/$header.h>" | cc -I"$include" -E -P -x c - | tr '\n;' ' \n' |
        LC_ALL=C sed -n 's/.*__attribute__((visibility("default"))) [^(]*[ *]\([a-z0-9_]*\)(.*/\1/p'
}

if [ "${3:-}" = functions ]; then
    # The headers of other names include expar's.
    functions_of "$which" | case $which in
        shmem) grep -v '^expar_' ;;
        nvshmem) grep -E '^(nvshmemx?|expar_nvshmem)_' ;;
        *) cat ;;
    esac | sort -u
    exit
fi
for family in $which; do
    functions_of "$family"
    case $family in
        expar) sed -n 's/^static inline .*[ *]\(expar_[a-z0-9_]*\)(.*/\1/p' "$include/expar/mpi.h" ;;
        shmem) sed -n 's/^#define \(shmem_[a-z0-9_]*\)(.*/\1/p' "$include/expar/shmem_generic.h" ;;
    esac
done | sort -u
