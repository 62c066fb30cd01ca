/* SPDX-License-Identifier: Apache-2.0 */
/* A driver that is too old: it has one function. */
int cuInit(unsigned int flags);

int cuInit(unsigned int flags)
{
    return (int)flags;
}
