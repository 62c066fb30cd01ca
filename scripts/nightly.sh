#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What takes too long for every day: thousands of random rounds, a thousand kills, the soak, and valgrind.
#   scripts/nightly.sh BUILD_DIR [ROUNDS [SOAK_ROUNDS]]
set -eu
build=$1
rounds=${2:-20000}
soak_rounds=${3:-100000}

run() {
    echo "nightly: $*"
    "$@"
}

for test in test_ep_random test_ep_options_random; do
    EXPAR_TEST_ROUNDS=$rounds run "$build/tests/$test"
    EXPAR_TEST_ROUNDS=$((rounds / 4)) run "$build/tests/$test" processes
done
for test in test_ll_random test_ll_wrap; do
    EXPAR_TEST_ROUNDS=$rounds run "$build/tests/$test"
    EXPAR_TEST_ROUNDS=$((rounds / 4)) run "$build/tests/$test" processes
done
EXPAR_TEST_ROUNDS=$rounds run "$build/tests/test_litmus"
EXPAR_TEST_ROUNDS=$rounds run "$build/tests/test_ll_litmus"
EXPAR_TEST_ROUNDS=$((rounds / 20)) run "$build/tests/test_faults_kill"
EXPAR_TEST_ROUNDS=$((rounds / 20)) run "$build/tests/test_exit"
for test in test_gone test_interrupts test_stuck; do
    EXPAR_TEST_ROUNDS=$rounds run "$build/tests/$test" mix
    EXPAR_TEST_ROUNDS=$rounds EXPAR_TRANSPORTS=fabric run "$build/tests/$test" processes
done
run "$build/tests/soak_calls" threads 4 "$soak_rounds"
run "$build/tests/soak_calls" processes 4 "$soak_rounds"
run "$build/tests/soak_ll" threads 4 "$soak_rounds"
run "$build/tests/soak_ll" processes 4 "$soak_rounds"
run ctest --test-dir "$build" --label-regex valgrind --output-on-failure --no-tests=error
