/* SPDX-License-Identifier: Apache-2.0 */
/* What the files behind sym.h share. Private to shmem. */
#ifndef EXPAR_SHMEM_PARTS_H
#define EXPAR_SHMEM_PARTS_H

#include "shmem/sym.h"

/* Finds out whether this host has a core for each of its ranks (self->crowded); collective (cores.c). */
expar_status sym_cores_count(sym *self);

/* Opens the transports over self->heap and what lies behind it, and selects one for every PE and kind of operation;
   collective. What was opened is closed by sym_reach_close in any case. */
expar_status sym_reach_open(sym *self, const mem_region *const *peer_heaps);
void sym_reach_close(sym *self);

/* This rank is out of step with the others for good, and comes to no call more in which they await it: they are told of
   this error, the last one. Their waits for words go on: it still puts and gets (sym.c). */
void sym_lose_step(sym *self, expar_status status);

/* While the transports are opened: EXPAR_OK, or what ends that, since a rank has died or left (sym.c). */
expar_status sym_check_forming(sym *self, const char *what);

/* transport_site.patience of this rank (silence.c). */
int64_t sym_wait_on(sym *self, int32_t pe, int64_t waited_ns);
/* transport_site.told of this rank: the others learn that it has given pe up, should it go for that (silence.c). */
void sym_give_up(sym *self, int32_t pe);
/* transport_site.explain of this rank (silence.c). */
expar_status sym_explain(sym *self, int32_t pe, const char *what);

/* Gives back what sym_strand has taken (store.c). */
void sym_strand_end(sym *self);

/* Puts down how full the heap is, for sym_card_read; one thread of a rank at a time (card.c). */
void sym_card_write(sym *self);

/* Opens the proxies that EXPAR_PROXY asks for; before the transports, which may wake them (proxy.c). */
expar_status sym_proxy_open(sym *self);
/* Ends their threads, before the transports close; and all of them, after. */
void sym_proxy_stop(sym *self);
void sym_proxy_close(sym *self);
/* As proxy_wake and proxy_quiet, of all. */
void sym_proxy_wake(sym *self);
expar_status sym_proxy_quiet(sym *self, const char *what);

#endif
