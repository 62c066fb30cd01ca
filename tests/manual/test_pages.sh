#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The pages of the headers are whole, and the check would see it if they were not.
# usage: test_pages.sh INCLUDE_DIR MAN_DIR PAGES_OF_CALLS
set -eu
here=$(cd "$(dirname "$0")" && pwd)
include=$1
man=$2
calls=$3
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

"$here/check_pages.sh" "$include" "$man/examples" "$man" "$calls" || fail "the pages are not whole"

mkdir "$work/pages"
find "$man" "$calls" -name '*.3' -exec grep -L '^[.]so ' {} + >"$work/list"
# sees PAGE EDIT TEXT: with that edit of the page the check finds fault, in these words.
sees() {
    while read -r page; do cp "$page" "$work/pages"; done <"$work/list"
    sed -i "$2" "$work/pages/$1.3"
    if "$here/check_pages.sh" "$include" "$man/examples" "$work/pages" 2>"$work/found"; then fail "not seen: $3"; fi
    grep -qF "$3" "$work/found" || fail "expected '$3', found: $(cat "$work/found")"
}
sees expar_lock '/^[.]Sh EXAMPLES/d' 'expar_lock(3) has the sections'
sees expar_lock '/^[.]Fn expar_lock_clear "/d' 'expar_lock(3) does not say how to call expar_lock_clear'
sees expar_rma 's/^\([.]Fn expar_g_TYPE\) .*/\1/' 'expar_rma(3) has no arguments of expar_g_TYPE'
sees expar_rma '/^[.]Fn expar_g_TYPE "/d' 'expar_rma(3) does not say how to call expar_g_f64'
sees expar_team 's/^[.]Sh DESCRIPTION/&\n#define EXPAR_TEAM_CONFIG_INIT 0/' 'expar_team(3) has a macro that is for the compiler'

cp -r "$man/examples" "$work/examples"
sed -i 's/expar_lock_set(/expar_lock_get(/' "$work/examples/expar_lock.c"
if "$here/check_pages.sh" "$include" "$work/examples" "$man" "$calls" 2>"$work/found"; then fail "a broken example went through"; fi
grep -qF "expar_lock.c does not compile" "$work/found" || fail "found: $(cat "$work/found")"
