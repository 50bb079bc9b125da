/* Links that share a transport, as those of a server do: a thread each, which sleep while nothing
 * comes, and what comes for one of them while another makes progress. */
#include "tests/cmocka.h"

#include "tests/cluster/link/ends.h"

#include "base/clock.h"
#include "tests/random.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { LINKS = 3, FRAME_MAX = 150000, UNHEARD_MAX = 20, SLEEP_MS = 10 };

/* A link with a thread that sends frames to its like on the other side. Frames have their number, and
 * data that follow from it. */
struct talker {
    struct kva_link *link;
    const struct talker *listener; /* who hears what it sends */
    uint32_t node, other;
    pthread_t thread;
    uint64_t random;
    uint64_t to_send, sent;
    char address[32];
    atomic_uint received, ups, downs, wrong;
    atomic_bool quit;
    atomic_uint *waits_for; /* that its callback waits for, up to... */
    uint32_t waits_until;   /* ...so many */
    unsigned char data[FRAME_MAX];
};

/* --- frames ------------------------------------------------------------------------------------ */

static void fill(unsigned char *data, size_t size, uint64_t number)
{
    for (size_t i = 0; i < size; i++)
        data[i] = (unsigned char)(number * 7 + i * 3 + (i >> 8));
}

static bool is_right(const struct kva_link_frame *frame, uint64_t number)
{
    unsigned char want[256];
    const unsigned char *data = frame->data;
    uint64_t said;
    if (frame->header_bytes != sizeof(said))
        return false;
    memcpy(&said, frame->header, sizeof(said));
    for (size_t i = 0; i < frame->data_bytes; i++) {
        if (i % sizeof(want) == 0)
            for (size_t j = 0; j < sizeof(want); j++)
                want[j] = (unsigned char)(number * 7 + (i + j) * 3 + ((i + j) >> 8));
        if (data[i] != want[i % sizeof(want)])
            return false;
    }
    return said == number;
}

static void received(void *opaque, const struct kva_link_frame *frame)
{
    struct talker *t = opaque;
    const uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    atomic_fetch_add(&t->wrong, frame->node != t->other || !is_right(frame, t->received + 1));
    atomic_fetch_add(&t->received, 1);
    while (t->waits_for && atomic_load(t->waits_for) < t->waits_until && kva_time_ns() < limit_ns)
        sched_yield();
}

static void changed(void *opaque, uint32_t node KVA_UNUSED, uint64_t life KVA_UNUSED, bool up,
                    const char *why KVA_UNUSED)
{
    struct talker *t = opaque;
    atomic_fetch_add(up ? &t->ups : &t->downs, 1);
}

/* One frame, unless too much is unsent. */
static void say_something(struct talker *t)
{
    uint64_t number = t->sent + 1;
    size_t size = kva_test_below(&t->random, kva_test_below(&t->random, 4) ? 300 : FRAME_MAX);
    fill(t->data, size, number);
    t->sent += kva_link_send(t->link, t->other, ENDS_KIND, &number, sizeof(number), t->data,
                             size) == KVA_OK;
}

static void *talk(void *opaque)
{
    struct talker *t = opaque;
    while (!atomic_load(&t->quit)) {
        struct pollfd ready = {.fd = kva_link_fd(t->link), .events = POLLIN};
        bool may_send = t->sent < t->to_send && t->sent - t->listener->received < UNHEARD_MAX &&
                        kva_link_is_up(t->link, t->other);
        if (may_send)
            say_something(t);
        if (!kva_link_progress(t->link, kva_time_ns()) && !may_send && kva_link_arm(t->link))
            (void)poll(&ready, 1, SLEEP_MS);
    }
    return NULL;
}

/* --- talkers ----------------------------------------------------------------------------------- */

static void open_talker(struct talker *t, struct kva_transport *transport, uint32_t node,
                        uint32_t other, uint64_t to_send)
{
    struct kva_err err;
    struct kva_link_params params = ends_params();
    *t = (struct talker){
        .node = node, .other = other, .random = node * 77 + to_send, .to_send = to_send};
    params.transport = transport;
    params.unsent_bytes_max = 1 << 20;
    params.opaque = t;
    params.received = received;
    params.changed = changed;
    if (kva_link_create(&params, &t->link, &err))
        fail_msg("%s", err.message);
    kva_link_identify(t->link, node, node + 4);
    snprintf(t->address, sizeof(t->address), "127.0.0.1:%u", kva_link_port(t->link));
}

static void start(struct talker *t)
{
    assert_int_equal(pthread_create(&t->thread, NULL, talk, t), 0);
}

static void stop(struct talker *t)
{
    atomic_store(&t->quit, true);
    kva_link_wake(t->link);
    pthread_join(t->thread, NULL);
}

/* Two that are to talk with each other, and do from now on. */
static void introduce(struct talker *a, struct talker *b)
{
    struct kva_err err;
    a->listener = b;
    b->listener = a;
    if (kva_link_connect(a->link, b->node, b->node + 4, b->address, &err))
        fail_msg("%s", err.message);
    start(a);
    start(b);
}

static void wait_for(atomic_uint *count, uint32_t until)
{
    const uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    while (atomic_load(count) < until) {
        assert_true(kva_time_ns() < limit_ns);
        sched_yield();
    }
}

/* --- tests ------------------------------------------------------------------------------------- */

static struct talker sides[2][LINKS];

/* Two servers with three links each, of which every one talks with its like. */
static void open_sides(struct kva_transport *transports[2], uint64_t to_send)
{
    for (uint32_t s = 0; s < 2; s++) {
        transports[s] = ends_transport();
        for (uint32_t i = 0; i < LINKS; i++)
            open_talker(&sides[s][i], transports[s], s + 1, 2 - s, to_send);
    }
}

static void close_sides(struct kva_transport *transports[2])
{
    for (uint32_t s = 0; s < 2; s++) {
        for (uint32_t i = 0; i < LINKS; i++) {
            stop(&sides[s][i]);
            assert_int_equal(sides[s][i].wrong, 0);
            assert_int_equal(sides[s][i].ups, 1);
        }
    }
    for (uint32_t s = 0; s < 2; s++) {
        for (uint32_t i = 0; i < LINKS; i++)
            kva_link_destroy(sides[s][i].link);
        kva_transport_destroy(transports[s]);
    }
}

static void test_transport__each_link_hears_its_own(void **state KVA_UNUSED)
{
    enum { FRAMES = 400 };
    struct kva_transport *transports[2];
    open_sides(transports, FRAMES);
    for (uint32_t i = 0; i < LINKS; i++)
        introduce(&sides[0][i], &sides[1][i]);
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t i = 0; i < LINKS; i++)
            wait_for(&sides[s][i].received, FRAMES);
    close_sides(transports);
}

/* As a creditor attends while pages come. */
static void test_transport__who_is_busy_with_a_frame_holds_nobody_up(void **state KVA_UNUSED)
{
    enum { FRAMES = 100 };
    struct kva_transport *transports[2];
    open_sides(transports, FRAMES);
    sides[0][0].to_send = 0;
    sides[1][0].to_send = 1;
    sides[0][0].waits_for = &sides[0][1].received;
    sides[0][0].waits_until = FRAMES;
    introduce(&sides[0][0], &sides[1][0]);
    introduce(&sides[0][2], &sides[1][2]);
    wait_for(&sides[0][0].received, 1);
    introduce(&sides[0][1], &sides[1][1]);
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t i = 1; i < LINKS; i++)
            wait_for(&sides[s][i].received, FRAMES);
    close_sides(transports);
}

/* Nobody reads what is for a link, but another takes it in. */
static void test_transport__what_nobody_reads_is_bounded(void **state KVA_UNUSED)
{
    struct end a, b, *sender = &a;
    struct kva_link_params params = ends_params();
    struct kva_transport *transport = params.transport = ends_transport();
    static struct talker beside;
    open_talker(&beside, transport, 2, 1, 0);
    params.unread_bytes_max = 8 << 20;
    end_open(&b, 2, 6, &params);
    end_open(&a, 1, 5, NULL);
    ends_meet(&a, &b);
    start(&beside);
    uint64_t begun_ns = kva_time_ns();
    while (kva_link_is_up(b.link, 1) && kva_time_ns() - begun_ns < ENDS_LIMIT_NS) {
        (void)!end_try(&a, 2, 8, 100000);
        ends_idle(&sender, 1, 1);
        sched_yield();
        if (a.numbered[2] * 100000 > (48 << 20))
            ends_idle((struct end *[]){&b}, 1, 1); /* only now it looks what there is */
    }
    assert_int_equal(b.downs[1], 1);
    assert_non_null(strstr(b.why, "more than is read"));
    assert_true(b.frames[1] * 100000 <= 8 << 20);
    stop(&beside);
    end_close(&a);
    end_close(&b);
    kva_link_destroy(beside.link);
    kva_transport_destroy(transport);
}

/* --- what comes while a link is busy ------------------------------------------------------------- */

/* `b` and `beside` share a transport: what `a` and `c` send to the one is taken in by the other. */
static struct busy {
    struct kva_transport *transport;
    struct end a, b, beside, c;
} busy;

static void open_busy(void (*then)(struct end *, const struct kva_link_frame *))
{
    struct kva_link_params params = ends_params();
    params.transport = busy.transport = ends_transport();
    end_open(&busy.b, 2, 6, &params);
    end_open(&busy.beside, 4, 8, &params);
    end_open(&busy.a, 1, 5, NULL);
    end_open(&busy.c, 3, 7, NULL);
    ends_meet(&busy.a, &busy.b);
    busy.b.then = then;
}

static void close_busy(void)
{
    end_close(&busy.a);
    end_close(&busy.b);
    end_close(&busy.c);
    end_close(&busy.beside);
    kva_transport_destroy(busy.transport);
}

/* Everybody but `b`, for long enough that what was sent has come. */
static void run_others(void)
{
    ends_idle((struct end *[]){&busy.a, &busy.c, &busy.beside}, 3, 50);
}

static void cause_another(struct end *b KVA_UNUSED, const struct kva_link_frame *frame KVA_UNUSED)
{
    if (busy.a.numbered[2] < 300)
        end_send(&busy.a, 2, 8, 100);
    run_others();
}

/* A call hands on no more than there was when it began, and who wants to connect has his turn. */
static void test_transport__a_call_ends_though_frames_come_for_ever(void **state KVA_UNUSED)
{
    struct end *b = &busy.b;
    const uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    open_busy(cause_another);
    end_connect(&busy.c, b);
    end_send(&busy.a, 2, 8, 100);
    while (b->frames[1] < 20 || b->ups[3] < 1) {
        const uint64_t sent = busy.a.numbered[2];
        run_others();
        ends_idle(&b, 1, 1);
        assert_true(b->frames[1] <= sent);
        assert_true(kva_time_ns() < limit_ns);
    }
    close_busy();
}

static void cause_more_and_failure(struct end *b, const struct kva_link_frame *frame KVA_UNUSED)
{
    for (uint32_t i = 0; b->frames[1] == 1 && i < 4; i++)
        end_send(&busy.a, 2, 8, 100);
    if (b->frames[1] == 1)
        end_send(&busy.a, 2, ENDS_HEADER_MAX + 1, 100); /* which nobody may */
    run_others();
}

/* Though it came, and the connection failed, while the call was under way that ends connections. */
static void test_transport__what_came_before_a_connection_failed_is_heard(void **state KVA_UNUSED)
{
    struct end *b = &busy.b;
    const uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    open_busy(cause_more_and_failure);
    end_send(&busy.a, 2, 8, 100);
    while (b->downs[1] == 0) {
        run_others();
        ends_idle(&b, 1, 1);
        assert_true(kva_time_ns() < limit_ns);
    }
    assert_int_equal(b->frames[1], 5);
    assert_non_null(strstr(b->why, "a frame whose header has"));
    close_busy();
}

/* --- coming and going ---------------------------------------------------------------------------- */

/* A link that is opened on both sides, and closed again with much unsent. */
static void come_and_go(struct kva_transport *transports[2], uint32_t round)
{
    struct end a, b;
    struct kva_link_params params = ends_params();
    params.transport = transports[0];
    end_open(&a, 1, 5, &params);
    params.transport = transports[1];
    end_open(&b, 2, 6, &params);
    ends_meet(&a, &b);
    for (uint32_t i = 0; i < 4; i++)
        end_send(&a, 2, 8, i % 2 ? 1 << 20 : 100);
    if (round % 2)
        (void)kva_link_progress(b.link, kva_time_ns());
    end_close(round % 3 ? &a : &b);
    end_close(round % 3 ? &b : &a);
}

static void test_transport__links_come_and_go_beside_others(void **state KVA_UNUSED)
{
    struct kva_transport *transports[2];
    open_sides(transports, UINT64_MAX);
    for (uint32_t i = 0; i < LINKS; i++)
        introduce(&sides[0][i], &sides[1][i]);
    for (uint32_t round = 0; round < 40; round++)
        come_and_go(transports, round);
    for (uint32_t s = 0; s < 2; s++) {
        for (uint32_t i = 0; i < LINKS; i++) {
            wait_for(&sides[s][i].received, 50);
            assert_int_equal(sides[s][i].downs, 0);
        }
    }
    close_sides(transports);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transport__each_link_hears_its_own),
        cmocka_unit_test(test_transport__who_is_busy_with_a_frame_holds_nobody_up),
        cmocka_unit_test(test_transport__what_nobody_reads_is_bounded),
        cmocka_unit_test(test_transport__a_call_ends_though_frames_come_for_ever),
        cmocka_unit_test(test_transport__what_came_before_a_connection_failed_is_heard),
        cmocka_unit_test(test_transport__links_come_and_go_beside_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
