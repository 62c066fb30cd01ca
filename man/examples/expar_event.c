/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* Does something else until the rows are there. */
expar_status wait_busily(expar_event *event, void (*something_else)(void))
{
    int done = 0;
    expar_status status = expar_event_query(event, &done);
    while (status == EXPAR_OK && !done) {
        something_else();
        status = expar_event_query(event, &done);
    }
    if (status == EXPAR_OK) status = expar_event_wait(event); /* how the call ended */
    expar_event_release(event);
    return status;
}
