#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The table of docs/reference/openshmem.md is true, and the check would see it if it were not.
# usage: test_openshmem_table.sh INCLUDE_DIR TABLE
set -eu
here=$(cd "$(dirname "$0")" && pwd)
include=$1
table=$2
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

"$here/check_openshmem.sh" "$include" "$table" || fail "the table does not fit the header"

# sees TEXT: the check of the copies finds fault, in these words; then they are as before.
cp -r "$include" "$work/include"
cp "$table" "$work/table"
sees() {
    if "$here/check_openshmem.sh" "$work/include" "$work/table" 2>"$work/found"; then fail "not seen: $1"; fi
    grep -qxF "openshmem: $1" "$work/found" || fail "expected '$1', found: $(cat "$work/found")"
    cp "$include"/expar/*.h "$work/include/expar"
    cp "$table" "$work/table"
}

sed -i '/shmem_test_lock/d' "$work/include/expar/shmem.h"
sees 'shmem_{set,clear,test}_lock: 2 names are declared, the table says 3'

sed -i 's/^EXPAR_API void shmem_fence.*/&\nEXPAR_API void shfree(void *block);/' "$work/include/expar/shmem.h"
sees '{shmalloc,shfree,shmemalign,shrealloc}: 1 names are declared, the table says 0'

sed -i 's/^EXPAR_API void shmem_fence.*/&\nEXPAR_API void shmem_unheard_of(void);/' "$work/include/expar/shmem.h"
sees 'shmem_unheard_of stands in 0 rows'

sed -i '/shmem_signal_wait_until/d' "$work/table"
sees 'shmem_signal_wait_until stands in 0 rows'
