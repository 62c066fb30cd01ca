#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The kernel that changes words for the host assembles for each GPU that serves, without a message, and spills nothing.
# usage: test_change_text.sh NVCC PROGRAM_THAT_PRINTS_IT
set -eu
ptxas=$(dirname "$(readlink -f "$1")")/ptxas
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$2" >"$work/change.ptx"
for arch in 80 90 100; do
    "$ptxas" -arch=sm_$arch -warn-spills -warn-lmem-usage -Werror -o "$work/cubin" "$work/change.ptx" ||
        { echo "sm_$arch: the kernel does not assemble" >&2; exit 1; }
done
