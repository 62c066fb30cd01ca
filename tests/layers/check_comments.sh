#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks that clang-format lacks: lines have at most 120 columns, and a ruler is one line that ends in the last of them.
# Names in comments exist: a word with an underscore stands somewhere in the code, a file somewhere in the tree.
# usage: check_comments.sh ROOT
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
sources() {
    find src include tools bench examples tests cmake -type f | sort | grep -E "$1"
}

if sources '\.(c|h|cpp|cu)$' | LC_ALL=C.UTF-8 xargs grep -nE '^.{121}|^ \* -{20,}|^/\* ---- .{0,108} \*/$'; then
    echo "expected lines of at most 120 columns, and a ruler as one line of 120: /* ---- name ---…--- */"
    exit 1
fi
sources '\.(c|h|cpp|cu|cmake)$|CMakeLists\.txt$' | xargs awk -f "$here/comments.awk"
