#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes Debian packages of a build tree, and checks them with lintian. It configures a second tree with Debian's paths,
# which takes the outputs of the first: nothing is compiled again.
# usage: deb.sh BUILD_DIR OUT_DIR
set -euo pipefail
[ $# = 2 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2 && exit 2; }
[ -x "$1/bin/expar" ] || { echo "deb: BUILD_DIR is '$1': a build with bin/expar is expected; make builds it" >&2 && exit 2; }
build=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
root=$(cd "$(dirname "$0")/.." && pwd)
tree=$out/tree
work=$out/work
rm -rf "$out"
mkdir -p "$tree" "$work"

# The time of the last commit, so that the same commit gives the same packages.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || stat -c %Y "$root/CHANGELOG.md")}
export SOURCE_DATE_EPOCH

echo "deb: configuring with Debian's paths"
cmake -S "$root" -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_INSTALL_PREFIX=/usr \
    -DCMAKE_INSTALL_LIBDIR="lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)" -DCMAKE_INSTALL_DOCDIR=share/doc/libexpar-dev \
    -DCMAKE_SKIP_RPATH=ON -DEXPAR_PYTHON=ON -DEXPAR_PYTHON_DIR=lib/python3/dist-packages \
    -DEXPAR_ZSH_DIR=share/zsh/vendor-completions -DEXPAR_TESTS=OFF -DEXPAR_EXAMPLES=OFF >"$out/configure.log"
for part in lib bin abi man man3 completion; do
    [ -e "$build/$part" ] || { echo "deb: '$build' has no $part; make builds it" >&2 && exit 1; }
    mkdir -p "$tree/$part"
done
cp -P "$build"/lib/libexpar{,-shmem,-nvshmem}.so* "$tree/lib/"
cp "$build/bin/expar" "$tree/bin/"
[ ! -d "$build/lib/expar" ] || cp -r "$build/lib/expar" "$tree/lib/"
# The loader finds libraries in Debian's folders by itself.
for file in "$tree"/lib/*.so.*.*.* "$tree/bin/expar"; do chrpath --delete "$file" >/dev/null; done
cp "$build/abi/abi.json" "$tree/abi/"
for part in man man3 completion; do cp -r "$build/$part/." "$tree/$part/"; done

version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$tree/CMakeCache.txt")
cp -r "$root/packaging/debian" "$work/"
cat >"$work/debian/changelog" <<END
expar ($version-1) unstable; urgency=medium

  * The changes of this version are in changelog.gz.

 -- The expar authors <expar@expar.example.org>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END

echo "deb: packing"
(cd "$work" && EXPAR_TREE=$tree EXPAR_ROOT=$root DEB_BUILD_OPTIONS="noautodbgsym parallel=$(nproc) ${DEB_BUILD_OPTIONS:-}" \
    dpkg-buildpackage --build=binary --unsigned-changes --unsigned-source --no-check-builddeps >"$out/pack.log" 2>&1) || {
    tail -n 40 "$out/pack.log" >&2
    exit 1
}
echo "deb: lintian"
# The first version in Debian would close a bug there; these packages go to no archive of Debian.
lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$out"/*.changes >"$out/lintian.log" || {
    cat "$out/lintian.log" >&2
    exit 1
}
ls "$out"/*.deb
