#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shmem_global_exit ends all PEs, long before they would end by themselves, and its status is the job's. The caller
# takes care that the launcher does not end them: by --on-death=continue, or status 0.
# usage: test_global_exit.sh STATUS COMMAND…
expected=$1
shift
status=0
text=$(timeout -k 5 30 "$@" 2>&1) || status=$?
fail() {
    echo "test_global_exit: $1: $text" >&2
    exit 1
}
[ "$status" -eq "$expected" ] || fail "the job ended with status $status, not $expected"
# Those that expar run tells of, one line each.
case $* in
    *--on-death=continue*\ 7) [ "$(echo "$text" | grep -c "exited with code $expected")" -eq 4 ] || fail "not all of 4 PEs ended so" ;;
esac
