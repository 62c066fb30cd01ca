#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Numbers of src are knobs or are listed as none, and the check would see it if they were not.
# usage: test_knob_list.sh SRC_DIR
set -eu
[ $# -eq 1 ] || { echo "usage: test_knob_list.sh SRC_DIR" >&2; exit 64; }
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"
list=$here/fixed_numbers.txt

"$here/check_knobs.sh" "$1" "$list" || fail "src/base/knobs_table.h and tests/base/fixed_numbers.txt say what a number is"

# begin: the sources and the list anew. finds FAULT: the check fails, and says so.
begin() {
    rm -rf "$work/src"
    cp -r "$1" "$work/src"
    cp "$list" "$work/list"
}
finds() {
    if "$here/check_knobs.sh" "$work/src" "$work/list" >"$work/found"; then fail "not seen: $1"; fi
    grep -qxF "$1" "$work/found" || fail "expected '$1', found: $(cat "$work/found")"
}

for number in '7' '(64u << 10)' 'INT64_C(20000)' '((int64_t)100 * 1000) /* so long */'; do
    begin "$1"
    echo "#define NEW_NAP_NS $number" >>"$work/src/net/post.c"
    finds 'net/post.c: NEW_NAP_NS is a number: a knob, or of which kind?'
done
begin "$1"
echo '#define TREE_MOST_CHILDREN 64' >>"$work/src/link/link.h"
finds 'link/link.h: TREE_MOST_CHILDREN is a number: a knob, or of which kind?'
begin "$1"
echo 'exec OLD_BYTES length' >>"$work/list"
finds 'exec OLD_BYTES is listed, and is nowhere'
begin "$1"
echo 'exec SPAN' >>"$work/list"
finds 'not LAYER NAME KIND: exec SPAN'
begin "$1"
find "$work/src" -name '*.[ch]' ! -path '*/base/knobs*' -exec sed -i 's/KNOB_LINK_LINGER_NS/0/' {} +
finds 'KNOB_LINK_LINGER_NS is read nowhere'

# Texts, names and what is made of names are no numbers.
begin "$1"
printf '#define NEW_TEXT "7 of 9"\n#define NEW_NAME encode_avx512\n#define NEW_CALL(x) (x + 1)\n' >>"$work/src/net/post.c"
"$here/check_knobs.sh" "$work/src" "$work/list" || fail "took for a number what is none"
