/* SPDX-License-Identifier: Apache-2.0 */
/* A send queue of an mlx5 device, as the threads that post to it see it: reserve, write, commit, ring, poll, quiet.
 *
 * It compiles as C17, under nvcc and under NVRTC, so that CPU threads and warps of a GPU post by the same code. Indices
 * count blocks from the queue's first one on and have 64 bits here; the device knows their 16 low bits.
 *
 *     cons_idx  <=  prod_idx  <=  ready_head  <=  resv_head  <=  cons_idx + depth
 *     completed     rung          written         reserved
 *
 * A thread reserves indices (gda_reserve), writes its requests (gda_write), and commits them in the order of the
 * reservations (gda_commit). The thread that finds no later reservation, or crosses a border of `batch` indices, rings
 * for all that are committed. Only the last request of a submission asks for a CQE (GDA_REPORT).
 *
 * Every wait ends when the queue has failed. Calls that may wait return 0 then, and gda_failure says why. The queue is
 * not used again. */
#ifndef EXPAR_NET_GDA_QUEUE_H
#define EXPAR_NET_GDA_QUEUE_H

#include "net/gda/access.h"

/* Says who writes record and register. */
typedef enum gda_ringer { GDA_RINGER_GPU, GDA_RINGER_CPU } gda_ringer;

typedef struct gda_queue {
    /* ---- set before any thread uses the queue, then only read ---------------------------------------------------- */

    /* [depth], aligned to GDA_BLOCK_BYTES. The thread that has reserved a block writes it. The device reads it after
       the record covers it; ordered by ready_head, record and register. */
    gda_block *blocks;
    /* [GDA_RECORD_WORDS]. The ringer stores the send counter (release); the device loads it (acquire) after it has seen
       the register. */
    PORTABLE_SHARED(uint32_t) * record;
    /* The ringer stores it (release) after the record. It tells the device to look at the record. */
    PORTABLE_SHARED(uint64_t) * doorbell;
    /* Completions, GDA_CQE_WORDS words each. Collapsed: one entry that each completion overwrites. Else cq_entries. The
       device stores the last word (release) after the others; polling threads load it (acquire) first. */
    PORTABLE_SHARED(uint32_t) * cqes;
    /* Not collapsed: the count of entries that have been read, big-endian. The holder of cq_lock stores it (release);
       the device loads it before it reuses an entry. */
    PORTABLE_SHARED(uint32_t) * cq_record;
    /* A word of the host's: not 0 if all waits must end, as a gda_failure. The host stores it (release). Waiting
       threads load it (acquire) now and then. NULL: there is none. */
    const PORTABLE_SHARED(uint64_t) * stop;
    /* A word of the host's that receives what `error` has. The thread that changes `error` stores it (release); the
       host loads it (acquire). NULL: there is none. */
    PORTABLE_SHARED(uint64_t) * told;
    /* With GDA_RINGER_CPU, in memory of the host: the end of the blocks that the host rings for. Committing threads
       raise it (release); the host's ringer loads it (acquire). NULL: the ringer loads prod_idx. */
    PORTABLE_SHARED(uint64_t) * wanted;
    /* [1 + num_results]. The device writes the old words of atomics. Slot 0 takes those that nobody wants. The thread
       that has taken a slot reads it after the completion of its request. */
    uint64_t *results;
    uint64_t results_address; /* of results[0], as the device knows it */
    uint32_t results_lkey;    /* big-endian */
    uint32_t num_results;     /* a power of two */
    uint32_t depth;           /* in blocks; a power of two, at most GDA_MOST_BLOCKS */
    uint32_t cq_entries;      /* a power of two, at least depth, at most GDA_MOST_BLOCKS; the window, if collapsed */
    uint32_t batch;           /* a power of two; depth >= batch + most */
    uint32_t most;            /* blocks of the largest reservation */
    uint32_t qpn;
    int32_t pe;
    uint8_t scope;      /* gda_scope */
    uint8_t ringer;     /* gda_ringer */
    uint8_t collapsed;  /* whether there is one CQE for all */
    uint8_t never_full; /* no more than `depth` blocks are ever in flight, so reservations need no check */
    uint8_t flushes;    /* data of a read may be visible later than its CQE, so quiet ends with a DUMP */

    /* ---- shared by the threads that post ------------------------------------------------------------------------- */

    /* End of the reserved blocks. Posting threads add to it; it orders nothing. */
    PORTABLE_SHARED(uint64_t) resv_head;
    /* End of the written blocks. A thread raises it from its own base to its own end (release, in the queue's scope).
       The thread that rings loads it (acquire), and so has seen all blocks before it. */
    PORTABLE_SHARED(uint64_t) ready_head;
    /* End of the blocks that the device was told of. The holder of `lock` raises it (release), or with GDA_RINGER_CPU
       any committing thread; pollers and the host's ringer load it (acquire). */
    PORTABLE_SHARED(uint64_t) prod_idx;
    /* End of the blocks that are complete. Polling threads raise it (release) after they have seen the CQE; others load
       it (acquire), so that they may reuse blocks and read results without a look at the CQE. */
    PORTABLE_SHARED(uint64_t) cons_idx;
    /* 1 while a thread rings. Taken by compare-swap (acquire), given back by a store (release). */
    PORTABLE_SHARED(uint64_t) lock;
    /* Doorbells that were rung. The holder of `lock`, or the host's ringer, stores it; it orders nothing. */
    PORTABLE_SHARED(uint64_t) rings;
    /* As `lock`, for reading a completion queue that is not collapsed, and the number of entries that were read. */
    PORTABLE_SHARED(uint64_t) cq_lock;
    PORTABLE_SHARED(uint64_t) cq_head;
    /* Numbers of the next result slot to take, and of the first that is not free. Threads add to the first. They raise
       the second in turn (release), and load it (acquire) before they take a slot again. */
    PORTABLE_SHARED(uint64_t) result_head;
    PORTABLE_SHARED(uint64_t) result_tail;
    /* End of the committed reads, and of those that a DUMP has followed. Threads raise both (release). */
    PORTABLE_SHARED(uint64_t) get_head;
    PORTABLE_SHARED(uint64_t) get_tail;
    /* 0, or the failure of the queue. Written by compare-swap: the first cause stays, but any cause replaces
       GDA_SYNDROME_FLUSHED. Every call loads it (acquire). */
    PORTABLE_SHARED(uint64_t) error;
} gda_queue;

/* Tests may put delays at the places where a thread can be delayed. */
#ifndef GDA_BETWEEN_STEPS
#define GDA_BETWEEN_STEPS(queue) ((void)(queue))
#endif

enum { GDA_POLLS_A_LOOK = 64 }; /* a waiting thread looks at the host's word once in so many polls */

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* A failure in one word. `index`: the 16 low bits of the failed request's index. */
enum { GDA_FAILED_BY_DEVICE = 1, GDA_FAILED_BY_HOST = 2 };

PORTABLE_FUNC uint64_t gda_failure(uint32_t by, uint32_t syndrome, uint32_t vendor, uint32_t index)
{
    return (uint64_t)by << 32 | (uint64_t)(index & GDA_INDEX_MASK) << 16 | (vendor & 0xff) << 8 | (syndrome & 0xff);
}
PORTABLE_FUNC uint32_t gda_failure_by(uint64_t failure)
{
    return gda_high(failure);
}
PORTABLE_FUNC uint32_t gda_failure_syndrome(uint64_t failure)
{
    return (uint32_t)failure & 0xff;
}
PORTABLE_FUNC uint32_t gda_failure_vendor(uint64_t failure)
{
    return (uint32_t)failure >> 8 & 0xff;
}
PORTABLE_FUNC uint32_t gda_failure_index(uint64_t failure)
{
    return (uint32_t)failure >> 16 & GDA_INDEX_MASK;
}
/* Returns 1 for a request that was flushed: the cause is an earlier one, whose CQE nobody has seen. */
PORTABLE_FUNC int gda_cause_is_unseen(uint64_t failure)
{
    return gda_failure_by(failure) == GDA_FAILED_BY_DEVICE && gda_failure_syndrome(failure) == GDA_SYNDROME_FLUSHED;
}

/* Copies `error` to the host's word. A thread that stores an older value notices that and stores again. */
PORTABLE_FUNC void gda_tell(gda_queue *queue)
{
    uint64_t seen = gda_load(&queue->error);
    while (queue->told) {
        gda_store_system(queue->told, seen);
        const uint64_t again = gda_load(&queue->error);
        if (again == seen) return;
        seen = again;
    }
}

PORTABLE_FUNC void gda_remember(gda_queue *queue, uint64_t failure)
{
    uint64_t seen = gda_load(&queue->error);
    while (!seen || (gda_cause_is_unseen(seen) && !gda_cause_is_unseen(failure)))
        if (gda_swap(&queue->error, &seen, failure)) break;
    gda_tell(queue);
}

/* Returns 0, or the failure of the queue. */
PORTABLE_FUNC uint64_t gda_error(const gda_queue *queue)
{
    return gda_load(&queue->error);
}

/* For a thread that waits: also looks at the host's word, once in some turns. Returns 1 if the wait must end. */
PORTABLE_FUNC int gda_must_end(gda_queue *queue, uint32_t *turns)
{
    if (gda_error(queue)) return 1;
    if (++*turns % GDA_POLLS_A_LOOK == 0 && queue->stop) {
        const uint64_t failure = gda_load_system(queue->stop);
        if (failure) gda_remember(queue, failure);
        if (failure) return 1;
    }
    gda_rest();
    return 0;
}

/* ---- completions ------------------------------------------------------------------------------------------------- */

typedef enum gda_state { GDA_FAILED = -1, GDA_NOT_YET = 0, GDA_COMPLETE = 1 } gda_state;

PORTABLE_FUNC int gda_has_reached(uint64_t counter, uint64_t index)
{
    return (int64_t)(counter - index) >= 0;
}

/* Remembers an error CQE. Its words may change meanwhile, as later requests are flushed: then it reads again. */
PORTABLE_FUNC void gda_take_error(gda_queue *queue, const PORTABLE_SHARED(uint32_t) * cqe, uint32_t last)
{
    for (;;) {
        const uint32_t word = gda_load_32(cqe + GDA_CQE_SYNDROME);
        const uint32_t again = gda_load_32(cqe + GDA_CQE_LAST);
        if (again == last) {
            gda_remember(queue, gda_failure(GDA_FAILED_BY_DEVICE, gda_cqe_syndrome_of(word), gda_cqe_vendor_of(word),
                                            gda_cqe_counter_of(last)));
            return;
        }
        last = again;
    }
}

PORTABLE_FUNC int gda_is_error(uint32_t last)
{
    const uint32_t opcode = gda_cqe_opcode_of(last);
    return opcode == GDA_CQE_REQUEST_FAILED || opcode == GDA_CQE_RESPONSE_FAILED;
}

/* One look at a collapsed completion queue, by a thread that waits until cons_idx is at least `index`, which is rung.
   At most cq_entries blocks are in flight, so a counter within that distance before index - 1 is older. */
PORTABLE_FUNC void gda_look_collapsed(gda_queue *queue, uint64_t index)
{
    const uint32_t last = gda_load_32(queue->cqes + GDA_CQE_LAST);
    if (gda_is_error(last)) {
        gda_take_error(queue, queue->cqes, last);
        return;
    }
    const uint32_t counter = gda_cqe_counter_of(last), low = (uint32_t)(index & GDA_INDEX_MASK);
    if (((low - counter - 2) & GDA_INDEX_MASK) < queue->cq_entries) return;
    const uint32_t end = (counter + 1) & GDA_INDEX_MASK;
    GDA_BETWEEN_STEPS(queue);
    gda_raise(&queue->cons_idx, ((index & ~(uint64_t)GDA_INDEX_MASK) | end) + (low > end ? GDA_INDEX_MASK + 1 : 0));
}

/* Reads all new entries of a completion queue that is not collapsed, unless another thread does. The owner bit of an
   entry changes with each turn of the queue. */
PORTABLE_FUNC void gda_drain(gda_queue *queue)
{
    uint64_t unlocked = 0;
    if (!gda_swap(&queue->cq_lock, &unlocked, 1)) return;
    const uint64_t first = gda_load(&queue->cq_head);
    uint64_t head = first;
    for (;; head++) {
        const PORTABLE_SHARED(uint32_t) *cqe = queue->cqes + (head & (queue->cq_entries - 1)) * GDA_CQE_WORDS;
        const uint32_t last = gda_load_32(cqe + GDA_CQE_LAST);
        if (gda_cqe_opcode_of(last) == GDA_CQE_INVALID) break;
        if (gda_cqe_owner_of(last) != ((head & queue->cq_entries) != 0)) break;
        GDA_BETWEEN_STEPS(queue);
        if (gda_is_error(last)) {
            gda_take_error(queue, cqe, last);
        } else {
            const uint64_t seen = gda_load(&queue->cons_idx);
            gda_raise(&queue->cons_idx, seen + ((gda_cqe_counter_of(last) + 1 - seen) & GDA_INDEX_MASK));
        }
    }
    if (head != first) {
        gda_store(&queue->cq_head, head);
        gda_store_32(queue->cq_record, gda_be32((uint32_t)(head & GDA_QPN_MASK)));
    }
    gda_store(&queue->cq_lock, 0);
}

/* Says whether all blocks before `index` are complete. */
PORTABLE_FUNC gda_state gda_look(gda_queue *queue, uint64_t index)
{
    if (gda_has_reached(gda_load(&queue->cons_idx), index)) return GDA_COMPLETE;
    if (gda_error(queue)) return GDA_FAILED;
    if (!gda_has_reached(gda_load(&queue->prod_idx), index)) return GDA_NOT_YET;
    GDA_BETWEEN_STEPS(queue);
    if (queue->collapsed)
        gda_look_collapsed(queue, index);
    else
        gda_drain(queue);
    if (gda_has_reached(gda_load(&queue->cons_idx), index)) return GDA_COMPLETE;
    return gda_error(queue) ? GDA_FAILED : GDA_NOT_YET;
}

/* Waits until all blocks before `index` are complete. Returns 0 if the queue has failed. */
PORTABLE_FUNC int gda_poll(gda_queue *queue, uint64_t index)
{
    uint32_t turns = 0;
    for (;;) {
        const gda_state state = gda_look(queue, index);
        if (state == GDA_COMPLETE) return 1;
        if (state == GDA_FAILED || gda_must_end(queue, &turns)) return 0;
    }
}

/* ---- reserve, write, commit, ring -------------------------------------------------------------------------------- */

/* Reserves blocks from *base on, at most queue->most, and waits until the device has done with them. Call gda_commit
   soon: later reservations wait for that. Returns 0 if the queue has failed. */
PORTABLE_FUNC int gda_reserve(gda_queue *queue, uint32_t blocks, uint64_t *base)
{
    if (gda_error(queue)) return 0;
    *base = gda_add(&queue->resv_head, blocks);
    GDA_BETWEEN_STEPS(queue);
    return queue->never_full || gda_poll(queue, *base + blocks - queue->depth);
}

/* The same without a wait. GDA_NOT_YET: the queue is full, and nothing was reserved. */
PORTABLE_FUNC gda_state gda_try_reserve(gda_queue *queue, uint32_t blocks, uint64_t *base)
{
    if (gda_error(queue)) return GDA_FAILED;
    *base = gda_load(&queue->resv_head);
    do {
        const gda_state state = gda_look(queue, *base + blocks - queue->depth);
        if (state != GDA_COMPLETE) return state;
        GDA_BETWEEN_STEPS(queue);
    } while (!gda_swap(&queue->resv_head, base, *base + blocks));
    return GDA_COMPLETE;
}

/* Writes a request at an index that the thread has reserved. */
PORTABLE_FUNC void gda_write(gda_queue *queue, uint64_t index, const gda_request *request)
{
    gda_block blocks[GDA_REQUEST_BLOCKS];
    const uint32_t count = gda_blocks_of(request->form);
    gda_encode(blocks, request, index, queue->qpn);
    GDA_BETWEEN_STEPS(queue);
    for (uint32_t i = 0; i < GDA_REQUEST_BLOCKS; i++)
        if (i < count) gda_store_block(&queue->blocks[(index + i) & (queue->depth - 1)], &blocks[i]);
}

/* Tells the device of all blocks before `end`: the record, then the register. */
PORTABLE_FUNC void gda_ring_to(gda_queue *queue, uint64_t end)
{
    gda_store_32(&queue->record[GDA_RECORD_SEND], gda_record_word(end));
    GDA_BETWEEN_STEPS(queue);
    gda_store_register(queue->doorbell, gda_register_word(end, queue->qpn));
    gda_store(&queue->rings, gda_load(&queue->rings) + 1);
}

/* Rings for all committed blocks, at least for those before `end`. If another thread has raised prod_idx beyond `end`,
   it rings for them. */
PORTABLE_FUNC void gda_ring(gda_queue *queue, uint64_t end)
{
    if (queue->ringer == GDA_RINGER_CPU) {
        gda_raise(&queue->prod_idx, end);
        if (queue->wanted) gda_raise(queue->wanted, end);
        return;
    }
    while (!gda_has_reached(gda_load(&queue->prod_idx), end)) {
        uint64_t unlocked = 0;
        if (!gda_swap(&queue->lock, &unlocked, 1)) {
            gda_rest();
            continue;
        }
        GDA_BETWEEN_STEPS(queue);
        const uint64_t ready = gda_load(&queue->ready_head);
        if (!gda_has_reached(gda_load(&queue->prod_idx), ready)) {
            gda_raise(&queue->prod_idx, ready);
            GDA_BETWEEN_STEPS(queue);
            gda_ring_to(queue, ready);
        }
        gda_store(&queue->lock, 0);
    }
}

/* The requests in [base, base + blocks) are written. Waits until those before them are, and rings if nobody else will.
   Returns 0 if the queue has failed. */
PORTABLE_FUNC int gda_commit(gda_queue *queue, uint64_t base, uint32_t blocks)
{
    const uint64_t end = base + blocks;
    uint64_t seen = base;
    uint32_t turns = 0;
    GDA_BETWEEN_STEPS(queue);
    gda_release(queue->scope);
    while (!gda_swap(&queue->ready_head, &seen, end)) {
        if (gda_must_end(queue, &turns)) return 0;
        seen = base;
    }
    GDA_BETWEEN_STEPS(queue);
    if (gda_load(&queue->resv_head) == end || ((base ^ end) & ~(uint64_t)(queue->batch - 1))) gda_ring(queue, end);
    return 1;
}

/* With GDA_RINGER_CPU, a host thread calls this in a loop; *rung is its own. Returns 1 if it has rung. */
PORTABLE_FUNC int gda_ring_for(gda_queue *queue, uint64_t *rung)
{
    const uint64_t end = gda_load_system(queue->wanted ? queue->wanted : &queue->prod_idx);
    if (end == *rung) return 0;
    gda_ring_to(queue, end);
    *rung = end;
    return 1;
}

/* Posts one request by itself; *end is the index to poll for. Returns 0 if the queue has failed. */
PORTABLE_FUNC int gda_post(gda_queue *queue, const gda_request *request, uint64_t *end)
{
    const uint32_t blocks = gda_blocks_of(request->form);
    gda_request last = *request;
    uint64_t base;
    if (!gda_reserve(queue, blocks, &base)) return 0;
    last.flags |= GDA_REPORT;
    gda_write(queue, base, &last);
    *end = base + blocks;
    return gda_commit(queue, base, blocks);
}

/* ---- results of atomics ------------------------------------------------------------------------------------------ */

PORTABLE_FUNC uint64_t gda_result_place(const gda_queue *queue, uint64_t number)
{
    return 1 + (number & (queue->num_results - 1));
}
/* Returns the address of a slot, as the device knows it. */
PORTABLE_FUNC uint64_t gda_result_address(const gda_queue *queue, uint64_t number)
{
    return queue->results_address + gda_result_place(queue, number) * 8;
}

/* Takes that many result slots, from *number on, before the requests are reserved. Returns 0 if the queue has failed.
   */
PORTABLE_FUNC int gda_take_results(gda_queue *queue, uint32_t count, uint64_t *number)
{
    uint32_t turns = 0;
    if (gda_error(queue)) return 0;
    *number = gda_add(&queue->result_head, count);
    while (!gda_has_reached(gda_load(&queue->result_tail) + queue->num_results, *number + count))
        if (gda_must_end(queue, &turns)) return 0;
    return 1;
}

/* Returns the old word, after the completion of its request. Results of 4 bytes are big-endian, of 8 in host order. */
PORTABLE_FUNC uint64_t gda_result(const gda_queue *queue, uint64_t number, uint32_t bytes)
{
    const uint64_t *slot = &queue->results[gda_result_place(queue, number)];
    GDA_BETWEEN_STEPS(queue);
    return bytes == 4 ? gda_be32((uint32_t)*slot) : *slot;
}

/* Gives slots back, after earlier ones were. Returns 0 if the queue has failed. */
PORTABLE_FUNC int gda_give_results(gda_queue *queue, uint64_t number, uint32_t count)
{
    uint32_t turns = 0;
    while (gda_load(&queue->result_tail) != number)
        if (gda_must_end(queue, &turns)) return 0;
    gda_store(&queue->result_tail, number + count);
    return 1;
}

/* Sets the place for the old word of an atomic that nobody wants. */
PORTABLE_FUNC void gda_to_sink(const gda_queue *queue, gda_request *request)
{
    request->local = queue->results_address;
    request->lkey = queue->results_lkey;
}

/* Posts an atomic, waits for it, and returns its old word in *old. Returns 0 if the queue has failed. */
PORTABLE_FUNC int gda_fetch(gda_queue *queue, gda_request *request, uint64_t *old)
{
    uint64_t number, end;
    if (!gda_take_results(queue, 1, &number)) return 0;
    request->local = gda_result_address(queue, number);
    request->lkey = queue->results_lkey;
    if (!gda_post(queue, request, &end) || !gda_poll(queue, end)) return 0;
    *old = gda_result(queue, number, gda_word_bytes(request->form));
    return gda_give_results(queue, number, 1);
}

/* ---- quiet ------------------------------------------------------------------------------------------------------- */

/* Call this after the commit of reads; `end` is the end of their submission. */
PORTABLE_FUNC void gda_note_get(gda_queue *queue, uint64_t end)
{
    if (queue->flushes) gda_raise(&queue->get_head, end);
}

/* Makes the data of all reads visible that were committed so far. Returns 0 if the queue has failed. */
PORTABLE_FUNC int gda_flush(gda_queue *queue)
{
    const uint64_t head = gda_load(&queue->get_head);
    gda_request dump = {GDA_DUMP, GDA_FENCE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}};
    uint64_t end;
    if (gda_has_reached(gda_load(&queue->get_tail), head)) return 1;
    gda_to_sink(queue, &dump);
    if (!gda_post(queue, &dump, &end) || !gda_poll(queue, end)) return 0;
    gda_raise(&queue->get_tail, head);
    return 1;
}

/* Waits until all requests that were committed so far are complete, and the data of reads is visible. Returns 0 if the
   queue has failed, now or earlier. */
PORTABLE_FUNC int gda_quiet(gda_queue *queue)
{
    const uint64_t end = gda_load(&queue->ready_head);
    if (queue->flushes && !gda_flush(queue)) return 0;
    return gda_poll(queue, end) && !gda_error(queue);
}

#endif
