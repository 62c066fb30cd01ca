#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares the table of covered calls with the header. Each row matches as many declared names as it says, and a row
# that says no matches none. Every declared name is in one row.
# usage: check_openshmem.sh INCLUDE_DIR TABLE
set -eu
here=$(cd "$(dirname "$0")" && pwd)
"$here/declared.sh" "$1" shmem | grep -v '^expar_' |
    awk -v table="$2" '
    function fail(text) { print "openshmem: " text; failed = 1 }
    # {a,b} becomes (a|b), [a] becomes (a)?.
    function pattern_of(text) {
        gsub(/TYPE/, types, text)
        gsub(/SIZE/, "{8,16,32,64,128}", text)
        gsub(/{/, "(", text); gsub(/}/, ")", text); gsub(/,/, "|", text)
        gsub(/\[/, "(", text); gsub(/\]/, ")?", text)
        return "^" text "$"
    }
    function check_row(calls, count, covered,    regex, found, name) {
        gsub(/[` ]/, "", calls)
        regex = pattern_of(calls)
        for (name in names)
            if (name ~ regex) {
                found++
                names[name]++
            }
        if (found + 0 != count + 0) fail(calls ": " found + 0 " names are declared, the table says " count + 0)
        if (covered ~ /^ *no/ && count + 0 > 0) fail(calls ": the table says no, and counts names")
        if (covered !~ /^ *(yes|no)/) fail(calls ": neither yes nor no")
    }
    BEGIN {
        types = "{float,double,longdouble,char,schar,short,int,long,longlong,uchar,ushort,uint,ulong,ulonglong,int8,int16,int32," \
            "int64,uint8,uint16,uint32,uint64,size,ptrdiff,complexf,complexd}"
    }
    { names[$1] = 0 }
    END {
        while ((getline line < table) > 0)
            if (line ~ /^\|.*`.*\|/) {
                split(line, cell, "|")
                check_row(cell[3], cell[4], cell[5])
                rows++
            }
        if (rows < 30) fail("found " rows + 0 " rows in the table")
        for (name in names)
            if (names[name] != 1) fail(name " stands in " names[name] " rows")
        exit failed
    }' >&2
