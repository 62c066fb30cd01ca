#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds, tests and measures on GPUs, on this machine or, packed, on another one that cannot build.
# usage: gpu.sh all                     builds build/release, then test
#        gpu.sh test BUILD_DIR          packs into BUILD_DIR/gpu, runs that and measures
#        gpu.sh pack BUILD_DIR DIR      copies programs, libraries, the demo's model and this script
#        gpu.sh pack_python DIR         copies the Python packages and their GPU tests alone
#        gpu.sh run DIR [PATTERN]       runs what was packed, or the tests whose names match; prints a table
#        gpu.sh spread DIR [PATTERN]    the same, as many tests at a time as there are GPUs, each on one of them
#        gpu.sh again DIR COUNT:PATTERN so many times, until something fails, for what fails now and then
#        gpu.sh measure DIR [TOKENS]    dispatch, combine, layout beside the copy roofline on all GPUs; then measure_ll
#        gpu.sh measure_ll DIR [TOKENS] low-latency mode in all formats beside copy roofline, round trip and launch
#        gpu.sh turns DIR OTHER [TOKENS]  low-latency mode by the program of OTHER, packed before a change, and by this
#                                       one, in turns
#        gpu.sh demo DIR                the demo on all GPUs
#        gpu.sh python DIR [PART…]      the Python packages with PyTorch, where that sees GPUs ($PYTHON, python3)
#        gpu.sh engine_view DIR [TOKENS]  calls as engines make them, through deep_ep and expar with PyTorch, beside
#                                       the C API's isolated and looped calls in the same run, on all GPUs
#        gpu.sh long_waits DIR          how much later kernels end that have waited for a late rank, on 2 GPUs or more
#        gpu.sh ring DIR                the proxy's rings from kernels, by a transport that does nothing: time of a
#                                       command, and commands a second of one ring, two and four
#        gpu.sh sanitize DIR            tests under compute-sanitizer, as many at a time as there are GPUs
#        gpu.sh sanitize_ll DIR         likewise the benchmark of low-latency mode, of one rank
#        gpu.sh call DIR SECONDS [PART…]  what fits into so many seconds, in this order; a part is a word from
#                                       above, with =ARGUMENT if it takes one: run=PATTERN; all results are printed
#                                       at the very end, and logs are put into logs.tar.gz
# Environment:
#   - CUDA_VISIBLE_DEVICES (all): the GPUs to use
#   - EXPAR_TEST_SECONDS (300): the time limit of a test or tool
#   - EXPAR_TEST_JOBS (1): run starts this many tests at a time, all on all GPUs
#   - EXPAR_TEST_LOGS (DIR/logs): the folder of outputs, and of the file results: lines of name, seconds, result
set -euo pipefail
script=$(realpath "$0")
root=$(dirname "$script")/..

# ---- packing ---------------------------------------------------------------------------------------------------------

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
            for (; words[first] ~ /^[A-Z_]+=/; first++) set = set (set ? ";" : "") words[first]
            line = $0 " " (set ? set : "-")
            for (i = first; i <= count; i++) line = line " " words[i]
            print line
            command = ""
        }'
}

# Copies a program without its symbols, and the libraries that a bare machine may lack. The C library is the machine's
# own.
pack_program() {
    strip -o "$2/bin/$(basename "$1")" "$1"
    ldd "$1" | awk '/libsodium|libcmocka|libjansson|libhwloc|libsmartcols|libfabric|libexpar/ { print $3 }' | xargs -r cp -L -t "$2/lib"
}

# Prints the arguments of a test. Programs among them are packed; their folder becomes "@bin@".
pack_arguments() {
    local out=$1 argument words=()
    shift
    for argument; do
        if [[ $argument = /* && -f $argument && -x $argument ]]; then
            pack_program "$argument" "$out"
            argument=@bin@/$(basename "$argument")
        fi
        words+=("$argument")
    done
    echo "${words[*]}"
}

pack() {
    local build=$1 out=$2 data name set program arguments
    data=$root/data/moe-lm
    if [ ! -f "$build/CMakeCache.txt" ]; then
        echo "gpu.sh: BUILD_DIR is '$build': a configured and built tree is expected" >&2
        exit 2
    fi
    if ! grep -q '^EXPAR_READY_TEST_KERNELS:BOOL=ON' "$build/CMakeCache.txt"; then
        echo "gpu.sh: $build has no ready kernels of tests, so the other machine compiles them first, for minutes." \
            "Configure with -DEXPAR_READY_TEST_KERNELS=ON" >&2
    fi
    mkdir -p "$out/bin" "$out/lib" "$out/moe-lm"
    : >"$out/tests.txt"
    while read -r name set program arguments; do
        [ -x "$program" ] || { echo "gpu.sh: $name is not built" >&2 && exit 1; }
        pack_program "$program" "$out"
        # shellcheck disable=SC2086 # words on purpose
        arguments=$(pack_arguments "$out" $arguments)
        echo "$name $set $(basename "$program") $arguments" >>"$out/tests.txt"
    done < <(list "$build")
    pack_program "$build/bin/expar" "$out"
    cp "$data/config.json" "$data/model.safetensors" "$out/moe-lm"
    cp "$data/routing_topk_idx.npy" "$script" "$out"
    pack_python "$out"
}

# Copies the packages with their library, and the tests that use them.
pack_python() {
    mkdir -p "$1/python" "$1/python-tests"
    cp -r "$root/python/expar" "$root/python/deep_ep" "$1/python"
    find "$1/python" -name __pycache__ -prune -exec rm -r {} +
    cp "$root"/tests/python/{gpu_torch,gpu_elastic,gpu_epbuffer,gpu_hybrid,gpu_times,gpu_calls,torch_card,simulated,reference,deep_ep_engines,deep_ep_ranks,deep_ep_reference}.py "$1/python-tests"
    cp "$root"/tests/python/deep_ep_{elastic_calls,elastic_layer,elastic_reference,epbuffer_calls,rows_calls}.py "$root"/tests/python/deep_ep_hybrid_{callers,calls,layer,reference}.py "$root"/tests/python/deep_ep_replicas_calls.py "$root"/examples/python/{generate,grouped_gemm,moe}.py "$1/python-tests"
    cp "$root"/bench/python/{overhead,deep_ep_overhead,deep_ep_steps,deep_ep_third,engine_view,engine_times,long_waits,node_times}.py "$1/python-tests"
}

# ---- where things lie, and how much time is left ---------------------------------------------------------------------

open_packed() {
    [ -f "$1/tests.txt" ] || { echo "gpu.sh: $1 is no folder that 'gpu.sh pack' has filled" >&2 && exit 2; }
    here=$(realpath "$1")
    logs=${EXPAR_TEST_LOGS:-$here/logs}
    mkdir -p "$logs"
    jobs=${EXPAR_TEST_JOBS:-1}
    [[ $jobs =~ ^[1-9][0-9]*$ ]] || { echo "gpu.sh: EXPAR_TEST_JOBS is '$jobs': a number of 1 or more is expected" >&2 && exit 2; }
    export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} EXPAR_TEST_DATA=$here
}

# Prints the usable GPUs, one a line: those of CUDA_VISIBLE_DEVICES, else all by their numbers. Without any it prints
# GPU 0, and the tests say that there is none.
gpus() {
    local count
    [ -z "${CUDA_VISIBLE_DEVICES+set}" ] || { tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" && return; }
    count=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true
    seq 0 $((count > 0 ? count - 1 : 0))
}

count_gpus() {
    gpus | wc -l
}

# Lets a program with its own slot see that slot's GPU only.
see_gpu_of_slot() {
    CUDA_VISIBLE_DEVICES=$(gpus | awk -v slot="$1" 'NR == slot + 1')
    export CUDA_VISIBLE_DEVICES
}

# Prints the seconds that a command may take: EXPAR_TEST_SECONDS, but no more than are left of a call.
allowed() {
    local most=${EXPAR_TEST_SECONDS:-300} left=$((${EXPAR_CALL_ENDS:-EPOCHSECONDS + 86400} - EPOCHSECONDS))
    echo $((left < most ? left : most))
}

# Runs a command with that limit. The status is 124 if it exceeds the limit.
limited() {
    local seconds
    seconds=$(allowed)
    [ "$seconds" -gt 1 ] || return 124
    timeout -k 3 "$seconds" "$@"
}

# ---- results ---------------------------------------------------------------------------------------------------------

word_of() {
    case $1 in
        0) echo passed ;;
        77) echo skipped ;;
        124 | 137) echo too long ;;
        *) echo "rc $1" ;;
    esac
}

# Records the result of something that began at $2 (EPOCHREALTIME), and shows it.
note() {
    local name=$1 start=$2 code=$3
    awk -v name="$name" -v a="$start" -v b="$EPOCHREALTIME" -v result="$(word_of "$code")" \
        'BEGIN { printf "%-42s %7.1f  %s\n", name, b - a, result }' | tee -a "$logs/results"
}

# Prints the last lines of failed tests, and the reasons of skipped ones, each reason once. It reads lines of `results`
# from the standard input.
explain() {
    local name seconds result reasons=
    while read -r name seconds result; do
        if [ "$result" = passed ] || [ ! -e "$logs/$name" ]; then continue; fi
        if [ "$result" = skipped ]; then
            reasons+=$(sed -n '/^SKIPPED: /{s///p;q}' "$logs/$name")$'\n'
            continue
        fi
        echo "-- $name ($result after $seconds s) ends:"
        awk '/Invalid|Race reported|Barrier error/ { head = $0; getline; sub(/ *\[.*/, ""); n[head " " $0]++ }
            END { for (what in n) if (shown++ < 6) print n[what] " times: " what }' "$logs/$name"
        awk '!/^\[       OK/' "$logs/$name" | tail -n 12 | cut -c 1-160
    done
    [ -z "$reasons" ] || sort <<<"${reasons%$'\n'}" | uniq -c | sed 's/^ *\([0-9]*\) /\1 skipped: /'
}

# True when nothing failed and something passed.
count() {
    awk '{ $1 = $2 = ""; n[$0 == "  passed" ? "passed" : $0 == "  skipped" ? "skipped" : "failed"]++ }
        END {
            printf "%d passed, %d failed, %d skipped\n", n["passed"], n["failed"], n["skipped"]
            exit n["failed"] || !n["passed"]
        }' "$@"
}

# ---- tests -----------------------------------------------------------------------------------------------------------

# Runs one packed test, and shows its result at once, since others may run at the same time. EXPAR_TEST_GPU: the slot,
# whose GPU is the only one that it sees.
one() {
    local wanted=$1 name set program arguments code=0 start=$EPOCHREALTIME
    read -r name set program arguments < <(grep "^$wanted " "$here/tests.txt")
    [ "$set" = - ] && set=
    arguments=${arguments//@bin@/$here/bin}
    [ -z "${EXPAR_TEST_GPU:-}" ] || see_gpu_of_slot "$EXPAR_TEST_GPU"
    # shellcheck disable=SC2086 # words on purpose
    limited env ${set//;/ } "$here/bin/$program" $arguments >"$logs/$name" 2>&1 </dev/null || code=$?
    note "$name" "$start" "$code"
}

# These tests take minutes and run after all others: if time is short, the others have run.
long_tests='ll_(mask_)?faults_(killed|stopped)|ll_random_processes|sums_processes'

# Runs the tests whose names match, several at a time. "spread": each runs on its own GPU.
tests() {
    local pattern=$1 jobs=$2 slot=() before
    [ "${3:-}" != spread ] || slot=(--process-slot-var=EXPAR_TEST_GPU)
    before=$(wc -l <"$logs/results")
    awk -v pattern="$pattern" -v long="(^|_)($long_tests)\$" '
        $1 ~ pattern { if ($1 ~ long) late[++lates] = $1; else print $1; n++ }
        END { for (i = 1; i <= lates; i++) print late[i]; exit !n }' "$here/tests.txt" >"$logs/these" ||
        { echo "gpu.sh: no packed test's name matches '$pattern'" >&2 && return 2; }
    xargs -a "$logs/these" -n 1 -P "$jobs" "${slot[@]}" "$here/gpu.sh" one "$here"
    tail -n +$((before + 1)) "$logs/results" >"$logs/these"
    [ -n "${EXPAR_CALL_ENDS:-}" ] || explain <"$logs/these"
    count "$logs/these"
}

# Prints GPUs, links and compilers of kernels, before something fails because one is missing.
show_machine() {
    "$here/bin/expar" info 2>&1 | awk '/^[^ ]/ { inside = $1 == "GPUs" } inside' || true
}

run() {
    show_machine
    tests "${1:-.}" "$jobs"
}

# Repeats tests. In a call it stops when the time left is shorter than a test's limit, so that no test is cut short.
again() {
    local left=${1%%:*} pattern=${1#*:} most=${EXPAR_TEST_SECONDS:-300}
    for (( ; left > 0; left--)); do
        [ "$(allowed)" -ge "$most" ] || { echo "gpu.sh: $left times of $1 are left, but no $most s for one" && break; }
        tests "$pattern" "$(count_gpus)" spread || return 1
    done
}

# The tools let one kernel of a process run at a time. Kernels of thread ranks wait for each other, so they would reach
# their deadlines. Process ranks share a GPU in turns. Seed 48 draws so few of them that they meet, with rows so few and
# short that racecheck ends. A layout alone waits for no other rank.
# Such ranks run kernels that were compiled for their shapes ("shaped"), or those of the build, for any shape ("ready").
# Of all options shaped kernels see few tokens (an odd seed). Ready kernels see many tokens (408: three ranks), whose
# layout several blocks compute.
# A program may be followed by a colon and the one test that runs.
sanitize_one() {
    local tool=$1 program=${2%%:*} only=${2#"${2%%:*}"} kernels=$3 seed=$4
    local name=${1}_$program code=0 set=() by=() start=$EPOCHREALTIME
    [ "$kernels" = shaped ] || { set=(EXPAR_NVRTC=/nowhere) && name+=_ready; }
    choose_tool "$tool"
    EXPAR_TEST_SEED=$seed EXPAR_TEST_ROUNDS=${EXPAR_TEST_ROUNDS:-24} \
        limited env "${set[@]}" "${by[@]}" "$here/bin/$program" processes ${only:+"${only#:}"} >"$logs/$name" 2>&1 || code=$?
    note "$name" "$start" "$code"
}

# Sets `by`, the words before a program, and the GPU of the slot.
choose_tool() {
    local sanitizer
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    [ "$1" = no_tool ] || by=("$sanitizer" --tool "$1" --target-processes all --report-api-errors no --error-exitcode 9)
    see_gpu_of_slot "$EXPAR_TEST_GPU"
}

# A rank by itself waits for no other one's kernel: rows in words, by flags of one block, and of parts of one.
sanitize_bench() {
    local name=$1_bench_ll code=0 by=() start=$EPOCHREALTIME
    choose_tool "$1"
    limited "${by[@]}" "$here/bin/expar" bench ll --device cuda -n 1 --experts 64 --hidden 1024 --tokens 1,40,70 \
        --format bf16,fp8,logfmt --iters 2 >"$logs/$name" 2>&1 || code=$?
    note "$name" "$start" "$code"
}

# Lines of the standard input: tool, program, kernels.
sanitize_these() {
    local drawn=$1
    sed "s/test_gpu_random .*/& ${EXPAR_TEST_SEED:-48}/; t; s/ready\$/& ${EXPAR_TEST_SEED:-408}/; t; s/\$/ ${EXPAR_TEST_SEED:-$((drawn | 1))}/" |
        xargs -L 1 -P "$(count_gpus)" --process-slot-var=EXPAR_TEST_GPU "$here/gpu.sh" sanitize_one "$here"
}

# Runs first without a tool, which compiles the kernels into the cache. Under a tool the compiler would take minutes.
sanitize() {
    local before drawn=$RANDOM tool programs=(test_gpu_{options_random,random,layout})
    # Handles, kinds of memory and streams. Its rank is by itself.
    local alone=test_gpu_device_calls:test_alone_a_rank_needs_no_other_kernel
    before=$(wc -l <"$logs/results")
    printf 'no_tool %s shaped\n' "${programs[@]}" "$alone" | sanitize_these "$drawn"
    {
        for tool in racecheck memcheck synccheck; do printf "$tool %s shaped\n" "${programs[@]}"; done
        printf '%s test_gpu_options_random ready\n' racecheck memcheck synccheck
        printf "%s $alone shaped\n" racecheck memcheck synccheck
    } | sanitize_these "$drawn"
    tail -n +$((before + 1)) "$logs/results" >"$logs/these"
    [ -n "${EXPAR_CALL_ENDS:-}" ] || explain <"$logs/these"
    count "$logs/these"
}

sanitize_ll() {
    local before tools=(no_tool racecheck memcheck synccheck)
    before=$(wc -l <"$logs/results")
    EXPAR_TEST_GPU=0 "$here/gpu.sh" sanitize_bench "$here" no_tool
    printf '%s\n' "${tools[@]:1}" |
        xargs -n 1 -P "$(count_gpus)" --process-slot-var=EXPAR_TEST_GPU "$here/gpu.sh" sanitize_bench "$here"
    tail -n +$((before + 1)) "$logs/results" >"$logs/these"
    [ -n "${EXPAR_CALL_ENDS:-}" ] || explain <"$logs/these"
    count "$logs/these"
}

# ---- figures ---------------------------------------------------------------------------------------------------------

# Prints the JSON of a benchmark as a table; in a call, whose end alone may be visible, only the rows that matter most.
# Outside of a call a second row shows the time of the copy roofline's kernel; cached dispatches share that of the row
# above.
table() {
    awk -F '[:,]' -v short="${EXPAR_CALL_ENDS:-}" '
        function row() {
            if (!short || (v["sms"] == 24 && (v["tokens"] == 128 || v["tokens"] == 4096))) show()
            delete v
        }
        function show() {
            printf form, v["op"], v["cached"] == "true" ? "cached" : "", v["path"], v["dtype"], v["sms"], v["tokens"], v["median_us"], \
                v["copy_limit_us"] == "null" ? "" : v["copy_limit_us"], v["fraction_of_copy_limit"] == "null" ? "" : v["fraction_of_copy_limit"], \
                v["layout_us"], v["headers_us"], v["wait_us"], v["counts_us"], v["gap_us"], v["copy_limit_kernel_us"], v["kernel_us"], v["open_us"], v["rows_us"], v["warps_us"], v["ranks_us"], v["close_us"], v["late_rank"], \
                v["verified"] == "true" ? "yes" : "NO"
            if (short || v["cached"] == "true" || v["copy_limit_kernel_us"] == "") return
            printf form, "  limit", "", "", v["dtype"], v["sms"], v["tokens"], v["copy_limit_us"], "", "", "", "", "", "", "", "", \
                v["copy_limit_kernel_us"], "", v["limit_rows_us"], v["limit_warps_us"], v["limit_ranks_us"], v["limit_close_us"], v["limit_late_rank"], ""
        }
        BEGIN {
            form = "%-9s %-6s %-6s %6s %4s %6s %8s %8s %8s %7s %7s %7s %7s %7s %7s %7s %7s %7s %7s %7s %7s %4s %s\n"
            printf form, "operation", "", "path", "dtype", "sms", "tokens", "us", "copy us", "of copy", \
                "layout", "headers", "wait", "counts", "gap", "copykrn", "kernel", "open", "rows", "warps", "ranks", "close", "late", "verified"
        }
        /"results"/ { inside = 1 }
        inside && /^    }/ { row(); next }
        inside && /"copy_limit_breakdown"/ { of = "limit_"; next }
        inside && /^      }/ { of = ""; next }
        inside && NF > 1 { gsub(/[ "]/, ""); v[of $1] = $2 + 0 == $2 && $2 ~ /\./ ? sprintf("%.2f", $2) : $2 }'
}

measure() {
    local tokens=${1:-1,16,128,512,4096} gpus name code=0 start=$EPOCHREALTIME
    gpus=$(count_gpus)
    name=bench_${gpus}_${tokens//,/_}
    limited "$here/bin/expar" bench dispatch combine layout --device cuda -n "$gpus" --experts $((256 / gpus * gpus)) --cached=both \
        --sms 8,12,24 --tokens "$tokens" --dtype bf16,fp8 --json >"$logs/$name.json" 2>"$logs/$name" || code=$?
    [ "$code" = 0 ] && table <"$logs/$name.json"
    note "$name" "$start" "$code"
    return $code
}

# Like table, for low-latency mode: total and kernel, the references, and the parts of the kernel's time. Outside of a
# call a second row has the parts of the copy roofline's kernel.
table_ll() {
    awk -F '[:,]' -v short="${EXPAR_CALL_ENDS:-}" '
        function row() {
            if (!short || v["tokens"] ~ /^(1|16|128)$/) show()
            delete v
        }
        function show() {
            printf form, v["op"], v["sum"] == "null" ? "" : v["sum"], v["format"], v["tokens"], v["sms"], v["median_us"], v["kernel_us"], \
                v["copy_limit_us"], v["copy_limit_kernel_us"], v["raw_round_trip_us"] == "null" ? "" : v["raw_round_trip_us"], v["launch_us"], v["start_us"], \
                v["send_us"], v["warps_us"], v["ranks_us"], v["wire_us"], v["place_us"], v["close_us"], v["late_rank"], \
                v["verified"] == "true" ? "yes" : "NO"
            if (short || v["copy_limit_kernel_us"] == "") return
            printf form, "  limit", "", v["format"], v["tokens"], v["sms"], v["copy_limit_us"], v["copy_limit_kernel_us"], \
                "", "", "", "", v["limit_start_us"], v["limit_send_us"], v["limit_warps_us"], v["limit_ranks_us"], v["limit_wire_us"], \
                v["limit_place_us"], v["limit_close_us"], v["limit_late_rank"] == "null" ? "" : v["limit_late_rank"], ""
        }
        BEGIN {
            form = "%-9s %-7s %-9s %6s %4s %7s %7s %7s %7s %6s %7s %6s %6s %6s %6s %6s %6s %6s %4s %s\n"
            printf form, "operation", "", "format", "tokens", "sms", "us", "kernel", "copy us", "copykrn", "trip", "launch", "start", \
                "send", "warps", "ranks", "wire", "place", "close", "late", "verified"
        }
        /"results"/ { inside = 1 }
        inside && /^    }/ { row(); next }
        inside && /"copy_limit_breakdown"/ { of = "limit_"; next }
        inside && /^      }/ { of = ""; next }
        inside && NF > 1 { gsub(/[ "]/, ""); v[of $1] = $2 + 0 == $2 && $2 ~ /\./ ? sprintf("%.2f", $2) : $2 }'
}

measure_ll() {
    local tokens=${1:-1,2,4,8,16,32,64,128,256} gpus name code=0 start=$EPOCHREALTIME
    gpus=$(count_gpus)
    name=bench_ll_${gpus}_${tokens//,/_}
    limited "$here/bin/expar" bench ll --device cuda -n "$gpus" --experts $((256 / gpus * gpus)) --tokens "$tokens" \
        --format bf16,fp8,fp8_round,fp8_ue8m0,int8,logfmt --json >"$logs/$name.json" 2>"$logs/$name" || code=$?
    if [ "$code" = 0 ]; then table_ll <"$logs/$name.json"; else tail -n 3 "$logs/$name"; fi
    note "$name" "$start" "$code"
    return $code
}

# Prints kernels' times in microseconds, medians of three runs, for each call in before_1.json … and now_3.json.
table_turns() {
    awk -F '[:,]' '
        function row() {
            call = sprintf("%-9s %-8s %-9s %6s", v["op"], v["sum"] == "null" ? "" : v["sum"], v["format"], v["tokens"])
            if (!(call in known)) order[++calls] = call
            known[call]
            time[which, call, round] = v["kernel_us"] + 0
            wrong[call] += v["verified"] != "true"
            delete v
        }
        function median(which, call,   a, b, c) {
            a = time[which, call, 1]; b = time[which, call, 2]; c = time[which, call, 3]
            return a > b ? (b > c ? b : a > c ? c : a) : (a > c ? a : b > c ? c : b)
        }
        FNR == 1 { which = FILENAME ~ /before_.[.]json$/; round = substr(FILENAME, length(FILENAME) - 5, 1); inside = 0 }
        /"results"/ { inside = 1 }
        inside && /^    }/ { row(); next }
        inside && NF > 1 { gsub(/[ "]/, ""); v[$1] = $2 }
        END {
            printf "%-9s %-8s %-9s %6s %8s %8s %s\n", "operation", "", "format", "tokens", "before", "now", "verified"
            for (i = 1; i <= calls; i++)
                printf "%s %8.2f %8.2f %s\n", order[i], median(1, order[i]), median(0, order[i]), wrong[order[i]] ? "NO" : "yes"
        }' "$@"
}

turns() {
    local other gpus round folder which tokens=${2:-1,16,128} code=0 start=$EPOCHREALTIME
    [ -x "$1/bin/expar" ] || { echo "gpu.sh: turns '$1': a folder that 'gpu.sh pack' has filled is expected" >&2 && return 2; }
    other=$(realpath "$1")
    gpus=$(count_gpus)
    for round in 1 2 3; do
        for which in before now; do
            folder=$here
            [ $which = now ] || folder=$other
            limited env LD_LIBRARY_PATH="$folder/lib" "$folder/bin/expar" bench ll --device cuda -n "$gpus" \
                --experts $((256 / gpus * gpus)) --tokens "$tokens" --format bf16,fp8 --json \
                >"$logs/${which}_$round.json" 2>>"$logs/turns" || code=$?
        done
    done
    if [ "$code" = 0 ]; then table_turns "$logs"/{before,now}_{1,2,3}.json; else tail -n 3 "$logs/turns"; fi
    note turns "$start" "$code"
    return $code
}

# Runs both, even if the first fails.
measure_all() {
    local code=0
    measure "${1:-}" || code=$?
    measure_ll "${1:-}" || code=$?
    return $code
}

demo() {
    local code=0 start=$EPOCHREALTIME
    limited "$here/bin/expar" demo --device cuda --model "$here/moe-lm" --json >"$logs/demo.json" 2>"$logs/demo" || code=$?
    grep '"matches_reference"\|"device"\|"ranks"\|"tokens_per_second"' "$logs/demo.json" || true
    note demo "$start" "$code"
    return $code
}

# Runs a packed program with its arguments.
trial_python() {
    limited env PYTHONPATH="$here/python:$here/python-tests" PYTHONDONTWRITEBYTECODE=1 \
        EXPAR_LIBRARY="$(find "$here/lib" -name 'libexpar.so.*' | head -n 1)" \
        "${PYTHON:-python3}" "$here/python-tests/$1" "${@:2}"
}

python() {
    local code=0 start=$EPOCHREALTIME
    trial_python gpu_torch.py "$@" >"$logs/python" 2>&1 || code=$?
    awk -v all="$code" '/^part  / { inside = 1 } /^    host, / || inside || all' "$logs/python" | tail -c 8000
    note python "$start" "$code"
    return $code
}

# Measures first the figures of the C API, with as many ranks and calls. Low-latency calls have 1 token, and the small
# numbers of TOKENS.
engine_view() {
    local tokens=${1:-4096,128} gpus experts few count code=0 start=$EPOCHREALTIME shape
    gpus=$(count_gpus)
    experts=$((256 / gpus * gpus))
    few=1
    for count in ${tokens//,/ }; do [ "$count" -gt 128 ] || [ "$count" = 1 ] || few+=,$count; done
    shape=(--device cuda -n "$gpus" --experts "$experts" --iters 60 --json --pattern)
    limited "$here/bin/expar" bench all "${shape[@]}" all --tokens "$tokens" --dtype bf16,fp8 --cached=both \
        >"$logs/engine_view_normal.json" 2>"$logs/engine_view" || code=$?
    limited "$here/bin/expar" bench ll "${shape[@]}" all --tokens "$few" --format bf16,fp8 --sum exact \
        >"$logs/engine_view_ll.json" 2>>"$logs/engine_view" || code=$?
    [ "$code" != 0 ] || trial_python engine_view.py --device cuda --ranks "$gpus" --tokens "$tokens" --experts "$experts" \
        "$logs"/engine_view_{normal,ll}.json >>"$logs/engine_view" 2>&1 || code=$?
    tail -c 8000 "$logs/engine_view"
    note engine_view "$start" "$code"
    return $code
}

long_waits() {
    local code=0 start=$EPOCHREALTIME
    trial_python long_waits.py >"$logs/long_waits" 2>&1 || code=$?
    tail -n 24 "$logs/long_waits"
    note long_waits "$start" "$code"
    return $code
}

ring() {
    local code=0 start=$EPOCHREALTIME
    limited "$here/bin/rate_gpu_ring" >"$logs/ring" 2>&1 || code=$?
    grep 'command issued\|commands a second' "$logs/ring" || tail -n 3 "$logs/ring"
    note ring "$start" "$code"
    return $code
}

# ---- several of them -------------------------------------------------------------------------------------------------

test_and_measure() {
    pack "$1" "$1/gpu"
    open_packed "$1/gpu"
    : >"$logs/results"
    run . && measure_all
}

# Checks all words before any part starts; otherwise a wrong word would be found when time is spent.
check_again() {
    [[ $1 =~ ^[1-9][0-9]*:. ]] || { echo "gpu.sh: again '$1': COUNT:PATTERN is expected" >&2 && return 2; }
}

check_part() {
    case $1 in
        run | run=* | spread | spread=* | measure | measure=* | measure_ll | measure_ll=* | python | python=* | engine_view | engine_view=*) ;;
        sanitize | sanitize_ll | demo | long_waits | ring | turns=?*) ;;
        again=*) check_again "${1#again=}" ;;
        again) check_again '' ;;
        sanitize=* | sanitize_ll=* | demo=* | long_waits=* | ring=*) echo "gpu.sh: '$1': ${1%%=*} takes no argument" >&2 && return 2 ;;
        *) echo "gpu.sh: '$1': run, spread, again, measure, measure_ll, turns=OTHER, python, engine_view, long_waits, ring, sanitize, sanitize_ll or demo is expected" >&2 && return 2 ;;
    esac
}

part() {
    local word=${1%%=*} words argument=
    [ "$word" = "$1" ] || argument=${1#*=}
    case $word in
        run) tests "${argument:-.}" "$jobs" ;;
        spread) tests "${argument:-.}" "$(count_gpus)" spread ;;
        measure) measure_all "$argument" ;;
        measure_ll | engine_view) "$word" "$argument" ;;
        python) IFS=, read -ra words <<<"$argument" && python "${words[@]}" ;;
        again) again "$argument" ;;
        turns) turns "$argument" ;;
        sanitize | sanitize_ll | demo | long_waits | ring) "$word" ;;
    esac
}

# Writes one file beside the JSONs and `results`.
pack_logs() {
    (cd "$logs" && find . -maxdepth 1 -type f ! -name '*.json' ! -name results ! -name logs.tar.gz -printf '%P\n' |
        tar -czf logs.tar.gz --remove-files -T -)
}

# Runs every part, even if earlier ones failed.
call() {
    local seconds=$1 failed=0 one_part start=$EPOCHSECONDS
    [[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "gpu.sh: '$seconds': a number of seconds is expected" >&2 && return 2; }
    shift
    export EXPAR_CALL_ENDS=$((start + seconds)) EXPAR_TEST_SECONDS=${EXPAR_TEST_SECONDS:-120}
    for one_part; do check_part "$one_part" || return 2; done
    [ $# -gt 0 ] || set -- measure run sanitize
    for one_part in "$@"; do
        echo "== $((EPOCHSECONDS - start)) s: $one_part"
        part "$one_part" || failed=1
    done
    echo "== $((EPOCHSECONDS - start)) s: end"
    explain <"$logs/results" | tail -c 6000
    pack_logs
    echo "== all: name, seconds, result"
    cat "$logs/results"
    count "$logs/results" || failed=1
    return $failed
}

case ${1:-}:$# in
    all:1)
        cd "$root"
        scripts/setup.sh test
        cmake --preset release -DEXPAR_READY_TEST_KERNELS=ON && cmake --build --preset release && test_and_measure build/release
        ;;
    test:2) test_and_measure "$2" ;;
    pack:3) pack "$2" "$3" ;;
    pack_python:2) pack_python "$2" ;;
    one:3 | sanitize_one:6 | sanitize_bench:3)
        open_packed "$2"
        "$1" "${@:3}"
        ;;
    run:[23] | spread:[23] | measure:[23] | measure_ll:[23] | engine_view:[23] | again:3 | turns:[34] | demo:2 | long_waits:2 | ring:2 | sanitize:2 | sanitize_ll:2)
        open_packed "$2"
        : >"$logs/results"
        case $1 in
            spread) tests "${3:-.}" "$(count_gpus)" spread ;;
            again) check_again "$3" && again "$3" ;;
            measure) measure_all "${3:-}" ;;
            *) "$1" "${@:3}" ;;
        esac
        ;;
    python:[2-9] | python:1?)
        open_packed "$2"
        : >"$logs/results"
        python "${@:3}"
        ;;
    call:[3-9] | call:1?)
        open_packed "$2"
        : >"$logs/results"
        call "${@:3}"
        ;;
    *)
        sed -n 's/^# usage: /usage: /p; s/^#        /       /p' "$script" >&2
        exit 2
        ;;
esac
