/* SPDX-License-Identifier: Apache-2.0 */
/* Registration of memory, and its keys. A process that reaches an endpoint may name any key, and offsets count from 0.
 * So only the key keeps foreign processes out. If the provider leaves the choice to the caller, keys are random. Only
 * ranks of the group learn them, over connections that have proved the secret. */
#include "base/knobs.h"
#include "net/fabric/fabric.h"

#include <limits.h>
#include <sodium.h>

/* If the provider chooses keys, they have no random bits of ours. */
static size_t key_bits(const fabric *f)
{
    const struct fi_domain_attr *domain = f->info->domain_attr;
    if (domain->mr_mode & FI_MR_PROV_KEY) return 0;
    return domain->mr_key_size < sizeof(uint64_t) ? CHAR_BIT * domain->mr_key_size : CHAR_BIT * sizeof(uint64_t);
}

static uint64_t random_key(size_t bits)
{
    uint64_t key = 0;
    if (bits == 0) return 0;
    randombytes_buf(&key, sizeof key);
    return key >> (CHAR_BIT * sizeof key - bits);
}

int fabric_register(const fabric *f, const void *base, size_t bytes, uint64_t access, struct fid_mr **out)
{
    const size_t bits = key_bits(f);
    int code = -FI_ENOKEY;
    /* Two equal keys are likely only if keys are short. */
    for (int i = 0; i < knob(KNOB_FABRIC_KEY_TRIES) && code == -FI_ENOKEY; i++)
        code = fi_mr_reg(f->domain, base, bytes, access, 0, random_key(bits), 0, out, NULL);
    return code;
}

expar_status fabric_keys_open(const fabric *f)
{
    const size_t bits = key_bits(f);
    if (sodium_init() < 0) return error_set(EXPAR_ERR_SYSTEM, "libsodium cannot be initialised");
    if (bits == 0)
        LOG(LOG_INFO, "fabric: provider %s chooses the keys of memory itself: they may be easy to guess",
            f->info->fabric_attr->prov_name);
    else if (bits < CHAR_BIT * sizeof(uint64_t))
        LOG(LOG_INFO, "fabric: provider %s takes keys of %zu bits, which can be found by trial",
            f->info->fabric_attr->prov_name, bits);
    return EXPAR_OK;
}
