#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the fuzzers of tests/fuzz, as many at a time as there are cores. Each starts from its seeds, the inputs that are
# kept in tests/fuzz/corpus, and those that earlier runs found in this build.
# usage: fuzz.sh BUILD_DIR SECONDS [TARGET…]    each target runs for SECONDS
#        fuzz.sh BUILD_DIR keep [TARGET…]       adds the inputs that reach new code to tests/fuzz/corpus
# An input that breaks a reader is kept as a file, whose name is printed. Copy it to tests/fuzz/corpus/TARGET: then
# test_fuzz_TARGET reads it each time. The status is 0 only if no target found any.
set -euo pipefail
usage() {
    sed -n 's/^# usage: /usage: /p; s/^#        fuzz/       fuzz/p' "$0" >&2
    exit 2
}
[ $# -ge 2 ] || usage
build=$1
what=$2
shift 2
case $what in
    keep | one) ;;
    '' | *[!0-9]* | 0) echo "fuzz: SECONDS is '$what': a number above 0, or 'keep', is expected" >&2 && exit 2 ;;
esac
root=$(cd "$(dirname "$0")/.." && pwd)
[ -d "$build/tests" ] || { echo "fuzz: BUILD_DIR is '$build': a build of the preset 'fuzz' is expected" >&2 && exit 2; }
build=$(realpath "$build")

# seed TARGET: the seeds of today's structs.
seed() {
    mkdir -p "$build/corpus/$1" "$build/found"
    "$build/tests/test_fuzz_$1" --seeds "$build/corpus/$1"
}

# run_one SECONDS TARGET: the fuzzer's own lines go to a file. The last one says how far it came.
run_one() {
    local log=$build/found/$2.log status=0
    seed "$2"
    timeout --foreground --kill-after=10 "$(($1 + 120))" "$build/tests/fuzz_$2" -max_total_time="$1" -timeout=25 -rss_limit_mb=2048 \
        -max_len=4096 -print_final_stats=1 -artifact_prefix="$build/found/$2-" "$build/corpus/$2" \
        "$root/tests/fuzz/corpus/$2" >"$log" 2>&1 || status=$?
    if [ "$status" = 0 ]; then
        echo "fuzz: $2: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $1 s, none broke it"
        return
    fi
    tail -n 60 "$log"
    echo "fuzz: $2: ended with $status; see $log, and $(sed -n 's/.*Test unit written to //p' "$log")" >&2
    return 1
}

keep() {
    seed "$1"
    "$build/tests/fuzz_$1" -merge=1 -max_len=4096 "$root/tests/fuzz/corpus/$1" "$build/corpus/$1" >"$build/found/$1.log" 2>&1
    echo "fuzz: $1: $(find "$root/tests/fuzz/corpus/$1" -type f | wc -l) inputs are kept"
}

if [ "$what" = one ]; then # the script calls itself so
    run_one "$@"
    exit
fi
targets=("$@")
if [ $# = 0 ]; then
    for folder in "$root"/tests/fuzz/corpus/*; do targets+=("$(basename "$folder")"); done
fi
for target in "${targets[@]}"; do
    [ -x "$build/tests/fuzz_$target" ] || { echo "fuzz: there is no target '$target' in $build/tests" >&2 && exit 2; }
done
if [ "$what" = keep ]; then
    for target in "${targets[@]}"; do keep "$target"; done
    exit
fi
if printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I '{}' "$0" "$build" one "$what" '{}'; then
    exit 0
fi
echo "fuzz: a target ended early; the lines above say why" >&2
exit 1
