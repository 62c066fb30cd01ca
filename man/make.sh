#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes the man pages of section 3: one for each public header, for shmem.h one for each of its sections, and for every
# call a page that leads there.
# usage: make.sh INCLUDE_DIR OUT_DIR DATE COMPILER…
set -eu
export LC_ALL=C
[ $# -ge 4 ] || { echo "usage: make.sh INCLUDE_DIR OUT_DIR DATE COMPILER…" >&2 && exit 2; }
[ -d "$1/expar" ] || { echo "make.sh: $1 has no folder expar of headers" >&2 && exit 2; }
include=$1
out=$2
date=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
mkdir -p "$out"

# The lines of names.awk for all calls. mpi.h is read as it is, since it needs MPI. Generic names are macros; they are
# derived from the functions that they choose.
{
    (cd "$include" && printf '#include <%s>\n' expar/*.h) | grep -v '/mpi[.]h' | "$@" -I"$include" -E -x c -
    printf '# 1 "%s/expar/mpi.h"\n' "$include"
    cat "$include/expar/mpi.h"
} | awk -f "$here/names.awk" >"$work/names"
awk -F '[ (]' -v OFS='\t' '/^#define shmem_/ { print "expar/shmem_generic.h", NR, $2, "", "" }' "$include/expar/shmem_generic.h" >"$work/generic"
awk -F '\t' '$1 == "expar/shmem.h"' "$work/names" | awk -f "$here/families.awk" >"$work/typed"
cat "$work/generic" >>"$work/names"

# "NAME<tab>TEXT" of all statuses, and of all variables.
sed -n 's/^ *X(\([A-Z_0-9]*\), \([0-9]*\), "\(.*\)").*/EXPAR_\1\t\3\t\2/p' "$include/expar/status.h" >"$work/statuses"
sed 's/\\$//' "$here/../src/base/env_table.h" | tr '\n' ' ' | sed 's/[\\ ]* X(/\n/g' | sed -n 's/^"\(EXPAR_[A-Z_]*\)".*, *"\([^"]*\)").*/\1\t\2/p' >"$work/variables"

# page HEADER PAGE FROM TO SECTION: the page, and one for each of its calls that has none yet.
page() {
    awk -F '\t' -v header="$1" -v from="$3" -v to="$4" '$1 == header && $2 >= from && $2 <= to' "$work/names" >"$work/page"
    # A header without calls of its own has the common part of the calls of expert parallelism.
    [ -s "$work/page" ] || [ "$1" = expar/ep.h ] || return 0
    awk -v typed="$work/typed" -f "$here/families.awk" "$work/page" >"$work/families"
    example=$here/examples/$2.c
    [ -e "$example" ] || example=
    awk -v header="$1" -v page="$2" -v from="$3" -v to="$4" -v section="$5" -v date="$date" -v calls="$work/page" \
        -v all_calls="$work/names" -v include="$include" \
        -v families="$work/families" -v statuses="$work/statuses" -v variables="$work/variables" -v example="$example" \
        -f "$here/page.awk" "$include/$1" >"$out/$2.3"
    awk -F '\t' -v out="$out" -v page="$2" '{ file = out "/" $3 ".3"; if ((getline line < file) < 0) print ".so man3/" page ".3" > file; close(file) }' \
        "$work/page"
}

last=1000000
{ echo expar/ep.h && cut -f 1 "$work/names"; } | sort -u >"$work/headers"
while read -r header; do
    name=$(basename "$header" .h)
    if [ "$name" = shmem_generic ]; then # what stands before the names is how they choose
        page "$header" "expar_$name" "$(awk '/^#define shmem_/ { print NR; exit }' "$include/$header")" $last ""
        continue
    elif [ "$name" != shmem ]; then
        page "$header" "expar_$name" 1 $last ""
        continue
    fi
    # "LINE:TITLE" of each section, and an end.
    sed -n '/^\/\* ---- /{=;s/^[^a-zA-Z]*//;s/ -*\( \*\/\)*$//;p;}' "$include/$header" | paste -d : - - >"$work/sections"
    echo "$last:" >>"$work/sections"
    while IFS=: read -r line title; do
        [ -z "${begin:-}" ] || page "$header" "expar_shmem_$(echo "$section" | sed 's/[^a-z].*//')" "$begin" $((line - 1)) "$section"
        begin=$line
        section=$title
    done <"$work/sections"
done <"$work/headers"
