#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks scripts/gpu.sh with programs that stand for tests; needs no GPU. The result of each stands at the end and in
# `results`, the last lines of failed ones before it, and logs are packed.
# usage: test_gpu_script.sh GPU_SH
set -euo pipefail
unset CUDA_VISIBLE_DEVICES
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/lib"
cp "$1" "$work/gpu.sh"

# program NAME LINES…: what it does.
program() {
    printf '%s\n' '#!/bin/sh' "${@:2}" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
program good 'echo fine'
# shellcheck disable=SC2016 # the program's own shell expands it
program bad 'echo "this went wrong: $SAID $1"' 'exit 3'
program none 'echo "SKIPPED: no GPU"' 'exit 77'
program slow 'exec sleep 60'
# shellcheck disable=SC2016 # the program's own shell expands it
program expar '[ "$1" != info ] || exec printf "memory\\n  none\\nGPUs\\n  kernel compiler  lost\\nlaunchers\\n"' \
    'echo "{ \"matches_reference\": true }"'
printf '%s\n' 'test_good - good' 'test_bad SAID=hello bad there' 'test_none - none' 'test_slow - slow' >"$work/tests.txt"

fail() {
    echo "test_gpu_script: $1" >&2
    cat "$work/out" >&2
    exit 1
}
# The script's exit code and its output.
expect() {
    local code=0
    EXPAR_TEST_SECONDS=3 "$work/gpu.sh" "${@:2}" >"$work/out" 2>&1 || code=$?
    [ "$code" = "$1" ] || fail "${*:2} ended with $code"
}

mkdir "$work/empty"
expect 2 run "$work/empty"
grep -q "empty is no folder that 'gpu.sh pack' has filled" "$work/out" || fail "an empty folder is not refused"
if "$1" pack "$work/nowhere" "$work/packed_nowhere" >"$work/out" 2>&1; then fail "a build that is not there is packed"; fi
grep -q "BUILD_DIR is '$work/nowhere'" "$work/out" || fail "a build that is not there is not named"
[ ! -e "$work/packed_nowhere" ] || fail "something was packed"
expect 2 call "$work" soon
grep -q "'soon': a number of seconds is expected" "$work/out" || fail "a time that is none is not refused"
printf '%s\n' 'test_none_too - none' >>"$work/tests.txt"
expect 0 run "$work" 'good|none'
grep -q '^2 skipped: no GPU$' "$work/out" || fail "run does not say why tests are skipped"
sed -i '$d' "$work/tests.txt"
expect 0 run "$work" 'good|none'
grep -q '^1 passed, 0 failed, 1 skipped$' "$work/out" || fail "run does not count"
[ "$(head -n 2 "$work/out" | tr '\n' ';')" = 'GPUs;  kernel compiler  lost;' ] || fail "run does not say what the machine has"
# The output of bench ll becomes a table.
mv "$work/bin/expar" "$work/bin/kept"
# shellcheck disable=SC2016 # the program's own shell expands it
program expar '[ "$1 $2 $3 $4" = "bench ll --device cuda" ] || exit 9' 'printf "%s\n" "{" "  \"results\": [" "    {" \
    "      \"op\": \"combine\"," "      \"sum\": \"reduced\"," "      \"tokens\": 16," "      \"kernel_us\": 12.345," \
    "      \"breakdown\": {" "        \"wire_us\": 3.25" "      }," "      \"copy_limit_kernel_us\": 4.5," \
    "      \"copy_limit_breakdown\": {" "        \"wire_us\": 0.25," "        \"place_us\": 1.75" "      }," \
    "      \"verified\": true" "    }" "  ]" "}"'
expect 0 measure_ll "$work" 16
grep -Eq '^combine +reduced +16 +12[.]3[45] +4[.]50 +3[.]25 +yes$' "$work/out" || fail "measure_ll prints no table"
grep -Eq '^  limit +16 +4[.]50 +0[.]25 +1[.]75 +$' "$work/out" || fail "measure_ll does not print the limit's kernel"

# Two programs in turns, of which each has its own libraries and takes longer from run to run: the medians of three.
mkdir -p "$work/other/bin" "$work/other/lib"
# shellcheck disable=SC2016 # the program's own shell expands it
program expar '[ "$1 $2 $3 $4" = "bench ll --device cuda" ] || exit 9' 'echo . >>"$0.runs"' \
    'case $LD_LIBRARY_PATH in *other*) base=20 ;; *) base=10 ;; esac' \
    'printf "%s\n" "{" "  \"results\": [" "    {" "      \"op\": \"dispatch\"," "      \"sum\": null," \
    "      \"tokens\": 8," "      \"kernel_us\": $((base + $(wc -l <"$0.runs"))).5," "      \"verified\": true" "    }" "  ]" "}"'
cp "$work/bin/expar" "$work/other/bin"
expect 0 turns "$work" "$work/other" 8
grep -Eq '^dispatch +8 +22[.]50 +12[.]50 yes$' "$work/out" || fail "turns does not print the medians of both programs"
expect 2 turns "$work" "$work/empty"
grep -q "empty': a folder that 'gpu.sh pack' has filled is expected" "$work/out" || fail "turns takes an empty folder"
expect 2 call "$work" 30 turns
mv "$work/bin/kept" "$work/bin/expar"
rm "$work/logs/"bench_ll* "$work/logs/"{turns,before,now}* "$work/bin/expar.runs"
expect 1 run "$work" none
expect 1 call "$work" 30 'run=good|bad|none' demo 'spread=slow'
[ "$(tail -n 1 "$work/out")" = '2 passed, 2 failed, 1 skipped' ] || fail "call does not end with its count"
grep -q '^this went wrong: hello there$' "$work/out" || fail "the end of a failure is not shown"
[ "$(awk '{ $2 = ""; print }' "$work/logs/results" | tr '\n' ';')" = \
    'test_good  passed;test_bad  rc 3;test_none  skipped;demo  passed;test_slow  too long;' ] || fail "results are not right"
[ "$(cd "$work/logs" && echo *)" = 'demo.json logs.tar.gz results' ] || fail "other files are left"
tar -tzf "$work/logs/logs.tar.gz" >"$work/packed"
grep -qx test_bad "$work/packed" || fail "a log is missing"

# The Python packages: a table, of what fails all that was said, and what is skipped.
mkdir "$work/python-tests"
# shellcheck disable=SC2016 # the program's own shell expands it
program python 'shift' 'echo "rank 0 says $*"' 'echo "part    seconds  result"' 'echo "$1  1.0  passed"' 'exit "$2"'
PYTHON=$work/bin/python expect 0 python "$work" normal 0
grep -q '^normal  1.0  passed$' "$work/out" || fail "python has no table"
! grep -q '^rank 0 says' "$work/out" || fail "python shows what passed"
PYTHON=$work/bin/python expect 1 call "$work" 30 python=normal,4
grep -q '^rank 0 says normal 4$' "$work/out" || fail "python does not show what failed"
PYTHON=$work/bin/python expect 77 python "$work" normal 77
grep -q '^python .* skipped$' "$work/out" || fail "python does not say that it was skipped"

# The long ones come last.
cp "$work/tests.txt" "$work/tests.kept"
printf '%s\n' 'test_gpu_ll_faults_killed - good' 'test_gpu_sums_processes - good' 'test_gpu_sums - good' >>"$work/tests.txt"
expect 0 run "$work" 'good|gpu'
[ "$(awk '{ print $1 }' "$work/logs/results" | tr '\n' ' ')" = \
    'test_good test_gpu_sums test_gpu_ll_faults_killed test_gpu_sums_processes ' ] || fail "long tests are not the last"
mv "$work/tests.kept" "$work/tests.txt"

# Two that pass only beside each other.
for name in one other; do
    # shellcheck disable=SC2016 # the program's own shell expands it
    program $name 'touch "$0.here"' 'until [ -e "${0%/*}/one.here" ] && [ -e "${0%/*}/other.here" ]; do sleep 0.1; done'
    printf '%s\n' "test_$name - $name" >>"$work/tests.txt"
done
for wrong in 0 two -1; do
    EXPAR_TEST_JOBS=$wrong expect 2 run "$work" 'test_o'
    grep -q "EXPAR_TEST_JOBS is '$wrong': a number of 1 or more is expected" "$work/out" || fail "$wrong jobs are not refused"
done
EXPAR_TEST_JOBS=2 expect 0 run "$work" 'test_o'
grep -q '^2 passed' "$work/out" || fail "two at a time did not pass"
rm "$work/bin/"*.here
expect 1 run "$work" 'test_o'
grep -q '^1 passed, 1 failed' "$work/out" || fail "one at a time is two"

# One that fails the third time.
# shellcheck disable=SC2016 # the program's own shell expands it
program moody 'echo . >>"$EXPAR_TEST_LOGS/times"' '[ "$(wc -l <"$EXPAR_TEST_LOGS/times")" -lt 3 ]'
printf '%s\n' 'test_moody - moody' >>"$work/tests.txt"
export EXPAR_TEST_LOGS="$work/again"
expect 1 again "$work" 5:test_moody
[ "$(wc -l <"$work/again/times")" = 3 ] || fail "again goes on behind a failure, or ends before"
rm "$work/again/times"
expect 0 again "$work" 2:test_moody
expect 2 again "$work" test_moody
grep -q "again 'test_moody': COUNT:PATTERN is expected" "$work/out" || fail "again without a count is not refused"
expect 1 again "$work" 9:test_moody
expect 1 call "$work" 2 again=9:test_good
grep -q '9 times of 9:test_good are left, but no 3 s for one' "$work/out" || fail "again begins what it cannot end"
expect 2 call "$work" 30 run=moody again=3
grep -q "again '3': COUNT:PATTERN is expected" "$work/out" || fail "a wrong part is found too late"
expect 2 call "$work" 30 run=moody agian=3:x
grep -q "'agian=3:x': run, spread, again" "$work/out" || fail "a part that is none is not refused"
expect 2 call "$work" 30 again
grep -q "again '': COUNT:PATTERN is expected" "$work/out" || fail "again without an argument is not refused"
expect 2 call "$work" 30 again=3:
expect 2 call "$work" 30 demo=3
grep -q "'demo=3': demo takes no argument" "$work/out" || fail "an argument that is not taken is not refused"
expect 2 run "$work" nobody
grep -q "no packed test's name matches 'nobody'" "$work/out" || fail "a pattern that matches nothing is not told"

# A sanitizer that knows two programs, and finds something in one of them by one tool; two GPUs.
mkdir "$work/path"
# shellcheck disable=SC2016 # the program's own shell expands it
printf '%s\n' '#!/bin/sh' 'for word; do case $word in */bin/*) program=${word##*/} ;; esac; done' \
    'echo "$CUDA_VISIBLE_DEVICES $2 $program $EXPAR_TEST_SEED ${EXPAR_NVRTC:-shaped}" >>"$EXPAR_TEST_LOGS/seen"' \
    '[ "$2 $program" != "racecheck test_gpu_layout" ] || exit 9' >"$work/path/compute-sanitizer"
printf '%s\n' '#!/bin/sh' 'echo "GPU 0: one"' 'echo "GPU 1: two"' >"$work/path/nvidia-smi"
chmod +x "$work/path/"*
for name in test_gpu_options_random test_gpu_random test_gpu_layout test_gpu_device_calls; do
    # shellcheck disable=SC2016 # the program's own shell expands it
    program $name '[ ! -e "$EXPAR_TEST_LOGS/seen" ] && echo "${0##*/} $1 $EXPAR_TEST_SEED" >>"$EXPAR_TEST_LOGS/played"'
done
export EXPAR_TEST_LOGS="$work/sane"
PATH=$work/path:$PATH expect 1 sanitize "$work"
grep -q '^18 passed, 1 failed, 0 skipped$' "$work/out" || fail "sanitize does not count"
grep -q '^racecheck_test_gpu_layout .* rc 9$' "$work/sane/results" || fail "what a tool found is not told"
[ "$(cut -d ' ' -f 2,3 "$work/sane/seen" | sort -u | wc -l)" = 12 ] || fail "not every tool saw every program"
[ "$(grep -c 'test_gpu_options_random [0-9]* /nowhere$' "$work/sane/seen")" = 3 ] || fail "the build's own kernels were not seen"
# The tools see the cache as it is filled here.
[ "$(sort "$work/sane/played")" = "$(awk '$5 == "shaped" { print $3, "processes", $4 }' "$work/sane/seen" | sort -u)" ] ||
    fail "other calls were played before"
grep -q '^[01] memcheck test_gpu_random 48 shaped$' "$work/sane/seen" || fail "the script's seed or its GPU is not set"
[ "$(awk '{ print $1 }' "$work/sane/seen" | sort -u | tr '\n' ' ')" = '0 1 ' ] || fail "not all GPUs are used"

# The benchmark of one rank, too.
export EXPAR_TEST_LOGS="$work/sane_ll"
PATH=$work/path:$PATH expect 0 sanitize_ll "$work"
grep -q '^4 passed, 0 failed, 0 skipped$' "$work/out" || fail "sanitize_ll does not count"
[ "$(awk '{ print $2, $3 }' "$work/sane_ll/seen" | sort | tr '\n' ';')" = 'memcheck expar;racecheck expar;synccheck expar;' ] ||
    fail "not every tool saw the benchmark"
expect 2 call "$work" 30 sanitize_ll=3

# It uses those that CUDA_VISIBLE_DEVICES names.
export EXPAR_TEST_LOGS="$work/chosen"
CUDA_VISIBLE_DEVICES=GPU-5,7 PATH=$work/path:$PATH expect 1 sanitize "$work"
[ "$(awk '{ print $1 }' "$work/chosen/seen" | LC_ALL=C sort -u | tr '\n' ' ')" = '7 GPU-5 ' ] || fail "the GPUs are not the chosen ones"

# The packed Python programs have every module of the tree that they import.
"$1" pack_python "$work/pythons" || fail "the Python programs cannot be packed"
missing=$(python3 - "$(dirname "$1")/.." "$work/pythons/python-tests" <<'PYTHON'
import ast, pathlib, sys
tree, packed = map(pathlib.Path, sys.argv[1:])
known = {path.stem for folder in ("tests/python", "bench/python", "examples/python") for path in (tree / folder).glob("*.py")}
there = {path.stem for path in packed.glob("*.py")}
assert len(there) >= 15
for path in packed.glob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        print(*(f"{path.name}: {name}" for name in names if name in known - there), sep="\n", end="")
PYTHON
)
[ -z "$missing" ] || fail "modules are not packed: $missing"
