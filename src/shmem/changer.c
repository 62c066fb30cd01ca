/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel of one thread that changes words. */
#include "shmem/changer.h"
#include "mem/copier.h"
#include "mem/device.h"
#include "proto/change.h"

#include <assert.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#define SAME_OP(ours, theirs) static_assert((int)(ours) == (int)(theirs), "the kernel has the transports' numbers")
SAME_OP(CHANGE_SWAP, TRANSPORT_SWAP);
SAME_OP(CHANGE_COMPARE_SWAP, TRANSPORT_COMPARE_SWAP);
SAME_OP(CHANGE_ADD, TRANSPORT_ADD);
SAME_OP(CHANGE_AND, TRANSPORT_AND);
SAME_OP(CHANGE_OR, TRANSPORT_OR);
SAME_OP(CHANGE_XOR, TRANSPORT_XOR);

/* The driver translates this text for each GPU, without a compiler of CUDA. One thread runs it. Its parameter is a
   change_args. A fence comes first: a thread that sees the new word sees what the host wrote before. */
#define CHANGE_CASE(number, does)                                                                                      \
    "  setp.ne.u32 %p, %op, " #number ";\n"                                                                            \
    "  @!%p " does ";\n"
#define CHANGE_CASES(bits, old, operand, compare)                                                                      \
    CHANGE_CASE(2, "atom.relaxed.sys.exch.b" #bits " " old ", [%word], " operand)                                      \
    CHANGE_CASE(3, "atom.relaxed.sys.cas.b" #bits " " old ", [%word], " compare ", " operand)                          \
    CHANGE_CASE(4, "atom.relaxed.sys.add.u" #bits " " old ", [%word], " operand)                                       \
    CHANGE_CASE(5, "atom.relaxed.sys.and.b" #bits " " old ", [%word], " operand)                                       \
    CHANGE_CASE(6, "atom.relaxed.sys.or.b" #bits " " old ", [%word], " operand)                                        \
    CHANGE_CASE(7, "atom.relaxed.sys.xor.b" #bits " " old ", [%word], " operand)
/* clang-format off */
const char changer_text[] =
    ".version 7.0\n"
    ".target sm_80\n"
    ".address_size 64\n"
    ".visible .entry change_word(.param .align 8 .b8 args[40])\n"
    "{\n"
    "  .reg .pred %p;\n"
    "  .reg .b32 %bytes, %op, %operand32, %compare32, %old32;\n"
    "  .reg .b64 %word, %former, %operand, %compare, %old;\n"
    "  ld.param.u64 %word, [args];\n"
    "  ld.param.u64 %former, [args+8];\n"
    "  ld.param.u64 %operand, [args+16];\n"
    "  ld.param.u64 %compare, [args+24];\n"
    "  ld.param.u32 %bytes, [args+32];\n"
    "  ld.param.u32 %op, [args+36];\n"
    "  fence.acq_rel.sys;\n"
    "  setp.ne.u32 %p, %bytes, 8;\n"
    "  @%p bra SMALL;\n"
    CHANGE_CASES(64, "%old", "%operand", "%compare")
    "  bra END;\n"
    "SMALL:\n"
    "  cvt.u32.u64 %operand32, %operand;\n"
    "  cvt.u32.u64 %compare32, %compare;\n"
    CHANGE_CASES(32, "%old32", "%operand32", "%compare32")
    "  cvt.u64.u32 %old, %old32;\n"
    "END:\n"
    "  st.u64 [%former], %old;\n"
    "  ret;\n"
    "}\n";
/* clang-format on */
#define SAME_PLACE(member, at) static_assert(offsetof(change_args, member) == (at), "the text has the offsets")
SAME_PLACE(word, 0);
SAME_PLACE(former, 8);
SAME_PLACE(operand, 16);
SAME_PLACE(compare, 24);
SAME_PLACE(bytes, 32);
SAME_PLACE(op, 36);
static_assert(sizeof(change_args) == 40, "the text has the size");

struct changer {
    const cuda_device *device;
    cu_module module;
    cu_function function;
    cu_stream stream;
    cu_event event; /* recorded after the kernel */
    mem_pinned former;
    /* held through a change */
    pthread_mutex_t lock;
};

/* ---- making and end ---------------------------------------------------------------------------------------------- */

/* The device has been entered. */
static expar_status changer_open(changer *self)
{
    expar_status status = CUDA_CALL(ModuleLoadData, &self->module, changer_text);
    if (status == EXPAR_OK) status = CUDA_CALL(ModuleGetFunction, &self->function, self->module, "change_word");
    if (status == EXPAR_OK) status = mem_pinned_create(sizeof(uint64_t), &self->former);
    if (status == EXPAR_OK) status = CUDA_CALL(StreamCreate, &self->stream, CU_STREAM_NON_BLOCKING);
    if (status == EXPAR_OK) status = CUDA_CALL(EventCreate, &self->event, CU_EVENT_NO_TIMING);
    return status;
}

expar_status changer_create(const cuda_device *device, changer **out)
{
    changer *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory");
    self->device = device;
    pthread_mutex_init(&self->lock, NULL);
    expar_status status = cuda_enter(device);
    if (status == EXPAR_OK) {
        status = changer_open(self);
        cuda_leave();
    }
    if (status == EXPAR_OK)
        *out = self;
    else
        changer_destroy(self);
    return status;
}

void changer_destroy(changer *self)
{
    if (!self) return;
    if (cuda_enter(self->device) == EXPAR_OK) {
        if (self->event) cuda_driver()->EventDestroy(self->event);
        if (self->stream) cuda_driver()->StreamDestroy(self->stream);
        if (self->module) cuda_driver()->ModuleUnload(self->module);
        mem_pinned_free(&self->former);
        cuda_leave();
    }
    pthread_mutex_destroy(&self->lock);
    free(self);
}

/* ---- changes ----------------------------------------------------------------------------------------------------- */

bool changer_is_for(transport_atomic_op op)
{
    return op != TRANSPORT_FETCH && op != TRANSPORT_SET;
}

static expar_status change_launch(changer *self, const changer_order *order)
{
    change_args args = {.word = order->word,
                        .former = self->former.device,
                        .operand = order->operand,
                        .compare = order->compare,
                        .bytes = (uint32_t)order->bytes,
                        .op = (uint32_t)order->op};
    const cuda_launch one = {.function = self->function, .stream = self->stream, .blocks = 1, .threads = 1};
    expar_status status = cuda_launch_kernel(&one, (void *[]){&args});
    return status == EXPAR_OK ? CUDA_CALL(EventRecord, self->event, self->stream) : status;
}

static expar_status change_entered(changer *self, const changer_order *order, uint64_t *former)
{
    cu_result result = CU_OK;
    expar_status status = change_launch(self, order);
    for (int64_t looks = 0; status == EXPAR_OK; looks++) {
        result = cuda_driver()->EventQuery(self->event);
        if (result != CU_ERROR_NOT_READY) break;
        mem_copier_rest(looks);
    }
    if (status == EXPAR_OK) status = cuda_status(result, __FILE__, __LINE__, "cuEventQuery");
    if (status == EXPAR_OK) *former = *(volatile const uint64_t *)self->former.host;
    return status;
}

expar_status changer_change(changer *self, const changer_order *order, uint64_t *former)
{
    int mode = CU_CAPTURE_RELAXED;
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    /* The stream is in no capture, so no capture of the caller's forbids the calls. */
    status = CUDA_CALL(ThreadExchangeStreamCaptureMode, &mode);
    if (status == EXPAR_OK) {
        pthread_mutex_lock(&self->lock);
        status = change_entered(self, order, former);
        pthread_mutex_unlock(&self->lock);
        cuda_driver()->ThreadExchangeStreamCaptureMode(&mode);
    }
    cuda_leave();
    return status;
}
