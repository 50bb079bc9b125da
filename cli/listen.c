/* listen.c - addresses from text, and the limit of descriptors. */
#include "cli/listen.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Model files, epoll, listeners, log, the reserve and the admin listener's connections. */
#define DESCRIPTORS_BESIDE 256u
/* With few descriptors the server still has room for its probes. */
#define CONNECTIONS_MIN 8u

enum kva_status kva_cli_parse_address(const char *option, const char *text, char **ret_host,
                                      uint16_t *ret_port, struct kva_err *err)
{
    const char *colon = strrchr(text, ':');
    const char *begin = text;
    const char *end = colon;
    char *rest = NULL;
    if (colon && *text == '[' && colon > text && colon[-1] == ']') {
        begin = text + 1;
        end = colon - 1;
    } else if (colon && strchr(text, ':') != colon) {
        end = begin; /* more than one colon, and no brackets */
    }
    unsigned long port = colon && colon[1] ? strtoul(colon + 1, &rest, 10) : 65536;
    if (!colon || end == begin || port > 65535 || *rest != '\0' || colon[1] < '0' || colon[1] > '9')
        return kva_fail_param(err, KVA_EINVAL, option,
                              "--%s is '%.80s', but must be HOST:PORT or [IPV6]:PORT", option,
                              text);
    char *host = strndup(begin, (size_t)(end - begin));
    if (!host)
        return kva_fail(err, KVA_ENOMEM, "out of memory for --%s", option);
    *ret_host = host;
    *ret_port = (uint16_t)port;
    return KVA_OK;
}

uint32_t kva_cli_reserve_descriptors(uint32_t connections)
{
    struct rlimit limit;
    rlim_t wanted = (rlim_t)connections + DESCRIPTORS_BESIDE;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return connections;
    if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < wanted) {
        rlim_t before = limit.rlim_cur;
        limit.rlim_cur =
            limit.rlim_max == RLIM_INFINITY || limit.rlim_max > wanted ? wanted : limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            limit.rlim_cur = before;
    }
    if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted)
        return connections;
    /* Few descriptors: half of them at most are for what is not a connection. */
    rlim_t beside =
        limit.rlim_cur / 2 < DESCRIPTORS_BESIDE ? limit.rlim_cur / 2 : DESCRIPTORS_BESIDE;
    rlim_t fit = limit.rlim_cur - beside;
    uint32_t allowed = fit > CONNECTIONS_MIN ? (uint32_t)fit : CONNECTIONS_MIN;
    kva_log(KVA_LOG_WARN,
            "the system allows %llu descriptors: %u connections at the same time instead of %u",
            (unsigned long long)limit.rlim_cur, allowed, connections);
    return allowed;
}
