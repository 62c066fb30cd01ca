#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each environment word that steers tests is in the list of tests/environment.md, with every file that reads it, and
# the list has nothing else. Words are known by how they begin.
# usage: check_environment.sh ROOT LIST
set -eu
[ $# -eq 2 ] || { echo "usage: check_environment.sh ROOT LIST" >&2; exit 64; }
list=$(realpath "$2")
cd "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

word='(EXPAR_TEST|EXPAR_REQUIRE|FAKE|LATE|SILENT)_[A-Z0-9_]+'
# Files that test this check are left out.
find .ci CMakeLists.txt Makefile bench scripts tests tools -type f ! -path 'tests/manual/*' ! -name '*.md' |
    sort >"$work/files"

# found PATTERN FILE…: "WORD FILE" of each place where a word stands so.
found() {
    pattern=$1
    shift
    grep -HoE "$pattern" "$@" | sed -E "s/^([^:]*):.*[^A-Z0-9_]($word)[^A-Z0-9_]*\$/\2 \1/"
}
grep -E '[.](c|h|py)$' "$work/files" >"$work/programs"
grep -E '[.]sh$|^[.]ci/' "$work/files" >"$work/scripts"
grep -E '(CMakeLists[.]txt|Makefile|[.]cmake)$' "$work/files" >"$work/builds"

# Readers: getenv("WORD"), another call of that argument, os.environ["WORD"], "WORD" in os.environ,
# #define … "WORD", $WORD.
# Code that sets a word for a while (setenv) does not read it.
{
    # shellcheck disable=SC2046
    found "(^|[^a-z_])[a-z_.]*[(\[]\"$word\"" $(cat "$work/programs") /dev/null >"$work/called"
    # shellcheck disable=SC2046
    found "(setenv|unsetenv|kind_run_with)[(]\"$word\"" $(cat "$work/programs") /dev/null >"$work/set"
    awk 'FILENAME == ARGV[1] { set[$0]++; next } set[$0]-- > 0 { next } 1' "$work/set" "$work/called"
    # shellcheck disable=SC2046
    found "[[:space:]]\"$word\" in os[.]environ|#define [A-Z_]+ +\"$word\"" $(cat "$work/programs") /dev/null |
        sed 's/ in os[.]environ//'
    # shellcheck disable=SC2046
    found "[$][{]?$word" $(cat "$work/scripts") /dev/null
} | sort -u >"$work/read"

# Setters: setenv, and WORD=value of CMake and of scripts; definitions for the compiler are none.
{
    cat "$work/set"
    # shellcheck disable=SC2046
    grep -HvE 'target_compile_definitions' $(cat "$work/builds" "$work/scripts") /dev/null >"$work/lines"
    sed -E 's/^([^:]*):/\1 /' "$work/lines" |
        awk -v word="$word" '{
            rest = $0
            while (match(rest, "(^|[^A-Z0-9_])" word "=")) {
                text = substr(rest, RSTART, RLENGTH - 1)
                sub(/^[^A-Z]/, "", text)
                print text, $1
                rest = substr(rest, RSTART + RLENGTH)
            }
        }'
} | sort -u >"$work/given"

# "WORD FILE" of the list.
awk -F ' *[|] *' '/^[|] `[A-Z]/ {
    gsub(/`/, "")
    count = split($4, readers, ", ")
    for (i = 1; i <= count; i++) print $2, readers[i]
}' "$list" | sort >"$work/listed"

cut -d ' ' -f 1 "$work/listed" | sort -u >"$work/words"
{
    sort "$work/listed" | uniq -d | sed 's/^\([^ ]*\) \(.*\)/\1 is listed twice for \2/'
    comm -23 "$work/read" "$work/listed" | sed 's/^\([^ ]*\) \(.*\)/\1 is read in \2: not in the list/'
    comm -13 "$work/read" "$work/listed" | sed 's/^\([^ ]*\) \(.*\)/\1 is listed, and \2 does not read it/'
    awk 'FILENAME == ARGV[1] { known[$1] = 1; next } !($1 in known) { print $1 " is set in " $2 ": not in the list" }' \
        "$work/words" "$work/given"
    [ "$(wc -l <"$work/words")" -ge 40 ] || echo "found only $(wc -l <"$work/words") words"
} >"$work/faults"
cat "$work/faults"
[ ! -s "$work/faults" ]
