#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes a Python environment with PyTorch and NumPy, by pip, for the tests that need them. It prints the path of the
# interpreter. The environment is outside of the tree, where tests/python/python.sh looks, and is kept: the next call
# only checks that it is complete. PyPI's PyTorch needs CUDA's libraries, some gigabytes of wheels. If a toolkit is
# installed, links to its libraries serve instead, and only the missing ones come as wheels. Tensors on the CPU call
# none of them, but they must load.
# usage: torch.sh [FOLDER [VERSION]]
# VERSION: of PyTorch, with CUDA's libraries by pip in any case; a FOLDER with another one is made anew.
set -eu
umask 022 # the folder may be expar's first; compiled kernels are only taken from there if nobody else can write to it
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/expar/torch}
version=${2:-}
python=$folder/bin/python3
toolkit=${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}

# A release that was built with CUDA 13.0, the Python packages that it needs, and NVIDIA's in the versions that it
# names.
torch="torch==2.11.0"
plain="numpy ml_dtypes filelock typing-extensions setuptools<82 sympy==1.14.0 mpmath<1.4 networkx jinja2 markupsafe fsspec"
lacking="nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5 nvidia-cufile==1.15.1.6"

# Imports all that the tests import, so that it is compiled, and checks the version.
whole() {
    [ -z "$version" ] || "$python" -m pip show torch 2>/dev/null | grep -qx "Version: $version" || return 1
    "$python" -c 'import numpy, ml_dtypes, torch.distributed.run, torch._dynamo, functorch.compile' 2>/dev/null
}

# Installs it as well, with or without an MPI.
has_mpi4py() {
    "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("mpi4py") is None)'
}

# Checks types of programs that use PyTorch. Which modules it needs depends on its version, so a program is checked.
has_mypy() {
    "$python" -m mypy --cache-dir=/dev/null -c pass >/dev/null 2>&1
}

# Runs the notebook among the examples.
has_notebooks() {
    "$python" -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("nbconvert", "ipykernel"))))'
}

install() {
    "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile "$@" >&2
}

# Makes links in the place of CUDA's wheels, where PyTorch looks first.
lend_toolkit() {
    local wheels library
    wheels=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13/lib
    mkdir -p "$wheels"
    for library in "$toolkit"/lib64/lib*.so.*; do
        [ -e "$wheels/${library##*/}" ] || ln -s "$library" "$wheels/"
    done
}

fill() {
    # All releases were compiled with NumPy's first versions.
    [ -z "$version" ] || { install "torch==$version" "numpy<2" ml_dtypes && whole && return 0 || return 1; }
    if [ -e "$toolkit/lib64/libcublas.so.13" ]; then
        # shellcheck disable=SC2086 # words on purpose
        install --no-deps "$torch" $plain $lacking || return 1
        lend_toolkit
        ! whole || return 0
    fi
    echo "torch.sh: no toolkit of CUDA 13 that does in '$toolkit': its libraries come by pip, and take 5 GB" >&2
    find "$folder" -path '*/nvidia/*' -type l -delete
    install "$torch" numpy ml_dtypes && whole
}

if ! whole; then
    [ ! -e "$folder" ] || [ -e "$folder/pyvenv.cfg" ] || {
        echo "torch.sh: '$folder' is there and no environment of Python: a folder to make one in is expected" >&2
        exit 2
    }
    mkdir -p "$(dirname "$folder")"
    python3 -m venv --clear "$folder"
    fill || {
        rm -rf "$folder"
        echo "torch.sh: no PyTorch, for what pip says above: it takes a network with packages, and 3 GB of disk" >&2
        exit 1
    }
    # Tracing reads most of the package, and tests write no bytecode. Without this each would compile 200 files again.
    packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -m compileall -q "$packages/torch" >/dev/null || true
fi
has_mpi4py || install --no-deps --only-binary mpi4py "mpi4py>=4.1" || {
    echo "torch.sh: no mpi4py, for what pip says above: it takes a network with packages" >&2
    exit 1
}
has_mypy || install mypy || {
    echo "torch.sh: no mypy, for what pip says above: it takes a network with packages" >&2
    exit 1
}
has_notebooks || install nbconvert ipykernel || {
    echo "torch.sh: no nbconvert and ipykernel, for what pip says above: it takes a network with packages" >&2
    exit 1
}
echo "$python"
