/* reach.c - who can reach the address that serve listens on, and under which names. */
#include "cli/cli.h"

#include <arpa/inet.h>
#include <ctype.h>
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

/* Length of a host name or address at the beginning of `text`, brackets of IPv6 included; 0: none
 * is there. */
static size_t host_length(const char *text)
{
    size_t length = 0;
    if (*text == '[') {
        length = 1 + strspn(text + 1, "0123456789abcdefABCDEF:.");
        return length > 1 && text[length] == ']' ? length + 1 : 0;
    }
    while (isalnum((unsigned char)text[length]) || (text[length] && strchr("-._", text[length])))
        length++;
    return length;
}

/* What a browser sends as Origin: scheme://host[:port], or "null". */
static bool is_origin(const char *text)
{
    const char *host = strstr(text, "://");
    if (strcmp(text, "*") == 0 || strcmp(text, "null") == 0)
        return true;
    if (!host || host == text)
        return false;
    for (const char *at = text; at < host; at++) {
        if (!isalnum((unsigned char)*at) && !strchr("+-.", *at))
            return false;
    }
    host += strlen("://");
    size_t length = host_length(host);
    const char *port = host + length;
    if (*port == ':' && isdigit((unsigned char)port[1]))
        port += 1 + strspn(port + 1, "0123456789");
    return length > 0 && *port == '\0';
}

enum kva_status kva_cli_check_callers(const struct kva_config *config, struct kva_err *err)
{
    for (uint32_t i = 0; i < config->cors_origins.count; i++) {
        const char *origin = config->cors_origins.items[i];
        if (!is_origin(origin))
            return kva_fail_param(err, KVA_EINVAL, "cors-origin",
                                  "--cors-origin is '%.100s', which no browser sends: it must be "
                                  "SCHEME://HOST or SCHEME://HOST:PORT without a path or a slash "
                                  "at its end, such as https://chat.example.org, or *",
                                  origin);
    }
    for (uint32_t i = 0; i < config->allowed_hosts.count; i++) {
        const char *host = config->allowed_hosts.items[i];
        size_t length = host_length(host);
        if (strcmp(host, "*") != 0 && (length == 0 || host[length]))
            return kva_fail_param(err, KVA_EINVAL, "allowed-host",
                                  "--allowed-host is '%.100s', but must be a host's name, without "
                                  "scheme and port, such as chat.example.org, or *",
                                  host);
    }
    return KVA_OK;
}
