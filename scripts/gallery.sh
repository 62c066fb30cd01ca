#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the gallery of reports from the results in docs/gallery: a page for each file, one that compares two of them,
# and the picture of the README (dispatch.svg).
# usage: gallery.sh EXPAR OUT
set -eu
if [ $# -ne 2 ]; then
    echo "usage: gallery.sh EXPAR OUT" >&2
    exit 2
fi
expar=$1
out=$2
stored=$(cd "$(dirname "$0")/../docs/gallery" && pwd)
mkdir -p "$out"
for file in "$stored"/*.json; do
    "$expar" bench --report "$out/$(basename "$file" .json).html" "$file"
done
"$expar" bench --report "$out/comparison.html" "$stored/one-node.json" "$stored/one-node-zipf.json"

# The first curve of a page, as a file of its own with the page's styles.
awk '
    match($0, /<style>[^<]*<\/style>/) && !style { style = substr($0, RSTART, RLENGTH) }
    /<figure>/ && !done {
        match($0, /<svg viewBox.*<\/svg><figcaption>/)
        picture = substr($0, RSTART, RLENGTH - length("<figcaption>"))
        sub(/<svg /, "<svg xmlns=\x27http://www.w3.org/2000/svg\x27 class=\x27one\x27 ", picture)
        sub(/>/, ">" style, picture)
        print picture
        done = 1
    }' "$out/two-h200.html" >"$out/dispatch.svg"
