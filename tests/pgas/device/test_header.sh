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
for arch in 80 90 100; do
    for std in 14 17; do
        "$nvcc" -cubin -arch=sm_$arch -std=c++$std -Werror all-warnings -Xcompiler -Wall,-Wextra -I"$root/include" \
            -o "$work/cubin" "$work/all.cu" || { echo "sm_$arch, C++$std: expar/device.h does not compile" >&2; exit 1; }
    done
done
# With the code that writes requests for network devices.
"$nvcc" -cubin -arch=sm_80 -std=c++14 -Werror all-warnings -Xcompiler -Wall,-Wextra -DEXPAR_DEVICE_GDA=1 \
    -I"$root/include" -o "$work/cubin" "$work/all.cu" || { echo "with EXPAR_DEVICE_GDA it does not compile" >&2; exit 1; }
# The host's side, too.
"$nvcc" -c -arch=sm_80 -std=c++14 -Werror all-warnings -Xcompiler -Wall,-Wextra -I"$root/include" -o "$work/ring.o" \
    "$root/examples/ring.cu" || { echo "examples/ring.cu does not compile" >&2; exit 1; }
