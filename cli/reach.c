/* reach.c - who can reach the address that serve listens on. */
#include "cli/cli.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)address;
        return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    if (address->sa_family == AF_INET6) {
        const struct in6_addr *v6 =
            &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(v6) ||
               (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == IN_LOOPBACKNET);
    }
    return false;
}

/* Whether every address of that name is this machine's own. A name that cannot be resolved cannot
 * be listened on either, which says so itself. */
static bool stays_inside(const char *host)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    bool inside = true;
    if (getaddrinfo(host, NULL, &hints, &found))
        return true;
    for (const struct addrinfo *at = found; at && inside; at = at->ai_next)
        inside = is_loopback(at->ai_addr);
    freeaddrinfo(found);
    return inside;
}

enum kva_status kva_cli_check_reach(const struct kva_config *config, struct kva_err *err)
{
    if (config->public_without_key || config->api_keys.count > 0 || config->api_key_file ||
        stays_inside(config->host))
        return KVA_OK;
    return kva_fail_param(err, KVA_EINVAL, "host",
                          "other machines can reach --host %s, and no API key is set: give "
                          "--api-key-file or KVAHEAD_API_KEY, or --public-without-key to serve "
                          "everybody",
                          config->host);
}
