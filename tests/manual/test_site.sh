#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The site of the documentation builds without a network and without a warning, has a page of each kind, and loads
# nothing from elsewhere. The build would see a link that leads nowhere, and a status without a remedy.
# With "versions", by night, damaged pages are seen, and it is also built beside other versions. Both write pages again.
# usage: test_site.sh [versions] ROOT BUILD_DIR TOOL LIBRARY COMPILER…
set -eu
versions=""
if [ "${1:-}" = versions ]; then versions=1 && shift; fi
[ $# -ge 5 ] || { echo "usage: test_site.sh [versions] ROOT BUILD_DIR TOOL LIBRARY COMPILER…" >&2; exit 64; }
# shellcheck source=tests/script.sh
. "$(dirname "$0")/../script.sh"
root=$(realpath "$1") build=$(realpath "$2")
shift 2

command -v sphinx-build >/dev/null || {
    echo "test_site: no sphinx-build; scripts/setup.sh docs installs it" >&2
    [ "${EXPAR_REQUIRE_PYTHON:-}" = 1 ] && exit 1
    exit 77
}
# A network namespace has no way out.
alone=""
if unshare -rn true 2>/dev/null; then alone="unshare -rn"; fi

# built TREE OUT TOOL LIBRARY COMPILER…
built() {
    tree=$1 out=$2
    shift 2
    $alone python3 -B "$tree/docs/site/build.py" "$tree" "$out" "$@"
}
built "$root" "$build/site" "$@" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
[ ! -s "$work/log" ] || fail "the build says: $(cat "$work/log")"

html=$build/site/html
for page in index search tutorials/c howto/hanging howto/engines reference/c/ep_dispatch reference/python \
    reference/environment reference/statuses reference/commands explanation/protocols internals/architecture \
    project/changelog; do
    [ -s "$html/$page.html" ] || fail "there is no page $page"
done
for notebook in "$root"/examples/python/*.ipynb; do
    [ ! -e "$notebook" ] || [ -s "$html/tutorials/$(basename "$notebook" .ipynb).html" ] || fail "there is no page of $notebook"
done
# Names are found: by the search, by links in text, and in the reference of Python.
grep -q 'expar_ep_dispatch' "$html/searchindex.js" || fail "the search does not know expar_ep_dispatch"
grep -q 'statuses.html#expar-err-peer' "$html/howto/hanging.html" || fail "a status in the text is no link"
grep -q 'id="c.expar_put_TYPE"' "$html/reference/c/rma.html" || fail "the reference lacks expar_put_TYPE"
grep -q 'id="expar.Buffer.dispatch"' "$html/reference/python.html" || fail "the reference lacks expar.Buffer.dispatch"
grep -q 'id="deep_ep.ElasticBuffer.combine"' "$html/reference/python.html" || fail "the reference lacks deep_ep"
version=$(sed -n 's/.*EXPAR_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\)$/\2/p' "$root/include/expar/status.h" | paste -sd .)
grep -q ">$version</a>" "$html/index.html" || fail "the list of versions lacks $version"
if grep -rlE '(src="(https?:)?//|<link[^>]*href="(https?:)?//|url\((https?:)?/)' "$html" --include='*.html' \
    --include='*.css' >"$work/found"; then
    fail "these load something from elsewhere: $(cat "$work/found")"
fi

# The gallery is made of the stored results, and its page leads there.
for page in two-h200 one-node two-nodes comparison; do
    grep -q '</html>' "$html/gallery/$page.html" || fail "the gallery has no whole page $page"
    grep -q "href=\"$page.html\"" "$html/gallery/README.html" || fail "no link leads to the page $page"
done

# It is installed.
cmake --install "$build" --component site --prefix "$work/prefix" >"$work/log" || fail "$(cat "$work/log")"
rm -f "$build/install_manifest_site.txt"
[ -s "$work/prefix/share/doc/expar/html/tutorials/python.html" ] || fail "the site is not installed"

[ -n "$versions" ] || exit 0

# A copy to do damage to. Its pages have been read already, so only the damaged ones are read again.
mkdir "$work/tree"
for part in CHANGELOG.md CONTRIBUTING.md SECURITY.md README.md examples include man python scripts src tests; do
    ln -s "$root/$part" "$work/tree/$part"
done
cp -r "$root/docs" "$work/tree/docs"
cp -r "$build/site" "$work/site"
# sees TEXT ARGUMENT…: the build of the copy fails with these words.
sees() {
    text=$1
    shift
    if built "$work/tree" "$work/site" "$@" >"$work/log" 2>&1; then fail "not seen: $text"; fi
    grep -qF "$text" "$work/log" || fail "expected '$text', found: $(cat "$work/log")"
}
# Sites of other versions are beside it, each in a folder of its name.
export SITE_VERSIONS="0.0.9 $version"
sed -i 's|(containers.md)|(container.md)|' "$work/tree/docs/howto/several-hosts.md"
sees "howto/several-hosts.md" "$@"
grep -q 'href="../../0.0.9/index.html">0.0.9</a>' "$work/site/html/howto/hanging.html" || fail "no link to version 0.0.9"
# shellcheck disable=SC2016 # a literal of the page
sed -i '/^## `EXPAR_ERR_BUSY`/d' "$work/tree/docs/reference/statuses.md"
sees "docs/reference/statuses.md: it lacks, or has too many: EXPAR_ERR_BUSY" "$@"
