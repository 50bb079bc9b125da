/* bench_stream.c - what the server costs outside the engine.
 *
 * Usage: bench_stream stream STREAMS TOKENS STEP_US [logprobs]
 *            CPU time of the event loop per streamed token: chats on the scripted engine, whose
 *            threads are not counted.
 *        bench_stream idle CONNECTIONS
 *            Bytes of memory per streaming connection that waits and gets keep-alives.
 *
 * Everything runs in one process over loopback; the client's thread is not counted either. */
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static uint32_t endless(void *opaque, const struct kva_sequence_params *params, uint32_t index)
{
    (void)opaque;
    (void)params;
    return 'a' + index % 26;
}

static double thread_cpu_s(pthread_t thread)
{
    clockid_t clock;
    struct timespec now;
    if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &now) != 0)
        return 0;
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static long resident_bytes(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static void raise_descriptors(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Read from all until each has ended; returns the bytes read. */
static size_t drain(struct pollfd *fds, unsigned count)
{
    static char buffer[1 << 16];
    size_t total = 0;
    unsigned open = count;
    while (open > 0 && poll(fds, count, 30000) > 0) {
        for (unsigned i = 0; i < count; i++) {
            if (fds[i].fd < 0 || !fds[i].revents)
                continue;
            ssize_t got = recv(fds[i].fd, buffer, sizeof(buffer), 0);
            if (got > 0) {
                total += (size_t)got;
                continue;
            }
            close(fds[i].fd);
            fds[i].fd = -1;
            open--;
        }
    }
    return total;
}

static int bench_stream(unsigned streams, unsigned tokens, unsigned step_us, bool logprobs)
{
    struct server_fixture f;
    struct pollfd *fds = calloc(streams, sizeof(*fds));
    char body[512];
    fixture_init(&f);
    f.engine.next_token = endless;
    f.engine.sleep_ns = (uint64_t)step_us * 1000;
    f.engine.limits.sequences_max = f.scheduling.running_max = streams;
    f.engine.limits.step_tokens_max = f.scheduling.step_tokens_max = 4 * streams + 512;
    f.engine.limits.budget.device = f.engine.limits.budget.host = 1ull << 40;
    f.scheduling.waiting_max = streams;
    fixture_start(&f);
    snprintf(body, sizeof(body),
             "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"stream\":true,"
             "\"max_tokens\":%u%s}",
             tokens, logprobs ? ",\"logprobs\":true,\"top_logprobs\":5" : "");
    double before_s = thread_cpu_s(f.thread);
    for (unsigned i = 0; i < streams; i++)
        fds[i] = (struct pollfd){.fd = client_post_open(f.port, "/v1/chat/completions", body),
                                 .events = POLLIN};
    size_t bytes = drain(fds, streams);
    double used_s = thread_cpu_s(f.thread) - before_s;
    double count = (double)streams * tokens;
    printf("%u streams x %u tokens, step %u us%s: %.2f us of CPU per token outside the engine, "
           "%.0f bytes per token\n",
           streams, tokens, step_us, logprobs ? ", 5 logprobs" : "", used_s * 1e6 / count,
           (double)bytes / count);
    free(fds);
    fixture_stop(&f);
    return 0;
}

static int bench_idle(unsigned connections)
{
    struct server_fixture f;
    struct pollfd *fds = calloc(connections, sizeof(*fds));
    char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"stream\":true}";
    raise_descriptors();
    fixture_init(&f);
    f.engine.next_token = endless;
    f.engine.sleep_ns = 20 * KVA_NS_PER_MS;
    f.scheduling.running_max = 1;
    f.scheduling.waiting_max = connections + 8;
    f.params.keep_alive_ns = 2 * KVA_NS_PER_S;
    fixture_start(&f);
    long before = resident_bytes();
    for (unsigned i = 0; i < connections; i++)
        fds[i].fd = client_post_open(f.port, "/v1/chat/completions", body);
    /* Two rounds of keep-alives: every head and every buffer has been used. */
    double wanted = 2.0 * (connections - 1);
    while (client_metric(f.port, "kvahead_keep_alives_total", NULL) < wanted)
        usleep(200000);
    double live = client_metric(f.port, "kvahead_requests_waiting", NULL);
    long used = resident_bytes() - before;
    double cpu_s = thread_cpu_s(f.thread);
    sleep(4);
    cpu_s = thread_cpu_s(f.thread) - cpu_s;
    printf("%u idle streams (%.0f waiting): %.1f KiB each, request and scheduler included; "
           "event loop %.2f%% of a core\n",
           connections, live, (double)used / connections / 1024, cpu_s / 4 * 100);
    for (unsigned i = 0; i < connections; i++)
        close(fds[i].fd);
    free(fds);
    fixture_wait(&f, fixture_is_idle, "the streams to be freed");
    fixture_stop(&f);
    return 0;
}

int main(int argc, char **argv)
{
    unsigned number[3] = {0, 0, 0};
    for (int i = 2; i < argc && i < 5; i++)
        number[i - 2] = (unsigned)strtoul(argv[i], NULL, 10);
    if (argc >= 5 && strcmp(argv[1], "stream") == 0)
        return bench_stream(number[0], number[1], number[2], argc > 5);
    if (argc == 3 && strcmp(argv[1], "idle") == 0)
        return bench_idle(number[0]);
    fprintf(stderr, "usage: %s stream STREAMS TOKENS STEP_US [logprobs] | idle CONNECTIONS\n",
            argv[0]);
    return 2;
}
