#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Comments name what is there and keep to their columns, and the check would see it if they did not.
# usage: test_comments.sh ROOT
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

"$here/check_comments.sh" "$1" || fail "a comment names what is not there"

for folder in src include tools bench examples tests cmake; do
    cp -r "$1/$folder" "$work"
done
heap=$work/src/shmem/heap.c
lines=$(wc -l <"$heap")
# At once, in a line after code, over two lines; and strings are no comments.
cat >>"$heap" <<'END'
static const char *glob = "/sys/*"; /* see gone_file.c */
/* heap_gone() and sym_*, sum_NAME,
   shmem/gone.h, shmem/heap.c, heap.h */
END
if "$here/check_comments.sh" "$work" >"$work/found"; then fail "not seen: names of nothing"; fi
cat >"$work/expected" <<END
src/shmem/heap.c:$((lines + 1)): nothing is called gone_file.c
src/shmem/heap.c:$((lines + 1)): nothing is called gone_file
src/shmem/heap.c:$((lines + 2)): nothing is called heap_gone
src/shmem/heap.c:$((lines + 3)): nothing is called shmem/gone.h
src/shmem/heap.c:$((lines + 3)): nothing is called heap.h
END
diff "$work/expected" "$work/found" || fail "found other names than these"

# A line of 121 columns, of which bytes are more; rulers that are too short, and torn.
for line in "/* $(printf '%0113d' 0) … */" '/* ---- name ---- */' ' * -------------------- */'; do
    cp "$1/src/shmem/heap.c" "$heap"
    echo "$line" >>"$heap"
    if "$here/check_comments.sh" "$work" >"$work/found"; then fail "not seen: $line"; fi
    grep -qxF "src/shmem/heap.c:$((lines + 1)):$line" "$work/found" || fail "expected '$line', found: $(cat "$work/found")"
done
