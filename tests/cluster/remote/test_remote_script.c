/* A debtor and creditors that do not do what they should; a creditor and debtors that ask what is no
 * question. The other side is a link with a script, on a thread of its own. */
#include "tests/cmocka.h"

#include "cluster/link/link.h"
#include "cluster/link/transport.h"
#include "cluster/link/ucx.h"
#include "cluster/remote/creditor.h"
#include "cluster/remote/debtor.h"
#include "cluster/remote/wire.h"

#include "base/clock.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char secret[] = "a secret of this test's cluster";

enum { HEADS = 4, HEAD_DIM = 16, ROWS_MAX = 8, ROW = HEADS * (HEAD_DIM + 2) };

static const struct kva_wire_shape shape = {
    .heads = HEADS, .head_dim = HEAD_DIM, .layers = 3, .act = KVA_F32, .rows_max = ROWS_MAX};

/* --- what may happen to a thread ---------------------------------------------------------------- */

/* In UCX's progress: it stands still once, and then all that comes is for others. Each thread's own. */
static _Thread_local uint64_t stands_still_ns, rounds_of_others;
static __typeof__(&ucp_worker_progress) undisturbed;

static unsigned disturbed(ucp_worker_h worker)
{
    const struct timespec pause = {.tv_sec = (time_t)(stands_still_ns / KVA_NS_PER_S),
                                   .tv_nsec = (long)(stands_still_ns % KVA_NS_PER_S)};
    if (stands_still_ns > 0) {
        nanosleep(&pause, NULL);
        stands_still_ns = 0;
        return 0;
    }
    if (rounds_of_others == 0)
        return undisturbed(worker);
    rounds_of_others--;
    return 1;
}

static int be_disturbed(void **state KVA_UNUSED)
{
    struct kva_err err;
    assert_int_equal(kva_ucx_load(&err), KVA_OK);
    undisturbed = kva_ucx.worker_progress;
    kva_ucx.worker_progress = disturbed;
    return 0;
}

/* --- a creditor with a script ------------------------------------------------------------------ */

enum answer {
    HONEST, /* each result is the question's number */
    NOT_A_NUMBER,
    NOT_FOUND,
    SILENT,
    LATE,      /* the answer to the question before it first */
    NOT_ASKED, /* to a question that will come */
    TOO_SHORT,
    TOO_LONG,
    COUNT_WRONG,
    FOUND_TWICE,
    HEADER_SHORT,
    KIND_WRONG,
    GONE,
};

struct scripted {
    struct kva_transport *transport;
    struct kva_link *link;
    pthread_t thread;
    _Atomic bool quit;
    _Atomic enum answer next;
    _Atomic uint32_t questions;
    char address[32];
};

static void send_answer(struct scripted *s, uint32_t node, const struct kva_wire_question *question,
                        enum answer how, uint64_t id, float value)
{
    static float results[ROWS_MAX * ROW + 1];
    bool found[ROWS_MAX];
    uint8_t header[64];
    size_t header_bytes = kva_wire_answer_bytes(question->count);
    size_t bytes = how == NOT_FOUND ? 0 : question->rows * ROW * sizeof(float);
    for (uint32_t i = 0; i < ROWS_MAX * ROW + 1; i++)
        results[i] = how == NOT_A_NUMBER ? NAN : value;
    for (uint32_t i = 0; i < ROWS_MAX; i++)
        found[i] = how != NOT_FOUND;
    kva_wire_write_answer(header, how == NOT_ASKED ? id + 1000 : id, found, question->count);
    header[8] = (uint8_t)(header[8] + (how == COUNT_WRONG));
    header[12] = how == FOUND_TWICE ? 2 : header[12];
    header_bytes = how == HEADER_SHORT ? 5 : header_bytes;
    bytes += how == TOO_LONG ? sizeof(float) : 0;
    bytes -= how == TOO_SHORT ? sizeof(float) : 0;
    assert_int_equal(kva_link_send(s->link, node, how == KIND_WRONG ? 9 : KVA_WIRE_ANSWER, header,
                                   header_bytes, results, bytes),
                     KVA_OK);
}

static void asked(void *opaque, const struct kva_link_frame *frame)
{
    struct scripted *s = opaque;
    struct kva_wire_question question;
    struct kva_wire_entry entries[ROWS_MAX];
    enum answer how = s->next;
    if (kva_wire_read_question(&shape, frame->header, frame->header_bytes, frame->data_bytes,
                               &question, entries, NULL))
        abort();
    s->questions++;
    if (how == GONE)
        kva_link_disconnect(s->link, frame->node);
    if (how == LATE)
        send_answer(s, frame->node, &question, HONEST, question.id - 1, -1);
    if (how != GONE && how != SILENT)
        send_answer(s, frame->node, &question, how, question.id, (float)question.id);
}

static void told(void *opaque KVA_UNUSED, uint32_t node KVA_UNUSED, uint64_t life KVA_UNUSED,
                 bool up KVA_UNUSED, const char *why KVA_UNUSED)
{
}

static void *serve(void *opaque)
{
    struct scripted *s = opaque;
    while (!s->quit) {
        struct pollfd ready = {.fd = kva_link_fd(s->link), .events = POLLIN};
        if (!kva_link_progress(s->link, kva_time_ns()) && kva_link_arm(s->link))
            (void)poll(&ready, 1, 100);
    }
    return NULL;
}

static struct kva_link_params link_params(void *opaque)
{
    return (struct kva_link_params){.listen = "127.0.0.1:0",
                                    .secret = secret,
                                    .secret_bytes = sizeof(secret),
                                    .header_bytes_max = 4096,
                                    .data_bytes_max = 1 << 20,
                                    .unsent_bytes_max = 8 << 20,
                                    .unread_bytes_max = 8 << 20,
                                    .peers_max = 4,
                                    .hello_ns = 30 * KVA_NS_PER_S,
                                    .opaque = opaque,
                                    .received = asked,
                                    .changed = told};
}

static struct kva_transport *new_transport(void)
{
    struct kva_transport *transport;
    struct kva_err err;
    if (kva_transport_create("127.0.0.1:0", 4, &transport, &err))
        fail_msg("%s", err.message);
    return transport;
}

static void scripted_open(struct scripted *s, uint32_t node, uint64_t life)
{
    struct kva_err err;
    *s = (struct scripted){.next = HONEST};
    struct kva_link_params params = link_params(s);
    params.transport = s->transport = new_transport();
    if (kva_link_create(&params, &s->link, &err))
        fail_msg("%s", err.message);
    kva_link_identify(s->link, node, life);
    snprintf(s->address, sizeof(s->address), "127.0.0.1:%u", kva_link_port(s->link));
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void scripted_close(struct scripted *s)
{
    s->quit = true;
    kva_link_wake(s->link);
    pthread_join(s->thread, NULL);
    kva_link_destroy(s->link);
    kva_transport_destroy(s->transport);
}

/* --- a debtor ---------------------------------------------------------------------------------- */

static struct kva_transport *transport; /* the debtor's */

static struct kva_debtor *open_debtor(uint64_t answer_ns)
{
    transport = new_transport();
    const struct kva_debtor_params params = {.transport = transport,
                                             .secret = secret,
                                             .secret_bytes = sizeof(secret),
                                             .heads = HEADS,
                                             .head_dim = HEAD_DIM,
                                             .act = KVA_F32,
                                             .rows_max = ROWS_MAX,
                                             .peers_max = 2,
                                             .answer_ns = answer_ns};
    struct kva_debtor *debtor;
    struct kva_err err;
    if (kva_debtor_create(&params, &debtor, &err))
        fail_msg("%s", err.message);
    kva_debtor_identify(debtor, 9, 1);
    return debtor;
}

static void close_debtor(struct kva_debtor *debtor)
{
    kva_debtor_destroy(debtor);
    kva_transport_destroy(transport);
}

static void introduce(struct kva_debtor *debtor, uint32_t node, uint64_t life,
                      const struct scripted *s)
{
    struct kva_err err;
    if (kva_debtor_peer(debtor, node, life, s->address, &err))
        fail_msg("%s", err.message);
}

static float q[ROWS_MAX * HEADS * HEAD_DIM], results[ROWS_MAX * ROW];

static struct kva_partial out_of(uint32_t row, uint32_t rows)
{
    float *at = results + row * ROW;
    return (struct kva_partial){at, at + rows * HEADS * HEAD_DIM,
                                at + rows * HEADS * (HEAD_DIM + 1)};
}

static void post(struct kva_debtor *debtor, uint32_t creditor, uint32_t rows)
{
    const struct kva_remote *remote = kva_debtor_remote(debtor);
    const struct kva_remote_rows entry = {.loan = 5,
                                          .creditor = creditor,
                                          .row_count = rows,
                                          .position_first = 64,
                                          .q = q,
                                          .out = out_of(0, rows)};
    memset(results, 0, sizeof(results));
    remote->ops->post(remote->self, 1, &entry, 1);
}

static bool collect(struct kva_debtor *debtor)
{
    const struct kva_remote *remote = kva_debtor_remote(debtor);
    return remote->ops->collect(remote->self, 0);
}

static struct kva_debtor_stats stats_of(const struct kva_debtor *debtor)
{
    struct kva_debtor_stats stats;
    kva_debtor_get_stats(debtor, &stats);
    return stats;
}

/* Until the creditor that was given up answers again. */
static void recover(struct kva_debtor *debtor, uint32_t node)
{
    uint32_t lost;
    uint64_t limit_ns = kva_time_ns() + 60 * KVA_NS_PER_S;
    assert_int_equal(kva_debtor_take_lost(debtor, &lost, 1), 1);
    assert_int_equal(lost, node);
    assert_int_equal(kva_debtor_take_lost(debtor, &lost, 1), 0);
    for (;;) {
        kva_debtor_prepare(debtor, node);
        kva_debtor_progress(debtor);
        post(debtor, node, 2);
        if (collect(debtor))
            return;
        assert_true(kva_time_ns() < limit_ns);
    }
}

static void test_debtor__answers_that_are_none_are_a_loss(void **state KVA_UNUSED)
{
    static const enum answer lies[] = {NOT_ASKED,   TOO_SHORT,    TOO_LONG,   COUNT_WRONG,
                                       FOUND_TWICE, HEADER_SHORT, KIND_WRONG, GONE};
    struct scripted s;
    scripted_open(&s, 1, 7);
    struct kva_debtor *debtor = open_debtor(60 * KVA_NS_PER_S);
    introduce(debtor, 1, 7, &s);
    for (size_t i = 0; i < KVA_COUNT_OF(lies); i++) {
        post(debtor, 1, 2);
        assert_true(collect(debtor));
        assert_true(results[0] >= 1 && results[2 * ROW - 1] == results[0]);
        s.next = lies[i];
        post(debtor, 1, 2);
        assert_false(collect(debtor));
        for (size_t j = 0; j < KVA_COUNT_OF(results); j++)
            assert_true(results[j] == 0);
        assert_int_equal(stats_of(debtor).broken, i + 1);
        uint64_t asked_before = s.questions;
        post(debtor, 1, 2); /* at once: nobody is asked, nobody waits */
        assert_false(collect(debtor));
        assert_int_equal(s.questions, asked_before);
        s.next = HONEST;
        recover(debtor, 1);
    }
    assert_int_equal(stats_of(debtor).late, 0);
    close_debtor(debtor);
    scripted_close(&s);
}

static void test_debtor__any_numbers_are_handed_on(void **state KVA_UNUSED)
{
    struct scripted s;
    scripted_open(&s, 1, 7);
    struct kva_debtor *debtor = open_debtor(60 * KVA_NS_PER_S);
    introduce(debtor, 1, 7, &s);
    s.next = NOT_A_NUMBER;
    post(debtor, 1, 3);
    assert_true(collect(debtor));
    assert_true(isnan(results[0]) && isnan(results[3 * ROW - 1]) && results[3 * ROW] == 0);
    s.next = NOT_FOUND;
    post(debtor, 1, 3);
    assert_false(collect(debtor));
    assert_int_equal(stats_of(debtor).not_found, 1);
    assert_int_equal(stats_of(debtor).broken + stats_of(debtor).late, 0);
    s.next = HONEST;
    post(debtor, 1, 3);
    assert_true(collect(debtor));
    close_debtor(debtor);
    scripted_close(&s);
}

static void test_debtor__a_late_answer_is_to_nobody(void **state KVA_UNUSED)
{
    struct scripted s;
    scripted_open(&s, 1, 7);
    struct kva_debtor *debtor = open_debtor(60 * KVA_NS_PER_S);
    introduce(debtor, 1, 7, &s);
    post(debtor, 1, 2);
    assert_true(collect(debtor));
    float first = results[0];
    s.next = SILENT;
    post(debtor, 1, 2); /* nobody collects it */
    while (s.questions < 2)
        kva_debtor_progress(debtor);
    s.next = LATE;
    post(debtor, 1, 2);
    assert_true(collect(debtor));
    assert_true(results[0] == first + 2 && results[2 * ROW - 1] == first + 2);
    close_debtor(debtor);
    scripted_close(&s);
}

static void test_debtor__who_never_answers_is_given_up(void **state KVA_UNUSED)
{
    struct scripted s, other;
    scripted_open(&s, 1, 7);
    scripted_open(&other, 2, 7);
    struct kva_debtor *debtor = open_debtor(2 * KVA_NS_PER_S);
    introduce(debtor, 1, 7, &s);
    introduce(debtor, 2, 7, &other);
    s.next = SILENT;
    const struct kva_remote *remote = kva_debtor_remote(debtor);
    const struct kva_remote_rows entries[] = {
        {.loan = 5, .creditor = 1, .row_count = 1, .q = q, .out = out_of(0, 1)},
        {.loan = 6, .creditor = 2, .row_count = 2, .q = q, .out = out_of(1, 2)},
        {.loan = 7, .creditor = 1, .row_count = 1, .q = q, .out = out_of(3, 1)},
        {.loan = 8, .creditor = 77, .row_count = 1, .q = q, .out = out_of(4, 1)}};
    remote->ops->post(remote->self, 0, entries, 4);
    assert_true(remote->ops->collect(remote->self, 1));
    assert_false(remote->ops->collect(remote->self, 2));
    assert_false(remote->ops->collect(remote->self, 0));
    assert_false(remote->ops->collect(remote->self, 3)); /* whom nobody knows */
    assert_false(remote->ops->collect(remote->self, 4));
    assert_int_equal(stats_of(debtor).late, 1);
    assert_true(stats_of(debtor).wait_ns >= 2 * KVA_NS_PER_S);
    s.next = HONEST;
    recover(debtor, 1);
    close_debtor(debtor);
    scripted_close(&s);
    scripted_close(&other);
}

/* Until it may be asked, or not any more, by what progress does alone. */
static void wait_may_ask(struct kva_debtor *debtor, uint32_t node, bool may)
{
    uint64_t limit_ns = kva_time_ns() + 60 * KVA_NS_PER_S;
    while (kva_debtor_may_ask(debtor, node) != may) {
        kva_debtor_progress(debtor);
        assert_true(kva_time_ns() < limit_ns);
    }
}

/* Before pages go to a creditor it is known whether it can be asked for them. */
static void test_debtor__who_cannot_be_asked_is_known(void **state KVA_UNUSED)
{
    struct kva_err err;
    struct scripted s;
    scripted_open(&s, 1, 7);
    struct kva_debtor *debtor = open_debtor(KVA_NS_PER_S);
    introduce(debtor, 1, 7, &s);
    assert_false(kva_debtor_may_ask(debtor, 2) || kva_debtor_reaches(debtor, 2));
    /* Nobody listens there. */
    assert_int_equal(kva_debtor_peer(debtor, 2, 1, "127.0.0.1:1", &err), KVA_OK);
    assert_true(kva_debtor_may_ask(debtor, 2));
    assert_false(kva_debtor_calls(debtor));
    assert_false(kva_debtor_reaches(debtor, 2)); /* which begins to connect */
    wait_may_ask(debtor, 2, false);
    assert_false(kva_debtor_reaches(debtor, 2));
    /* One that was given up comes again without being asked for attention. */
    assert_true(kva_debtor_may_ask(debtor, 1));
    s.next = SILENT;
    post(debtor, 1, 1);
    assert_false(collect(debtor));
    assert_false(kva_debtor_may_ask(debtor, 1) || kva_debtor_reaches(debtor, 1));
    s.next = HONEST;
    wait_may_ask(debtor, 1, true);
    assert_true(kva_debtor_reaches(debtor, 1));
    post(debtor, 1, 1);
    assert_true(collect(debtor));
    close_debtor(debtor);
    scripted_close(&s);
}

/* The creditor answers while the debtor stands still for longer than an answer may take. When it goes
 * on, it has to hear what others on its transport have said first. */
static void test_debtor__its_own_standing_still_is_not_the_creditors(void **state KVA_UNUSED)
{
    struct scripted s;
    scripted_open(&s, 1, 7);
    struct kva_debtor *debtor = open_debtor(3 * KVA_NS_PER_S);
    introduce(debtor, 1, 7, &s);
    post(debtor, 1, 2);
    assert_true(collect(debtor));
    post(debtor, 1, 2);
    stands_still_ns = 3100 * KVA_NS_PER_MS;
    rounds_of_others = 100;
    assert_true(collect(debtor));
    assert_int_equal(stands_still_ns + rounds_of_others, 0);
    assert_int_equal(stats_of(debtor).late + stats_of(debtor).broken, 0);
    close_debtor(debtor);
    scripted_close(&s);
}

/* The engine does not wait for the end of what others have to say. */
static void test_debtor__between_steps_little_is_done_for_others(void **state KVA_UNUSED)
{
    enum { MANY = 1000000, FEW = 1000 };
    struct kva_debtor *debtor = open_debtor(60 * KVA_NS_PER_S);
    rounds_of_others = MANY;
    kva_debtor_progress(debtor);
    const uint64_t left = rounds_of_others;
    rounds_of_others = 0;
    assert_in_range(left, MANY - FEW, MANY - 1);
    close_debtor(debtor);
}

static void test_debtor__a_creditor_comes_again_in_a_new_life(void **state KVA_UNUSED)
{
    struct kva_err err;
    struct kva_debtor *debtor = open_debtor(60 * KVA_NS_PER_S);
    for (uint64_t life = 1; life <= 4; life++) {
        struct scripted s;
        scripted_open(&s, 1, life);
        introduce(debtor, 1, life, &s);
        post(debtor, 1, 2);
        assert_true(collect(debtor));
        if (life == 2)
            kva_debtor_peer_gone(debtor, 1);
        if (life == 2) {
            post(debtor, 1, 2);
            assert_false(collect(debtor));
        }
        scripted_close(&s);
    }
    post(debtor, 1, 2); /* nobody listens there any more */
    assert_false(collect(debtor));
    uint32_t lost[2];
    assert_int_equal(kva_debtor_take_lost(debtor, lost, 2), 1);
    assert_int_equal(kva_debtor_peer(debtor, 2, 1, "127.0.0.1:1", &err), KVA_OK);
    assert_int_equal(kva_debtor_peer(debtor, 3, 1, "127.0.0.1:1", &err), KVA_ELIMIT);
    assert_int_equal(kva_debtor_peer(debtor, 2, 1, "127.0.0.1", &err), KVA_EINVAL);
    close_debtor(debtor);
}

/* --- a creditor -------------------------------------------------------------------------------- */

struct rogue {
    struct kva_link *link;
    bool up;
    uint32_t downs;
};

static void rogue_hears(void *opaque KVA_UNUSED, const struct kva_link_frame *frame KVA_UNUSED)
{
    fail(); /* none of what it says is to be answered */
}

static void rogue_is_told(void *opaque, uint32_t node KVA_UNUSED, uint64_t life KVA_UNUSED, bool up,
                          const char *why KVA_UNUSED)
{
    struct rogue *rogue = opaque;
    rogue->up = up;
    rogue->downs += !up;
}

static void turn(struct rogue *rogue)
{
    struct pollfd ready = {.fd = kva_link_fd(rogue->link), .events = POLLIN};
    if (!kva_link_progress(rogue->link, kva_time_ns()) && kva_link_arm(rogue->link))
        (void)poll(&ready, 1, 100);
}

/* Before it has a worker nobody is let in; and then whoever asks what is no question is sent away,
 * every time. */
static void test_creditor__what_is_no_question_ends_the_connection(void **state KVA_UNUSED)
{
    const struct kva_creditor_params params = {.transport = new_transport(),
                                               .listen = "127.0.0.1:0",
                                               .secret = secret,
                                               .secret_bytes = sizeof(secret),
                                               .heads = HEADS,
                                               .head_dim = HEAD_DIM,
                                               .layers = 3,
                                               .act = KVA_F32,
                                               .rows_max = ROWS_MAX,
                                               .peers_max = 2};
    struct kva_creditor *creditor;
    struct kva_creditor_stats stats;
    struct kva_err err;
    struct rogue rogue = {0};
    char address[32];
    struct kva_link_params link = link_params(&rogue);
    link.transport = new_transport();
    link.received = rogue_hears;
    link.changed = rogue_is_told;
    assert_int_equal(kva_creditor_create(&params, &creditor, &err), KVA_OK);
    snprintf(address, sizeof(address), "127.0.0.1:%u", kva_creditor_port(creditor));
    assert_int_equal(kva_link_create(&link, &rogue.link, &err), KVA_OK);
    kva_link_identify(rogue.link, 9, 1);
    assert_int_equal(kva_link_connect(rogue.link, 1, 7, address, &err), KVA_OK);
    while (rogue.downs < 1)
        turn(&rogue);
    kva_creditor_begin(creditor, 1, 7, NULL);
    for (uint32_t i = 0; i < 6; i++) {
        uint8_t header[32] = {0};
        while (!rogue.up) { /* it may not know yet who it is */
            assert_int_equal(kva_link_connect(rogue.link, 1, 7, address, &err), KVA_OK);
            turn(&rogue);
        }
        uint32_t downs = rogue.downs;
        kva_wire_write_question(header, i == 0 ? 0 : 1, i == 1 ? 3 : 0, i == 2 ? 2 : 1);
        kva_wire_write_entry(header, 0, &(struct kva_wire_entry){1, i == 3 ? 0 : 1, 0});
        assert_int_equal(kva_link_send(rogue.link, 1, i == 4 ? 3 : KVA_WIRE_QUESTION, header, 32, q,
                                       i == 5 ? 64 : HEADS * HEAD_DIM * sizeof(float)),
                         KVA_OK);
        while (rogue.downs == downs)
            turn(&rogue);
        kva_creditor_get_stats(creditor, &stats);
        assert_int_equal(stats.refused, i + 1);
    }
    assert_int_equal(stats.answers, 0);
    kva_link_destroy(rogue.link);
    kva_creditor_destroy(creditor);
    kva_transport_destroy(link.transport);
    kva_transport_destroy(params.transport);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_debtor__answers_that_are_none_are_a_loss),
        cmocka_unit_test(test_debtor__any_numbers_are_handed_on),
        cmocka_unit_test(test_debtor__a_late_answer_is_to_nobody),
        cmocka_unit_test(test_debtor__who_never_answers_is_given_up),
        cmocka_unit_test(test_debtor__who_cannot_be_asked_is_known),
        cmocka_unit_test(test_debtor__its_own_standing_still_is_not_the_creditors),
        cmocka_unit_test(test_debtor__between_steps_little_is_done_for_others),
        cmocka_unit_test(test_debtor__a_creditor_comes_again_in_a_new_life),
        cmocka_unit_test(test_creditor__what_is_no_question_ends_the_connection),
    };
    return cmocka_run_group_tests(tests, be_disturbed, NULL);
}
