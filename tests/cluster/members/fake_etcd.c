/* fake_etcd.c - a server whose answers are a test's. */
#include "tests/cluster/members/fake_etcd.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/cmocka.h"

#define PEERS_MAX     64
#define REQUEST_BYTES 32768
#define TURN_MS       5
#define HUGE_BYTES    (1u << 20) /* that are sent in a turn */

struct peer {
    int fd; /* -1: none */
    char request[REQUEST_BYTES];
    size_t length;
    const struct fake_rule *more; /* whose body goes on */
    size_t at;
};

struct fake_etcd {
    const struct fake_rule *rules;
    int fd;
    char endpoint[64];
    pthread_t thread;
    atomic_bool ends;
    atomic_uint requests;
    struct peer peers[PEERS_MAX];
};

static void drop(struct peer *peer)
{
    close(peer->fd);
    *peer = (struct peer){.fd = -1};
}

static void put(struct peer *peer, const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t sent = send(peer->fd, bytes, length, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        bytes += sent;
        length -= (size_t)sent;
    }
}

static void answer(struct peer *peer, const struct fake_rule *rule)
{
    char head[256];
    size_t length = rule->body ? strlen(rule->body) : 0;
    bool bounded = rule->way == FAKE_WHOLE || rule->way == FAKE_CUT;
    if (rule->way == FAKE_HANG)
        return;
    if (rule->way == FAKE_END) {
        drop(peer);
        return;
    }
    int size = snprintf(head, sizeof(head), "HTTP/1.1 %d Any\r\nContent-Type: application/json\r\n",
                        rule->code ? rule->code : 200);
    if (bounded)
        size += snprintf(head + size, sizeof(head) - (size_t)size, "Content-Length: %zu\r\n\r\n",
                         length + (rule->way == FAKE_CUT ? 100 : 0));
    else
        size += snprintf(head + size, sizeof(head) - (size_t)size, "Connection: close\r\n\r\n");
    put(peer, head, (size_t)size);
    if (rule->way == FAKE_DRIP || rule->way == FAKE_HUGE)
        peer->more = rule;
    else
        put(peer, rule->body, length);
    if (rule->way == FAKE_CUT)
        drop(peer);
}

/* A request that has come whole is answered. */
static void look(struct fake_etcd *fake, struct peer *peer)
{
    static const struct fake_rule none = {.code = 404, .body = "Not Found"};
    const struct fake_rule *rule = fake->rules;
    peer->request[peer->length] = 0;
    const char *end = strstr(peer->request, "\r\n\r\n");
    const char *field = strstr(peer->request, "Content-Length: ");
    const char *path = strchr(peer->request, ' ');
    if (!end || !field || !path)
        return;
    size_t body = (size_t)atoi(field + strlen("Content-Length: "));
    if (peer->length < (size_t)(end + 4 - peer->request) + body)
        return;
    atomic_fetch_add(&fake->requests, 1);
    while (rule->path && strncmp(path + 1, rule->path, strlen(rule->path)) != 0)
        rule++;
    peer->length = 0;
    answer(peer, rule->path ? rule : &none);
}

static void go_on(struct peer *peer)
{
    const char *body = peer->more->body;
    size_t length = strlen(body), left = peer->more->way == FAKE_DRIP ? 1 : HUGE_BYTES;
    while (left > 0) {
        size_t size = length - peer->at % length < left ? length - peer->at % length : left;
        ssize_t sent = send(peer->fd, body + peer->at % length, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0)
            return;
        peer->at += (size_t)sent;
        left -= (size_t)sent;
    }
}

static void take(struct fake_etcd *fake, struct peer *peer)
{
    ssize_t got = recv(peer->fd, peer->request + peer->length, REQUEST_BYTES - 1 - peer->length, 0);
    if (got <= 0 || peer->length + (size_t)got == REQUEST_BYTES - 1) {
        drop(peer);
        return;
    }
    peer->length += (size_t)got;
    look(fake, peer);
}

static void *run(void *opaque)
{
    struct fake_etcd *fake = opaque;
    while (!atomic_load(&fake->ends)) {
        struct pollfd waits[PEERS_MAX + 1] = {{.fd = fake->fd, .events = POLLIN}};
        for (int i = 0; i < PEERS_MAX; i++)
            waits[i + 1] = (struct pollfd){.fd = fake->peers[i].fd, .events = POLLIN};
        poll(waits, PEERS_MAX + 1, TURN_MS);
        for (int i = 0; i < PEERS_MAX; i++) {
            struct peer *peer = &fake->peers[i];
            if (peer->fd >= 0 && waits[i + 1].revents)
                take(fake, peer);
            else if (peer->fd >= 0 && peer->more)
                go_on(peer);
        }
        int fd = waits[0].revents ? accept(fake->fd, NULL, NULL) : -1;
        for (int i = 0; i < PEERS_MAX && fd >= 0; i++) {
            if (fake->peers[i].fd < 0) {
                fake->peers[i].fd = fd;
                fd = -1;
            }
        }
        if (fd >= 0)
            close(fd);
    }
    return NULL;
}

struct fake_etcd *fake_etcd_create(const struct fake_rule *rules)
{
    struct fake_etcd *fake = calloc(1, sizeof(*fake));
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    assert_non_null(fake);
    fake->rules = rules;
    fake->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(0, bind(fake->fd, (struct sockaddr *)&address, sizeof(address)));
    assert_int_equal(0, getsockname(fake->fd, (struct sockaddr *)&address, &length));
    assert_int_equal(0, listen(fake->fd, 16));
    snprintf(fake->endpoint, sizeof(fake->endpoint), "http://127.0.0.1:%d",
             ntohs(address.sin_port));
    for (int i = 0; i < PEERS_MAX; i++)
        fake->peers[i].fd = -1;
    assert_int_equal(0, pthread_create(&fake->thread, NULL, run, fake));
    return fake;
}

void fake_etcd_destroy(struct fake_etcd *fake)
{
    atomic_store(&fake->ends, true);
    pthread_join(fake->thread, NULL);
    for (int i = 0; i < PEERS_MAX; i++)
        if (fake->peers[i].fd >= 0)
            close(fake->peers[i].fd);
    close(fake->fd);
    free(fake);
}

const char *fake_etcd_endpoint(const struct fake_etcd *fake)
{
    return fake->endpoint;
}

uint32_t fake_etcd_requests(const struct fake_etcd *fake)
{
    return atomic_load(&fake->requests);
}
