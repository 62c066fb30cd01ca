/* SPDX-License-Identifier: Apache-2.0 */
/* symmetric_size BYTES: the symmetric heap has space for that many, and none for four times as many. */
#include "expect.h"

int main(int argc, char **argv)
{
    shmem_init();
    const size_t bytes = argc > 1 ? (size_t)strtoull(argv[1], NULL, 10) : 0;
    EXPECT(bytes > 0);
    char *block = shmem_malloc(bytes);
    EXPECT(block != NULL);
    block[bytes - 1] = 1;
    shmem_free(block);
    EXPECT(shmem_malloc(4 * bytes) == NULL);
    shmem_finalize();
    return 0;
}
