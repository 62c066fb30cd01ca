#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each knob is read somewhere in src. Each #define that is a number in exec, net, shmem or link is in the list of those
# that are no knobs, and that list has nothing else. Headers of kernels are not checked.
# usage: check_knobs.sh SRC_DIR FIXED_NUMBERS
set -eu
[ $# -eq 2 ] || { echo "usage: check_knobs.sh SRC_DIR FIXED_NUMBERS" >&2; exit 64; }
fixed=$(realpath "$2")
cd "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

find . -name '*.[ch]' ! -path './base/knobs*' -exec cat {} + | grep -o 'KNOB_[A-Z0-9_]*' | sort -u >"$work/read"
sed -n 's/^ *X(\([A-Z0-9_]*\),.*/KNOB_\1/p' base/knobs_table.h | sort >"$work/knobs"
comm -23 "$work/knobs" "$work/read" | sed 's/$/ is read nowhere/' >"$work/faults"

# "LAYER NAME FILE" of each number.
# shellcheck disable=SC2016
find exec net shmem link -name '*.[ch]' ! -path '*/kernels/*' ! -path 'link/device/*' | sort | xargs awk '
    /^[ \t]*#[ \t]*define[ \t]+[A-Za-z_][A-Za-z_0-9]*[ \t]/ {
        value = $0
        sub(/\/[*].*/, "", value)
        sub(/^[ \t]*#[ \t]*define[ \t]+/, "", value)
        name = value
        sub(/[ \t].*/, "", name)
        sub(/^[A-Za-z_0-9]+/, "", value)
        if (value ~ /"/ || value !~ /[^A-Za-z_0-9][0-9]/) next
        layer = FILENAME
        sub(/\/.*/, "", layer)
        print layer, name, FILENAME
    }' >"$work/numbers"
awk -v kinds=' format bound length hardware kernel unit environment ' '
    NR == FNR {
        if ($0 ~ /^#/) next
        if (NF != 3 || !index(kinds, " " $3 " ")) { print "not LAYER NAME KIND: " $0; next }
        listed[$1 " " $2] = 1
        next
    }
    {
        found[$1 " " $2] = 1
        if (!($1 " " $2 in listed)) print $3 ": " $2 " is a number: a knob, or of which kind?"
    }
    END { for (one in listed) if (!(one in found)) print one " is listed, and is nowhere" }' \
    "$fixed" "$work/numbers" >>"$work/faults"

[ "$(wc -l <"$work/knobs")" -ge 50 ] || echo "found only $(wc -l <"$work/knobs") knobs" >>"$work/faults"
[ "$(wc -l <"$work/numbers")" -ge 30 ] || echo "found only $(wc -l <"$work/numbers") numbers" >>"$work/faults"
cat "$work/faults"
[ ! -s "$work/faults" ]
