/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing words of symmetric memory with values. */
#include "pgas/words.h"
#include "base/base.h"

#include <stdatomic.h>
#include <stdio.h>

const char *words_sign(expar_cmp cmp)
{
    static const char *const signs[] = {"==", "!=", ">", ">=", "<", "<="};
    return (unsigned)cmp < ARRAY_LENGTH(signs) ? signs[cmp] : NULL;
}

static bool holds_unsigned(uint64_t seen, expar_cmp cmp, uint64_t value)
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

uint64_t words_widen(words_type type, uint64_t raw)
{
    if (type.bytes == 8) return raw;
    if (!type.is_signed) return type.bytes == 4 ? (uint32_t)raw : (uint16_t)raw;
    return (uint64_t)(type.bytes == 4 ? (int64_t)(int32_t)(uint32_t)raw : (int64_t)(int16_t)(uint16_t)raw);
}

uint64_t words_load(words_type type, const void *words, size_t i)
{
    if (type.bytes == 8) return atomic_load_explicit((const _Atomic uint64_t *)words + i, memory_order_acquire);
    if (type.bytes == 2)
        return words_widen(type, atomic_load_explicit((const _Atomic uint16_t *)words + i, memory_order_acquire));
    return words_widen(type, atomic_load_explicit((const _Atomic uint32_t *)words + i, memory_order_acquire));
}

/* Signed numbers compare as unsigned ones with the sign turned round. */
bool words_hold(words_type type, uint64_t seen, expar_cmp cmp, uint64_t value)
{
    const uint64_t turn = type.is_signed ? UINT64_C(1) << 63 : 0;
    return holds_unsigned(seen ^ turn, cmp, value ^ turn);
}

const char *words_show(words_type type, uint64_t value, words_text text)
{
    if (type.is_signed)
        snprintf(text, sizeof(words_text), "%lld", (long long)value);
    else
        snprintf(text, sizeof(words_text), "%llu", (unsigned long long)value);
    return text;
}
