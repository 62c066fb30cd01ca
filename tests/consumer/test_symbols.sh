#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each library exports what its header declares, and nothing else.
# usage: test_symbols.sh INCLUDE_DIR LIBEXPAR LIBEXPAR_SHMEM LIBEXPAR_NVSHMEM
set -eu
declared=$(cd "$(dirname "$0")" && pwd)/../manual/declared.sh
include=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0

# check HEADER LEAST LIBRARY: the header is expar, shmem or nvshmem, and declares no fewer calls than that.
check() {
    "$declared" "$include" "$1" functions >"$work/declared"
    [ "$(wc -l <"$work/declared")" -ge "$2" ] || { echo "found too few declarations in $1.h" >&2; status=1; }
    # Names in capitals are those of the symbols' versions.
    nm -D --defined-only "$3" | awk '{ sub(/@.*/, "", $3); print $3 }' | grep -v '^EXPAR_[A-Z0-9_]*$' | sort -u >"$work/exported"
    for name in $(comm -23 "$work/declared" "$work/exported"); do
        echo "$name is declared but not exported by $3" >&2
        status=1
    done
    for name in $(comm -13 "$work/declared" "$work/exported"); do
        echo "$name is exported by $3 but not declared" >&2
        status=1
    done
}

check expar 40 "$2"
check shmem 1500 "$3"
check nvshmem 30 "$4"
exit $status
