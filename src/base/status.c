/* SPDX-License-Identifier: Apache-2.0 */
/* Names and meanings of status codes, and the version. */
#include <expar/status.h>

const char *expar_status_string(expar_status status)
{
    switch (status) {
#define STATUS_NAME(name, value, text)                                                                                 \
    case EXPAR_##name:                                                                                                 \
        return "EXPAR_" #name;
        EXPAR_STATUS_TABLE(STATUS_NAME)
#undef STATUS_NAME
    }
    return "EXPAR_ERR_?";
}

const char *expar_status_text(expar_status status)
{
    switch (status) {
#define STATUS_TEXT(name, value, text)                                                                                 \
    case EXPAR_##name:                                                                                                 \
        return text;
        EXPAR_STATUS_TABLE(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

#define TEXT(number)                 #number
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *expar_version(void)
{
    return VERSION(EXPAR_VERSION_MAJOR, EXPAR_VERSION_MINOR, EXPAR_VERSION_PATCH);
}
