/* SPDX-License-Identifier: Apache-2.0 */
/* copy_limit: the least that an operation must move, by bare copies with the same number of threads.
 *
 * Dispatch (push): each row of x is copied to its place on each rank that must have it, token by token.
 * Combine (pull): each row that belongs to a token is read where its holder keeps it, and one row is written for the
 * token: by memcpy all of a token's rows go into its row of y, one over the other, which stays in the cache meanwhile;
 * the non-temporal way copies all but the last into a scratch row in the cache, and the last one to y. */
#ifndef EXPAR_BENCH_NORMAL_COPY_LIMIT_H
#define EXPAR_BENCH_NORMAL_COPY_LIMIT_H

#include "bench/normal/session.h"

struct copy_limit;
struct copy_limit *copy_limit_push(const struct bench_session *session); /* NULL: no memory, or no such pointer */
struct copy_limit *copy_limit_pull(const struct bench_session *session);
bool copy_limit_memcpy(void *limit); /* contender's run */
bool copy_limit_nontemporal(void *limit);
void copy_limit_free(struct copy_limit *limit);

#endif
