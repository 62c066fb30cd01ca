/* SPDX-License-Identifier: Apache-2.0 */
/* Signals of a GEMM that still writes the rows of a combine: from the caller's arguments to those of the executor. */
#include "ep/low_latency/ll.h"

/* The time of its end must have a number, too. */
static const int64_t most_timeout_ms = INT64_MAX / 2 / 1000000;

static expar_status signals_check_numbers(const expar_ll_signals *given)
{
    if (given->block_rows < 0)
        return error_set(EXPAR_ERR_ARGUMENT, "signals.block_rows is %d; expected 0 or more", given->block_rows);
    if (given->timeout_ms < 0 || given->timeout_ms > most_timeout_ms)
        return error_set(EXPAR_ERR_ARGUMENT, "signals.timeout_ms is %lld; expected 0 to %lld",
                         (long long)given->timeout_ms, (long long)most_timeout_ms);
    if (given->block_rows > 0 && !tensor_given(&given->count))
        return error_set(EXPAR_ERR_NULL, "signals.count is not given; expected it with block_rows %d",
                         given->block_rows);
    if (given->block_rows == 0 && tensor_given(&given->count))
        return error_set(EXPAR_ERR_ARGUMENT, "signals.count is given with block_rows 0; expected 1 or more with it");
    if (!tensor_given(&given->words)) return error_set(EXPAR_ERR_NULL, "signals.words is not given");
    return EXPAR_OK;
}

expar_status ll_signals_make(const expar_ll *ll, const expar_ll_signals *signals, ll_signals *made)
{
    const int32_t experts = ll->shape.local_experts;
    const int64_t rows = (int64_t)ll->shape.ranks * ll->shape.tokens;
    expar_ll_signals given;
    *made = (ll_signals){0};
    if (!signals) return EXPAR_OK;
    expar_status status = ep_copy_struct("signals", &given, sizeof given, signals);
    if (status == EXPAR_OK) status = signals_check_numbers(&given);
    if (status != EXPAR_OK) return status;
    const int64_t blocks = given.block_rows ? (rows + given.block_rows - 1) / given.block_rows : 1;
    if (experts * blocks > INT32_MAX)
        return error_set(EXPAR_ERR_LIMIT, "signals.block_rows is %d, which makes %lld words; expected at most %d",
                         given.block_rows, (long long)(experts * blocks), INT32_MAX);
    status = ll_check_vector(ll, "signals.words", &given.words, EXPAR_I32, experts * blocks);
    if (status == EXPAR_OK) status = ll_check_vector(ll, "signals.count", &given.count, EXPAR_I32, experts);
    if (status != EXPAR_OK) return status;
    const int64_t timeout_ms = given.timeout_ms ? given.timeout_ms : ll->base.group->sym->timeout_ms;
    *made = (ll_signals){.words = given.words.data,
                         .count = given.block_rows ? given.count.data : NULL,
                         .timeout_ns = timeout_ms * 1000000,
                         .experts = experts,
                         .blocks = (int32_t)blocks,
                         .block_rows = given.block_rows,
                         .value = (uint32_t)given.value};
    return EXPAR_OK;
}

expar_status ll_signals_await(const expar_ll *ll, const ll_signals *signals)
{
    executor *exec = ll->base.exec;
    return signals->words && exec->ll->await_signals ? exec->ll->await_signals(exec, signals) : EXPAR_OK;
}
