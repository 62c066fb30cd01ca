#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every public call that gives a status returns EXPAR_OK, or by call_ended, group_ended or the like, which log failures.
# usage: check_ended.sh SRC_DIR
set -eu
cd "$1"
# OpenSHMEM's calls stand on these.
# shellcheck disable=SC2016 # awk, not the shell
find . -name '*.c' ! -path './openshmem/*' | sed 's|^\./||' | sort | xargs awk '
    /^ *(EXPAR_API )?expar_status (expar_|P##)[A-Za-z0-9_#]*\(/ {
        name = $0
        sub(/^.*expar_status /, "", name)
        sub(/\(.*/, "", name)
        indent = match($0, /[^ ]/) - 1
        inside = open = 0
        found++
    }
    name != "" && /\{/ { open = 1 }
    # A declaration.
    name != "" && !open && /; *\\?$/ { name = "" }
    name != "" && open && /(^|[ ({;])return / && !/return (EXPAR_OK|[a-z]+_ended\(.*)/ {
        print FILENAME ":" FNR ": " name " returns past call_ended and its like"
        failed = 1
    }
    name != "" && open && match($0, /^ *\}/) && RLENGTH - 1 == indent { name = "" }
    END {
        if (found < 80) {
            print "found only " found + 0 " public calls"
            failed = 1
        }
        exit failed
    }' >&2
