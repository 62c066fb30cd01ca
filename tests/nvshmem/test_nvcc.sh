#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# NVSHMEM's names compile under nvcc, as C++14 for each GPU that serves. The example compiles as it stands. Two
# files are linked, with and without relocatable device code. A warning is an error. By day PTX is enough where nothing
# is linked, since the assembler takes most of the time; by night (EXPAR_TEST_ROUNDS) it is machine code.
# usage: test_nvcc.sh NVCC ROOT
set -eu
nvcc=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "$1 does not compile" >&2
    exit 1
}
compile() {
    "$nvcc" -std=c++14 -Werror all-warnings -Xcompiler -Wall,-Wextra -I"$root/include" -I"$root/include/expar/compat" "$@"
}

compile -c -gencode arch=compute_80,code=compute_80 -o "$work/ring.o" "$root/examples/nvshmem_ring.cu" || fail "examples/nvshmem_ring.cu"

# Calls of each family, by the host and by kernels.
cat >"$work/one.cu" <<'CU'
#include <nvshmem.h>
#include <nvshmemx.h>
__global__ void one(double *row, uint64_t *words, int *status)
{
    nvshmemx_double_iput_warp(row, row, 2, 1, 3, 0);
    nvshmem_double_p(row, nvshmem_double_g(row + 1, 0), 0);
    words[0] += nvshmem_uint64_atomic_fetch_inc(words, 0) + nvshmem_uint64_wait_until_any(words, 4, status, NVSHMEM_CMP_NE, 0);
    nvshmemx_double_sum_reduce_block(NVSHMEM_TEAM_WORLD, row, row, 3);
}
int one_on(double *row, uint64_t *words, cudaStream_t stream)
{
    one<<<1, 32, 0, stream>>>(row, words, nullptr);
    nvshmemx_double_put_signal_on_stream(row, row, 1, words, 1, NVSHMEM_SIGNAL_ADD, 0, stream);
    return nvshmemx_double_prod_reduce_on_stream(NVSHMEM_TEAM_WORLD, row, row, 1, stream);
}
CU
cat >"$work/two.cu" <<'CU'
#include <nvshmem.h>
__global__ void two(int *pes)
{
    *pes = nvshmem_n_pes();
}
int one_on(double *row, uint64_t *words, cudaStream_t stream);
int main()
{
    two<<<1, 1>>>(nullptr);
    return one_on(nullptr, nullptr, nullptr) + nvshmem_my_pe();
}
CU
for arch in 80 100; do
    form="-ptx -arch=compute_$arch"
    if [ -n "${EXPAR_TEST_ROUNDS:-}" ]; then form="-cubin -arch=sm_$arch"; fi
    # shellcheck disable=SC2086 # two words
    compile $form -o "$work/code" "$work/one.cu" || fail "compute capability $arch: NVSHMEM's names"
done
for rdc in true false; do
    form="-arch=sm_90"
    if [ "$rdc" = false ]; then form="-gencode arch=compute_90,code=compute_90"; fi
    for name in one two; do
        # shellcheck disable=SC2086 # one word or two
        compile -c "-rdc=$rdc" $form -o "$work/$name.o" "$work/$name.cu" || fail "-rdc=$rdc: $name.cu"
    done
    "$nvcc" -arch=sm_90 -o "$work/program" "$work/one.o" "$work/two.o" -Xlinker --unresolved-symbols=ignore-all ||
        fail "-rdc=$rdc: a program of two files"
done
