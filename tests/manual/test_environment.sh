#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/environment.md lists the environment words that steer tests, and the check would see it if it did not.
# usage: test_environment.sh ROOT
set -eu
[ $# -eq 1 ] || { echo "usage: test_environment.sh ROOT" >&2; exit 64; }
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"
list=$1/tests/environment.md

"$here/check_environment.sh" "$1" "$list" || fail "tests/environment.md says which words steer tests"

# finds FAULT: the check of the copy, with the list there, fails with this line alone.
finds() {
    if "$here/check_environment.sh" "$work/tree" "$work/list.md" >"$work/found"; then fail "not seen: $1"; fi
    [ "$(cat "$work/found")" = "$1" ] || fail "expected '$1', found: $(cat "$work/found")"
}
# begin: the tree and the list anew.
begin() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree"
    for folder in .ci bench scripts tests tools CMakeLists.txt Makefile; do cp -r "$root/$folder" "$work/tree/"; done
    cp "$list" "$work/list.md"
}
root=$1

begin
# A word or a reader that the list lacks; a word, or a reader of one, that is nowhere.
# shellcheck disable=SC2016
sed -i '/^| `FAKE_PEERS`/d' "$work/list.md"
if "$here/check_environment.sh" "$work/tree" "$work/list.md" >"$work/found"; then fail "not seen: a lost word"; fi
for fault in 'read in tests/cuda/fake/fake.c' 'set in tests/tool/CMakeLists.txt'; do
    grep -qx "FAKE_PEERS is $fault: not in the list" "$work/found" || fail "found: $(cat "$work/found")"
done

begin
# shellcheck disable=SC2016
echo '| `LATE_OLD` | gone | `tests/net/late/late.c` |' >>"$work/list.md"
finds 'LATE_OLD is listed, and tests/net/late/late.c does not read it'

# sees FILE LINE FAULT: with the line at the end of the file the check finds fault, in these words.
sees() {
    cp "$work/tree/$1" "$work/kept"
    echo "$2" >>"$work/tree/$1"
    finds "$3"
    cp "$work/kept" "$work/tree/$1"
}
begin
sees tests/net/stage.c 'static const char *text(void) { return getenv("LATE_NODES"); }' \
    'LATE_NODES is read in tests/net/stage.c: not in the list'
sees tests/net/stage.c 'static int more(void) { return setting("FAKE_NEW", 0); }' \
    'FAKE_NEW is read in tests/net/stage.c: not in the list'
sees tests/net/stage.c 'static void set(void) { setenv("SILENT_NEW", "1", 1); }' \
    'SILENT_NEW is set in tests/net/stage.c: not in the list'
sees tests/python/ranks.py 'new = "EXPAR_TEST_NEW" in os.environ' \
    'EXPAR_TEST_NEW is read in tests/python/ranks.py: not in the list'
sees tests/python/ranks.py 'new = os.environ.get("EXPAR_TEST_NEW")' \
    'EXPAR_TEST_NEW is read in tests/python/ranks.py: not in the list'
# shellcheck disable=SC2016
sees scripts/nightly.sh '[ -z "${EXPAR_TEST_NEW:-}" ] || exit 1' \
    'EXPAR_TEST_NEW is read in scripts/nightly.sh: not in the list'
sees tests/net/CMakeLists.txt 'set_tests_properties(one PROPERTIES ENVIRONMENT "LATE_NODES=pretended;LATE_NEW=1")' \
    'LATE_NEW is set in tests/net/CMakeLists.txt: not in the list'
# Constants of such names steer nothing.
{
    echo '#define LATE_NEW_NS 7'
    echo 'static int constant(void) { return LATE_NEW_NS + FAKE_NEW_KIND; }'
} >>"$work/tree/tests/net/stage.c"
"$here/check_environment.sh" "$work/tree" "$work/list.md" || fail "took a constant for a word of the environment"
