#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The manual is whole, and the check would see it if it were not.
# usage: test_manual.sh INCLUDE_DIR PAGES_BY_HAND PAGES_OF_CALLS
set -eu
here=$(cd "$(dirname "$0")" && pwd)
include=$1
man=$(realpath "$2")
calls=$(realpath "$3")
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

"$here/check_manual.sh" "$include" "$man" "$calls" || fail "the manual does not fit the headers"
[ "$("$here/declared.sh" "$include" expar | wc -l)" -ge 300 ] || fail "found too few calls in expar.h"
[ "$("$here/declared.sh" "$include" shmem | wc -l)" -ge 1000 ] || fail "found too few calls in shmem.h"

# A copy to do damage to; pages are links until something is changed in them.
restore() {
    rm -rf "$work/include" "$work/man"
    mkdir "$work/man"
    cp -r "$include" "$work/include"
    find "$man" "$calls" -name '*.3' -exec ln -s -t "$work/man" {} +
}
# sees TEXT: the check of the copy finds fault, in these words.
sees() {
    if "$here/check_manual.sh" "$work/include" "$work/man" 2>"$work/found"; then fail "not seen: $1"; fi
    grep -qxF "manual: $1" "$work/found" || fail "expected '$1', found: $(cat "$work/found")"
}

restore
rm "$work/man/expar_put_f32.3"
sees "expar_put_f32 has no page"

restore
sed -i '/^[.]Nm expar_fence/d' "$work/man/expar_rma.3"
sees "expar_fence(3) does not lead to a page that names it"

restore
sed -i '/expar_lock_test/d' "$work/include/expar/lock.h"
sees "expar_lock(3) names expar_lock_test, which is not declared"
sees "expar_lock_test(3) is the page of a call that is not declared"

restore
sed -i 's/^EXPAR_API expar_status expar_quiet.*/&\nEXPAR_API expar_status expar_new_call(void);/' "$work/include/expar/rma.h"
sees "expar_new_call has no page"

restore
sed -i 's/#define shmem_put_nbi(/#define shmem_put_new(/' "$work/include/expar/shmem_generic.h"
sees "shmem_put_new has no page"
sees "expar_shmem_generic(3) names shmem_put_nbi, which is not declared"

restore
sed -i 's/^[.]Fn expar_quiet/.Fn expar_quite/' "$work/man/expar_pgas.3"
sees "expar_pgas(3) uses expar_quite, which is not declared"
