#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The environment variables of the standard, by both names.
# usage: test_environment.sh EXPAR PROGRAM_THAT_TAKES_BYTES
set -eu
expar=$1
program=$2
unset EXPAR_HEAP_SIZE EXPAR_TIMEOUT EXPAR_LOG || true

fail() {
    echo "test_environment: $1" >&2
    exit 1
}

# run NAME=VALUE…: the program, whose heap has space for 32 MiB and not for 128.
run() {
    text=$(env "$@" "$expar" run -n 2 "$program" 33554432 2>&1)
}

for value in 33554432 32768K 32768k 32M 32m 0.03125G 0.03125g 0.000030517578125T; do
    run SHMEM_SYMMETRIC_SIZE="$value" || fail "SHMEM_SYMMETRIC_SIZE=$value: $text"
done
run SMA_SYMMETRIC_SIZE=32M || fail "SMA_SYMMETRIC_SIZE: $text"
run SMA_SYMMETRIC_SIZE=1M SHMEM_SYMMETRIC_SIZE=32M || fail "the old name outdid the new one: $text"
if run SHMEM_SYMMETRIC_SIZE=; then fail "without a size the heap did not have its own"; fi
for value in M 32MB 32X "32 M" -32M 0 nan inf 1e30 1e15T nonsense; do
    if run SHMEM_SYMMETRIC_SIZE="$value"; then fail "SHMEM_SYMMETRIC_SIZE=$value was taken"; fi
    case $text in
        *"SHMEM_SYMMETRIC_SIZE=$value: expected a number of bytes"*) ;;
        *) fail "SHMEM_SYMMETRIC_SIZE=$value: $text" ;;
    esac
done

# prints COUNT PATTERN: so many lines of the last run are like that.
prints() {
    count=$(echo "$text" | grep -c "$2" || true)
    [ "$count" -eq "$1" ] || fail "$count lines, not $1, are '$2': $text"
}

run SHMEM_SYMMETRIC_SIZE=32M || fail "$text"
[ -z "$text" ] || fail "printed without being asked: $text"
for prefix in SHMEM SMA; do
    run SHMEM_SYMMETRIC_SIZE=32M "${prefix}_VERSION=1" || fail "$text"
    prints 1 "shmem: expar [0-9.]*, OpenSHMEM 1\.5$"
    prints 1 ""
    run SHMEM_SYMMETRIC_SIZE=32M "${prefix}_INFO=1" || fail "$text"
    prints 1 "shmem: SHMEM_SYMMETRIC_SIZE (.*; now 32M$"
    prints 1 "shmem: SHMEM_VERSION (.*; not set$"
    prints 1 "shmem: SHMEM_INFO (.*; now 1$"
    prints 1 "shmem: SHMEM_DEBUG (.*; not set$"
    prints 1 "shmem: EXPAR_TIMEOUT (.*; not set, there is no limit$"
    prints 5 ""
    run SHMEM_SYMMETRIC_SIZE=32M "${prefix}_DEBUG=1" || fail "$text"
    echo "$text" | grep -q ' debug ' || fail "${prefix}_DEBUG: $text"
done
run SHMEM_SYMMETRIC_SIZE=32M SHMEM_DEBUG=1 EXPAR_LOG=warn || fail "$text"
[ -z "$text" ] || fail "EXPAR_LOG did not outdo SHMEM_DEBUG: $text"
run SHMEM_SYMMETRIC_SIZE=32M SHMEM_INFO=1 EXPAR_TIMEOUT=20 || fail "$text"
prints 1 "shmem: EXPAR_TIMEOUT (.*; 20$"
