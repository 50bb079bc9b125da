/* address.c - see address.h. */
#include "cluster/link/address.h"

#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

enum { HOST_MAX = 256, PORT_MAX = 65535 };

/* The port that `text` is, or -1. */
static int port_of(const char *text)
{
    int port = 0;
    if (!*text || strlen(text) > 5)
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return -1;
        port = port * 10 + (*text - '0');
    }
    return port <= PORT_MAX ? port : -1;
}

static enum kva_status split(const char *text, char host[HOST_MAX], const char **ret_port,
                             struct kva_err *err)
{
    const char *begin = text, *end, *colon = strrchr(text, ':');
    if (text[0] == '[') {
        begin = text + 1;
        end = strchr(text, ']');
        if (!end || end[1] != ':')
            return kva_fail(err, KVA_EINVAL, "'%s' is not [ADDRESS]:PORT", text);
        colon = end + 1;
    } else {
        end = colon;
        if (!colon || memchr(text, ':', (size_t)(colon - text)))
            return kva_fail(err, KVA_EINVAL, "'%s' is neither HOST:PORT nor [ADDRESS]:PORT", text);
    }
    if (end == begin || end - begin >= HOST_MAX)
        return kva_fail(err, KVA_EINVAL, "the host in '%s' has %td characters, not 1 to %d", text,
                        end - begin, HOST_MAX - 1);
    memcpy(host, begin, (size_t)(end - begin));
    host[end - begin] = '\0';
    *ret_port = colon + 1;
    return KVA_OK;
}

static enum kva_status find(const char *text, bool listening, int flags,
                            struct kva_link_address *ret, struct kva_err *err)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags =
                                       AI_NUMERICSERV | flags | (listening ? AI_PASSIVE : 0)};
    char host[HOST_MAX];
    const char *port = "";
    struct addrinfo *found;
    enum kva_status status = split(text, host, &port, err);
    if (status)
        return status;
    int number = port_of(port);
    if (number < (listening ? 0 : 1))
        return kva_fail(err, KVA_EINVAL, "the port in '%s' is no number from %d to %d", text,
                        listening ? 0 : 1, PORT_MAX);
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed)
        return kva_fail(err, KVA_EINVAL, "'%s': no address of host '%s': %s", text, host,
                        failed == EAI_SYSTEM ? strerror(errno) : gai_strerror(failed));
    *ret = (struct kva_link_address){.bytes = found->ai_addrlen};
    memcpy(&ret->socket, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return KVA_OK;
}

enum kva_status kva_link_address_resolve(const char *text, bool listening,
                                         struct kva_link_address *ret, struct kva_err *err)
{
    return find(text, listening, 0, ret, err);
}

enum kva_status kva_link_address_read(const char *text, bool listening,
                                      struct kva_link_address *ret, struct kva_err *err)
{
    return find(text, listening, AI_NUMERICHOST, ret, err);
}

void kva_link_address_write(const struct sockaddr_storage *address, char ret[KVA_LINK_ADDRESS_TEXT])
{
    char host[KVA_LINK_ADDRESS_TEXT - 16], port[8];
    bool six = address->ss_family == AF_INET6;
    socklen_t bytes = six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (getnameinfo((const struct sockaddr *)address, bytes, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(ret, KVA_LINK_ADDRESS_TEXT, "an unknown address");
    else
        snprintf(ret, KVA_LINK_ADDRESS_TEXT, six ? "[%s]:%s" : "%s:%s", host, port);
}

uint16_t kva_link_address_port(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
    return ntohs(((const struct sockaddr_in *)address)->sin_port);
}

/* --- interfaces -------------------------------------------------------------------------------- */

static bool is_any(const struct kva_link_address *address)
{
    if (address->socket.ss_family == AF_INET6)
        return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)&address->socket)->sin6_addr);
    return ((const struct sockaddr_in *)&address->socket)->sin_addr.s_addr == htonl(INADDR_ANY);
}

static bool is_same(const struct kva_link_address *address, const struct sockaddr *other)
{
    if (!other || other->sa_family != address->socket.ss_family)
        return false;
    if (other->sa_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)&address->socket)->sin6_addr,
                      &((const struct sockaddr_in6 *)(const void *)other)->sin6_addr,
                      sizeof(struct in6_addr)) == 0;
    return other->sa_family == AF_INET &&
           ((const struct sockaddr_in *)&address->socket)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)other)->sin_addr.s_addr;
}

enum kva_status kva_link_address_interface(const struct kva_link_address *address, char *ret,
                                           size_t capacity, struct kva_err *err)
{
    struct ifaddrs *all, *at;
    char text[KVA_LINK_ADDRESS_TEXT];
    if (is_any(address)) {
        ret[0] = '\0';
        return KVA_OK;
    }
    if (getifaddrs(&all) != 0)
        return kva_fail(err, KVA_EIO, "network interfaces: %s", strerror(errno));
    for (at = all; at; at = at->ifa_next)
        if (is_same(address, at->ifa_addr))
            break;
    if (at)
        snprintf(ret, capacity, "%s", at->ifa_name);
    freeifaddrs(all);
    if (at)
        return KVA_OK;
    kva_link_address_write(&address->socket, text);
    return kva_fail(err, KVA_EINVAL, "no network interface has the address of %s", text);
}
