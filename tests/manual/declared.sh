#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The names of all public calls, one a line. In a preprocessed header a declaration is the attribute of EXPAR_API, a
# type, a name and a parenthesis. The header mpi.h is read as it stands, since it needs MPI; generic names are macros.
# usage: declared.sh INCLUDE_DIR [expar|shmem [functions]]
# which: those of expar.h and mpi.h, or those of shmem.h; both by default. functions: only those that the library of
# that name has
set -eu
include=$1
which=${2:-"expar shmem"}

functions_of() {
    echo "#include <expar/$1.h>" | cc -I"$include" -E -P -x c - | tr '\n;' ' \n' |
        LC_ALL=C sed -n 's/.*__attribute__((visibility("default"))) [^(]*[ *]\([a-z0-9_]*\)(.*/\1/p'
}

if [ "${3:-}" = functions ]; then
    # shmem.h includes a header of expar's.
    functions_of "$which" | case $which in shmem) grep -v '^expar_' ;; *) cat ;; esac | sort -u
    exit
fi
for family in $which; do
    functions_of "$family"
    case $family in
        expar) sed -n 's/^static inline .*[ *]\(expar_[a-z0-9_]*\)(.*/\1/p' "$include/expar/mpi.h" ;;
        shmem) sed -n 's/^#define \(shmem_[a-z0-9_]*\)(.*/\1/p' "$include/expar/shmem_generic.h" ;;
    esac
done | sort -u
