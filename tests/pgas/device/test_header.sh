#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# expar/device.h under nvcc alone, for C++14 and C++17 and each GPU that serves, and the example that uses it. A warning
# is an error.
# usage: test_header.sh NVCC ROOT
set -eu
nvcc=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/all.cu" <<'CU'
#include <expar/device.h>
__global__ void all(expar_device_handle h, double *row, uint64_t *words, size_t *indices, const int *skip)
{
    size_t found;
    int holds;
    expar_kernel_put_nbi_f64_warp(&h, row, row + 1, 9, 0);
    expar_kernel_p_i8(&h, (int8_t *)row, 1, 0);
    row[0] = expar_kernel_g_f64(&h, row, 0) + expar_kernel_atomic_swap_f64(&h, row, 1.0, 0);
    expar_kernel_wait_until_some_u64_warp(&h, words, 4, indices, skip, EXPAR_CMP_NE, 0, &found);
    expar_kernel_test_all_vector_i16_block(&h, (const int16_t *)words, 4, skip, EXPAR_CMP_LT, (int16_t *)row, &holds);
    expar_kernel_barrier_block(&h);
}
CU
# checked ARCH STD OPTION…: to PTX; by night (EXPAR_TEST_ROUNDS) to machine code, which takes three times as long.
checked() {
    arch=$1 std=$2
    shift 2
    if [ -n "${EXPAR_TEST_ROUNDS:-}" ]; then set -- -cubin -arch="sm_$arch" "$@"; else set -- -ptx -arch="compute_$arch" "$@"; fi
    "$nvcc" -std=c++"$std" -Werror all-warnings -Xcompiler -Wall,-Wextra "$@" -I"$root/include" -o "$work/code" "$work/all.cu" ||
        { echo "compute capability $arch, C++$std, $*: expar/device.h does not compile" >&2; exit 1; }
}
checked 80 14
checked 100 17
# With the code that writes requests for network devices.
checked 80 14 -DEXPAR_DEVICE_GDA=1
if [ -n "${EXPAR_TEST_ROUNDS:-}" ]; then
    checked 80 17
    checked 90 14
    checked 90 17
    checked 100 14
fi
# The host's side, too.
"$nvcc" -c -gencode arch=compute_80,code=compute_80 -std=c++14 -Werror all-warnings -Xcompiler -Wall,-Wextra -I"$root/include" -o "$work/ring.o" \
    "$root/examples/ring.cu" || { echo "examples/ring.cu does not compile" >&2; exit 1; }
