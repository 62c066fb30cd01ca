/* SPDX-License-Identifier: Apache-2.0 */
/* How much text the tests go through. Sanitizers make the arithmetic twenty times slower, and look for other things
 * than wrong sums: there a few bytes do. */
#ifndef TESTS_DEMO_EFFORT_H
#define TESTS_DEMO_EFFORT_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { EFFORT_CONTINUATION = 10, EFFORT_TEXT = 60, EFFORT_PROMPT = 70 };
#define EFFORT_BYTES "10"
#else
/* The whole shipped continuation, the whole reference text, and a prompt that fills the context with the nine bytes
   that come after it. */
enum { EFFORT_CONTINUATION = 160, EFFORT_TEXT = 512, EFFORT_PROMPT = 503 };
#define EFFORT_BYTES "160"
#endif

#endif
