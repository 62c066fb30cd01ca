#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Static functions have names of their own, and the check would see it if they had not.
# usage: test_names.sh SRC_DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

"$here/check_names.sh" "$1" || fail "give one of them the name of what it works on: <object>_<verb>"
cp -r "$1" "$work/src"
printf 'static int new_name(void)\n{\n    return 1;\n}\n' | tee -a "$work/src/boot/wire/wire.c" >>"$work/src/shmem/heap.c"
if "$here/check_names.sh" "$work/src" >"$work/found"; then fail "not seen: one name in two files"; fi
grep -qxF 'new_name is the name of a function of boot/wire/wire.c and of shmem/heap.c' "$work/found" ||
    fail "found: $(cat "$work/found")"
