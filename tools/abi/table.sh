#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes a C program that prints the table of all public structs and enumerations as JSON. Sizes, offsets and values
# come from the compiler, which rejects a type that was not read right.
# usage: table.sh INCLUDE_DIR COMPILER… > program.c
set -eu
[ $# -ge 2 ] || { echo "usage: table.sh INCLUDE_DIR COMPILER…" >&2 && exit 2; }
include=$1
shift
# All but those that need MPI, OpenSHMEM's, whose types are the standard's, and device.h, which is for kernels.
includes=$(cd "$include" && printf '#include <%s>\n' expar/*.h | grep -vE '/(mpi|device|shmem[a-z_]*)[.]h>$')
echo "$includes" | "$@" -I"$include" -E -x c - | awk -v includes="$includes" -f "$(dirname "$0")/table.awk"
