#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What comments name is there: a word with an underscore stands somewhere in the code, a file somewhere in the tree.
# usage: check_comments.sh ROOT
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
find src include tools bench examples tests cmake -type f | sort | grep -E '\.(c|h|cpp|cu|cmake)$|CMakeLists\.txt$' |
    xargs awk -f "$here/comments.awk"
