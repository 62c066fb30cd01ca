#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The pages name what is there, and the check would see it if they did not.
# usage: test_docs.sh ROOT
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$1
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"

find "$root/docs" -name '*.md' -exec "$here/check_docs.sh" "$root" "$root/README.md" "$root/CONTRIBUTING.md" {} + ||
    fail "the pages name what is not there"

# The site has four kinds of pages, each with a folder or more.
lost=$(find "$root/docs" -maxdepth 1 -name '*.md' ! -name README.md ! -name index.md)
[ -z "$lost" ] || fail "tutorials, howto, reference, explanation or internals are expected as the folder of $lost"
questions=$(find "$root/docs" -name '*.md' -exec grep -HnE '^#+ (What|Who) ' {} +) &&
    fail "these titles are questions; a noun or a task is expected: $questions"

# A page for users says what to type, in a block, a table or steps, before its second title.
late=$(find "$root/docs/howto" "$root/docs/tutorials" -name '*.md' -exec awk '
    FNR == 1 { titles = shown = 0 }
    /^ *```|^\|/ || /^1[.] / { shown = 1 }
    /^## / && ++titles == 2 && !shown { print FILENAME }' {} +)
[ -z "$late" ] || fail "these pages explain before they say what to type: $late"
# Each protocol has a page with its picture.
bare=$(grep -o 'internals/[a-z-]*[.]md' "$root/docs/explanation/protocols.md" | sed "s|^|$root/docs/|" |
    xargs grep -L '^```text$' || true)
[ -z "$bare" ] || fail "these pages have no picture of their protocol: $bare"

# sees EDIT TEXT: with that edit of the page the check finds fault, in these words.
sees() {
    sed "$1" "$root/docs/internals/architecture.md" >"$work/architecture.md"
    if "$here/check_docs.sh" "$root" "$work/architecture.md" 2>"$work/found"; then fail "not seen: $2"; fi
    sed 's/^\(docs: architecture.md:\)[0-9]*/\1N/' "$work/found" | grep -qxF "docs: $2" ||
        fail "expected '$2', found: $(cat "$work/found")"
}

sees 's|src/ep/call/call.c|src/ep/calls.c|' 'architecture.md:N: there is no src/ep/calls.c'
sees 's|ep_call_begin|ep_call_started|' 'architecture.md:N: nothing is called ep_call_started'
# A name that is there, but not in the file that it is said to be in.
sees 's|send_direct|cpu_sum_rows|' 'architecture.md:N: cpu_sum_rows does not stand in the files of its cell'
sees 's|gpu_report.counts_ready|gpu_report.counts_there|' 'architecture.md:N: nothing is called counts_there'
sees 's|  doorbell.h  tree.h$|  doorbell.h|' 'picture of the layers: shmem/tree.h is missing'
sees 's|src/group/group.h$|src/group/parts.h|' 'picture of the layers: group/parts.h is not for other layers'
sees 's|src/mem/mem.h |src/pgas/pgas.h |' 'picture of the layers: pgas/pgas.h stands too low'
