#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Options that `expar bench rma --device cuda` rejects are named, with what is expected.
# usage: test_rma_options.sh EXPAR
set -uo pipefail
expar=$1
wrong=0

# rejects WORDS OPTION…
rejects() {
    local words=$1 text code
    shift
    text=$("$expar" bench rma --device cuda "$@" 2>&1)
    code=$?
    [[ $code = 64 && $text = *"$words"* ]] && return
    echo "$*: status $code and '$text', expected 64 and '$words'" >&2
    wrong=1
}

rejects "--transports: 'p2p' is not known; expected one or more of mapped,gda,proxy" --transports p2p
rejects "--ops: 'barrier' is not known; expected one or more of put,get,put_signal,stream_put,commands" --ops barrier
rejects "--transports mapped: it reaches ranks of one node; --nodes 2 needs gda or proxy" -n 2 --nodes 2 --transports mapped
rejects "--report: rma on GPUs has none" --report "${TMPDIR:-/tmp}/none.html"
rejects "-n 1: rma needs 2 ranks or more" -n 1
exit $wrong
