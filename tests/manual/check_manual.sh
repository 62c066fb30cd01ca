#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every public call has a page of its name, which is or leads to one that names it. No page names a call that is gone.
# usage: check_manual.sh INCLUDE_DIR PAGES…      folders with pages of section 3
set -eu
here=$(cd "$(dirname "$0")" && pwd)
include=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$here/declared.sh" "$include" >"$work/declared"

# Prints "leads PAGE OTHER" for a page that only leads elsewhere, and "names PAGE CALL" for each other name in a section
# NAME. Prints "uses PAGE CALL" for each call of ours in a text that is marked as one.
find -L "$@" -name '*.3' -exec awk '
     FNR == 1 { page = FILENAME; gsub(/^.*\/|[.]3$/, "", page); print "page", page }
     /^[.]so man3\// { sub(/^[.]so man3\//, ""); sub(/[.]3$/, ""); print "leads", page, $0 }
     /^[.]Sh/ { in_name = $2 == "NAME" }
     in_name && /^[.]Nm / && $2 != page { print "names", page, $2 }
     /^[.]Fn expar_/ { print "uses", page, $2 }' {} + >"$work/told"

awk 'function fail(text) { print "manual: " text; failed = 1 }
     NR == FNR { declared[$1] = 1; next }
     # A family of typed calls: one of them stands for it.
     $3 ~ /_TYPE$/ {
         call = $3
         sub(/TYPE$/, "u64", call)
         if (!(call in declared)) sub(/u64$/, "f64", call)
         if (call in declared) next
     }
     $1 == "page" { exists[$2] = 1; next }
     $1 == "leads" { leads[$2] = $3; next }
     $1 == "names" { names[$2, $3] = 1 }
     !($3 in declared) { fail($2 "(3) " $1 " " $3 ", which is not declared") }
     END {
         for (name in declared)
             if (!(name in exists)) fail(name " has no page")
             else if (name in leads && !((leads[name], name) in names))
                fail(name "(3) does not lead to a page that names it")
         for (page in leads)
             if (!(page in declared)) fail(page "(3) is the page of a call that is not declared")
         exit failed
     }' "$work/declared" "$work/told" >&2
