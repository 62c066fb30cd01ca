/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions that the files of sym.h share. Private to shmem. */
#ifndef EXPAR_SHMEM_PARTS_H
#define EXPAR_SHMEM_PARTS_H

#include "shmem/sym.h"

/* Finds out whether this host has a core for each of its ranks (self->crowded); collective (cores.c). */
expar_status sym_cores_count(sym *self);

/* Opens the transports over self->heap and the part that follows it, and selects one for every PE and kind of
   operation; collective. sym_reach_close closes what was opened, even after a failure. */
expar_status sym_reach_open(sym *self, const mem_region *const *peer_heaps);
void sym_reach_close(sym *self);

/* Opens the transports to memory of another kind than the host's, once, and selects one for every PE. Collective: OK on
   all ranks, or on none; then nothing reaches such memory, and another call may follow. */
expar_status sym_reach_add(sym *self, const char *what, transport_memory memory, const transport_segment *segment);
/* Makes this memory reachable up to the border by all transports that reach such memory; reached: how far each one did
   before. Collective, with equal arguments. */
expar_status sym_reach_grow(sym *self, transport_memory memory, uint64_t border, uint64_t reached[TRANSPORT_MOST]);
/* Returns up to where a heap of at most `limit` bytes shall have memory, to hold `end`; it has memory up to `grown`. It
   grows in whole huge pages, and by as much as it has, up to the limit of a chunk. */
uint64_t sym_next_border(uint64_t grown, uint64_t end, uint64_t limit);

/* This rank is out of step for good, and takes part in no further call in which others await it. They are told of the
   last error. Their waits for words continue, because this rank still puts and gets (sym.c). */
void sym_lose_step(sym *self, expar_status status);

/* For use while the transports are opened: EXPAR_OK, or an error if a rank has died or left (sym.c). */
expar_status sym_check_forming(sym *self, const char *what);

/* transport_site.patience of this rank (silence.c). */
int64_t sym_wait_on(sym *self, int32_t pe, int64_t waited_ns);
/* transport_site.told of this rank: tells the others that it has given up pe, in case it leaves for that reason
   (silence.c). */
void sym_give_up(sym *self, int32_t pe);
/* transport_site.explain of this rank (silence.c). */
expar_status sym_explain(sym *self, int32_t pe, const char *what);

/* Frees the blocks that sym_strand has taken over (store.c). */
void sym_strand_end(sym *self);

/* Writes how full the heap is, for sym_card_read; one thread of a rank at a time (card.c). */
void sym_card_write(sym *self);

/* Opens the proxies that EXPAR_PROXY asks for. Call it before opening the transports, which may wake them (proxy.c). */
expar_status sym_proxy_open(sym *self);
/* sym_proxy_stop ends their threads, before the transports close; sym_proxy_close frees them, after that. */
void sym_proxy_stop(sym *self);
void sym_proxy_close(sym *self);
/* Returns what all proxies of the rank have in common. */
proxy_plan sym_proxy_plan(sym *self);
/* The same for the rings of kernels (rings.c); the calls above call these. */
void sym_rings_stop(sym *self);
void sym_rings_close(sym *self);
void sym_rings_wake(sym *self);
/* proxy_wake and proxy_quiet for all proxies; quiet does not know the rings of kernels. */
void sym_proxy_wake(sym *self);
expar_status sym_proxy_quiet(sym *self, const char *what);

#endif
