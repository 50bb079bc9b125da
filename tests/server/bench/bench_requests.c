/* bench_requests.c - what a request costs the event loop outside the engine.
 *
 * Usage: bench_requests health|completion|large CONNECTIONS REQUESTS
 *            Kept-alive connections that each ask again when they are answered: GET /health, a
 * short completion on the scripted engine, or one with 64 KiB of JSON. Prints requests per second
 * and the event loop's CPU time per request. bench_requests connect CONNECTIONS REQUESTS The same
 * with GET /health on a connection of its own each time.
 *
 * Everything runs in one process over loopback; threads of the client, the engine and the workers
 * are not counted in the CPU time. */
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include "base/clock.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct load {
    char *request;
    size_t request_bytes;
    bool reconnect;
};

static void load_init(struct load *load, const char *kind)
{
    static const char get[] = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\n"
                              "Accept: */*\r\nAccept-Encoding: gzip, deflate\r\n\r\n";
    memset(load, 0, sizeof(*load));
    load->reconnect = strcmp(kind, "connect") == 0;
    if (strcmp(kind, "health") == 0 || load->reconnect) {
        load->request = strdup(get);
        load->request_bytes = strlen(get);
        return;
    }
    size_t filler = strcmp(kind, "large") == 0 ? 65536 : 16;
    load->request = malloc(filler + 1024);
    if (!load->request)
        abort();
    int head = snprintf(load->request, 512,
                        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\n"
                        "Accept: application/json\r\nContent-Type: application/json\r\n"
                        "Authorization: Bearer none\r\nContent-Length: %zu\r\n\r\n"
                        "{\"prompt\":\"hello\",\"max_tokens\":2,\"user\":\"",
                        filler + 43);
    memset(load->request + head, 'u', filler);
    memcpy(load->request + (size_t)head + filler, "\"}", 2);
    load->request_bytes = (size_t)head + filler + 2;
}

static double thread_cpu_s(pthread_t thread)
{
    clockid_t clock;
    struct timespec now;
    if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &now) != 0)
        return 0;
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* One answer has a Content-Length; whether `text` has all of it. Exits on anything but 200. */
static bool answered(const char *text, size_t length)
{
    const char *end = strstr(text, "\r\n\r\n");
    if (!end)
        return false;
    const char *field = strcasestr(text, "\r\ncontent-length:");
    if (strncmp(text, "HTTP/1.1 200 ", 13) != 0 || !field) {
        fprintf(stderr, "not the answer that was expected:\n%s\n", text);
        exit(1);
    }
    return length >= (size_t)(end + 4 - text) + strtoul(field + 17, NULL, 10);
}

struct peer {
    char answer[16384];
    size_t length;
};

/* Read what came; returns whether that completed an answer. */
static bool peer_read(struct peer *peer, int fd)
{
    ssize_t got = recv(fd, peer->answer + peer->length, sizeof(peer->answer) - 1 - peer->length, 0);
    if (got <= 0) {
        fprintf(stderr, "the server closed a connection\n");
        exit(1);
    }
    peer->length += (size_t)got;
    peer->answer[peer->length] = '\0';
    if (!answered(peer->answer, peer->length))
        return false;
    peer->length = 0;
    return true;
}

static void run(const struct load *load, uint16_t port, unsigned connections, unsigned requests)
{
    struct pollfd *fds = calloc(connections, sizeof(*fds));
    struct peer *peers = calloc(connections, sizeof(*peers));
    unsigned sent = 0, done = 0;
    if (!fds || !peers)
        abort();
    for (unsigned i = 0; i < connections && sent < requests; i++, sent++) {
        fds[i] = (struct pollfd){.fd = client_connect(port), .events = POLLIN};
        client_send(fds[i].fd, load->request, load->request_bytes);
    }
    while (done < requests && poll(fds, connections, 30000) > 0) {
        for (unsigned i = 0; i < connections; i++) {
            if (!fds[i].revents || !peer_read(&peers[i], fds[i].fd))
                continue;
            done++;
            if (sent == requests)
                continue;
            sent++;
            if (load->reconnect) {
                close(fds[i].fd);
                fds[i].fd = client_connect(port);
            }
            client_send(fds[i].fd, load->request, load->request_bytes);
        }
    }
    for (unsigned i = 0; i < connections; i++)
        close(fds[i].fd);
    free(fds);
    free(peers);
}

int main(int argc, char **argv)
{
    unsigned connections = argc == 4 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    unsigned requests = argc == 4 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
    if (connections == 0 || requests < connections) {
        fprintf(stderr, "usage: %s health|completion|large|connect CONNECTIONS REQUESTS\n",
                argv[0]);
        return 2;
    }
    struct server_fixture f;
    struct load load;
    fixture_init(&f);
    load_init(&load, argv[1]);
    fixture_start(&f);
    run(&load, f.port, connections, connections);
    double cpu_s = thread_cpu_s(f.thread);
    uint64_t start_ns = kva_time_ns();
    run(&load, f.port, connections, requests);
    double wall_s = (double)(kva_time_ns() - start_ns) / (double)KVA_NS_PER_S;
    cpu_s = thread_cpu_s(f.thread) - cpu_s;
    printf("%s, %u connections, %u requests: %.0f a second, %.2f us of CPU per request outside the "
           "engine\n",
           argv[1], connections, requests, requests / wall_s, cpu_s * 1e6 / requests);
    free(load.request);
    fixture_stop(&f);
    return 0;
}
