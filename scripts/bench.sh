#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Measures dispatch and combine against the copy roofline and Open MPI, and symmetric memory against memcpy and bare
# libfabric. It writes one JSON file for each run.
# usage: bench.sh BUILD_DIR OUTPUT_DIR
set -euo pipefail
expar=$1/bin/expar
out=$2
mkdir -p "$out"

mpi=""
command -v mpirun >/dev/null && mpi="--mpi"

measure() {
    local ranks=$1 tokens=$2
    local file=$out/ranks$ranks-tokens$tokens.json
    echo "bench: $ranks ranks, $tokens tokens, hidden 7168, top 8 of 64 experts" >&2
    "$expar" bench dispatch combine -n "$ranks" --tokens "$tokens" --hidden 7168 --topk 8 --experts 64 --json $mpi >"$file"
    echo "$file"
}

measure_rma() {
    local ranks=$1 ops=$2
    local file=$out/rma-ranks$ranks.json
    echo "bench: $ranks ranks, symmetric memory: $ops" >&2
    "$expar" bench rma -n "$ranks" --ops "$ops" --json >"$file"
    echo "$file"
}

for ranks in 2 4 8; do
    measure $ranks 256
done
measure 8 32

measure_rma 2 put,get,put_signal,atomics,barrier,collectives
measure_rma 8 barrier,collectives
