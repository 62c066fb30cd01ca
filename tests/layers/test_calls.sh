#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No file of ep that makes a call names a device, and the check would see it if one did.
# usage: test_calls.sh SRC_DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$here/check_calls.sh" "$1"
for line in 'if (ep->gpu) return 0;' '#include "exec/cuda/create.h"' 'bool cpu = device.type == EXPAR_CPU;'; do
    for file in call/call.c normal/combine.c low_latency/dispatch.c; do
        rm -rf "$work/ep"
        cp -r "$1/ep" "$work/ep"
        echo "$line" >>"$work/ep/$file"
        if "$here/check_calls.sh" "$work" >"$work/found"; then echo "test_calls: not seen: $line" >&2 && exit 1; fi
        grep -qF "$line" "$work/found" || { echo "test_calls: found something else than '$line':" && cat "$work/found"; } >&2
    done
done
