#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing of the packages that expar is built, tested or checked with. What is there is left alone.
# usage: setup.sh run|build|wheel|docs|test|ssh|lint|fuzz|deb|chroot|aarch64…
set -eu

# The packages that `make run` needs, whose demo also uses the network.
run="cmake ninja-build gcc libc6-dev pkg-config libsodium-dev libjansson-dev libhwloc-dev libsmartcols-dev libsimde-dev
    libfabric-dev libfabric1"
# The packages that `make` needs in addition. The start by PMIx is built if its headers are there, the tests if cmocka
# is. The man pages of calls are made by Python.
build="libcmocka-dev libpmix-dev python3"
# The packages that `make wheel` needs in addition.
wheel="python3 python3-pip python3-venv"
# The packages that `make docs` needs in addition.
docs="python3 python3-sphinx python3-myst-parser furo"
# The packages that `make test` needs in addition: consumers in C++, man pages, Open MPI, valgrind, Python with NumPy,
# and the shells that complete arguments. Open MPI starts ranks, and expar is compared with it. ip, tc and nft make the
# networks of tests. A header of libibverbs-dev says how requests of gda must look. Chromium shows reports.
# scripts/torch.sh installs a Python with PyTorch.
test="g++ mandoc openmpi-bin libopenmpi-dev valgrind iproute2 nftables libibverbs-dev python3-numpy zsh fish chromium
    fonts-dejavu-core $wheel $docs"
# The server and the client of ssh, between the network namespaces of a test. The server's package also starts a server
# for the machine, so only CI asks for it.
ssh="openssh-server openssh-client"
# The packages that `make lint` needs in addition.
lint="clang-format clang-tidy cppcheck shellcheck mypy"
# The packages that `make fuzz` needs in addition: clang with libFuzzer.
fuzz="clang libclang-rt-dev"
# The packages that `make deb` needs in addition.
deb="libpmix-dev dpkg-dev fakeroot debhelper dh-python chrpath lintian"
# The package with which scripts/chroot.sh makes a fresh Debian.
chroot="mmdebstrap"
# The packages that scripts/aarch64.sh needs, to compile for AArch64 and to run the programs.
aarch64="gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user-static"
wanted=""
for set in "$@"; do
    case $set in
        run) wanted="$wanted $run" ;;
        build) wanted="$wanted $run $build" ;;
        wheel) wanted="$wanted $wheel" ;;
        docs) wanted="$wanted $docs" ;;
        test) wanted="$wanted $run $build $test" ;;
        ssh) wanted="$wanted $ssh" ;;
        lint) wanted="$wanted $run $build $test $lint" ;;
        fuzz) wanted="$wanted $run $fuzz" ;;
        deb) wanted="$wanted $run python3 $deb" ;;
        chroot) wanted="$wanted $chroot" ;;
        aarch64) wanted="$wanted $aarch64" ;;
        *)
            echo "setup: unknown set '$set'; there are run, build, wheel, docs, test, ssh, lint, fuzz, deb, chroot, aarch64" >&2
            exit 1
            ;;
    esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup: not Debian, so nothing is installed. Needed, by their Debian names:$wanted" >&2
    exit 0
fi

missing=""
for package in $wanted; do
    state=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
    [ "$state" = "install ok installed" ] || case " $missing " in
        *" $package "*) ;;
        *) missing="$missing $package" ;;
    esac
done
if [ -z "$missing" ]; then
    exit 0
fi

as_root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "setup: missing:$missing; neither root nor sudo is there to install them" >&2
        exit 1
    }
    as_root="sudo"
fi
echo "setup: installing$missing"
# shellcheck disable=SC2086 # words on purpose
{
    $as_root apt-get -qq update
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends $missing >/dev/null
}
