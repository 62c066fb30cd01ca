#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything for AArch64 on another machine, with warnings as errors, and runs tests under QEMU. QEMU shows that
# results are right. It does not show what a weakly ordered processor permits; models and ThreadSanitizer do.
#
# The libraries are Debian's; they are unpacked in BUILD_DIR, and none is installed. Without arguments the tests are
# those of numbers, one-sided operations and calls on threads that QEMU 7 can run. QEMU 7 has no memory limits. It keeps
# some bytes for every page that a heap ever had, so many buffers would exceed the memory of the machine.
set -eu
[ $# -ge 1 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2 && exit 2; }
if [ -e "$1/CMakeCache.txt" ] && ! grep -q '^CMAKE_TOOLCHAIN_FILE:.*aarch64\.cmake$' "$1/CMakeCache.txt"; then
    echo "aarch64: '$1' is a build tree for this machine: one of its own, or a new folder, is expected" >&2
    exit 2
fi
mkdir -p "$1/root"
build=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
scripts/setup.sh aarch64

libraries="libsodium-dev libcmocka-dev libjansson-dev libhwloc-dev libsmartcols-dev libsimde-dev libfabric-dev libc6
    libstdc++6"
export EXPAR_AARCH64_ROOT=$build/root
if [ ! -e "$build/root/complete" ]; then
    apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::status=/dev/null
        -o "Dir::State::Lists=$build/apt/lists" -o "Dir::Cache=$build/apt" -o APT::Sandbox::User=root
        -o Debug::NoLocking=1)
    mkdir -p "$build/apt/lists/partial" "$build/apt/archives/partial"
    "${apt[@]}" update
    # shellcheck disable=SC2086 # words on purpose
    "${apt[@]}" --no-install-recommends --download-only --yes install $libraries
    for archive in "$build"/apt/archives/*.deb; do
        dpkg-deb --extract "$archive" "$build/root"
    done
    find "$build/root" -lname '/*' -printf '%p %l\n' | while read -r link target; do
        ln -sf "$build/root$target" "$link"
    done
    touch "$build/root/complete"
fi

cmake -S . -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O3 -g" -DEXPAR_WERROR=ON >/dev/null
cmake --build "$build" -j "${JOBS:-$(nproc)}"
[ $# -gt 0 ] || {
    ep="handles|layout|mismatch|abandon|leaver|allocator|ahead|async|backward|beside|memory|outlive|phases|query|queue"
    ll="oracle|hooks|bad|ends|leaver|async|counted|create|put_off|rogue|turns|banks|allocations|calls|fences"
    set -- -R "^test_(tensor|codec.*|oracle.*|rma|team|collective|ep_($ep|steps|replace|route)|ll|ll_($ll))\$"
}
ctest --test-dir "$build" --output-on-failure --no-tests=error --label-exclude 'nightly|gpu|netns|python' "$@"
