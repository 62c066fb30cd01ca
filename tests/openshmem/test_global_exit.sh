#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shmem_global_exit ends all PEs at once, and its status is the job's.
# usage: test_global_exit.sh COMMAND…
status=0
"$@" >/dev/null 2>&1 || status=$?
[ "$status" -eq 7 ] || { echo "test_global_exit: the job ended with status $status, not 7" >&2; exit 1; }
