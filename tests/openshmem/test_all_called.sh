#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every function that shmem.h declares is called by one of the programs.
# usage: test_all_called.sh INCLUDE_DIR PROGRAM…
set -eu
declared=$(cd "$(dirname "$0")" && pwd)/../manual/declared.sh
include=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$declared" "$include" shmem functions >"$work/declared"
[ "$(wc -l <"$work/declared")" -ge 1500 ] || { echo "found too few declarations" >&2; exit 1; }
for program in "$@"; do
    nm -D --undefined-only "$program"
done | awk '{ sub(/@.*/, "", $2); print $2 }' | sort -u >"$work/called"
comm -23 "$work/declared" "$work/called" >"$work/missing"
[ ! -s "$work/missing" ] || { echo "no program calls: $(tr '\n' ' ' <"$work/missing")" >&2; exit 1; }
