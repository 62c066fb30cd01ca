/* SPDX-License-Identifier: Apache-2.0 */
/* collectives: what every boot must do. */
#include "boot/collectives.h"
#include "boot/crew.h"

#include <stdlib.h>
#include <string.h>

/* Byte i of what `from` means for `to` (-1: for all). */
static unsigned char pattern(int32_t from, int32_t to, size_t i)
{
    return (unsigned char)(from * 37 + (to + 1) * 101 + (int32_t)(i % 251) * 7 + 1);
}

static void fill(unsigned char *data, int32_t from, int32_t to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = pattern(from, to, i);
}

static bool holds(const unsigned char *data, int32_t from, int32_t to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != pattern(from, to, i)) return false;
    }
    return true;
}

static expar_status check_allgather(boot *self, unsigned char *mine, unsigned char *all, size_t bytes)
{
    fill(mine, self->rank, -1, bytes);
    BODY_OK(self->ops->allgather(self, mine, all, bytes));
    for (int32_t rank = 0; rank < self->size; rank++)
        BODY_CHECK(holds(all + (size_t)rank * bytes, rank, -1, bytes));
    /* In place; and from the last rank's place, which is somebody else's. */
    const int32_t places[] = {self->rank, self->size - 1};
    for (size_t i = 0; i < ARRAY_LENGTH(places); i++) {
        int32_t where = places[i];
        memset(all, 0, (size_t)self->size * bytes);
        fill(all + (size_t)where * bytes, self->rank, -1, bytes);
        BODY_OK(self->ops->allgather(self, all + (size_t)where * bytes, all, bytes));
        for (int32_t rank = 0; rank < self->size; rank++)
            BODY_CHECK(holds(all + (size_t)rank * bytes, rank, -1, bytes));
    }
    return EXPAR_OK;
}

static expar_status check_alltoall(boot *self, unsigned char *send, unsigned char *receive, size_t bytes)
{
    for (int32_t rank = 0; rank < self->size; rank++)
        fill(send + (size_t)rank * bytes, self->rank, rank, bytes);
    BODY_OK(self->ops->alltoall(self, send, receive, bytes));
    for (int32_t rank = 0; rank < self->size; rank++)
        BODY_CHECK(holds(receive + (size_t)rank * bytes, rank, self->rank, bytes));
    return EXPAR_OK;
}

static expar_status check_broadcast(boot *self, unsigned char *data, size_t bytes)
{
    for (int32_t root = 0; root < self->size; root++) {
        memset(data, 0, bytes);
        if (self->rank == root) fill(data, root, -1, bytes);
        BODY_OK(self->ops->broadcast(self, data, bytes, root));
        BODY_CHECK(holds(data, root, -1, bytes));
    }
    return EXPAR_OK;
}

expar_status collectives_check_size(boot *self, size_t bytes)
{
    size_t total = (size_t)self->size * bytes + 1;
    unsigned char *a = malloc(total), *b = malloc(total);
    expar_status status = a && b ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "no memory for the test");
    if (status == EXPAR_OK) status = check_allgather(self, a, b, bytes);
    if (status == EXPAR_OK) status = check_alltoall(self, a, b, bytes);
    if (status == EXPAR_OK) status = check_broadcast(self, a, bytes);
    if (status == EXPAR_OK) status = self->ops->barrier(self);
    free(a);
    free(b);
    return status;
}

expar_status collectives_check_all(boot *self)
{
    static const size_t sizes[] = {0, 1, 7, 64, 4096, 100001, EXPAR_CONTROL_MAX_BYTES, 0, 3};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++)
        BODY_OK(collectives_check_size(self, sizes[i]));
    for (int round = 0; round < 50; round++)
        BODY_OK(self->ops->barrier(self));
    return EXPAR_OK;
}

/* The last rank gives another size, then another root, then is in another call. */
static expar_status check_mismatches(boot *self)
{
    unsigned char all[CREW_MAX * 32] = {0}, mine[32] = {0};
    bool odd = self->rank == self->size - 1;
    BODY_CHECK(self->ops->allgather(self, mine, all, odd ? 16 : 8) == EXPAR_ERR_MISMATCH);
    BODY_CHECK(strstr(expar_last_error(), "8 bytes") && strstr(expar_last_error(), "16 bytes"));
    BODY_CHECK(self->ops->broadcast(self, mine, 4, odd ? 1 : 0) == EXPAR_ERR_MISMATCH);
    BODY_CHECK(strstr(expar_last_error(), "root 1"));
    expar_status status = odd ? self->ops->barrier(self) : self->ops->alltoall(self, all, all + CREW_MAX * 16, 3);
    BODY_CHECK(status == EXPAR_ERR_MISMATCH);
    BODY_CHECK(strstr(expar_last_error(), "barrier") && strstr(expar_last_error(), "alltoall of 3 bytes"));
    return EXPAR_OK;
}

expar_status collectives_check_errors(boot *self)
{
    unsigned char byte = 0;
    BODY_CHECK(self->ops->allgather(self, &byte, &byte, EXPAR_CONTROL_MAX_BYTES + 1) == EXPAR_ERR_RANGE);
    BODY_CHECK(self->ops->alltoall(self, &byte, &byte, SIZE_MAX) == EXPAR_ERR_RANGE);
    BODY_CHECK(self->ops->broadcast(self, &byte, EXPAR_CONTROL_MAX_BYTES + 1, 0) == EXPAR_ERR_RANGE);
    BODY_CHECK(self->ops->broadcast(self, &byte, 1, self->size) == EXPAR_ERR_RANGE);
    BODY_CHECK(self->ops->broadcast(self, &byte, 1, -1) == EXPAR_ERR_RANGE);
    if (self->size > 1) BODY_OK(check_mismatches(self));
    return collectives_check_size(self, 5);
}
