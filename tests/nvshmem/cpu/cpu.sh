#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles a CUDA program with NVSHMEM's names for the CPU: kernel<<<grid, threads>>>(arguments) becomes a call of
# cpu_launch, and cuda_runtime.h is that of this folder.
# usage: cpu.sh COMPILER SOURCE OPTION…
set -eu
here=$(cd "$(dirname "$0")" && pwd)
compiler=$1
source=$2
shift 2
{
    echo "#line 1 \"$source\""
    sed 's/\([A-Za-z_0-9]*\)<<<\([^>]*\)>>>(\(.*\));/cpu_launch(\2, [=] { \1(\3); });/' "$source"
} | "$compiler" -x c++ -std=c++17 -Wall -Wextra -Werror -DEXPAR_NVSHMEM_CPU_KERNELS -I"$here" -I"$(dirname "$source")" - -x none "$@"
