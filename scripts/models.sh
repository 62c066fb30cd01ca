#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the models of protocols (tests/models) with spin, in all their states. The models must hold, and must still
# find the errors of weaker forms. Without spin it says so, and passes.
#   scripts/models.sh FOLDER [MODEL ERRORS [OPTION…]]
# FOLDER is for the files of spin. With MODEL (`banks`, `clean`, `gda_queue` or `low_latency`) and its options only that
# model is checked. ERRORS is the expected number of errors: 0, or 1.
set -eu
models=$(cd "$(dirname "$0")/../tests/models" && pwd)
if [ $# -lt 1 ] || [ $# -eq 2 ] || { [ $# -gt 2 ] && [ ! -e "$models/$2.pml" ]; }; then
    echo "usage: models.sh FOLDER [MODEL ERRORS [OPTION...]], with a MODEL of" "$(cd "$models" && echo *.pml | sed "s/\.pml//g")" >&2
    exit 64
fi
folder=$1
shift
depth=200000 # the largest number of steps of a history; a longer one is an error, too

if ! command -v spin > /dev/null; then
    echo "models: spin is not installed; no model was checked"
    exit 0
fi
mkdir -p "$folder"
cd "$folder"

complain() {
    echo "models: $*" >&2
    cat pan.out >&2
    exit 1
}

# check MODEL WANTED OPTION…: 0 errors in all states, or 1 found.
check() {
    model=$1
    wanted=$2
    shift 2
    rm -f pan pan.* ./*.trail
    spin -a "$@" "$models/$model.pml"
    "${CC:-cc}" -w -O2 -DSAFETY -DCOLLAPSE -o pan pan.c
    ./pan -E -n -b -m"$depth" > pan.out 2>&1 || true
    grep -q "errors: $wanted\$" pan.out || complain "$model.pml with '$*': expected $wanted errors"
    if [ "$wanted" -eq 0 ] && grep -q 'Search not completed' pan.out; then
        complain "$model.pml with '$*': not all states were looked at"
    fi
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.out)
    echo "models: $model.pml with '$*': $wanted errors in $states states"
}

if [ $# -gt 0 ]; then
    check "$@"
    exit 0
fi
check banks 0
check banks 0 -DREFUSE=1
check banks 0 -DSTATES=1
check banks 1 -DRULE=1
check banks 1 -DRULE=2
check banks 1 -DRULE=3 -DCALLS=5
check low_latency 0
check low_latency 0 -DREFUSE=1
check low_latency 0 -DSTATES=1
check low_latency 1 -DCOPIES=2
check low_latency 1 -DREADWORD=0
check low_latency 1 -DAWAIT=0 -DREFUSE=1
check clean 0
check clean 0 -DCLEANS=2
check clean 0 -DLOSSES=2
check clean 0 -DDEATHS=1
check clean 0 -DDEATHS=1 -DLOSSES=0 -DCLEANS=2
check clean 1 -DTAKEOVER=0
check clean 1 -DVECTORS=0 -DCLEANS=2
check gda_queue 0
check gda_queue 0 -DTHREADS=3 -DEACH=1
check gda_queue 0 -DTHREADS=3 -DEACH=1 -DBATCH=1
for rule in 1 2 3 4 5 6 7; do
    check gda_queue 1 -DRULE=$rule
done
