#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests that need GPUs, on this machine or, packed, on another one that cannot build.
# usage: gpu.sh test BUILD_DIR        packs into BUILD_DIR/gpu and runs that
#        gpu.sh pack BUILD_DIR DIR    copies programs, libraries and this script
#        gpu.sh run DIR [PATTERN]     runs what was packed, or the tests whose names match; prints a table
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

pack() {
    local build=$1 out=$2 name set program arguments
    mkdir -p "$out/bin" "$out/lib"
    : >"$out/tests.txt"
    while read -r name set program arguments; do
        [ -x "$program" ] || { echo "gpu.sh: $name is not built" >&2 && exit 1; }
        strip -o "$out/bin/$(basename "$program")" "$program"
        # What a bare machine may lack; the C library is the machine's own.
        ldd "$program" | awk '/libsodium|libcmocka|libjansson|libhwloc|libexpar/ { print $3 }' |
            xargs -r cp -L -t "$out/lib"
        echo "$name $set $(basename "$program") $arguments" >>"$out/tests.txt"
    done < <(list "$build")
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

case ${1:-}:$# in
    test:2)
        pack "$2" "$2/gpu"
        run "$(realpath "$2/gpu")"
        ;;
    pack:3) pack "$2" "$3" ;;
    run:2 | run:3) run "$(realpath "$2")" "${3:-.}" ;;
    *)
        sed -n 's/^# usage: /usage: /p; s/^#        /       /p' "$0" >&2
        exit 2
        ;;
esac
