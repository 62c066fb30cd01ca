/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a combine's rows through shared memory (sm_90). Only combine.cu uses it.
 *
 * A warp has some slots. Each holds one part of a row from every rank, side by side. Bulk copies fill the slots. The
 * warp waits for the oldest, adds its parts, and starts the copies of the next part into the same slot. So the other
 * slots are being filled while one is added. A single slot of the same total size would be idle meanwhile.
 *
 * A slot's barrier goes through one phase each time that the slot is filled. Lane 0 says how many bytes come, and
 * arrives after it has started all copies; all lanes wait. The next phase begins after __syncwarp, so that no lane can
 * miss one. No fence comes before copies that overwrite a slot: the values that were read there have gone into sums
 * that are stored by then. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_NORMAL_COMBINE_BULK_H
#define EXPAR_EXEC_CUDA_KERNELS_NORMAL_COMBINE_BULK_H

#ifdef GPU_HAS_BULK

/* ---- which parts a warp takes ------------------------------------------------------------------------------------ */

/* A run is what a warp takes at a time. With many tokens it is a whole row, so that the row is looked up once. If there
   are many warps, too, it is half a row, so that all warps finish at the same time. Otherwise it is one part, so that
   few rows spread over many warps.

   A warp's first run is its number among all warps. Warps take later runs by a counter, as tokens of a dispatch. But if
   warps are few, SMs are the bottleneck and not the links, and each warp has a fixed share. */
#define GPU_MANY_TOKENS 8 /* for each warp */
#define GPU_MANY_WARPS  (2 * EP_ROWS_UNDER_WAY)
#define GPU_FEW_WARPS   (EP_ROWS_UNDER_WAY / 2) /* fewer warps than this are few */

/* The number of a run fits 32 bits: y has EP_ALIGN_BYTES for each part except a row's last. */
typedef struct gpu_course {
    uint32_t first; /* number of the first run that is taken by the counter; else of the warp's next */
    uint32_t dealt; /* counter value of the warp's next run, from `first` on, only in lane 0; else 0 */
    bool deals;
    int32_t parts; /* parts of a row */
    int32_t run;   /* parts of a run */
    int32_t runs;  /* runs of a row */
    int32_t left;  /* parts of this run, including the current one; 0: the next run begins */
    int32_t part;
    int64_t token; /* past the last token: the course has ended */
} gpu_course;

/* Returns the number of warps of the grid. */
GPU_FUNC uint32_t course_warps(void)
{
    return (blockDim.x / 32) * gridDim.x;
}

GPU_FUNC gpu_course course_begin(const gpu_combine_args *a)
{
    const uint32_t warps = course_warps();
    gpu_course c;
    c.first = (threadIdx.x / 32) * gridDim.x + blockIdx.x;
    c.dealt = 0;
    c.parts = (int32_t)((GPU_ROW_BYTES(a) + a->part_bytes - 1) / a->part_bytes);
    c.run = 1;
    if (a->tokens >= GPU_MANY_TOKENS * (int64_t)warps) c.run = warps < GPU_MANY_WARPS ? c.parts : (c.parts + 1) / 2;
    c.runs = (c.parts + c.run - 1) / c.run;
    c.deals = warps >= GPU_FEW_WARPS && warps < a->tokens * c.runs;
    c.left = c.part = 0;
    c.token = 0;
    return c;
}

/* Call this after the copies of a part were started. */
GPU_FUNC void course_step(const gpu_combine_args *a, gpu_course *c)
{
    c->part++;
    if (--c->left) return;
    if (!c->deals)
        c->first += course_warps();
    else
        c->first = course_warps();
    if (c->deals && threadIdx.x % 32 == 0) c->dealt = deal_next(&a->world.place);
}

/* True if there is another part. The whole warp calls it. It reads lane 0's counter value here, and not where lane 0
   asked for it, so that no lane waits for the answer meanwhile. */
GPU_FUNC bool course_goes(const gpu_combine_args *a, gpu_course *c)
{
    if (c->left == 0) {
        const uint32_t next = c->first + __shfl_sync(GPU_ALL, c->dealt, 0);
        c->token = next;
        c->part = 0;
        if (c->runs > 1) {
            c->token = next / (uint32_t)c->runs;
            c->part = (int32_t)(next % (uint32_t)c->runs) * c->run;
        }
        c->left = min(c->run, c->parts - c->part);
    }
    return c->token < a->tokens;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

/* Each slot has one in shared memory. */
typedef struct gpu_slot_note {
    uint64_t barrier; /* the parts have come */
    /* Lane 0 writes this and the next two when it starts the copies. The warp reads them when the parts have come. */
    int64_t token;
    int32_t part;
    int32_t count; /* number of the rows that are added */
    int64_t unused;
} gpu_slot_note;
static_assert(sizeof(gpu_slot_note) == GPU_COMBINE_NOTE_BYTES, "the host plans shared memory");

/* A warp's slots. */
typedef struct gpu_slots {
    uint8_t *data;
    gpu_slot_note *notes;
    int32_t bytes; /* bytes of a slot */
    int32_t count;
} gpu_slots;

/* Returns the most places of a token that have rows. */
GPU_FUNC int32_t spaces_of(const gpu_combine_args *a)
{
    return GPU_BY_SLOT ? a->spares : GPU_RANKS(&a->world.place);
}

/* Initializes the warp's slots. The gpu_slot_note records come after the slots of all warps. */
GPU_FUNC gpu_slots slots_open(const gpu_combine_args *a, uint8_t *memory)
{
    int32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
    gpu_slots s;
    s.count = a->slots;
    s.bytes = spaces_of(a) * a->part_bytes;
    s.data = memory + warp * s.count * s.bytes;
    s.notes = (gpu_slot_note *)(memory + warps * s.count * s.bytes) + warp * s.count;
    for (int32_t i = threadIdx.x % 32; i < s.count; i += 32)
        bulk_barrier_open((uint32_t)__cvta_generic_to_shared(&s.notes[i].barrier));
    __syncwarp();
    return s;
}

GPU_FUNC uint32_t part_size(const gpu_combine_args *a, int32_t part)
{
    int64_t left = GPU_ROW_BYTES(a) - (int64_t)part * a->part_bytes;
    return (uint32_t)(left < a->part_bytes ? left : a->part_bytes);
}

/* The warp's last lookup. */
typedef struct gpu_lookup {
    int64_t token; /* -1: none yet */
    gpu_find found;
} gpu_lookup;

/* Starts the copies of the current part of the course. The warp has read the slot. */
GPU_FUNC void send_for_part(const gpu_combine_args *a, const gpu_source *sources, const gpu_course *c, gpu_lookup *last,
                            const gpu_slots *s, int32_t slot)
{
    int32_t lane = threadIdx.x % 32, count = 0;
    uint32_t bytes = part_size(a, c->part), data = (uint32_t)__cvta_generic_to_shared(s->data + slot * s->bytes);
    uint32_t barrier = (uint32_t)__cvta_generic_to_shared(&s->notes[slot].barrier);
    const gpu_token token = {c->token, 0};
    if (last->token != c->token) last->found = find_rows(a, sources, NULL, &token, 0);
    last->token = c->token;
    for (int32_t first = 0; first < places_of(a); first += 32) {
        gpu_find f = last->found;
        if (first) f = find_rows(a, sources, NULL, &token, first);
        uint32_t below = f.places & ((1u << lane) - 1), all = (uint32_t)__popc(f.places);
        if (lane == 0) bulk_expect(barrier, all * bytes);
        __syncwarp();
        if (f.places >> lane & 1)
            bulk_fetch(data + (uint32_t)((count + __popc(below)) * a->part_bytes), barrier,
                       f.x + (int64_t)c->part * a->part_bytes, bytes);
        count += (int32_t)all;
    }
    if (lane == 0) {
        s->notes[slot].token = c->token;
        s->notes[slot].part = c->part;
        s->notes[slot].count = count;
    }
    __syncwarp();
    if (lane == 0) bulk_arrive(barrier);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Adds vector v of all parts, in the order of places, two of them at once. */
GPU_FUNC void add_parts(const gpu_combine_args *a, const uint8_t *data, int32_t count, int32_t v, float sums[8])
{
    for (int32_t i = 0; i < count; i += 2, data += 2 * a->part_bytes) {
        bool both = i + 1 < count;
        uint4 second = make_uint4(0, 0, 0, 0), first = ((const uint4 *)data)[v];
        if (both) second = ((const uint4 *)(data + a->part_bytes))[v];
        add_vector(GPU_DTYPE(a->form.dtype), sums, first, false, 1.0f);
        if (both) add_vector(GPU_DTYPE(a->form.dtype), sums, second, false, 1.0f);
    }
}

/* Adds all vectors of two parts without biases, as most tokens of two ranks have them. There are no conditions inside:
   if SMs are few, instructions are the bottleneck and not rows. */
GPU_FUNC void add_two(const gpu_combine_args *a, const uint4 *first, const uint4 *second, int32_t vectors, uint4 *y)
{
    for (int32_t v = threadIdx.x % 32; v < vectors; v += 32) {
        const uint4 one = first[v], two = second[v];
        float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        add_vector(GPU_DTYPE(a->form.dtype), sums, one, false, 1.0f);
        add_vector(GPU_DTYPE(a->form.dtype), sums, two, false, 1.0f);
        store_row(y + v, narrow_vector(GPU_DTYPE(a->form.dtype), sums));
    }
}

/* Adds the parts of a slot, which must have come. */
GPU_FUNC void add_slot(const gpu_combine_args *a, const gpu_slots *s, int32_t slot)
{
    const gpu_slot_note *note = &s->notes[slot];
    int64_t token = note->token, at = (int64_t)note->part * a->part_bytes;
    int32_t count = note->count, vectors = (int32_t)part_size(a, note->part) / 16;
    uint4 *y = (uint4 *)(a->y + token * a->y_pitch_bytes + at);
    const uint8_t *data = s->data + slot * s->bytes;
    if (count == 2 && !a->bias[0] && !a->bias[1]) {
        add_two(a, (const uint4 *)data, (const uint4 *)(data + a->part_bytes), vectors, y);
        return;
    }
    for (int32_t v = threadIdx.x % 32; v < vectors; v += 32) {
        float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        add_biases(a, token, (int32_t)(at / 16) + v, sums);
        add_parts(a, data, count, v, sums);
        store_row(y + v, narrow_vector(GPU_DTYPE(a->form.dtype), sums));
    }
}

GPU_FUNC void add_all_by_bulk(const gpu_combine_args *a, const gpu_source *sources, uint8_t *memory)
{
    gpu_slots s = slots_open(a, memory);
    gpu_course c = course_begin(a);
    gpu_lookup last = {-1, {NULL, NULL, 0}};
    int32_t under_way = 0, slot = 0;
    uint32_t parity = 0;
    /* Rows were written by ordinary stores, which the acquire of the headers has made visible. */
    bulk_fence();
    for (; under_way < s.count && course_goes(a, &c); under_way++, course_step(a, &c))
        send_for_part(a, sources, &c, &last, &s, under_way);
    while (under_way) {
        bulk_wait((uint32_t)__cvta_generic_to_shared(&s.notes[slot].barrier), parity);
        add_slot(a, &s, slot);
        const gpu_token token = {s.notes[slot].token, 0};
        if (a->out_weights && s.notes[slot].part == 0) add_weights(a, sources, NULL, &token);
        __syncwarp();
        if (course_goes(a, &c)) {
            send_for_part(a, sources, &c, &last, &s, slot);
            course_step(a, &c);
        } else
            under_way--;
        if (++slot == s.count) slot = 0, parity ^= 1;
    }
}

#endif

#endif
