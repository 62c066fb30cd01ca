/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of memory: which lkey and rkey go with an address, and where a transfer must be cut.
 *
 * A heap consists of chunks. Each chunk is registered by itself, so it has an lkey here and an rkey for each peer. A
 * transfer is cut where its source or its target leaves a chunk, and at GDA_MOST_BYTES; each piece becomes one request.
 * Memory outside the heap is registered as a range, or its data is copied by the caller.
 *
 * It compiles as C17, under nvcc and under NVRTC. Small tables may lie in constant memory, as no thread changes them
 * while requests are posted. num_chunks alone grows; see there. */
#ifndef EXPAR_NET_GDA_KEYS_H
#define EXPAR_NET_GDA_KEYS_H

#include "net/gda/queue.h"

/* Registered memory of this rank outside its heap. */
typedef struct gda_range {
    uint64_t begin, end; /* addresses */
    uint32_t lkey;       /* big-endian */
    uint32_t unused;
} gda_range;

typedef struct gda_keys {
    /* Address of this rank's heap. */
    uint64_t heap;
    /* [num_pes] address of each peer's heap, as its device knows it */
    const uint64_t *remotes;
    /* [num_chunks] offset in the heap where each chunk ends, ascending */
    const uint64_t *ends;
    /* [num_chunks] big-endian */
    const uint32_t *lkeys;
    /* [num_pes][stride] big-endian */
    const uint32_t *rkeys;
    /* [num_ranges] by ascending address; they do not overlap */
    const gda_range *ranges;
    uint32_t num_ranges;
    uint32_t num_pes;
    /* the most chunks that the tables have space for */
    uint32_t stride;
    /* All chunks but the last have 1 << shift bytes. 0: the chunk of an offset is found by a search. */
    uint32_t shift;
    /* The thread that grows the heap stores it (release) after the entries of the new chunks; threads that post load it
       (acquire). */
    PORTABLE_SHARED(uint64_t) num_chunks;
} gda_keys;

/* One request's part of a transfer. */
typedef struct gda_piece {
    uint64_t remote, local;
    uint32_t rkey, lkey; /* big-endian */
    uint32_t bytes;
} gda_piece;

/* Returns the chunk of the offset; num_chunks if it is beyond the last one. */
PORTABLE_FUNC uint32_t gda_chunk_of(const gda_keys *keys, uint64_t offset)
{
    const uint32_t count = (uint32_t)gda_load(&keys->num_chunks);
    uint32_t low = 0, high = count;
    if (keys->shift) {
        const uint64_t chunk = offset >> keys->shift;
        return chunk < count && offset < keys->ends[chunk] ? (uint32_t)chunk : count;
    }
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (offset < keys->ends[middle])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Finds the lkey of a local address, and how many bytes from there on have it. Returns 0 if the address is not
   registered. */
PORTABLE_FUNC int gda_find_local(const gda_keys *keys, uint64_t address, uint32_t *lkey, uint64_t *bytes)
{
    const uint64_t offset = address - keys->heap;
    const uint32_t chunk = address >= keys->heap ? gda_chunk_of(keys, offset) : 0;
    uint32_t low = 0, high = keys->num_ranges;
    if (address >= keys->heap && chunk < (uint32_t)gda_load(&keys->num_chunks)) {
        *lkey = keys->lkeys[chunk];
        *bytes = keys->ends[chunk] - offset;
        return 1;
    }
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (address < keys->ranges[middle].end)
            high = middle;
        else
            low = middle + 1;
    }
    if (low == keys->num_ranges || address < keys->ranges[low].begin) return 0;
    *lkey = keys->ranges[low].lkey;
    *bytes = keys->ranges[low].end - address;
    return 1;
}

/* Finds the address and the rkey of an offset in pe's heap, and how many bytes from there on have it. Returns 0 if the
   offset or the PE is out of bounds. */
PORTABLE_FUNC int gda_find_remote(const gda_keys *keys, int32_t pe, uint64_t offset, gda_piece *piece, uint64_t *bytes)
{
    const uint32_t chunk = gda_chunk_of(keys, offset);
    if (pe < 0 || (uint32_t)pe >= keys->num_pes || chunk >= (uint32_t)gda_load(&keys->num_chunks)) return 0;
    piece->remote = keys->remotes[pe] + offset;
    piece->rkey = keys->rkeys[(uint64_t)(uint32_t)pe * keys->stride + chunk];
    *bytes = keys->ends[chunk] - offset;
    return 1;
}

/* Cuts the first piece off a transfer of `bytes` bytes, at least 1. Returns 0 if an end is not registered. */
PORTABLE_FUNC int gda_cut(const gda_keys *keys, int32_t pe, uint64_t offset, uint64_t address, uint64_t bytes,
                          gda_piece *piece)
{
    uint64_t here, there;
    if (!gda_find_local(keys, address, &piece->lkey, &here)) return 0;
    if (!gda_find_remote(keys, pe, offset, piece, &there)) return 0;
    if (bytes > here) bytes = here;
    if (bytes > there) bytes = there;
    if (bytes > GDA_MOST_BYTES) bytes = GDA_MOST_BYTES;
    piece->local = address;
    piece->bytes = (uint32_t)bytes;
    return 1;
}

/* Returns the number of pieces of a transfer; 0 if some part is not registered, or there are no bytes. */
PORTABLE_FUNC uint32_t gda_count_pieces(const gda_keys *keys, int32_t pe, uint64_t offset, uint64_t address,
                                        uint64_t bytes)
{
    gda_piece piece;
    uint32_t count = 0;
    for (; bytes; count++) {
        if (!gda_cut(keys, pe, offset, address, bytes, &piece)) return 0;
        offset += piece.bytes;
        address += piece.bytes;
        bytes -= piece.bytes;
    }
    return count;
}

/* The part of a transfer that is not posted yet. */
typedef struct gda_walk {
    uint64_t offset, address, bytes;
} gda_walk;

/* The next submission of a transfer. */
typedef struct gda_submission {
    uint32_t pieces, blocks;
    int is_last;
    uint32_t last_flags; /* of its last piece */
} gda_submission;

/* A submission has at most queue->most blocks. The signal, if there is one, is in the last one. */
PORTABLE_FUNC gda_submission gda_next_submission(const gda_queue *queue, uint32_t left, const gda_request *signal)
{
    const uint32_t extra = signal ? gda_blocks_of(signal->form) : 0;
    gda_submission next;
    next.is_last = left + extra <= queue->most;
    next.pieces = next.is_last || left < queue->most ? left : queue->most;
    next.blocks = next.pieces + (next.is_last ? extra : 0);
    next.last_flags = next.is_last && signal ? 0 : GDA_REPORT;
    return next;
}

/* Writes every `lanes`-th request of a submission's pieces, from `lane` on, at index `base`, and walks over all. */
PORTABLE_FUNC void gda_write_pieces(gda_queue *queue, const gda_keys *keys, gda_form form, uint64_t base,
                                    const gda_submission *submission, gda_walk *walk, uint32_t lane, uint32_t lanes)
{
    for (uint32_t i = 0; i < submission->pieces; i++) {
        gda_piece piece;
        gda_request request = {form, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}};
        if (!gda_cut(keys, queue->pe, walk->offset, walk->address, walk->bytes, &piece)) return;
        request.flags = i + 1 == submission->pieces ? submission->last_flags : 0;
        request.remote = piece.remote;
        request.local = piece.local;
        request.rkey = piece.rkey;
        request.lkey = piece.lkey;
        request.bytes = piece.bytes;
        if (i % lanes == lane) gda_write(queue, base + i, &request);
        walk->offset += piece.bytes;
        walk->address += piece.bytes;
        walk->bytes -= piece.bytes;
    }
}

/* Writes the request that asks for the CQE of a submission. */
PORTABLE_FUNC void gda_write_last(gda_queue *queue, uint64_t index, const gda_request *request)
{
    gda_request last = *request;
    last.flags |= GDA_REPORT;
    gda_write(queue, index, &last);
}

/* Posts a put (GDA_WRITE) or a get (GDA_READ) between this rank's address and the offset in the peer's heap. A
   submission has at most queue->most blocks. *end is set to the index to poll for, if anything was posted. A `signal`
   that is not NULL is one more request, in the last submission after the data. The caller has filled it but for
   GDA_REPORT. Returns 0 if memory is not registered, or the queue has failed. */
PORTABLE_FUNC int gda_transfer(gda_queue *queue, const gda_keys *keys, gda_form form, uint64_t offset, uint64_t address,
                               uint64_t bytes, const gda_request *signal, uint64_t *end)
{
    uint32_t left = gda_count_pieces(keys, queue->pe, offset, address, bytes);
    const int reads = form == GDA_READ && bytes;
    gda_walk walk = {offset, address, bytes};
    if (bytes && !left) return 0;
    while (left || signal) {
        const gda_submission next = gda_next_submission(queue, left, signal);
        uint64_t base;
        if (!gda_reserve(queue, next.blocks, &base)) return 0;
        gda_write_pieces(queue, keys, form, base, &next, &walk, 0, 1);
        if (next.is_last && signal) gda_write_last(queue, base + next.pieces, signal);
        if (!gda_commit(queue, base, next.blocks)) return 0;
        *end = base + next.blocks;
        left -= next.pieces;
        if (next.is_last) break;
    }
    if (reads) gda_note_get(queue, *end);
    return 1;
}

#endif
