/* SPDX-License-Identifier: Apache-2.0 */
/* cells: where things stand in a printed table, for tests; how wide its columns are does not matter. */
#ifndef TESTS_BENCH_FRAME_CELLS_H
#define TESTS_BENCH_FRAME_CELLS_H

/* The line that begins with `start`, from `text` on; there must be one. */
const char *cells_line(const char *text, const char *start);
/* Under a title that is aligned to the right stands this, and nothing more: "" for nothing. */
void cells_assert_under(const char *titles, const char *title, const char *line, const char *expected);

#endif
