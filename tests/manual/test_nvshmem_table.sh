#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The table of docs/reference/nvshmem.md is true, and the check would see it if it were not.
# usage: test_nvshmem_table.sh INCLUDE_DIR TABLE
set -eu
here=$(cd "$(dirname "$0")" && pwd)
include=$1
table=$2
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

"$here/check_nvshmem.sh" "$include" "$table" || fail "the table does not fit the headers"

# sees TEXT: the check of the copies finds fault, in these words; then they are as before.
cp -r "$include" "$work/include"
cp "$table" "$work/table"
compat=$work/include/expar/compat
sees() {
    if "$here/check_nvshmem.sh" "$work/include" "$work/table" 2>"$work/found"; then fail "not seen: $1"; fi
    grep -qxF "nvshmem: $1" "$work/found" || fail "expected '$1', found: $(cat "$work/found")"
    cp -r "$include/expar/compat" "$work/include/expar"
    cp "$table" "$work/table"
}

sed -i '/nvshmem_info_get_name/d' "$compat/parts/library.h"
sees 'nvshmem_info_get_{version,name}: 1 names are for the host, the table says 2'

sed -i 's/nvshmem_quiet(void)/nvshmem_unheard_of(void)/' "$compat/parts/order.h"
sees 'nvshmem_unheard_of stands in 0 rows'

sed -i 's/nvshmemx_##N##_p_on_stream/nvshmemx_##N##_g_on_stream/' "$compat/parts/rma.h"
sees 'nvshmemx_TYPE_g_on_stream: 23 names are for the host, the table says 0'

# shellcheck disable=SC2016 # the marks of a name
sed -i 's/\(`nvshmemx_signal_op` | 1 | 1 | \)yes/\1no/' "$work/table"
sees 'nvshmemx_signal_op: the table says no, and counts names'

# shellcheck disable=SC2016
sed -i '/`nvshmemx_signal_op`/d' "$work/table"
sees 'nvshmemx_signal_op stands in 0 rows'
