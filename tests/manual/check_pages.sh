#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every page of a header has the sections of a manual page, in their order. The synopsis has each call of the page, with
# its arguments, and no macros. The example compiles. mandoc, where it is installed, finds no fault.
# usage: check_pages.sh INCLUDE_DIR EXAMPLES_DIR PAGES…      folders with pages of section 3
set -eu
include=$1
examples=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

find -L "$@" -name '*.3' -exec grep -L '^[.]so ' {} + | sort >"$work/pages"
[ "$(wc -l <"$work/pages")" -ge 30 ] || { echo "pages: found too few" >&2; exit 1; }

# shellcheck disable=SC2046 # names of pages have no spaces
awk '
    function fail(text) { print "pages: " page "(3) " text; failed = 1 }
    function finish(    i, name, told) {
        if (page == "") return
        if (sections != " NAME SYNOPSIS DESCRIPTION RETURN-VALUES ENVIRONMENT EXAMPLES ERRORS SEE-ALSO ") fail("has the sections" sections)
        for (i = 1; i <= names; i++) {
            told = 0
            for (f = 1; f <= families && !told; f++) told = all[i] ~ ("^" family[f] "$")
            if (!told) fail("does not say how to call " all[i])
        }
    }
    FNR == 1 {
        finish()
        page = FILENAME
        gsub(/^.*\/|[.]3$/, "", page)
        sections = " "
        names = families = 0
    }
    /^[.]Sh STANDARDS/ { next }
    /^[.]Sh / {
        section = substr($0, 5)
        gsub(/ /, "-", section)
        sections = sections section " "
    }
    section == "NAME" && /^[.]Nm / && $2 != page { all[++names] = $2 }
    section == "SYNOPSIS" && /^[.]Fn / {
        if ($0 !~ /^[.]Fn [A-Za-z_0-9]+ "/) fail("has no arguments of " $2)
        family[++families] = $2
        sub(/TYPENAME/, "[a-z0-9]+", family[families])
        sub(/TYPE/, "[a-z]+[0-9]+", family[families])
        sub(/SIZE/, "[0-9]+", family[families])
    }
    /EXPAR_API|EXPAR_STRUCT_INIT|_DECLARE|^#define .*_INIT/ { fail("has a macro that is for the compiler: " $0) }
    END {
        finish()
        exit failed
    }' $(cat "$work/pages") >&2

if command -v mandoc >/dev/null; then
    while read -r page; do
        mandoc -T lint -W style "$page" || true
    done <"$work/pages" | grep -v 'referenced manual not found' >"$work/faults" || true
    [ ! -s "$work/faults" ] || { cat "$work/faults" >&2; exit 1; }
fi

for example in "$examples"/*.c; do
    mpi=""
    if [ "$(basename "$example")" = expar_mpi.c ]; then
        mpi=$(mpicc --showme:incdirs 2>/dev/null) || continue
        # shellcheck disable=SC2086 # a list of folders
        mpi=$(printf -- '-isystem %s ' $mpi)
    fi
    grep -q "/$(basename "$example" .c)[.]3$" "$work/pages" || { echo "pages: $example is of no page" >&2; exit 1; }
    # shellcheck disable=SC2086
    cc -std=c11 -Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only -I"$include" -I"$include/openshmem" $mpi "$example" ||
        { echo "pages: $example does not compile" >&2; exit 1; }
done
