/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* For up to 4096 tokens a rank of 7168 BF16 each, that go to 8 of 256 experts. */
expar_status make_buffer(expar_group *group, expar_ep **ep)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 4096;
    config.max_row_bytes = 7168 * 2;
    config.max_topk = 8;
    config.max_experts = 256;
    return expar_ep_create(group, &config, ep);
}
