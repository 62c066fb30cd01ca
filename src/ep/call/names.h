/* SPDX-License-Identifier: Apache-2.0 */
/* Enumerations of arguments by the names of their values, for texts of errors. */
#ifndef EXPAR_EP_CALL_NAMES_H
#define EXPAR_EP_CALL_NAMES_H

#include <expar/status.h>
#include <stddef.h>
#include <stdint.h>

/* names[i] is the name of value i. */
typedef struct ep_names {
    const char *const *names;
    int32_t count;
} ep_names;

extern const ep_names ep_names_path, ep_names_sum_order, ep_names_weights_of, ep_names_nodes_sum;
extern const ep_names ep_names_format, ep_names_sum, ep_names_sums; /* of low-latency mode */
extern const ep_names ep_names_part, ep_names_device;
/* An argument that may be left out: 0 is "absent", 1 is "given". */
extern const ep_names ep_names_given;

typedef struct ep_name_text {
    char text[24];
} ep_name_text;
/* The name of a value; its number where it has none, or where names is NULL. */
ep_name_text ep_tell(const ep_names *names, int64_t value);
/* EXPAR_ERR_ARGUMENT unless the value is one of names first to last: "path is 7; expected AUTO, DIRECT or QUEUE". */
expar_status ep_check_named(const char *member, const ep_names *names, int64_t value, int32_t first, int32_t last);

/* One member of what ranks of a call agree on: its value on two ranks. */
typedef struct ep_agreed {
    const char *member;
    const ep_names *names; /* NULL: it is a number */
    int64_t a, b;
} ep_agreed;
/* EXPAR_ERR_MISMATCH with the first member whose values differ: "format is FP8 on rank 0 and PLAIN on rank 1; expected
   the same". EXPAR_OK: none does. */
expar_status ep_check_agreed(const ep_agreed *members, size_t count, int32_t rank_of_a, int32_t rank_of_b);

#endif
