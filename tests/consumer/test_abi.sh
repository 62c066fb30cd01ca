#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The table of structs matches the headers, is complete, equals the one inside the library, and would show a change.
# usage: test_abi.sh ROOT TABLE PROGRAM      PROGRAM prints what expar_abi gives
set -eu
root=$1
table=$2
program=$3
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

# make INCLUDE_DIR: writes the table of these headers to $work/table.
make() {
    "$root/tools/abi/table.sh" "$1" cc >"$work/table.c" || return 1
    cc -I"$1" "$work/table.c" -o "$work/program" 2>"$work/errors" || return 1
    "$work/program" >"$work/table"
}

make "$root/include" || fail "no table can be made"
cmp "$work/table" "$table" || fail "the build's table is an old one"
"$program" >"$work/told" || fail "$program failed"
cmp "$work/told" "$table" || fail "the library has another table"

# Nothing is left out in any notation: every name after a typedef with a body, and every value of a status.
for header in "$root"/include/expar/*.h; do
    case $header in */mpi.h | */device.h | */shmem*.h) continue ;; esac
    sed -n 's/^typedef \(struct\|enum\) \([A-Za-z_0-9]*\) {.*/\2/p' "$header"
done >"$work/names"
[ "$(wc -l <"$work/names")" -ge 25 ] || fail "found too few structs"
while read -r name; do
    grep -q "^    \"$name\": " "$table" || fail "$name is not in the table"
done <"$work/names"
sed -n 's/^    X(\([A-Z_0-9]*\), \([0-9]*\), .*/      "EXPAR_\1": \2/p' "$root/include/expar/status.h" >"$work/statuses"
[ "$(wc -l <"$work/statuses")" -ge 28 ] || fail "found too few statuses"
while read -r line; do
    grep -qF "$line" "$table" || fail "the table has no $line"
done <"$work/statuses"

# sees FILE EDIT LINE…: with that edit of the header the table has another form, with these lines.
sees() {
    rm -rf "$work/include"
    cp -r "$root/include" "$work/include"
    sed -i "$2" "$work/include/expar/$1"
    cmp -s "$work/include/expar/$1" "$root/include/expar/$1" && fail "$2 changes nothing"
    make "$work/include" || fail "$2: $(cat "$work/errors")"
    cmp -s "$work/table" "$table" && fail "not seen: $2"
    shift 2
    for line in "$@"; do
        grep -qF "$line" "$work/table" || fail "expected $line, found: $(diff "$table" "$work/table")"
    done
}
sees tensor.h 's/^    int32_t ndim;/    int64_t ndim;/' '{"name": "ndim", "offset": 16, "size": 8, "type": "int64_t"}' \
    '{"name": "shape", "offset": 24,'
sees tensor.h 's/^    void \*data;/    const int *first, second[3], *const *data;/' '"offset": 8, "size": 12, "type": "const int[3]"' \
    '{"name": "data", "offset": 24, "size": 8, "type": "const int *const *"}'
sees tensor.h 's/^    int32_t ndim;/    int32_t ndim;\n    int (*call)(void *context, int n);/' \
    '{"name": "call", "offset": 16, "size": 8, "type": "int (*)(void *context, int n)"}'
sees tensor.h 's/EXPAR_I8 = 8/EXPAR_I8 = 9/' '"EXPAR_I8": 9'
sees tensor.h 's/int32_t index;/uint32_t index;/' '{"name": "index", "offset": 4, "size": 4, "type": "uint32_t"}'

# An unreadable header is rejected.
cp -r "$root/include" "$work/odd"
sed -i 's/^    int32_t ndim;/    struct { int a; } ndim;/' "$work/odd/expar/tensor.h"
if make "$work/odd" 2>"$work/told"; then fail "a nested struct went through"; fi
