#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The gallery can be made from the stored results, and the picture of the README is the one that they give.
# usage: test_gallery.sh EXPAR ROOT
set -eu
expar=$1
root=$2
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$root/scripts/gallery.sh" "$expar" "$out"
for page in two-h200 one-node two-nodes comparison; do
    grep -q '</html>' "$out/$page.html" || { echo "gallery: $page.html is not whole" >&2 && exit 1; }
done
cmp "$out/dispatch.svg" "$root/docs/gallery/dispatch.svg" || {
    echo "gallery: docs/gallery/dispatch.svg is another picture; scripts/gallery.sh makes it" >&2
    exit 1
}
