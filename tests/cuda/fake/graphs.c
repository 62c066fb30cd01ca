/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of the simulated driver: kernels, copies, words and external event nodes, in the order in which they were
 * captured. A launch puts them on its stream one after another. As the driver's interface has it, the launch itself
 * records an event, after the nodes before that one. It waits for an event as that was when the graph is launched. No
 * other operation of a capture is in a graph. A graph, and its nodes, go when nobody has it any more and its launches
 * have come to their ends. */
#include "fake.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct node {
    struct node *next;
    cu_event event;       /* NULL: a kernel, a copy or a word */
    const uint32_t *word; /* a wait until it is at least the value; NULL: none */
    uint32_t value;
    bool waits;             /* for the event, else records it */
    void (*copy)(void *of); /* of the arguments; NULL: none */
    cu_function function;
    kernel_grid grid;
    size_t bytes;
    _Alignas(16) char arguments[];
} node;

typedef struct graph {
    struct graph *next;         /* of those whose captures go on */
    unsigned long long capture; /* its number */
    node *first;
    atomic_int references; /* the caller's, one for each cu_graph_exec made of it, one for each launch that goes on */
} graph;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static graph *open_graphs; /* guarded by lock */

/* The lock is held. */
static void add(unsigned long long capture, node *one)
{
    graph *g = open_graphs;
    while (g && g->capture != capture)
        g = g->next;
    if (!g) {
        g = calloc(1, sizeof *g);
        *g = (graph){.capture = capture, .next = open_graphs};
        atomic_init(&g->references, 1);
        open_graphs = g;
    }
    node **place = &g->first;
    while (*place)
        place = &(*place)->next;
    *place = one;
}

void graph_add_kernel(unsigned long long capture, cu_function function, const kernel_grid *grid, const void *arguments)
{
    const size_t bytes = kernel_argument_bytes(function);
    node *one = calloc(1, sizeof *one + bytes);
    one->function = function;
    one->grid = *grid;
    one->bytes = bytes;
    memcpy(one->arguments, arguments, bytes);
    pthread_mutex_lock(&lock);
    add(capture, one);
    pthread_mutex_unlock(&lock);
}

void graph_add_copy(unsigned long long capture, void (*run)(void *of), const void *of, size_t bytes)
{
    node *one = calloc(1, sizeof *one + bytes);
    one->copy = run;
    one->bytes = bytes;
    memcpy(one->arguments, of, bytes);
    pthread_mutex_lock(&lock);
    add(capture, one);
    pthread_mutex_unlock(&lock);
}

void graph_add_word(unsigned long long capture, const uint32_t *word, uint32_t value)
{
    node *one = calloc(1, sizeof *one);
    one->word = word;
    one->value = value;
    pthread_mutex_lock(&lock);
    add(capture, one);
    pthread_mutex_unlock(&lock);
}

void graph_add_event(unsigned long long capture, cu_event event, bool waits)
{
    node *one = calloc(1, sizeof *one);
    one->event = event;
    one->waits = waits;
    pthread_mutex_lock(&lock);
    add(capture, one);
    pthread_mutex_unlock(&lock);
}

cu_graph graph_close(unsigned long long capture)
{
    pthread_mutex_lock(&lock);
    graph **place = &open_graphs, *found;
    while (*place && (*place)->capture != capture)
        place = &(*place)->next;
    found = *place;
    if (found) *place = found->next;
    pthread_mutex_unlock(&lock);
    return (cu_graph)(void *)found;
}

static void let_go(void *of)
{
    graph *g = of;
    if (!g || atomic_fetch_sub(&g->references, 1) > 1) return;
    let_go_of(g->capture);
    while (g->first) {
        node *one = g->first;
        g->first = one->next;
        free(one);
    }
    free(g);
}

cu_result cuGraphInstantiateWithFlags(cu_graph_exec *exec, cu_graph of, unsigned long long flags)
{
    graph *g = (graph *)(void *)of;
    (void)flags;
    if (!g) return INVALID_VALUE;
    atomic_fetch_add(&g->references, 1);
    *exec = (cu_graph_exec)(void *)g;
    return CU_OK;
}
cu_result cuGraphLaunch(cu_graph_exec exec, cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    graph *g = (graph *)(void *)exec;
    const stream_lane lane = lane_of(stream);
    for (node *one = g->first; one; one = one->next)
        if (one->copy) {
            if (!queue_put(&lane, QUEUE_APART, one->copy, one->arguments, one->bytes)) one->copy(one->arguments);
        } else if (one->word) {
            queue_wait_word(&lane, one->word, one->value);
        } else if (!one->event) {
            if (!put_kernel(stream, one->function, &one->grid, one->arguments)) return LAUNCH_FAILED;
        } else if (one->waits) {
            wait_for(stream, one->event);
        } else {
            record(stream, one->event);
        }
    atomic_fetch_add(&g->references, 1);
    if (!queue_put(&lane, QUEUE_AFTER, let_go, g, 0)) let_go(g);
    return CU_OK;
}
/* The next four are of the driver's interface, and for tests alone. */
cu_result cuGraphGetNodes(cu_graph of, void **nodes, size_t *count)
{
    size_t found = 0;
    for (node *one = ((graph *)(void *)of)->first; one; one = one->next, found++)
        if (nodes && found < *count) nodes[found] = one;
    *count = found;
    return CU_OK;
}
cu_result cuGraphNodeGetType(void *of, int *type)
{
    enum { KERNEL = 0, MEMCPY = 1, WAIT_EVENT = 6, EVENT_RECORD = 7, WORD = 12 };
    const node *one = of;
    *type = one->copy ? MEMCPY : one->word ? WORD : !one->event ? KERNEL : one->waits ? WAIT_EVENT : EVENT_RECORD;
    return CU_OK;
}
/* The driver's parameters begin with the function. */
cu_result cuGraphKernelNodeGetParams_v2(void *of, void *params)
{
    const node *one = of;
    if (one->copy || one->event || one->word) return INVALID_VALUE;
    memcpy(params, &one->function, sizeof one->function);
    return CU_OK;
}
/* A function is the address of its name (kernel_named). */
cu_result cuFuncGetName(const char **name, cu_function function)
{
    *name = (const char *)(void *)function;
    return CU_OK;
}
cu_result cuGraphUpload(cu_graph_exec exec, cu_stream stream)
{
    (void)exec, (void)stream;
    return has_context() ? CU_OK : INVALID_CONTEXT;
}
cu_result cuGraphExecDestroy(cu_graph_exec exec)
{
    let_go(exec);
    return CU_OK;
}
cu_result cuGraphDestroy(cu_graph of)
{
    let_go(of);
    return CU_OK;
}
