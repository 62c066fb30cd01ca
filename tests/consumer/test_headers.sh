#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every public header compiles by itself, as C11 and as C++17, without extensions and without warnings.
# usage: test_headers.sh INCLUDE_DIR
set -eu
include=$1
flags="-Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only -I$include"
count=0
for header in "$include"/expar/*.h; do
    name=expar/$(basename "$header")
    # shellcheck disable=SC2086 # the flags are words
    echo "#include <$name>" | cc -std=c11 -Wstrict-prototypes $flags -x c - || { echo "$name is not C11" >&2; exit 1; }
    # shellcheck disable=SC2086
    echo "#include <$name>" | c++ -std=c++17 $flags -x c++ - || { echo "$name is not C++17" >&2; exit 1; }
    count=$((count + 1))
done
[ "$count" -ge 5 ]
