/* Who does not even speak UCX.
 *
 * The two nodes are two processes with a transport each: UCX is not safe from noise where several of
 * its workers are in one (transport.h). As in a server another link listens on the same transport, and
 * has a thread. */
#include "tests/cmocka.h"

#include "tests/cluster/link/ends.h"

#include "base/clock.h"
#include "tests/random.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PORTS = 6, HERE = 1, THERE = 2 };

/* Ports of 127.0.0.1 at which this process listens: the links' and UCX's own. */
static uint32_t find_ports(uint16_t ret[PORTS])
{
    uint32_t count = 0;
    for (int fd = 3; fd < 1024 && count < PORTS; fd++) {
        struct sockaddr_in at;
        socklen_t size = sizeof(at), bytes = sizeof(int);
        int listens = 0;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens &&
            getsockname(fd, (struct sockaddr *)&at, &size) == 0 && at.sin_family == AF_INET)
            ret[count++] = ntohs(at.sin_port);
    }
    return count;
}

/* A node: a link that soon tries again, and another, whose thread has nothing to do but with noise. */
struct node {
    struct kva_transport *transport;
    struct end end, beside;
    pthread_t thread;
    atomic_bool quit;
};

static void *attend(void *opaque)
{
    struct node *n = opaque;
    while (!atomic_load(&n->quit)) {
        struct pollfd ready = {.fd = kva_link_fd(n->beside.link), .events = POLLIN};
        if (!kva_link_progress(n->beside.link, kva_time_ns()) && kva_link_arm(n->beside.link))
            (void)poll(&ready, 1, 10);
    }
    return NULL;
}

static void open_node(struct node *n, uint32_t node, uint64_t life)
{
    struct kva_link_params params = ends_params();
    n->transport = params.transport = ends_transport();
    params.hello_ns = 5 * KVA_NS_PER_S;
    end_open(&n->end, node, life, &params);
    end_open(&n->beside, node, life, &params);
    atomic_store(&n->quit, false);
    assert_int_equal(pthread_create(&n->thread, NULL, attend, n), 0);
}

static void close_node(struct node *n)
{
    atomic_store(&n->quit, true);
    kva_link_wake(n->beside.link);
    pthread_join(n->thread, NULL);
    end_close(&n->end);
    end_close(&n->beside);
    kva_transport_destroy(n->transport);
}

/* --- the other process ------------------------------------------------------------------------- */

/* What it says first, and whenever it is asked (one byte, any). It ends when nobody can ask it. */
struct report {
    char address[32];
    uint16_t ports[PORTS];
    uint32_t port_count;
    uint32_t ups, downs;
    uint64_t frames;
};

/* One for each test, from before UCX is loaded. */
static struct {
    int fd;
    pid_t pid;
} others[2];
static int other; /* to the one that is spoken to */

static int run_other(int fd)
{
    static struct node node;
    struct end *b = &node.end, *ends[] = {b};
    struct report report = {.ups = 0};
    open_node(&node, THERE, 6);
    memcpy(report.address, b->address, sizeof(report.address));
    report.port_count = find_ports(report.ports);
    for (bool asked = true;;) {
        char byte;
        report.ups = b->ups[HERE];
        report.downs = b->downs[HERE];
        report.frames = b->frames[HERE];
        if (asked && write(fd, &report, sizeof(report)) != sizeof(report))
            return 1;
        ends_idle(ends, 1, 1);
        ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            break;
        asked = got == 1;
    }
    close_node(&node);
    return 0;
}

static void start_others(void)
{
    for (size_t i = 0; i < KVA_COUNT_OF(others); i++) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || (others[i].pid = fork()) < 0)
            abort();
        if (others[i].pid == 0) {
            close(ends[0]);
            for (size_t j = 0; j < i; j++)
                close(others[j].fd);
            exit(run_other(ends[1]));
        }
        close(ends[1]);
        others[i].fd = ends[0];
    }
}

static struct report hear(struct end *a)
{
    struct report report;
    const uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    while (recv(other, &report, sizeof(report), MSG_DONTWAIT | MSG_PEEK) <
           (ssize_t)sizeof(report)) {
        if (a)
            ends_idle(&a, 1, 1);
        assert_true(kva_time_ns() < limit_ns);
    }
    assert_int_equal(recv(other, &report, sizeof(report), 0), sizeof(report));
    return report;
}

static struct report ask(struct end *a)
{
    assert_int_equal(send(other, "?", 1, MSG_NOSIGNAL), 1);
    return hear(a);
}

static void end_other(size_t i)
{
    int status;
    close(others[i].fd);
    assert_int_equal(waitpid(others[i].pid, &status, 0), others[i].pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* --- noise ------------------------------------------------------------------------------------- */

static int dial(uint16_t port)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void hang_up(int fd, uint64_t *random)
{
    const struct linger at_once = {.l_onoff = 1};
    if (kva_test_below(random, 2))
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    close(fd);
}

struct scene {
    size_t which; /* of the others */
    struct node a;
    struct end b;
    uint16_t ports[2 * PORTS]; /* of both */
    uint32_t port_count;
    int open[40];
    uint64_t random;
};

static void begin(struct scene *scene, size_t which)
{
    *scene = (struct scene){.which = which, .b = {.node = THERE, .life = 6}, .random = 11};
    other = others[which].fd;
    struct report there = hear(NULL);
    open_node(&scene->a, HERE, 5);
    memcpy(scene->b.address, there.address, sizeof(there.address));
    uint32_t count = find_ports(scene->ports);
    assert_true(count >= 3 && there.port_count >= 3); /* of each link its own, and UCX's */
    memcpy(scene->ports + count, there.ports, there.port_count * sizeof(there.ports[0]));
    scene->port_count = count + there.port_count;
    memset(scene->open, -1, sizeof(scene->open));
}

static void make_noise(struct scene *scene)
{
    unsigned char noise[512];
    struct end *a = &scene->a.end;
    uint64_t *random = &scene->random;
    int *fd = &scene->open[kva_test_below(random, KVA_COUNT_OF(scene->open))];
    if (*fd >= 0)
        hang_up(*fd, random);
    *fd = dial(scene->ports[kva_test_below(random, scene->port_count)]);
    for (size_t j = 0; j < sizeof(noise); j++)
        noise[j] = (unsigned char)kva_test_below(random, 256);
    if (*fd >= 0 && kva_test_below(random, 3))
        (void)!send(*fd, noise, 1 + kva_test_below(random, sizeof(noise)), MSG_NOSIGNAL);
    ends_idle(&a, 1, 1);
}

static void meet(struct scene *scene)
{
    struct end *a = &scene->a.end;
    const uint32_t ups = ask(a).ups;
    const uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    while (!kva_link_is_up(a->link, THERE) || ask(a).ups == ups) {
        end_connect(a, &scene->b); /* noise may cost an attempt */
        make_noise(scene);
        assert_true(kva_time_ns() < limit_ns);
    }
}

static void part(struct scene *scene)
{
    struct end *a = &scene->a.end;
    const uint32_t downs = ask(a).downs;
    kva_link_disconnect(a->link, THERE);
    while (ask(a).downs == downs)
        make_noise(scene);
}

static void end(struct scene *scene)
{
    for (uint32_t i = 0; i < KVA_COUNT_OF(scene->open); i++)
        if (scene->open[i] >= 0)
            close(scene->open[i]);
    close_node(&scene->a);
    end_other(scene->which);
}

static void test_link__noise_at_its_ports_harms_nobody(void **state KVA_UNUSED)
{
    struct scene scene;
    struct end *a = &scene.a.end;
    begin(&scene, 0);
    meet(&scene);
    for (uint32_t i = 0; i < 4000; i++) {
        make_noise(&scene);
        if (i % 500 == 0) {
            end_send(a, THERE, 8, 20000);
            while (ask(a).frames < a->numbered[THERE])
                make_noise(&scene);
        }
    }
    assert_int_equal(a->downs[THERE] + ask(a).downs, 0);
    end(&scene);
}

static void test_link__nodes_meet_and_part_amid_noise(void **state KVA_UNUSED)
{
    struct scene scene;
    begin(&scene, 1);
    for (uint32_t i = 0; i < 100; i++) {
        meet(&scene);
        for (uint32_t j = 0; j < 20; j++)
            make_noise(&scene);
        part(&scene);
    }
    end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link__noise_at_its_ports_harms_nobody),
        cmocka_unit_test(test_link__nodes_meet_and_part_amid_noise),
    };
    start_others();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
