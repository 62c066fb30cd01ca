#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No two files of the library give a static function the same name, which is all that a profile or a backtrace shows.
# usage: check_names.sh SRC_DIR
set -eu
cd "$1"
find . -name '*.c' | sort | sed 's|^\./||' | xargs grep -H '^static [^(=]*(' | sed 's/__attribute__(([^)]*)) *//' |
    awk '
    {
        file = substr($0, 1, index($0, ":") - 1)
        if (!match($0, /[A-Za-z_0-9]+\(/)) next
        name = substr($0, RSTART, RLENGTH - 1)
        if (!(name in first)) first[name] = file
        if (first[name] != file) {
            print name " is the name of a function of " first[name] " and of " file
            failed = 1
        }
    }
    END {
        if (NR < 800) { print "found only " NR " static functions"; failed = 1 }
        exit failed
    }'
