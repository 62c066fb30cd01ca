#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the tests that take too long for every day:
# - tests with the label `nightly`, thousands of random rounds, a thousand kills, soaks from C and from Python
# - a wheel from the source distribution, the oldest PyTorch, AArch64 under QEMU
# - ten minutes of each fuzzer, in build/fuzz
# - Debian packages in a fresh Debian, and the steps of the Containerfile
# - all states of the models where spin is installed, static checks at all depths, and valgrind
# usage: scripts/nightly.sh BUILD_DIR [ROUNDS [SOAK_ROUNDS]]
# A step may fail or take longer than an hour; the others run all the same. The last line says how many steps there were
# and which of them failed. The status is 0 only if none failed.
set -eu
build=${1:?usage: nightly.sh BUILD_DIR [ROUNDS [SOAK_ROUNDS]]}
rounds=${2:-20000}
soak_rounds=${3:-100000}
root=$(cd "$(dirname "$0")/.." && pwd)
limit=3600 # seconds a step; a rank is killed with the test that it belongs to
steps=0
failed=

# at_least LEAST NAME VALUE: with fewer rounds some steps would run none, and pass.
at_least() {
    case $3 in
        '' | *[!0-9]*) ;;
        *) [ "$3" -lt "$1" ] || return 0 ;;
    esac
    echo "nightly: $2 is '$3'; expected a number, $1 or more" >&2
    exit 2
}

run() {
    steps=$((steps + 1))
    echo "nightly: $*"
    status=0
    timeout --foreground --kill-after=60 "$limit" "$@" || status=$?
    [ "$status" -eq 0 ] || failed="$failed
nightly: failed with $status: $*"
}

at_least 20 ROUNDS "$rounds"
at_least 10 SOAK_ROUNDS "$soak_rounds"

for test in test_ep_random test_ep_options_random; do
    EXPAR_TEST_ROUNDS=$rounds run "$build/tests/$test"
    EXPAR_TEST_ROUNDS=$((rounds / 4)) run "$build/tests/$test" processes
done
EXPAR_TEST_ROUNDS=$((rounds / 10)) run "$build/tests/test_ep_nodes"
EXPAR_TEST_ROUNDS=$((rounds / 20)) run "$build/tests/test_ep_nodes" processes
for test in test_ll_random test_ll_wrap; do
    EXPAR_TEST_ROUNDS=$rounds run "$build/tests/$test"
    EXPAR_TEST_ROUNDS=$((rounds / 4)) run "$build/tests/$test" processes
done
EXPAR_TEST_ROUNDS=$rounds run "$build/tests/test_litmus"
EXPAR_TEST_ROUNDS=$((rounds / 10)) run "$build/tests/test_litmus" nodes
EXPAR_TEST_ROUNDS=$rounds run "$build/tests/test_ll_litmus"
EXPAR_TEST_ROUNDS=$((rounds / 20)) run "$build/tests/test_faults_kill"
EXPAR_TEST_ROUNDS=$((rounds / 100)) run "$build/tests/test_faults_nodes"
EXPAR_TEST_ROUNDS=$((rounds / 20)) run "$build/tests/test_exit"
for test in test_gone test_interrupts test_stuck test_barrier; do
    EXPAR_TEST_ROUNDS=$rounds run "$build/tests/$test" mix
    EXPAR_TEST_ROUNDS=$((rounds / 4)) EXPAR_TRANSPORTS=fabric run "$build/tests/$test" processes
done
# Kernels for every architecture under every set of macros, by both compilers; endpoints of a slow network, too.
EXPAR_TEST_ROUNDS=$rounds run "$root/scripts/check_kernels.sh"
EXPAR_TEST_ROUNDS=$rounds run ctest --test-dir "$build" --output-on-failure --no-tests=error \
    --tests-regex '^(test_cuda_kernels|test_transport_channels|test_transport_channels_threads)$'
run "$build/tests/soak_calls" threads 4 "$soak_rounds"
run "$build/tests/soak_calls" processes 4 "$soak_rounds"
run "$build/tests/soak_ll" threads 4 "$soak_rounds"
run "$build/tests/soak_ll" processes 4 "$soak_rounds"
for how in threads processes; do
    run env EXPAR_LIBRARY="$build/lib/libexpar.so" EXPAR_TEST_TOOL="$build/bin/expar" EXPAR_REQUIRE_PYTHON=1 \
        "$root/tests/python/python.sh" "$root" soak_python $how 3 "$((soak_rounds / 10))"
done
run env EXPAR_LIBRARY="$build/lib/libexpar.so" EXPAR_REQUIRE_TORCH=1 \
    "$root/tests/python/python.sh" "$root" soak_deep_ep "$((soak_rounds / 10))"
run "$(dirname "$0")/wheel.sh" "$build" "$build/wheel/nightly" sdist compiled
# The oldest PyTorch that deep_ep names.
run "$root/scripts/torch.sh" "$build/torch/oldest" 2.4.1
run env PYTHON="$build/torch/oldest/bin/python3" EXPAR_REQUIRE_PYTHON=1 EXPAR_REQUIRE_TORCH=1 \
    ctest --test-dir "$build" --label-regex python --label-exclude nightly --output-on-failure --no-tests=error
limit=7200 run "$root/scripts/fuzz.sh" "$root/build/fuzz" 600
run "$root/scripts/deb.sh" "$build" "$build/deb"
run "$root/scripts/chroot.sh" "$build/chroot" deb "$build/deb"
run "$root/scripts/chroot.sh" "$build/chroot" container
run "$root/scripts/aarch64.sh" "$build/aarch64"
run "$(dirname "$0")/models.sh" "$build/models"
run "$root/scripts/lint.sh" "$build"
run ctest --test-dir "$build" --label-regex 'valgrind|nightly' --output-on-failure --no-tests=error

if [ -n "$failed" ]; then
    echo "nightly: $steps steps, of which failed:$failed"
    exit 1
fi
echo "nightly: $steps steps, all of which passed"
