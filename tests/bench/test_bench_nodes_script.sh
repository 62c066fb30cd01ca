#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# scripts/bench_nodes.sh rejects arguments before it makes any host. It names the argument, its value, and the
# expectation, and shows how it is called.
# usage: test_bench_nodes_script.sh BENCH_NODES_SH
set -eu
script=$1
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

# A build whose tool says that it was called: no case comes so far.
mkdir "$work/bin"
printf '%s\n' '#!/bin/sh' 'echo called' >"$work/bin/expar"
chmod +x "$work/bin/expar"

# refused TEXT ARGUMENTS…
refused() {
    text=$1
    shift
    code=0
    "$script" "$@" >"$work/out" 2>&1 || code=$?
    [ "$code" = 64 ] || fail "'$*' ended with $code: $(cat "$work/out")"
    [ "$(head -n 1 "$work/out")" = "bench_nodes.sh: $text" ] || fail "'$*' does not say \"$text\": $(cat "$work/out")"
    [ "$(sed -n 2p "$work/out" | cut -c 1-39)" = 'usage: bench_nodes.sh BUILD_DIR HOSTS R' ] ||
        fail "'$*' does not say how it is called: $(cat "$work/out")"
}

expected="a build's folder, hosts, a rate, and what \`expar bench\` takes are expected"
refused "0 arguments: $expected"
refused "3 arguments: $expected" "$work" 2 none
refused "BUILD_DIR '$work/bin': a folder with bin/expar in it is expected" "$work/bin" 2 none dispatch
for hosts in 0 100 -1 two 2.5 ''; do
    refused "HOSTS '$hosts': a number from 1 to 99 is expected" "$work" "$hosts" none dispatch -n 2
done
for rate in fast 1g 10gbyte none1 '1gbit latency 1s' ''; do
    refused "RATE '$rate': none, or a rate as 1gbit is expected" "$work" 2 "$rate" dispatch -n 2
done
ranks="among the arguments of the benchmark a multiple of 2 hosts is expected"
refused "-n '': $ranks" "$work" 2 none dispatch
refused "-n '': $ranks" "$work" 2 1gbit dispatch -n
for n in 0 3 -2 four 10000; do
    refused "-n '$n': $ranks" "$work" 2 1.5gbit dispatch -n "$n" --tokens 8
done
