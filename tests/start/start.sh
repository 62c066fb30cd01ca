#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Starts a program on four ranks as a launcher would. Fails when a rank does.
# usage: start.sh run|mpirun|hosts|openmpi|torchrun EXPAR PROGRAM [ARGUMENT…]
set -u
launcher=$1
expar=$2
shift 2
export EXPAR_BOOTSTRAP_TIMEOUT=${EXPAR_BOOTSTRAP_TIMEOUT:-60}
LSAN_OPTIONS=${LSAN_OPTIONS:-}:suppressions=$(dirname "$0")/leaks.txt:print_suppressions=0
export LSAN_OPTIONS

# Variables that torchrun sets for its processes.
torchrun() {
    local rank pid code=0 pids=() port=$((20000 + $$ % 10000))
    for rank in 0 1 2 3; do
        RANK=$rank WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            TORCHELASTIC_RUN_ID=start-$$ "$@" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || code=1
    done
    return $code
}

# Two daemons of mpirun on this machine, which take it for two hosts; the agent stands for the shell that reaches them.
# Each has its own folder for its files, and neither has rtc/hwloc: with it, daemons of one machine now and then met.
hosts() {
    local folder code
    folder=$(mktemp -d)
    # shellcheck disable=SC2016 # the agent's own words
    printf '#!/bin/sh\nexport TMPDIR="$0.$1"\nmkdir "$TMPDIR"\nshift\nexec sh -c "$*"\n' >"$folder/agent"
    chmod +x "$folder/agent"
    EXPAR_BOOTSTRAP_INTERFACE=127.0.0.1 mpirun -x LSAN_OPTIONS --allow-run-as-root --oversubscribe -mca rtc ^hwloc \
        -mca plm_rsh_agent "$folder/agent" --host one:2,two:2 -n 4 "$@"
    code=$?
    rm -r "$folder"
    return $code
}

case $launcher in
    run) "$expar" run -n 4 -- "$@" ;;
    mpirun) mpirun -x LSAN_OPTIONS --allow-run-as-root --oversubscribe -n 4 "$@" ;;
    hosts) hosts "$@" ;;
    openmpi) mpirun -x LSAN_OPTIONS --allow-run-as-root --oversubscribe -n 4 env -u PMIX_RANK "$@" ;; # by variables
    torchrun) torchrun "$@" ;;
esac
