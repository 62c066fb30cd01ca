#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Nothing but expar_* leaves the library, and everything that the headers declare does.
# usage: test_symbols.sh LIBRARY HEADER_DIR
set -eu
library=$1
headers=$2

exported=$(nm -D --defined-only "$library" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort -u)
# EXPAR_0 is the name of the symbols' version.
foreign=$(echo "$exported" | grep -v -e '^expar_' -e '^EXPAR_0$' || true)
if [ -n "$foreign" ]; then
    echo "the library exports names that are not its own: $foreign" >&2
    exit 1
fi

# Preprocessed, a public declaration is the attribute of EXPAR_API, a type, a name and a parenthesis.
declared=$(echo '#include <expar/expar.h>' | cc -I"$(dirname "$headers")" -E -P -x c - | tr '\n' ' ' |
    grep -o '__attribute__((visibility("default"))) [^(;]*(' | sed 's/.*[ *]\([a-z0-9_]*\)($/\1/' | sort -u)
[ "$(echo "$declared" | wc -l)" -ge 40 ] || { echo "found too few declarations in $headers" >&2; exit 1; }
status=0
for name in $declared; do
    if ! echo "$exported" | grep -qx "$name"; then
        echo "$name is declared but not exported" >&2
        status=1
    fi
done
for name in $exported; do
    [ "$name" = EXPAR_0 ] && continue
    if ! echo "$declared" | grep -qx "$name"; then
        echo "$name is exported but not declared" >&2
        status=1
    fi
done
exit $status
