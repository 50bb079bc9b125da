/* fuzz_http_connection.c - peers of a running server, from any bytes.
 *
 * The bytes are what a peer sends. 0xFF and a letter are something else that it does: f, what comes
 * next is sent apart from what came before; s, it reads what there is; h, it sends nothing more; r,
 * it resets its connection; n, another peer comes, and the one before stays. At the end all send
 * FIN: the server must answer in HTTP, close each connection, and be well. */
#include "tests/fuzz/fuzz.h"

#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PEERS_MAX   4u
#define PATIENCE_MS 60000

static struct server_fixture fixture;

struct peer {
    int fd; /* -1: reset */
    bool said;
};

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "the server %s\n", what);
    abort();
}

static void finish(void)
{
    fixture_stop(&fixture);
}

/* libFuzzer looks at the clock on SIGALRM, half a minute after the start: that would end a poll or a
 * connect of the peers too early. Their own patience ends an input that takes too long. */
static void leave_alarms_to_the_server(void)
{
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, NULL);
}

static void start_once(void)
{
    if (fixture.port)
        return;
    fixture_init(&fixture);
    fixture.params.header_bytes_max = 4096;
    fixture.params.body_bytes_max = 4096;
    fixture_start(&fixture);
    leave_alarms_to_the_server();
    atexit(finish);
}

/* What there is; false: the server has closed. */
static bool read_some(struct peer *peer, int wait_ms)
{
    char bytes[4096];
    struct pollfd ready = {.fd = peer->fd, .events = POLLIN};
    if (poll(&ready, 1, wait_ms) <= 0) {
        require(wait_ms == 0, "left a peer without an answer or a close");
        return true;
    }
    ssize_t got = recv(peer->fd, bytes, sizeof(bytes), 0);
    if (got <= 0)
        return false;
    if (!peer->said)
        require(got >= 9 && memcmp(bytes, "HTTP/1.1 ", 9) == 0, "answers in another protocol");
    peer->said = true;
    return true;
}

static void send_some(struct peer *peer, const uint8_t *bytes, size_t length)
{
    /* A server that has closed is no error of the peer's. */
    if (peer->fd >= 0 && length > 0)
        (void)!send(peer->fd, bytes, length, MSG_NOSIGNAL);
}

static void reset(struct peer *peer)
{
    const struct linger now = {.l_onoff = 1};
    if (peer->fd < 0)
        return;
    setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(peer->fd);
    peer->fd = -1;
}

static uint32_t act(struct peer *peers, uint32_t count, uint8_t what)
{
    struct peer *peer = &peers[count - 1];
    if (what == 's' && peer->fd >= 0)
        (void)read_some(peer, 0);
    else if (what == 'h' && peer->fd >= 0)
        shutdown(peer->fd, SHUT_WR);
    else if (what == 'r')
        reset(peer);
    else if (what == 'n' && count < PEERS_MAX)
        peers[count++] = (struct peer){.fd = client_connect(fixture.port)};
    return count;
}

static void leave(struct peer *peer)
{
    if (peer->fd < 0)
        return;
    shutdown(peer->fd, SHUT_WR);
    while (read_some(peer, PATIENCE_MS))
        ;
    close(peer->fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned runs;
    struct peer peers[PEERS_MAX];
    uint32_t count = 1;
    size_t sent = 0;
    start_once();
    peers[0] = (struct peer){.fd = client_connect(fixture.port)};
    for (size_t at = 0; at + 1 < size; at++) {
        if (data[at] != 0xFF)
            continue;
        send_some(&peers[count - 1], data + sent, at - sent);
        count = act(peers, count, data[at + 1]);
        sent = ++at + 1;
    }
    if (sent < size)
        send_some(&peers[count - 1], data + sent, size - sent);
    for (uint32_t i = 0; i < count; i++)
        leave(&peers[i]);
    if (++runs % 64 == 0) {
        struct reply reply;
        client_get(fixture.port, "/health", &reply);
        require(reply.status == 200, "is not well");
        reply_finish(&reply);
    }
    return 0;
}
