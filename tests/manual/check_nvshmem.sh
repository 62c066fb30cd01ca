#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares the table of NVSHMEM's names with the headers. Each row matches as many names for the host, and for kernels,
# as it says, and a row that says no matches none. Every name of the headers is in one row.
# usage: check_nvshmem.sh INCLUDE_DIR TABLE
set -eu
include=$1
# names MARK OPTION…: NVSHMEM's functions in the preprocessed headers, one a line, with the mark.
names() {
    mark=$1
    shift
    echo '#include <expar/compat/nvshmemx.h>' | cc -I"$include" "$@" -E -P - | LC_ALL=C grep -oE '\bnvshmemx?_[a-z0-9_]+\(' |
        sed "s/(\$/ $mark/" | sort -u
}
{
    names host -x c -D__CUDA_RUNTIME_API_H__
    names kernel -x c++ -D__CUDACC__ -D__CUDACC_RTC__ -D__CUDA_ARCH__=900
} | awk -v table="$2" '
    function fail(text) { print "nvshmem: " text; failed = 1 }
    # {a,b} becomes (a|b), [a] becomes (a)?.
    function pattern_of(text) {
        gsub(/TYPE/, types, text)
        gsub(/SIZE/, "{8,16,32,64,128}", text)
        gsub(/{/, "(", text); gsub(/}/, ")", text); gsub(/,/, "|", text)
        gsub(/\[/, "(", text); gsub(/\]/, ")?", text)
        return "^" text "$"
    }
    function check_row(calls, hosts, kernels, covered,    regex, found, name) {
        gsub(/[` ]/, "", calls)
        regex = pattern_of(calls)
        found["host"] = found["kernel"] = 0
        for (name in names)
            if (name ~ regex) {
                rows_of[name]++
                found["host"] += (name, "host") in marks
                found["kernel"] += (name, "kernel") in marks
            }
        if (found["host"] != hosts + 0) fail(calls ": " found["host"] " names are for the host, the table says " hosts + 0)
        if (found["kernel"] != kernels + 0) fail(calls ": " found["kernel"] " names are for kernels, the table says " kernels + 0)
        if (covered ~ /^ *no/ && hosts + kernels > 0) fail(calls ": the table says no, and counts names")
        if (covered !~ /^ *(yes|no)/) fail(calls ": neither yes nor no")
    }
    BEGIN {
        types = "{float,double,char,schar,short,int,long,longlong,uchar,ushort,uint,ulong,ulonglong,int8,int16,int32,int64," \
            "uint8,uint16,uint32,uint64,size,ptrdiff}"
    }
    { names[$1] = 1; marks[$1, $2] = 1 }
    END {
        while ((getline line < table) > 0)
            if (line ~ /^\|.*`nvshmem.*\|/) {
                split(line, cell, "|")
                check_row(cell[3], cell[4], cell[5], cell[6])
                rows++
            }
        if (rows < 30) fail("found " rows + 0 " rows in the table")
        for (name in names)
            if (rows_of[name] != 1) fail(name " stands in " rows_of[name] + 0 " rows")
        exit failed
    }' >&2
