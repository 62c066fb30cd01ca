# SPDX-License-Identifier: Apache-2.0
"""The public structs, enumerations and calls of libexpar, for ctypes.

Written by tools/abi/bindings.py from the headers: change those, and run it again.
"""
# fmt: off

from __future__ import annotations

from ctypes import (
    Array,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int8,
    c_int16,
    c_int32,
    c_int64,
    c_size_t,
    c_ssize_t,
    c_ubyte,
    c_uint,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from ._named import Named

VERSION = "0.1.0"


class Status(Named):
    """Says how a call ended. An expar.Error has it as `status`.

    OK: success.
    ERR_NULL: a required pointer is NULL.
    ERR_ARGUMENT: an argument has a value that is not allowed.
    ERR_DTYPE: a tensor has the wrong data type.
    ERR_SHAPE: a tensor has the wrong number of dimensions or extents.
    ERR_STRIDE: a tensor has strides that are not supported.
    ERR_ALIGNMENT: an address is not aligned as required.
    ERR_DEVICE: a tensor lies on the wrong device.
    ERR_INDEX: an expert index is out of range.
    ERR_RANGE: a rank, size or offset is out of range.
    ERR_LIMIT: more than this buffer was created for.
    ERR_BUFFER_SIZE: a caller's buffer is too small.
    ERR_HANDLE: a handle was destroyed, or belongs to another buffer.
    ERR_MISMATCH: ranks called with arguments that do not fit together.
    ERR_REMOTE: another rank rejected its arguments, so the call was not carried out.
    ERR_BUSY: another call on the same object is still running.
    ERR_STATE: the object is not in a state that allows this call.
    ERR_ADDRESS: an address is not in the symmetric heap.
    ERR_MEMORY: out of memory.
    ERR_SYSTEM: an operating system call failed.
    ERR_BOOTSTRAP: the group could not be formed.
    ERR_AUTH: a peer does not know the secret of this group.
    ERR_VERSION: a peer speaks another version of the protocol.
    ERR_PEER: a peer died, left, fell silent, or will not come.
    ERR_ABORTED: the group was aborted.
    ERR_UNSUPPORTED: not supported by this build or on this machine.
    ERR_DROPPED: rows beyond the worst-case size were dropped.
    ERR_CUDA: a call of the CUDA driver or of its compiler failed.
    ERR_INTERRUPTED: the program ended the wait (expar_interrupt_set).
    """

    OK = 0
    ERR_NULL = 1
    ERR_ARGUMENT = 2
    ERR_DTYPE = 3
    ERR_SHAPE = 4
    ERR_STRIDE = 5
    ERR_ALIGNMENT = 6
    ERR_DEVICE = 7
    ERR_INDEX = 8
    ERR_RANGE = 9
    ERR_LIMIT = 10
    ERR_BUFFER_SIZE = 11
    ERR_HANDLE = 12
    ERR_MISMATCH = 13
    ERR_REMOTE = 14
    ERR_BUSY = 15
    ERR_STATE = 16
    ERR_ADDRESS = 17
    ERR_MEMORY = 18
    ERR_SYSTEM = 19
    ERR_BOOTSTRAP = 20
    ERR_AUTH = 21
    ERR_VERSION = 22
    ERR_PEER = 23
    ERR_ABORTED = 24
    ERR_UNSUPPORTED = 25
    ERR_DROPPED = 26
    ERR_CUDA = 27
    ERR_INTERRUPTED = 28


class HeapKind(Named):
    """Says when the symmetric heap gets its memory. A dynamic heap gets it as allocations need it. A static heap gets
    all of it when the group is formed, so that no allocation lacks memory later. A static heap needs a size.

    DEFAULT: EXPAR_HEAP_KIND, else dynamic.
    """

    DEFAULT = 0
    DYNAMIC = 1
    STATIC = 2


class HeapPages(Named):
    """The kind of pages that the heap of a process uses; each rank decides for itself. System: small pages, which the
    kernel may turn into huge ones. Huge: pages of 2 MiB that the administrator has reserved (vm.nr_hugepages). If
    too few of these are free at the start, the heap uses system pages, with a warning. If they run out later, the
    allocation fails with Status.ERR_MEMORY. With huge pages, variables of the program cannot be shared.
    docs/reference/pgas.md, "The heap", has the details.

    DEFAULT: EXPAR_HEAP_PAGES, else system.
    """

    DEFAULT = 0
    SYSTEM = 1
    HUGE = 2


class MemoryKind(Named):
    """The kinds of symmetric memory. Each is a heap of its own. An address is of one kind, the same on all ranks.

    HOST: the heap of expar_malloc: CPUs of the node load and store it.
    DEVICE: memory of the rank's GPU, which kernels of the node's GPUs with peer access load and store.
    PINNED: host memory that is registered with the CUDA driver: CPUs and kernels of the node load and store it.
    """

    HOST = 0
    DEVICE = 1
    PINNED = 2


class SignalOp(Named):
    """Says how a put changes its signal."""

    SET = 0
    ADD = 1


class Cmp(Named):
    """Comparisons of a word with a value, for waits and tests."""

    EQ = 0
    NE = 1
    GT = 2
    GE = 3
    LT = 4
    LE = 5


class DeviceTarget(Named):
    """The processor that runs the kernels.

    GPU: this rank's GPU: the one on which its device memory lies.
    CPU: threads of this process, with expar/device.h compiled as C: for development and tests without a GPU.
    """

    GPU = 0
    CPU = 1


class Dtype(Named):
    """Element types. Values are part of the ABI.

    BF16: bfloat16: 1 sign, 8 exponent, 7 mantissa bits.
    F16: IEEE 754 binary16.
    F32: IEEE 754 binary32.
    U8: also booleans: 0 is false, anything else true.
    F8E4M3: 1 sign, 4 exponent, 3 mantissa bits; no infinities ("e4m3fn").
    """

    BF16 = 1
    F16 = 2
    F32 = 3
    I32 = 4
    I64 = 5
    U8 = 6
    F8E4M3 = 7
    I8 = 8


class DeviceType(Named):
    """Devices, with the numbers of DLPack."""

    CPU = 1
    CUDA = 2


class DlCode(Named):
    """Kinds of elements in DLPack.

    FLOAT8_E4M3FN: from 1.1 on.
    """

    INT = 0
    UINT = 1
    FLOAT = 2
    BFLOAT = 4
    BOOL = 6
    FLOAT8_E4M3FN = 10


class DlDeviceType(Named):
    """Devices in DLPack.

    CUDA_HOST: pinned memory of the host.
    CUDA_MANAGED: memory that moves between host and GPU.
    """

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3
    CUDA_MANAGED = 13


class EpPart(Named):
    """The tensors of a dispatch's results, with the names that they have there. An output of expar_ep_alloc has only
    X. Values are part of the ABI.

    X: recv_x; expar_ep_alloc: the memory, [bytes] u8.
    SCALES: recv_scales.
    TOPK_IDX: recv_topk_idx.
    TOPK_WEIGHTS: recv_topk_weights.
    ROW_MAP: recv_row_map.
    SRC_TOKEN: recv_src_token.
    COUNT: recv_count of a low-latency dispatch.
    ROW_WEIGHTS: recv_row_weights.
    SRC_METADATA: recv_src_metadata.
    """

    X = 0
    SCALES = 1
    TOPK_IDX = 2
    TOPK_WEIGHTS = 3
    ROW_MAP = 4
    SRC_TOKEN = 5
    COUNT = 6
    ROW_WEIGHTS = 7
    SRC_METADATA = 8


class EpPath(Named):
    """How rows move inside a node. DIRECT: senders write rows to their places in the output (combine: receivers read
    rows from the input). QUEUE: rows pass a ring. AUTO takes DIRECT if peers reach the receiver's output (combine:
    the sender's input). On a GPU AUTO also takes DIRECT if the library can copy the rows through the pool.
    Otherwise it takes QUEUE. On GPUs whose ranks do not all map each other's memory, peers reach all rows, in
    copies that the host has.
    """

    AUTO = 0
    DIRECT = 1
    QUEUE = 2


class EpSumOrder(Named):
    """The rows that a token's sum is made of, and the order in which they are added. See expar_ep_combine.

    BY_RANK: one row of each rank; ranks ascending.
    BY_SLOT: one row of each rank; ranks by ascending s(r), the highest slot whose expert is on rank r.
    EACH_SLOT: expert-major: one row of each slot; slots ascending, whichever rank they are on.
    """

    BY_RANK = 0
    BY_SLOT = 1
    EACH_SLOT = 2


class EpWeightsOf(Named):
    """The meaning of out_topk_weights[t][k].

    ALL: the sum of slot k over all ranks that had token t.
    OWNER: the value that the rank of the slot's expert gave; 0 for a slot without expert.
    """

    ALL = 0
    OWNER = 1


class EpNodesSum(Named):
    """Where ranks are on several nodes: the part of a token's rows that crosses the network.

    ROUNDED: the sum of each node's rows, rounded to x's dtype.
    EXACT: the same sum as FP32: only the whole sum is rounded.
    ONE_ORDER: every row by itself: all nodes' rows are added in one order, as on one node.
    OWN_FIRST: the rounded sum of each node, but single rows of the token's own node.
    """

    ROUNDED = 0
    EXACT = 1
    ONE_ORDER = 2
    OWN_FIRST = 3


class Reach(Named):
    """How a rank reaches a PE's memory; a set.

    MAP: loads and stores at expar_ptr().
    """

    MAP = 1
    PUT = 2
    GET = 4
    ATOMIC = 8


class LogLevel(Named):
    """The importance of a line. EXPAR_LOG says up to which level lines are written, also to a sink; "warn" by default.
    A public call that fails is logged once, at info, with the place where the error arose.
    """

    ERROR = 0
    WARN = 1
    INFO = 2
    DEBUG = 3
    TRACE = 4


class LlFormat(Named):
    """The format of rows on their way. Rows are quantised in groups, so all formats but PLAIN need an H that is a
    multiple of 128. docs/reference/low-latency-formats.md has the arithmetic and the error bounds. Values are part
    of the ABI.

    PLAIN: as given: bf16, f16 or f32; no scales.
    FP8: f8e4m3, scales f32.
    FP8_ROUND: f8e4m3, scales f32, each rounded up to a power of two.
    FP8_UE8M0: f8e4m3, the exponents of such powers of two, four in an int32.
    INT8: i8, scales f32.
    LOGFMT: only for combines with LlSum.EXACT: 10 bits an element, logarithmic; rows arrive in the dtype of x.
    NVFP4: only for dispatches: e2m1, two elements in a byte, the first one in the lower half; scales f8e4m3 of 16
        elements, and a global scale (args.global_scale).
    """

    PLAIN = 0
    FP8 = 1
    FP8_ROUND = 2
    FP8_UE8M0 = 3
    INT8 = 4
    LOGFMT = 5
    NVFP4 = 6


class LlSum(Named):
    """Says which ranks add the rows of a token.

    EXACT: one row for each slot travels back; the token's rank adds them in the order of slots.
    REDUCED: each rank adds its rows of a token, rounds the sum, and sends it back; the token's rank adds those
        sums.
    """

    EXACT = 0
    REDUCED = 1


class PythonKind(Named):
    """The call that a form makes. Each line names what the result's list holds after the output's tensors. Objects of
    the library are integers there, and the caller owns them; 0 means that there is none.

    DISPATCH: expar_ep_dispatch: event. With a handle.
    COMBINE: expar_ep_combine: event.
    LL_DISPATCH: expar_ll_dispatch: src_info, range, handle, hook, event.
    LL_COMBINE: expar_ll_combine: hook, event.
    FRESH: expar_ep_dispatch without a handle: handle, output, event, then two numbers that need no release:
        num_recv_tokens, and the address of recv_tokens_per_expert.
    LAYOUT: expar_ep_get_layout: nothing.
    """

    DISPATCH = 0
    COMBINE = 1
    LL_DISPATCH = 2
    LL_COMBINE = 3
    FRESH = 4
    LAYOUT = 5


class UniqueId(Structure):
    bytes: Array[c_ubyte]
    _fields_ = [
        ("bytes", c_ubyte * 128),
    ]


class GroupOptions(Structure):
    struct_size: int
    id: int | None
    rank: int
    size: int
    ranks_per_node: int
    timeout_ms: int
    late_limit_ms: int
    bootstrap_timeout_ms: int
    heap_bytes: int
    heap_kind: int
    heap_pages: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("id", c_void_p),
        ("rank", c_int32),
        ("size", c_int32),
        ("ranks_per_node", c_int32),
        ("timeout_ms", c_int64),
        ("late_limit_ms", c_int64),
        ("bootstrap_timeout_ms", c_int64),
        ("heap_bytes", c_size_t),
        ("heap_kind", c_int),
        ("heap_pages", c_int),
    ]


class HeapStats(Structure):
    struct_size: int
    total_bytes: int
    used_bytes: int
    high_water_bytes: int
    largest_free_bytes: int
    blocks: int
    grown_bytes: int
    memory_bytes: int
    holes: int
    hole_bytes: int
    largest_hole_bytes: int
    page_bytes: int
    huge_bytes: int
    chunks: int
    registered_ranges: int
    registered_bytes: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("total_bytes", c_uint64),
        ("used_bytes", c_uint64),
        ("high_water_bytes", c_uint64),
        ("largest_free_bytes", c_uint64),
        ("blocks", c_uint64),
        ("grown_bytes", c_uint64),
        ("memory_bytes", c_uint64),
        ("holes", c_uint64),
        ("hole_bytes", c_uint64),
        ("largest_hole_bytes", c_uint64),
        ("page_bytes", c_uint64),
        ("huge_bytes", c_uint64),
        ("chunks", c_uint64),
        ("registered_ranges", c_uint64),
        ("registered_bytes", c_uint64),
    ]


class MemoryOptions(Structure):
    struct_size: int
    kind: int
    device: int
    bytes: int
    alignment: int
    zeroed: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int),
        ("device", c_int32),
        ("bytes", c_size_t),
        ("alignment", c_size_t),
        ("zeroed", c_int32),
    ]


class MemoryPlace(Structure):
    struct_size: int
    kind: int
    device: int
    offset: int
    device_address: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int),
        ("device", c_int32),
        ("offset", c_uint64),
        ("device_address", c_void_p),
    ]


class TeamConfig(Structure):
    struct_size: int
    num_contexts: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_contexts", c_int32),
    ]


class CtxOptions(Structure):
    struct_size: int
    flags: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
    ]


class DeviceOptions(Structure):
    struct_size: int
    version: int
    target: int
    team: int | None
    ctx: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("version", c_uint32),
        ("target", c_int),
        ("team", c_void_p),
        ("ctx", c_void_p),
    ]


class DeviceError(Structure):
    struct_size: int
    status: int
    pe: int
    operation: bytes | None
    offset: int
    seen: int
    awaited: int
    text: Array[c_char]
    _fields_ = [
        ("struct_size", c_size_t),
        ("status", c_int),
        ("pe", c_int32),
        ("operation", c_char_p),
        ("offset", c_uint64),
        ("seen", c_uint64),
        ("awaited", c_uint64),
        ("text", c_char * 512),
    ]


class LaunchArgs(Structure):
    struct_size: int
    function: int | None
    blocks: int
    threads: int
    shared_bytes: int
    arguments: int | None
    stream: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("function", c_void_p),
        ("blocks", c_uint32),
        ("threads", c_uint32),
        ("shared_bytes", c_uint32),
        ("arguments", c_void_p),
        ("stream", c_void_p),
    ]


class Device(Structure):
    type: int
    index: int
    _fields_ = [
        ("type", c_int),
        ("index", c_int32),
    ]


class Tensor(Structure):
    data: int | None
    dtype: int
    ndim: int
    shape: Array[c_int64]
    strides: Array[c_int64]
    device: Device
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int),
        ("ndim", c_int32),
        ("shape", c_int64 * 4),
        ("strides", c_int64 * 4),
        ("device", Device),
    ]


class DlDevice(Structure):
    device_type: int
    device_id: int
    _fields_ = [
        ("device_type", c_int32),
        ("device_id", c_int32),
    ]


class DlDtype(Structure):
    code: int
    bits: int
    lanes: int
    _fields_ = [
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
    ]


class DlTensor(Structure):
    data: int | None
    device: DlDevice
    ndim: int
    dtype: DlDtype
    shape: int | None
    strides: int | None
    byte_offset: int
    _fields_ = [
        ("data", c_void_p),
        ("device", DlDevice),
        ("ndim", c_int32),
        ("dtype", DlDtype),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]


class DlManaged(Structure):
    tensor: DlTensor
    context: int | None
    deleter: int | None
    _fields_ = [
        ("tensor", DlTensor),
        ("context", c_void_p),
        ("deleter", c_void_p),
    ]


class DlVersioned(Structure):
    major: int
    minor: int
    context: int | None
    deleter: int | None
    flags: int
    tensor: DlTensor
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", DlTensor),
    ]


class EpConfig(Structure):
    struct_size: int
    max_tokens: int
    max_row_bytes: int
    max_topk: int
    max_experts: int
    max_scales: int
    num_channels: int
    ring_slots: int
    num_threads: int
    num_sms: int
    device: Device
    pool_bytes: int
    pool_limit_bytes: int
    alloc: int | None
    free: int | None
    alloc_context: int | None
    ranks_per_node: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("max_tokens", c_int64),
        ("max_row_bytes", c_int64),
        ("max_topk", c_int32),
        ("max_experts", c_int32),
        ("max_scales", c_int32),
        ("num_channels", c_int32),
        ("ring_slots", c_int32),
        ("num_threads", c_int32),
        ("num_sms", c_int32),
        ("device", Device),
        ("pool_bytes", c_int64),
        ("pool_limit_bytes", c_int64),
        ("alloc", c_void_p),
        ("free", c_void_p),
        ("alloc_context", c_void_p),
        ("ranks_per_node", c_int32),
    ]


class EpStats(Structure):
    struct_size: int
    reserved_bytes: int
    reserved_high_bytes: int
    used_bytes: int
    used_high_bytes: int
    group_used_bytes: int
    growths: int
    direct_calls: int
    queue_calls: int
    other_blocks: int
    mapped_calls: int
    copied_calls: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("reserved_bytes", c_uint64),
        ("reserved_high_bytes", c_uint64),
        ("used_bytes", c_uint64),
        ("used_high_bytes", c_uint64),
        ("group_used_bytes", c_uint64),
        ("growths", c_uint64),
        ("direct_calls", c_uint64),
        ("queue_calls", c_uint64),
        ("other_blocks", c_uint64),
        ("mapped_calls", c_uint64),
        ("copied_calls", c_uint64),
    ]


class EpHandleInfo(Structure):
    struct_size: int
    num_tokens: int
    num_recv_tokens: int
    num_experts: int
    num_topk: int
    num_channels: int
    rank_prefix: int | None
    channel_prefix: int | None
    num_nodes: int
    tokens_per_node: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_tokens", c_int64),
        ("num_recv_tokens", c_int64),
        ("num_experts", c_int32),
        ("num_topk", c_int32),
        ("num_channels", c_int32),
        ("rank_prefix", c_void_p),
        ("channel_prefix", c_void_p),
        ("num_nodes", c_int32),
        ("tokens_per_node", c_void_p),
    ]


class EpLayout(Structure):
    struct_size: int
    tokens_per_rank: int | None
    tokens_per_node: int | None
    tokens_per_expert: int | None
    token_in_rank: int | None
    stream: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("tokens_per_rank", c_void_p),
        ("tokens_per_node", c_void_p),
        ("tokens_per_expert", c_void_p),
        ("token_in_rank", c_void_p),
        ("stream", c_void_p),
    ]


class EpRecvCounts(Structure):
    struct_size: int
    tokens_per_expert: int | None
    expert_prefix: int | None
    rank_prefix: int | None
    num_recv_tokens: int | None
    expert_ends: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("tokens_per_expert", c_void_p),
        ("expert_prefix", c_void_p),
        ("rank_prefix", c_void_p),
        ("num_recv_tokens", c_void_p),
        ("expert_ends", c_void_p),
    ]


class EpRouteArgs(Structure):
    struct_size: int
    topk_idx: Tensor
    token_in_rank: Tensor
    num_experts: int
    tokens_per_expert: int | None
    expert_alignment: int
    num_worst_tokens: int
    num_expert_rows: int
    keep_slots: int
    num_sms: int
    recv_counts: int | None
    wait_event: int | None
    async_finish: int
    stream: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("topk_idx", Tensor),
        ("token_in_rank", Tensor),
        ("num_experts", c_int32),
        ("tokens_per_expert", c_void_p),
        ("expert_alignment", c_int32),
        ("num_worst_tokens", c_int64),
        ("num_expert_rows", c_int64),
        ("keep_slots", c_int32),
        ("num_sms", c_int32),
        ("recv_counts", c_void_p),
        ("wait_event", c_void_p),
        ("async_finish", c_int32),
        ("stream", c_void_p),
    ]


class EpRouteResult(Structure):
    struct_size: int
    handle: int | None
    num_recv_tokens: int
    num_rows: int
    num_expert_rows: int
    num_dropped_tokens: int
    recv_tokens_per_expert: int | None
    num_local_experts: int
    event: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("handle", c_void_p),
        ("num_recv_tokens", c_int64),
        ("num_rows", c_int64),
        ("num_expert_rows", c_int64),
        ("num_dropped_tokens", c_int64),
        ("recv_tokens_per_expert", c_void_p),
        ("num_local_experts", c_int32),
        ("event", c_void_p),
    ]


class EpDispatchArgs(Structure):
    struct_size: int
    x: Tensor
    x_scales: Tensor
    topk_idx: Tensor
    topk_weights: Tensor
    num_experts: int
    token_in_rank: Tensor
    tokens_per_expert: int | None
    handle: int | None
    expert_alignment: int
    num_worst_tokens: int
    num_expert_rows: int
    path: int
    expert_major: int
    zero_padding: int
    keep_slots: int
    global_experts: int
    src_tokens: int
    src_stride: int
    row_weights: int
    column_scales: int
    num_sms: int
    out_x: Tensor
    out_scales: Tensor
    out_topk_idx: Tensor
    out_topk_weights: Tensor
    out_row_map: Tensor
    out_src_token: Tensor
    out_src_metadata: Tensor
    out_row_weights: Tensor
    topk_idx_copy: Tensor
    recv_counts: int | None
    wait_event: int | None
    async_finish: int
    stream: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", Tensor),
        ("x_scales", Tensor),
        ("topk_idx", Tensor),
        ("topk_weights", Tensor),
        ("num_experts", c_int32),
        ("token_in_rank", Tensor),
        ("tokens_per_expert", c_void_p),
        ("handle", c_void_p),
        ("expert_alignment", c_int32),
        ("num_worst_tokens", c_int64),
        ("num_expert_rows", c_int64),
        ("path", c_int),
        ("expert_major", c_int32),
        ("zero_padding", c_int32),
        ("keep_slots", c_int32),
        ("global_experts", c_int32),
        ("src_tokens", c_int32),
        ("src_stride", c_int32),
        ("row_weights", c_int32),
        ("column_scales", c_int32),
        ("num_sms", c_int32),
        ("out_x", Tensor),
        ("out_scales", Tensor),
        ("out_topk_idx", Tensor),
        ("out_topk_weights", Tensor),
        ("out_row_map", Tensor),
        ("out_src_token", Tensor),
        ("out_src_metadata", Tensor),
        ("out_row_weights", Tensor),
        ("topk_idx_copy", Tensor),
        ("recv_counts", c_void_p),
        ("wait_event", c_void_p),
        ("async_finish", c_int32),
        ("stream", c_void_p),
    ]


class EpDispatchResult(Structure):
    struct_size: int
    recv_x: Tensor
    recv_scales: Tensor
    recv_topk_idx: Tensor
    recv_topk_weights: Tensor
    recv_row_map: Tensor
    recv_src_token: Tensor
    recv_src_metadata: Tensor
    recv_row_weights: Tensor
    recv_tokens_per_expert: int | None
    num_local_experts: int
    num_recv_tokens: int
    num_dropped_tokens: int
    path: int
    handle: int | None
    output: int | None
    event: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("recv_x", Tensor),
        ("recv_scales", Tensor),
        ("recv_topk_idx", Tensor),
        ("recv_topk_weights", Tensor),
        ("recv_row_map", Tensor),
        ("recv_src_token", Tensor),
        ("recv_src_metadata", Tensor),
        ("recv_row_weights", Tensor),
        ("recv_tokens_per_expert", c_void_p),
        ("num_local_experts", c_int32),
        ("num_recv_tokens", c_int64),
        ("num_dropped_tokens", c_int64),
        ("path", c_int),
        ("handle", c_void_p),
        ("output", c_void_p),
        ("event", c_void_p),
    ]


class EpCombineArgs(Structure):
    struct_size: int
    x: Tensor
    topk_weights: Tensor
    expert_weights: Tensor
    bias: Array[Tensor]
    handle: int | None
    path: int
    expert_major: int
    sum_order: int
    weights_of: int
    nodes_sum: int
    num_sms: int
    out_y: Tensor
    out_topk_weights: Tensor
    wait_event: int | None
    async_finish: int
    stream: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", Tensor),
        ("topk_weights", Tensor),
        ("expert_weights", Tensor),
        ("bias", Tensor * 2),
        ("handle", c_void_p),
        ("path", c_int),
        ("expert_major", c_int32),
        ("sum_order", c_int),
        ("weights_of", c_int),
        ("nodes_sum", c_int),
        ("num_sms", c_int32),
        ("out_y", Tensor),
        ("out_topk_weights", Tensor),
        ("wait_event", c_void_p),
        ("async_finish", c_int32),
        ("stream", c_void_p),
    ]


class EpCombineResult(Structure):
    struct_size: int
    event: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("event", c_void_p),
    ]


class EpTermsArgs(Structure):
    struct_size: int
    topk_idx: Tensor
    num_experts: int
    sum_order: int
    nodes_sum: int
    out_terms: Tensor
    stream: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("topk_idx", Tensor),
        ("num_experts", c_int32),
        ("sum_order", c_int),
        ("nodes_sum", c_int),
        ("out_terms", Tensor),
        ("stream", c_void_p),
    ]


class EpSumArgs(Structure):
    struct_size: int
    x: Tensor
    terms: Tensor
    bias: Array[Tensor]
    out_y: Tensor
    stream: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", Tensor),
        ("terms", Tensor),
        ("bias", Tensor * 2),
        ("out_y", Tensor),
        ("stream", c_void_p),
    ]


class GroupPlace(Structure):
    struct_size: int
    node: int
    cores: int
    numa_node: int
    nics: Array[c_char]
    _fields_ = [
        ("struct_size", c_size_t),
        ("node", c_int32),
        ("cores", c_int32),
        ("numa_node", c_int32),
        ("nics", c_char * 64),
    ]


class NetworkStats(Structure):
    struct_size: int
    puts: int
    put_bytes: int
    gets: int
    get_bytes: int
    atomics: int
    atomic_bytes: int
    requests: int
    request_bytes: int
    doorbells: int
    completions: int
    device_ns: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("puts", c_uint64),
        ("put_bytes", c_uint64),
        ("gets", c_uint64),
        ("get_bytes", c_uint64),
        ("atomics", c_uint64),
        ("atomic_bytes", c_uint64),
        ("requests", c_uint64),
        ("request_bytes", c_uint64),
        ("doorbells", c_uint64),
        ("completions", c_uint64),
        ("device_ns", c_uint64),
    ]


class CudaGpu(Structure):
    struct_size: int
    name: Array[c_char]
    bus_id: Array[c_char]
    major: int
    minor: int
    num_sms: int
    memory_bytes: int
    shareable: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char * 64),
        ("bus_id", c_char * 32),
        ("major", c_int32),
        ("minor", c_int32),
        ("num_sms", c_int32),
        ("memory_bytes", c_int64),
        ("shareable", c_int32),
    ]


class LlConfig(Structure):
    struct_size: int
    max_tokens: int
    hidden: int
    max_row_bytes: int
    max_topk: int
    num_experts: int
    sums: int
    device: Device
    num_threads: int
    num_sms: int
    unmapped: int
    reserve_bytes: int
    masking: int
    late_limit_ms: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("max_tokens", c_int32),
        ("hidden", c_int32),
        ("max_row_bytes", c_int64),
        ("max_topk", c_int32),
        ("num_experts", c_int32),
        ("sums", c_int32),
        ("device", Device),
        ("num_threads", c_int32),
        ("num_sms", c_int32),
        ("unmapped", c_int32),
        ("reserve_bytes", c_size_t),
        ("masking", c_int32),
        ("late_limit_ms", c_int64),
    ]


class LlDispatchArgs(Structure):
    struct_size: int
    x: Tensor
    topk_idx: Tensor
    topk_weights: Tensor
    format: int
    num_sms: int
    out_x: Tensor
    out_scales: Tensor
    out_count: Tensor
    expert_recv_stats: Tensor
    wait_ns: Tensor
    wait_event: int | None
    hook: int
    async_finish: int
    stream: int | None
    global_scale: Tensor
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", Tensor),
        ("topk_idx", Tensor),
        ("topk_weights", Tensor),
        ("format", c_int),
        ("num_sms", c_int32),
        ("out_x", Tensor),
        ("out_scales", Tensor),
        ("out_count", Tensor),
        ("expert_recv_stats", Tensor),
        ("wait_ns", Tensor),
        ("wait_event", c_void_p),
        ("hook", c_int32),
        ("async_finish", c_int32),
        ("stream", c_void_p),
        ("global_scale", Tensor),
    ]


class LlDispatchResult(Structure):
    struct_size: int
    recv_x: Tensor
    recv_scales: Tensor
    recv_count: Tensor
    handle: int | None
    output: int | None
    hook: int | None
    event: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("recv_x", Tensor),
        ("recv_scales", Tensor),
        ("recv_count", Tensor),
        ("handle", c_void_p),
        ("output", c_void_p),
        ("hook", c_void_p),
        ("event", c_void_p),
    ]


class LlSignals(Structure):
    struct_size: int
    words: Tensor
    count: Tensor
    block_rows: int
    value: int
    timeout_ms: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("words", Tensor),
        ("count", Tensor),
        ("block_rows", c_int32),
        ("value", c_int32),
        ("timeout_ms", c_int64),
    ]


class LlCombineArgs(Structure):
    struct_size: int
    x: Tensor
    topk_idx: Tensor
    topk_weights: Tensor
    handle: int | None
    sum: int
    format: int
    num_sms: int
    out_y: Tensor
    wait_ns: Tensor
    wait_event: int | None
    hook: int
    async_finish: int
    stream: int | None
    signals: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", Tensor),
        ("topk_idx", Tensor),
        ("topk_weights", Tensor),
        ("handle", c_void_p),
        ("sum", c_int),
        ("format", c_int),
        ("num_sms", c_int32),
        ("out_y", Tensor),
        ("wait_ns", Tensor),
        ("wait_event", c_void_p),
        ("hook", c_int32),
        ("async_finish", c_int32),
        ("stream", c_void_p),
        ("signals", c_void_p),
    ]


class LlCombineResult(Structure):
    struct_size: int
    y: Tensor
    output: int | None
    hook: int | None
    event: int | None
    _fields_ = [
        ("struct_size", c_size_t),
        ("y", Tensor),
        ("output", c_void_p),
        ("hook", c_void_p),
        ("event", c_void_p),
    ]


class LlHandleInfo(Structure):
    struct_size: int
    src_info: Tensor
    range: Tensor
    num_tokens: int
    max_tokens: int
    hidden: int
    num_topk: int
    num_experts: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("src_info", Tensor),
        ("range", Tensor),
        ("num_tokens", c_int32),
        ("max_tokens", c_int32),
        ("hidden", c_int32),
        ("num_topk", c_int32),
        ("num_experts", c_int32),
    ]


class LlStats(Structure):
    struct_size: int
    heap_bytes: int
    dispatches: int
    combines: int
    dispatch_messages: int
    combine_rows: int
    bytes_sent: int
    _fields_ = [
        ("struct_size", c_size_t),
        ("heap_bytes", c_uint64),
        ("dispatches", c_uint64),
        ("combines", c_uint64),
        ("dispatch_messages", c_uint64),
        ("combine_rows", c_uint64),
        ("bytes_sent", c_uint64),
    ]


class PythonObjects(Structure):
    capsule_new: int | None
    list_set_item: int | None
    tensor_new: int | None
    _fields_ = [
        ("capsule_new", c_void_p),
        ("list_set_item", c_void_p),
        ("tensor_new", c_void_p),
    ]


class PythonViews(Structure):
    tuple_get_item: int | None
    view: int | None
    none: int | None
    offsets: int | None
    count: int
    differing_offset: int
    _fields_ = [
        ("tuple_get_item", c_void_p),
        ("view", c_void_p),
        ("none", c_void_p),
        ("offsets", c_void_p),
        ("count", c_int32),
        ("differing_offset", c_int32),
    ]


class PythonFunctions(Structure):
    objects: int | None
    view: int | None
    address: int | None
    number: int | None
    list_new: int | None
    retain: int | None
    release: int | None
    error: int | None
    clear: int | None
    unlock: int | None
    lock: int | None
    none: int | None
    _fields_ = [
        ("objects", c_void_p),
        ("view", c_void_p),
        ("address", c_void_p),
        ("number", c_void_p),
        ("list_new", c_void_p),
        ("retain", c_void_p),
        ("release", c_void_p),
        ("error", c_void_p),
        ("clear", c_void_p),
        ("unlock", c_void_p),
        ("lock", c_void_p),
        ("none", c_void_p),
    ]


class PythonFresh(Structure):
    args: EpDispatchArgs
    counts: EpRecvCounts
    tokens_per_expert: Tensor
    _fields_ = [
        ("args", EpDispatchArgs),
        ("counts", EpRecvCounts),
        ("tokens_per_expert", Tensor),
    ]


class PythonLayout(Structure):
    topk_idx: Tensor
    num_experts: int
    layout: EpLayout
    _fields_ = [
        ("topk_idx", Tensor),
        ("num_experts", c_int32),
        ("layout", EpLayout),
    ]


class PythonForm(Structure):
    kind: int
    num_tensors: int
    num_words: int
    num_parts: int
    tensor_offsets: int | None
    word_offsets: int | None
    parts: int | None
    args: int | None
    object: int | None
    forget_event: int
    query: int
    open: int
    _fields_ = [
        ("kind", c_int),
        ("num_tensors", c_int32),
        ("num_words", c_int32),
        ("num_parts", c_int32),
        ("tensor_offsets", c_void_p),
        ("word_offsets", c_void_p),
        ("parts", c_void_p),
        ("args", c_void_p),
        ("object", c_void_p),
        ("forget_event", c_int32),
        ("query", c_int32),
        ("open", c_int32),
    ]


# By their names in C.
STRUCTS: dict[str, type[Structure]] = {
    "expar_unique_id": UniqueId,
    "expar_group_options": GroupOptions,
    "expar_heap_stats": HeapStats,
    "expar_memory_options": MemoryOptions,
    "expar_memory_place": MemoryPlace,
    "expar_team_config": TeamConfig,
    "expar_ctx_options": CtxOptions,
    "expar_device_options": DeviceOptions,
    "expar_device_error": DeviceError,
    "expar_launch_args": LaunchArgs,
    "expar_device": Device,
    "expar_tensor": Tensor,
    "expar_dl_device": DlDevice,
    "expar_dl_dtype": DlDtype,
    "expar_dl_tensor": DlTensor,
    "expar_dl_managed": DlManaged,
    "expar_dl_versioned": DlVersioned,
    "expar_ep_config": EpConfig,
    "expar_ep_stats": EpStats,
    "expar_ep_handle_info": EpHandleInfo,
    "expar_ep_layout": EpLayout,
    "expar_ep_recv_counts": EpRecvCounts,
    "expar_ep_route_args": EpRouteArgs,
    "expar_ep_route_result": EpRouteResult,
    "expar_ep_dispatch_args": EpDispatchArgs,
    "expar_ep_dispatch_result": EpDispatchResult,
    "expar_ep_combine_args": EpCombineArgs,
    "expar_ep_combine_result": EpCombineResult,
    "expar_ep_terms_args": EpTermsArgs,
    "expar_ep_sum_args": EpSumArgs,
    "expar_group_place": GroupPlace,
    "expar_network_stats": NetworkStats,
    "expar_cuda_gpu": CudaGpu,
    "expar_ll_config": LlConfig,
    "expar_ll_dispatch_args": LlDispatchArgs,
    "expar_ll_dispatch_result": LlDispatchResult,
    "expar_ll_signals": LlSignals,
    "expar_ll_combine_args": LlCombineArgs,
    "expar_ll_combine_result": LlCombineResult,
    "expar_ll_handle_info": LlHandleInfo,
    "expar_ll_stats": LlStats,
    "expar_python_objects": PythonObjects,
    "expar_python_views": PythonViews,
    "expar_python_functions": PythonFunctions,
    "expar_python_fresh": PythonFresh,
    "expar_python_layout": PythonLayout,
    "expar_python_form": PythonForm,
}


# By their names in C.
ENUMS: dict[str, type[Named]] = {
    "expar_status": Status,
    "expar_heap_kind": HeapKind,
    "expar_heap_pages": HeapPages,
    "expar_memory_kind": MemoryKind,
    "expar_signal_op": SignalOp,
    "expar_cmp": Cmp,
    "expar_device_target": DeviceTarget,
    "expar_dtype": Dtype,
    "expar_device_type": DeviceType,
    "expar_dl_code": DlCode,
    "expar_dl_device_type": DlDeviceType,
    "expar_ep_part": EpPart,
    "expar_ep_path": EpPath,
    "expar_ep_sum_order": EpSumOrder,
    "expar_ep_weights_of": EpWeightsOf,
    "expar_ep_nodes_sum": EpNodesSum,
    "expar_reach": Reach,
    "expar_log_level": LogLevel,
    "expar_ll_format": LlFormat,
    "expar_ll_sum": LlSum,
    "expar_python_kind": PythonKind,
}


# Results and arguments of each call. The loader of the library has each Status checked.
CALLS: dict[str, tuple[Any, list[Any]]] = {
    "expar_broadcast": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32]),
    "expar_broadcast_others": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32]),
    "expar_fcollect": (Status, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "expar_collect": (Status, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "expar_alltoall": (Status, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "expar_alltoalls": (Status, [c_void_p, c_void_p, c_void_p, c_ssize_t, c_ssize_t, c_size_t, c_size_t]),
    "expar_reduce": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_void_p]),
    "expar_ctx_create": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_ctx_destroy": (Status, [c_void_p]),
    "expar_ctx_team": (c_void_p, [c_void_p]),
    "expar_ctx_fence": (Status, [c_void_p]),
    "expar_ctx_quiet": (Status, [c_void_p]),
    "expar_ctx_put": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32]),
    "expar_ctx_get": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32]),
    "expar_ctx_put_nbi": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32]),
    "expar_ctx_get_nbi": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32]),
    "expar_ctx_iput": (Status, [c_void_p, c_void_p, c_void_p, c_ssize_t, c_ssize_t, c_size_t, c_size_t, c_int32]),
    "expar_ctx_iget": (Status, [c_void_p, c_void_p, c_void_p, c_ssize_t, c_ssize_t, c_size_t, c_size_t, c_int32]),
    "expar_ctx_iput_nbi": (Status, [c_void_p, c_void_p, c_void_p, c_ssize_t, c_ssize_t, c_size_t, c_size_t, c_int32]),
    "expar_ctx_iget_nbi": (Status, [c_void_p, c_void_p, c_void_p, c_ssize_t, c_ssize_t, c_size_t, c_size_t, c_int32]),
    "expar_ctx_put_signal": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_uint64, c_int, c_int32]),
    "expar_ctx_put_signal_nbi": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_uint64, c_int, c_int32]),
    "expar_device_get": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_device_get_error": (Status, [c_void_p, c_void_p]),
    "expar_launch": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_tensor_from_dlpack": (Status, [c_void_p, c_uint32, c_int32, c_void_p]),
    "expar_tensor_to_dlpack": (Status, [c_void_p, c_uint32, c_void_p, c_void_p, c_void_p]),
    "expar_ep_get_buffer_size": (Status, [c_void_p, c_int32, c_void_p]),
    "expar_ep_create": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_ep_destroy": (Status, [c_void_p]),
    "expar_ep_abandon": (Status, [c_void_p]),
    "expar_ep_get_stats": (Status, [c_void_p, c_void_p]),
    "expar_ep_trim": (Status, [c_void_p]),
    "expar_ep_query": (Status, [c_void_p]),
    "expar_ep_combine": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_ep_find_terms": (Status, [c_void_p, c_void_p]),
    "expar_ep_sum_terms": (Status, [c_void_p, c_void_p]),
    "expar_ep_dispatch": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_ep_handle_get_info": (Status, [c_void_p, c_void_p]),
    "expar_ep_handle_retain": (Status, [c_void_p]),
    "expar_ep_handle_release": (None, [c_void_p]),
    "expar_ep_handle_release_after": (Status, [c_void_p, c_void_p]),
    "expar_ep_alloc": (Status, [c_void_p, c_size_t, c_void_p]),
    "expar_ep_output_retain": (Status, [c_void_p]),
    "expar_ep_output_release": (None, [c_void_p]),
    "expar_ep_output_release_after": (Status, [c_void_p, c_void_p]),
    "expar_ep_output_read_on": (Status, [c_void_p, c_void_p]),
    "expar_ep_output_get_tensor": (Status, [c_void_p, c_int, c_void_p]),
    "expar_ep_output_to_dlpack": (Status, [c_void_p, c_int, c_uint32, c_void_p]),
    "expar_ep_get_layout": (Status, [c_void_p, c_void_p, c_int32, c_void_p]),
    "expar_ep_route": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_event_create": (Status, [c_void_p]),
    "expar_event_signal": (Status, [c_void_p]),
    "expar_event_record": (Status, [c_void_p, c_void_p]),
    "expar_event_stream_wait": (Status, [c_void_p, c_void_p]),
    "expar_event_wait": (Status, [c_void_p]),
    "expar_event_query": (Status, [c_void_p, c_void_p]),
    "expar_event_retain": (Status, [c_void_p]),
    "expar_event_release": (None, [c_void_p]),
    "expar_globals_share": (Status, [c_void_p]),
    "expar_unique_id_create": (Status, [c_void_p]),
    "expar_unique_id_create_on": (Status, [c_char_p, c_void_p]),
    "expar_unique_id_retire": (Status, [c_void_p]),
    "expar_unique_id_format": (None, [c_void_p, c_void_p]),
    "expar_unique_id_parse": (Status, [c_char_p, c_void_p]),
    "expar_group_create": (Status, [c_void_p, c_void_p]),
    "expar_group_create_threads": (Status, [c_int32, c_void_p, c_void_p]),
    "expar_group_destroy": (Status, [c_void_p]),
    "expar_group_abort": (Status, [c_void_p]),
    "expar_group_abandon": (Status, [c_void_p]),
    "expar_group_rank": (c_int32, [c_void_p]),
    "expar_group_size": (c_int32, [c_void_p]),
    "expar_group_num_nodes": (c_int32, [c_void_p]),
    "expar_group_ranks_per_node": (c_int32, [c_void_p]),
    "expar_group_node": (c_int32, [c_void_p]),
    "expar_group_local_rank": (c_int32, [c_void_p]),
    "expar_group_allgather": (Status, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "expar_group_broadcast": (Status, [c_void_p, c_void_p, c_size_t, c_int32]),
    "expar_group_barrier": (Status, [c_void_p]),
    "expar_env_describe": (c_bool, [c_size_t, c_void_p, c_void_p, c_void_p, c_void_p]),
    "expar_abi": (c_char_p, []),
    "expar_group_get_place": (Status, [c_void_p, c_int32, c_void_p]),
    "expar_transport_describe": (c_bool, [c_void_p, c_int32, c_void_p, c_void_p, c_size_t]),
    "expar_transport_summary": (c_char_p, [c_void_p, c_int32]),
    "expar_transport_missing": (c_char_p, [c_void_p]),
    "expar_transport_reach": (c_uint, [c_void_p, c_int32, c_int32, c_int32]),
    "expar_transport_selected": (c_uint, [c_void_p, c_int32, c_int32]),
    "expar_transport_way": (c_char_p, [c_void_p, c_int32, c_int]),
    "expar_network_get_stats": (Status, [c_void_p, c_void_p]),
    "expar_cuda_get_driver": (Status, [c_void_p, c_void_p]),
    "expar_cuda_get_compiler": (Status, [c_void_p, c_void_p]),
    "expar_cuda_ready_kernels": (c_int32, []),
    "expar_cuda_get_gpu": (Status, [c_int32, c_void_p]),
    "expar_cuda_get_link": (Status, [c_int32, c_int32, c_void_p, c_void_p, c_void_p]),
    "expar_interrupt_set": (Status, [c_void_p, c_void_p]),
    "expar_interrupt_set_thread": (Status, [c_void_p, c_void_p]),
    "expar_lock_set": (Status, [c_void_p, c_void_p]),
    "expar_lock_test": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_lock_clear": (Status, [c_void_p, c_void_p]),
    "expar_log_set": (None, [c_void_p, c_void_p]),
    "expar_ll_get_buffer_size": (Status, [c_void_p, c_int32, c_void_p]),
    "expar_ll_create": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_ll_set_shape": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_ll_destroy": (Status, [c_void_p]),
    "expar_ll_abandon": (Status, [c_void_p]),
    "expar_ll_dispatch": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_ll_combine": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_ll_get_combine_buffer": (Status, [c_void_p, c_void_p, c_int, c_void_p]),
    "expar_ll_hook_call": (Status, [c_void_p, c_void_p]),
    "expar_ll_hook_retain": (Status, [c_void_p]),
    "expar_ll_hook_release": (None, [c_void_p]),
    "expar_ll_handle_get_info": (Status, [c_void_p, c_void_p]),
    "expar_ll_handle_retain": (Status, [c_void_p]),
    "expar_ll_handle_release": (None, [c_void_p]),
    "expar_ll_mask_set": (Status, [c_void_p, c_int32, c_int32]),
    "expar_ll_mask_query": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_ll_mask_clean": (Status, [c_void_p]),
    "expar_ll_query": (Status, [c_void_p]),
    "expar_ll_get_stats": (Status, [c_void_p, c_void_p]),
    "expar_malloc": (Status, [c_void_p, c_size_t, c_void_p]),
    "expar_align": (Status, [c_void_p, c_size_t, c_size_t, c_void_p]),
    "expar_calloc": (Status, [c_void_p, c_size_t, c_size_t, c_void_p]),
    "expar_free": (Status, [c_void_p, c_void_p]),
    "expar_realloc": (Status, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "expar_heap_get_stats": (Status, [c_void_p, c_void_p]),
    "expar_heap_read_stats": (Status, [c_int, c_void_p, c_void_p, c_void_p]),
    "expar_memory_alloc": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_memory_get_place": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_memory_get_stats": (Status, [c_void_p, c_int, c_void_p]),
    "expar_register": (Status, [c_void_p, c_void_p, c_size_t]),
    "expar_unregister": (Status, [c_void_p, c_void_p]),
    "expar_register_symmetric": (Status, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "expar_unregister_symmetric": (Status, [c_void_p, c_void_p]),
    "expar_ptr": (c_void_p, [c_void_p, c_void_p, c_int32]),
    "expar_device_ptr": (c_void_p, [c_void_p, c_void_p, c_int32]),
    "expar_python_put_output": (Status, [c_void_p, c_void_p, c_int32, c_void_p, c_void_p]),
    "expar_python_put_ll_handle": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_python_view_tensors": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_python_use": (Status, [c_void_p]),
    "expar_python_run": (c_void_p, [c_void_p, c_void_p, c_ssize_t]),
    "expar_put": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32]),
    "expar_get": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32]),
    "expar_put_nbi": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32]),
    "expar_get_nbi": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32]),
    "expar_iput": (Status, [c_void_p, c_void_p, c_void_p, c_ssize_t, c_ssize_t, c_size_t, c_size_t, c_int32]),
    "expar_iget": (Status, [c_void_p, c_void_p, c_void_p, c_ssize_t, c_ssize_t, c_size_t, c_size_t, c_int32]),
    "expar_iput_nbi": (Status, [c_void_p, c_void_p, c_void_p, c_ssize_t, c_ssize_t, c_size_t, c_size_t, c_int32]),
    "expar_iget_nbi": (Status, [c_void_p, c_void_p, c_void_p, c_ssize_t, c_ssize_t, c_size_t, c_size_t, c_int32]),
    "expar_put_signal": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_uint64, c_int, c_int32]),
    "expar_put_signal_nbi": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_uint64, c_int, c_int32]),
    "expar_signal_fetch": (Status, [c_void_p, c_void_p, c_void_p]),
    "expar_fence": (Status, [c_void_p]),
    "expar_quiet": (Status, [c_void_p]),
    "expar_barrier_all": (Status, [c_void_p]),
    "expar_status_string": (c_char_p, [c_int]),
    "expar_status_text": (c_char_p, [c_int]),
    "expar_last_error": (c_char_p, []),
    "expar_version": (c_char_p, []),
    "expar_put_on_stream": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_void_p]),
    "expar_get_on_stream": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_void_p]),
    "expar_put_signal_on_stream": (
        Status,
        [
            c_void_p,
            c_void_p,
            c_void_p,
            c_size_t,
            c_void_p,
            c_uint64,
            c_int,
            c_int32,
            c_void_p,
        ],
    ),
    "expar_signal_op_on_stream": (Status, [c_void_p, c_void_p, c_uint64, c_int, c_int32, c_void_p]),
    "expar_ctx_put_on_stream": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_void_p]),
    "expar_ctx_get_on_stream": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_void_p]),
    "expar_ctx_put_signal_on_stream": (
        Status,
        [
            c_void_p,
            c_void_p,
            c_void_p,
            c_size_t,
            c_void_p,
            c_uint64,
            c_int,
            c_int32,
            c_void_p,
        ],
    ),
    "expar_ctx_signal_op_on_stream": (Status, [c_void_p, c_void_p, c_uint64, c_int, c_int32, c_void_p]),
    "expar_signal_wait_until_on_stream": (Status, [c_void_p, c_void_p, c_int, c_uint64, c_void_p]),
    "expar_fence_on_stream": (Status, [c_void_p, c_void_p]),
    "expar_quiet_on_stream": (Status, [c_void_p, c_void_p]),
    "expar_ctx_fence_on_stream": (Status, [c_void_p, c_void_p]),
    "expar_ctx_quiet_on_stream": (Status, [c_void_p, c_void_p]),
    "expar_group_query": (Status, [c_void_p]),
    "expar_ctx_query": (Status, [c_void_p]),
    "expar_barrier_all_on_stream": (Status, [c_void_p, c_void_p]),
    "expar_sync_all_on_stream": (Status, [c_void_p, c_void_p]),
    "expar_team_barrier_on_stream": (Status, [c_void_p, c_void_p]),
    "expar_team_sync_on_stream": (Status, [c_void_p, c_void_p]),
    "expar_broadcast_on_stream": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_int32, c_void_p]),
    "expar_fcollect_on_stream": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]),
    "expar_collect_on_stream": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]),
    "expar_alltoall_on_stream": (Status, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]),
    "expar_alltoalls_on_stream": (
        Status,
        [
            c_void_p,
            c_void_p,
            c_void_p,
            c_ssize_t,
            c_ssize_t,
            c_size_t,
            c_size_t,
            c_void_p,
        ],
    ),
    "expar_team_get_world": (Status, [c_void_p, c_void_p]),
    "expar_team_get_shared": (Status, [c_void_p, c_void_p]),
    "expar_team_get_rail": (Status, [c_void_p, c_void_p]),
    "expar_team_split_strided": (Status, [c_void_p, c_int32, c_int32, c_int32, c_void_p, c_void_p]),
    "expar_team_split_2d": (Status, [c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_void_p]),
    "expar_team_form": (Status, [c_void_p, c_int32, c_int32, c_int32, c_void_p]),
    "expar_team_destroy": (Status, [c_void_p]),
    "expar_team_my_pe": (c_int32, [c_void_p]),
    "expar_team_n_pes": (c_int32, [c_void_p]),
    "expar_team_group": (c_void_p, [c_void_p]),
    "expar_team_get_config": (Status, [c_void_p, c_void_p]),
    "expar_team_translate_pe": (Status, [c_void_p, c_int32, c_void_p, c_void_p]),
    "expar_team_sync": (Status, [c_void_p]),
    "expar_team_barrier": (Status, [c_void_p]),
    "expar_tensor_1d": (Tensor, [c_void_p, c_int, c_int64]),
    "expar_tensor_2d": (Tensor, [c_void_p, c_int, c_int64, c_int64]),
    "expar_tensor_3d": (Tensor, [c_void_p, c_int, c_int64, c_int64, c_int64]),
    "expar_tensor_1d_on": (Tensor, [Device, c_void_p, c_int, c_int64]),
    "expar_tensor_2d_on": (Tensor, [Device, c_void_p, c_int, c_int64, c_int64]),
    "expar_tensor_3d_on": (Tensor, [Device, c_void_p, c_int, c_int64, c_int64, c_int64]),
    "expar_dtype_bytes": (c_size_t, [c_int]),
    "expar_dtype_string": (c_char_p, [c_int]),
    "expar_signal_wait_until": (Status, [c_void_p, c_void_p, c_int, c_uint64, c_void_p]),
}
