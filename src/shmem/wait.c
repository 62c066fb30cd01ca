/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for a word of one's own: the public calls of expar/rma.h that wait. */
#include "shmem/target.h"
#include <expar/rma.h>

static const char *const cmp_signs[] = {"==", "!=", ">", ">=", "<", "<="};

static bool holds(uint64_t seen, expar_cmp cmp, uint64_t value)
{
    switch (cmp) {
    case EXPAR_CMP_EQ:
        return seen == value;
    case EXPAR_CMP_NE:
        return seen != value;
    case EXPAR_CMP_GT:
        return seen > value;
    case EXPAR_CMP_GE:
        return seen >= value;
    case EXPAR_CMP_LT:
        return seen < value;
    case EXPAR_CMP_LE:
        return seen <= value;
    }
    return false;
}

/* Acquire: what the writer did before its release of the word is seen after it. */
static uint64_t load_word(const void *word, size_t bytes)
{
    if (bytes == 8) return atomic_load_explicit((const _Atomic uint64_t *)word, memory_order_acquire);
    return atomic_load_explicit((const _Atomic uint32_t *)word, memory_order_acquire);
}

static expar_status check_wait(const char *call, expar_group *group, const char *name, const void *word, size_t bytes,
                               expar_cmp cmp, uint64_t *offset)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call);
    if ((unsigned)cmp >= ARRAY_LENGTH(cmp_signs))
        return error_set(EXPAR_ERR_ARGUMENT, "%s: cmp %d, expected EXPAR_CMP_EQ to EXPAR_CMP_LE", call, (int)cmp);
    expar_status status = target_check_word(call, group, name, word, bytes, offset);
    return status == EXPAR_OK ? sym_check(group->sym, call) : status;
}

static expar_status wait_until(const char *call, expar_group *group, const char *name, const void *word, size_t bytes,
                               expar_cmp cmp, uint64_t value, uint64_t *seen)
{
    uint64_t offset;
    expar_status status = check_wait(call, group, name, word, bytes, cmp, &offset);
    if (status != EXPAR_OK) return status;
    sym_rest rest = sym_rest_begin(group->sym, call);
    while (!holds(*seen = load_word(word, bytes), cmp, value) && (status = sym_rest_turn(&rest)) == EXPAR_OK) {
    }
    sym_rest_end(&rest);
    if (rest.timed_out)
        return error_set(EXPAR_ERR_PEER,
                         "%s: timed out after %lld ms: %s at offset %llu of the heap holds %llu, waited for %s %llu",
                         call, (long long)group->sym->timeout_ms, name, (unsigned long long)offset,
                         (unsigned long long)*seen, cmp_signs[cmp], (unsigned long long)value);
    return status;
}

expar_status expar_signal_fetch(expar_group *group, const uint64_t *signal, uint64_t *value)
{
    static const char call[] = "expar_signal_fetch";
    uint64_t offset;
    if (!value) return error_set(EXPAR_ERR_NULL, "%s: value is NULL", call);
    expar_status status = check_wait(call, group, "signal", signal, sizeof *signal, EXPAR_CMP_EQ, &offset);
    if (status == EXPAR_OK) *value = load_word(signal, sizeof *signal);
    return status;
}

expar_status expar_signal_wait_until(expar_group *group, const uint64_t *signal, expar_cmp cmp, uint64_t value,
                                     uint64_t *seen)
{
    uint64_t last;
    expar_status status =
        wait_until("expar_signal_wait_until", group, "signal", signal, sizeof *signal, cmp, value, &last);
    if (status == EXPAR_OK && seen) *seen = last;
    return status;
}

expar_status expar_wait_until_u32(expar_group *group, const uint32_t *word, expar_cmp cmp, uint32_t value,
                                  uint32_t *seen)
{
    uint64_t last;
    expar_status status = wait_until("expar_wait_until_u32", group, "word", word, sizeof *word, cmp, value, &last);
    if (status == EXPAR_OK && seen) *seen = (uint32_t)last;
    return status;
}
