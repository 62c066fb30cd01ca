/* SPDX-License-Identifier: Apache-2.0 */
/* Events and outputs of mirrored calls, of both modes. */
#include "gpu/kept.h"
#include "gpu/mirror.h"

expar_status mirror_event_wait(expar_event *event)
{
    expar_status status = expar_event_wait(event);
    mirrored_land(event, status);
    return status;
}

expar_status mirror_event_query(expar_event *event, int *done)
{
    return expar_event_query(event, done);
}

void mirror_event_release(expar_event *event)
{
    mirrored_lose(event);
    expar_event_release(event);
}

void mirror_output_release(expar_ep_output *output)
{
    kept_drop(output);
    expar_ep_output_release(output);
}
