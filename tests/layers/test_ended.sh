#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Public calls that fail are logged, and the check would see one that is not.
# usage: test_ended.sh SRC_DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

"$here/check_ended.sh" "$1" || fail "a public call returns by itself"

# sees FILE EDIT CALL: with that edit the check names the call.
sees() {
    rm -rf "$work/src"
    cp -r "$1" "$work/src"
    sed -i "$3" "$work/src/$2"
    cmp -s "$1/$2" "$work/src/$2" && fail "$3 changes nothing"
    if "$here/check_ended.sh" "$work/src" 2>"$work/found"; then fail "not seen: $4"; fi
    grep -qE "^$2:[0-9]+: $4 returns past" "$work/found" || fail "expected $4, found: $(cat "$work/found")"
}
sees "$1" pgas/order.c 's/return group_ended(group, ops_fence(\(.*\)));/return ops_fence(\1);/' expar_fence
sees "$1" exec/event.c 's/return call_ended(error_set(EXPAR_ERR_NULL, "expar_event_create: event is NULL"));/return EXPAR_ERR_NULL;/' \
    expar_event_create
sees "$1" pgas/atomic.c 's/return group_ended(from.group, run_plain(\(.*\)));/return run_plain(\1);/' 'P##atomic_.*'
