/* What a link costs: round trips of frames as attention sends them, and the rate of large ones,
 * between two processes over 127.0.0.1, beside a plain TCP socket and memcpy; then what a layer of one
 * row exchanges in three ways to attend to what another instance has.
 *
 *     bench_cluster_link [rounds]
 *
 * Tables in Markdown. Whoever waits does so as debtors and creditors do (cluster/remote/turn.h):
 * 50 us awake, then asleep; the plain socket blocks. */
#include "base/clock.h"
#include "cluster/remote/wire.h"
#include "tests/cluster/bench_end.h"
#include "tests/median.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LARGE = 8 << 20, STREAM = 64, WINDOW = 4 };

static const size_t sizes[] = {64, 6 << 10, 96 << 10, LARGE};

/* --- links ------------------------------------------------------------------------------------- */

/* The header says how much comes back: the same bytes, over and over. */
static void echo(struct bench_end *end, const struct kva_link_frame *frame)
{
    uint32_t answer_bytes;
    memcpy(&answer_bytes, frame->header, sizeof(answer_bytes));
    bench_require(answer_bytes <= LARGE, "an answer is too large");
    bench_end_send(end, frame->node, NULL, 0, end->opaque, answer_bytes);
}

static void ask(struct bench_end *end, size_t bytes, uint32_t answer_bytes)
{
    bench_end_send(end, BENCH_END_OTHER, &answer_bytes, sizeof(answer_bytes), end->opaque, bytes);
}

/* --- a plain socket ---------------------------------------------------------------------------- */

static void move_all(int fd, unsigned char *bytes, size_t size, bool out)
{
    while (size > 0) {
        ssize_t moved = out ? send(fd, bytes, size, MSG_NOSIGNAL) : recv(fd, bytes, size, 0);
        bench_require(moved > 0, "the plain socket broke");
        bytes += moved;
        size -= (size_t)moved;
    }
}

/* The other side answers each size in turn; ends when the socket is closed. */
static void echo_bytes(int fd, unsigned char *bytes)
{
    uint32_t order[2]; /* bytes that come, bytes to answer */
    while (recv(fd, order, sizeof(order), MSG_WAITALL) == sizeof(order)) {
        move_all(fd, bytes, order[0], false);
        move_all(fd, bytes, order[1], true);
    }
}

static int start_plain(unsigned char *bytes, pid_t *ret_pid)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    int one = 1, listening = socket(AF_INET, SOCK_STREAM, 0);
    bench_require(bind(listening, (struct sockaddr *)&at, size) == 0 && listen(listening, 1) == 0 &&
                      getsockname(listening, (struct sockaddr *)&at, &size) == 0,
                  "no plain socket");
    *ret_pid = fork();
    bench_require(*ret_pid >= 0, "no second process");
    int fd = *ret_pid == 0 ? accept(listening, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
    bench_require(*ret_pid == 0 || connect(fd, (struct sockaddr *)&at, size) == 0,
                  "no plain socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    close(listening);
    if (*ret_pid == 0) {
        echo_bytes(fd, bytes);
        _exit(0);
    }
    return fd;
}

/* --- measurements ------------------------------------------------------------------------------ */

struct trip {
    struct bench_end *end; /* NULL: the plain socket */
    int fd;
    unsigned char *bytes;
};

static void make_trip(const struct trip *trip, size_t size)
{
    if (trip->end) {
        ask(trip->end, size, (uint32_t)size);
        bench_end_turn(trip->end, trip->end->frames + 1);
    } else {
        const uint32_t order[2] = {(uint32_t)size, (uint32_t)size};
        move_all(trip->fd, (unsigned char *)(uintptr_t)order, sizeof(order), true);
        move_all(trip->fd, trip->bytes, size, true);
        move_all(trip->fd, trip->bytes, size, false);
    }
}

/* Median and 99th percentile in us. */
static void measure_trips(const struct trip *trip, size_t size, uint32_t rounds, double *ret_median,
                          double *ret_high)
{
    double *us = calloc(rounds, sizeof(*us));
    bench_require(us, "no memory");
    for (uint32_t i = 0; i < rounds / 10 + 2; i++)
        make_trip(trip, size);
    for (uint32_t i = 0; i < rounds; i++) {
        uint64_t begin_ns = kva_time_ns();
        make_trip(trip, size);
        us[i] = (double)(kva_time_ns() - begin_ns) / 1e3;
    }
    *ret_median = kva_test_median(us, rounds);
    *ret_high = us[rounds - 1 - rounds / 100];
    free(us);
}

/* GB/s of large frames one way, a few unacknowledged, to the last acknowledgement. */
static double measure_stream(const struct trip *trip)
{
    uint64_t begin_ns = kva_time_ns();
    if (trip->end) {
        uint64_t before = trip->end->frames;
        for (uint64_t i = 0; i < STREAM; i++) {
            ask(trip->end, LARGE, 0);
            bench_end_turn(trip->end, before + (i < WINDOW ? 0 : i - WINDOW));
        }
        bench_end_turn(trip->end, before + STREAM);
    } else {
        for (int i = 0; i < STREAM; i++) {
            const uint32_t order[2] = {LARGE, i == STREAM - 1};
            move_all(trip->fd, (unsigned char *)(uintptr_t)order, sizeof(order), true);
            move_all(trip->fd, trip->bytes, LARGE, true);
        }
        move_all(trip->fd, trip->bytes, 1, false);
    }
    return (double)STREAM * LARGE / (double)(kva_time_ns() - begin_ns);
}

static double measure_memcpy(unsigned char *bytes)
{
    unsigned char *to = malloc(LARGE);
    bench_require(to, "no memory");
    memset(to, 1, LARGE);
    uint64_t begin_ns = kva_time_ns();
    for (int i = 0; i < STREAM; i++) {
        bytes[i] = (unsigned char)i;
        memcpy(to, bytes, LARGE);
        __asm__ volatile("" : : "r"(to) : "memory");
    }
    double rate = (double)STREAM * LARGE / (double)(kva_time_ns() - begin_ns);
    free(to);
    return rate;
}

static void measure(const struct trip trips[2], uint32_t rounds)
{
    printf(
        "| frame | link, median us | 99%% | plain TCP, median us | 99%% |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < KVA_COUNT_OF(sizes); i++) {
        double median[2], high[2];
        for (int which = 0; which < 2; which++)
            measure_trips(&trips[which], sizes[i], sizes[i] == LARGE ? rounds / 50 + 2 : rounds,
                          &median[which], &high[which]);
        printf("| %zu | %.0f | %.0f | %.0f | %.0f |\n", sizes[i], median[0], high[0], median[1],
               high[1]);
    }
    double link = measure_stream(&trips[0]), plain = measure_stream(&trips[1]);
    printf("\nGB/s of 8 MiB one way: link %.2f, plain TCP %.2f; memcpy %.2f\n", link, plain,
           measure_memcpy(trips[0].bytes));
}

/* --- three ways -------------------------------------------------------------------------------- */

struct shape {
    const char *name;
    struct kva_wire_shape wire;
    uint32_t kv_heads;
};

static const struct shape shapes[] = {
    {"LLaMA2-7B", {.heads = 32, .head_dim = 128, .layers = 32, .act = KVA_BF16, .rows_max = 1}, 32},
    {"Qwen2.5-1.5B",
     {.heads = 12, .head_dim = 128, .layers = 28, .act = KVA_BF16, .rows_max = 1},
     2},
};

/* What a layer of one row sends and has back, in bytes of data. */
struct exchange {
    uint64_t there, back;
};

/* The query goes to the pages, (a, m, e) comes back. */
static struct exchange distributed(const struct shape *shape)
{
    return (struct exchange){kva_wire_query_bytes(&shape->wire, 1),
                             kva_wire_partial_bytes(&shape->wire, 1)};
}

/* Of every token the other has half of the KV heads: their q, k and v go there, their outputs come
 * back, all of 16 bits. */
static struct exchange split_heads(const struct shape *shape)
{
    const uint64_t head = (uint64_t)shape->wire.head_dim * 2;
    return (struct exchange){(shape->wire.heads / 2 + shape->kv_heads) * head,
                             shape->wire.heads / 2 * head};
}

/* Ring attention's way: the pages come to the query. */
static struct exchange ring(const struct shape *shape, uint64_t tokens)
{
    return (struct exchange){0, tokens * shape->kv_heads * shape->wire.head_dim * 2 * 2};
}

/* Median us of an exchange; what does not go into one frame follows at once. */
static double measure_exchange(struct bench_end *end, struct exchange exchange, uint32_t rounds)
{
    double *us = calloc(rounds, sizeof(*us)), median;
    bench_require(us, "no memory");
    for (uint32_t i = 0; i < rounds; i++) {
        const uint64_t begin_ns = kva_time_ns();
        uint64_t back = exchange.back, frames = 0;
        do {
            const uint32_t answer = (uint32_t)(back < LARGE ? back : LARGE);
            ask(end, frames++ == 0 ? exchange.there : 0, answer);
            back -= answer;
        } while (back > 0);
        bench_end_turn(end, end->frames + frames);
        us[i] = (double)(kva_time_ns() - begin_ns) / 1e3;
    }
    median = kva_test_median(us, rounds);
    free(us);
    return median;
}

static void measure_ways(struct bench_end *end, uint32_t rounds)
{
    static const uint64_t tokens[] = {1024, 16384};
    printf(
        "\n| model | way | bytes there | bytes back | median us | x |\n|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        const struct shape *shape = &shapes[i];
        const struct {
            const char *name;
            struct exchange exchange;
        } ways[] = {
            {"queries to pages", distributed(shape)},
            {"heads split in two", split_heads(shape)},
            {"pages to queries, 1,024 tokens", ring(shape, tokens[0])},
            {"pages to queries, 16,384 tokens", ring(shape, tokens[1])},
        };
        double first = 0;
        for (size_t j = 0; j < KVA_COUNT_OF(ways); j++) {
            const struct exchange *exchange = &ways[j].exchange;
            double us = measure_exchange(end, *exchange, j < 2 ? rounds : rounds / 100 + 3);
            first = j == 0 ? us : first;
            printf("| %s | %s | %llu | %llu | %.0f | %.1f |\n", shape->name, ways[j].name,
                   (unsigned long long)exchange->there, (unsigned long long)exchange->back, us,
                   us / first);
        }
    }
}

int main(int argc, char **argv)
{
    unsigned char *bytes = malloc(LARGE);
    uint32_t rounds = argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2000;
    struct bench_end end = {.opaque = bytes};
    pid_t plain, other;
    bench_require(bytes && rounds > 0, "no memory, or no rounds");
    memset(bytes, 7, LARGE);
    if (argc == 3 && strcmp(argv[1], "--echo") == 0) {
        end.then = echo;
        bench_end_serve(&end, argv[2]);
        free(bytes);
        return 0;
    }
    int fd = start_plain(bytes, &plain);
    bench_end_open(&end, "--echo", &other);
    const struct trip trips[2] = {{.end = &end, .bytes = bytes}, {.fd = fd, .bytes = bytes}};
    measure(trips, rounds);
    measure_ways(&end, rounds);
    bench_end_close(&end);
    close(fd);
    waitpid(other, NULL, 0);
    waitpid(plain, NULL, 0);
    free(bytes);
    return 0;
}
