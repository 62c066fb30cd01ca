/* SPDX-License-Identifier: Apache-2.0 */
/* The agent of a host: it reads its order, and runs the ranks of its host. */
#include "hosts.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

/* Reads up to the empty word that ends the order. What may follow stays unread, up to one buffer. Returns the number of
   bytes; they lack that word if the input ended early or is too long. */
static size_t read_order(char text[ORDER_MOST])
{
    size_t used = 0;
    while (used < ORDER_MOST && !(used >= 2 && !text[used - 1] && !text[used - 2])) {
        const ssize_t count = read(STDIN_FILENO, text + used, ORDER_MOST - used);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        used += (size_t)count;
    }
    return used;
}

static int run_order(const struct order *order)
{
    if (chdir(order->folder) != 0) {
        fprintf(stderr, "%s: cannot enter the folder %s: %s\n", order->who, order->folder, strerror(errno));
        return JOB_EXIT_CANNOT_START;
    }
    return job_run(&order->job);
}

int agent_run(int argc, char **argv)
{
    struct order order = {.who = ""};
    char why[HOSTS_WHY], *text = calloc(1, ORDER_MOST);
    if (argc > 1 || isatty(STDIN_FILENO)) {
        fprintf(stderr, "expar %s: this is started by `expar run --hosts` alone, and takes no arguments\n", argv[0]);
        free(text);
        return EX_USAGE;
    }
    int code = JOB_EXIT_CANNOT_START;
    if (!text)
        fprintf(stderr, "expar run: out of memory\n");
    else if (order_read(text, read_order(text), &order, why))
        code = run_order(&order);
    else
        fprintf(stderr, "%s: %s\n", order.who[0] ? order.who : "expar run", why);
    order_free(&order);
    free(text);
    return code;
}
