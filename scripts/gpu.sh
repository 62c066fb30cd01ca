#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds, tests and measures on GPUs, on this machine or, packed, on another one that cannot build.
# usage: gpu.sh all                   builds build/release, then test
#        gpu.sh test BUILD_DIR        packs into BUILD_DIR/gpu, runs that and measures
#        gpu.sh pack BUILD_DIR DIR    copies programs, libraries and this script
#        gpu.sh run DIR [PATTERN]     runs what was packed, or the tests whose names match; prints a table
#        gpu.sh measure DIR           dispatch, combine and layout beside the copy limit on all GPUs
#        gpu.sh sanitize DIR          tests on process ranks under compute-sanitizer
set -euo pipefail

# Name, environment ("-": none) and command of each test with the label:
# "test_device_heap_processes - /…/test_device_heap processes".
list() {
    ctest --test-dir "$1" -L gpu -N -V | awk '
        /^[0-9]+: Test command: / { command = $0; sub(/^[0-9]+: Test command: /, "", command); gsub(/"/, "", command) }
        /^  Test *#[0-9]+: / {
            sub(/^  Test *#[0-9]+: /, "")
            count = split(command, words, " ")
            set = ""
            first = words[1] ~ /\/env$/ ? 2 : 1
            for (; words[first] ~ /^[A-Z_]+=/; first++) set = set (set ? "," : "") words[first]
            line = $0 " " (set ? set : "-")
            for (i = first; i <= count; i++) line = line " " words[i]
            print line
            command = ""
        }'
}

# A program without its symbols, and what a bare machine may lack of its libraries; the C library is the machine's own.
pack_program() {
    strip -o "$2/bin/$(basename "$1")" "$1"
    ldd "$1" | awk '/libsodium|libcmocka|libjansson|libhwloc|libfabric|libexpar/ { print $3 }' | xargs -r cp -L -t "$2/lib"
}

pack() {
    local build=$1 out=$2 name set program arguments
    mkdir -p "$out/bin" "$out/lib"
    : >"$out/tests.txt"
    while read -r name set program arguments; do
        [ -x "$program" ] || { echo "gpu.sh: $name is not built" >&2 && exit 1; }
        pack_program "$program" "$out"
        echo "$name $set $(basename "$program") $arguments" >>"$out/tests.txt"
    done < <(list "$build")
    pack_program "$build/bin/expar" "$out"
    cp "$(dirname "$0")/../data/moe-lm/routing_topk_idx.npy" "$0" "$out"
}

run() {
    local here=$1 pattern=${2:-.} name set program arguments code start seconds result passed=0 failed=0 skipped=0
    export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} EXPAR_TEST_DATA=$here
    command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader
    mkdir -p "$here/logs"
    printf '%-36s %-8s %8s\n' test result seconds
    while read -r name set program arguments; do
        [[ $name =~ $pattern ]] || continue
        start=$EPOCHREALTIME
        code=0
        [ "$set" = - ] && set=
        # shellcheck disable=SC2086 # words on purpose
        timeout -k 5 "${EXPAR_TEST_SECONDS:-300}" env ${set//,/ } "$here/bin/$program" $arguments >"$here/logs/$name" 2>&1 </dev/null || code=$?
        seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
        case $code in
            0) result=passed passed=$((passed + 1)) ;;
            77) result=skipped skipped=$((skipped + 1)) ;;
            *) result="rc $code" failed=$((failed + 1)) ;;
        esac
        printf '%-36s %-8s %8s\n' "$name" "$result" "$seconds"
        case $result in
            passed) ;;
            skipped) grep -m 1 '^SKIPPED' "$here/logs/$name" || true ;;
            *) grep -v '^\[ RUN\|^\[       OK' "$here/logs/$name" | tail -n 40 ;;
        esac
    done <"$here/tests.txt"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ] && [ "$passed" != 0 ]
}

measure() {
    export LD_LIBRARY_PATH=$1/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    local gpus
    gpus=$(nvidia-smi -L | wc -l)
    "$1/bin/expar" bench dispatch combine layout --device cuda -n "$gpus" --experts $((256 / gpus * gpus)) --cached=both \
        --sms 8,12,24 --tokens 1,16,128,512,4096 --dtype bf16,fp8
}

# The tools let one kernel of a process run at a time: kernels of thread ranks, which wait for each other, would meet their
# deadlines. Process ranks share a GPU in turns.
sanitize() {
    local here=$1 tool program failed=0
    export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} EXPAR_TEST_DATA=$here EXPAR_NVRTC=/nowhere
    export EXPAR_TEST_ROUNDS=${EXPAR_TEST_ROUNDS:-24}
    mkdir -p "$here/logs"
    for tool in memcheck synccheck racecheck; do
        for program in test_gpu_random test_gpu_options_random; do
            if compute-sanitizer --tool $tool --target-processes all --report-api-errors no --error-exitcode 9 \
                "$here/bin/$program" processes >"$here/logs/${tool}_$program" 2>&1; then
                echo "$tool $program: clean"
            else
                echo "$tool $program: see $here/logs/${tool}_$program"
                failed=1
            fi
        done
    done
    return $failed
}

test_and_measure() {
    pack "$1" "$1/gpu"
    run "$(realpath "$1/gpu")" . && measure "$(realpath "$1/gpu")"
}

case ${1:-}:$# in
    all:1)
        cd "$(dirname "$0")/.."
        cmake --preset release && cmake --build --preset release && test_and_measure build/release
        ;;
    test:2) test_and_measure "$2" ;;
    pack:3) pack "$2" "$3" ;;
    run:2 | run:3) run "$(realpath "$2")" "${3:-.}" ;;
    measure:2) measure "$(realpath "$2")" ;;
    sanitize:2) sanitize "$(realpath "$2")" ;;
    *)
        sed -n 's/^# usage: /usage: /p; s/^#        /       /p' "$0" >&2
        exit 2
        ;;
esac
