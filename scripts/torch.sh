#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes an environment of Python with PyTorch and NumPy, from PyPI, for the tests that need them, and says on standard
# output which interpreter it has. It is some gigabytes, since PyPI's PyTorch brings CUDA's libraries along; so it lies
# outside of the tree and is kept: the second time this only looks whether it is whole.
# usage: torch.sh [FOLDER]
set -eu
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/expar/torch}
python=$folder/bin/python3
if ! "$python" -c 'import numpy, torch' 2>/dev/null; then
    [ ! -e "$folder" ] || [ -e "$folder/pyvenv.cfg" ] || {
        echo "torch.sh: '$folder' is there and no environment of Python: a folder to make one in is expected" >&2
        exit 2
    }
    mkdir -p "$(dirname "$folder")"
    python3 -m venv --clear "$folder"
    "$python" -m pip install --quiet --disable-pip-version-check --no-compile torch numpy >&2
    "$python" -c 'import numpy, torch'
fi
echo "$python"
