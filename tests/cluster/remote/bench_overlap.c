/* What it saves to attend to what is here while the answer of a loan is on its way: steps of one row
 * whose sequence begins at a creditor, by an engine that does so and by one whose device can only
 * wait, in turns.
 *
 *     bench_cluster_overlap [turns]
 *
 * A table in Markdown, of medians. Answers come after a set time, for which nobody computes, or from
 * a creditor with a thread of its own over a link on 127.0.0.1. Expected is what the shorter of the
 * two takes that may overlap: attention here, measured from when a layer's queries are posted to when
 * its answer is asked for, and the answer, as long as the engine waits that can only wait. */
#include "tests/cmocka.h"

#include "base/clock.h"
#include "cluster/link/transport.h"
#include "cluster/remote/creditor.h"
#include "cluster/remote/debtor.h"
#include "engine/lending.h"
#include "tests/engine/fixture.h"
#include "tests/median.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    VOCAB = 300,
    LAYERS = 2,
    PROMPT_TOKENS = 4400,
    CONTEXT_MAX = 8192,
    TURNS_MAX = 101,
    WARM_UP = 2,
    CREDITOR = 1,       /* its node; those of the debtors follow */
    GRAIN_TOKENS = 256, /* of a loan whose bits are those of no loan */
    FOREVER_S = 600,
};

/* Little beside attention: a row's queries meet 8 KiB of keys and values a token and layer. */
static const char config[] =
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":256,"
    "\"intermediate_size\":256,\"num_hidden_layers\":2,\"num_attention_heads\":32,"
    "\"num_key_value_heads\":32,\"head_dim\":64,\"vocab_size\":300,"
    "\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"}";

static const uint64_t tier_bytes = 400ull << 20; /* of both tiers */
static const uint32_t local_tokens[] = {512, 1024, 2048, 4096};
static const uint64_t answers_us[] = {0, 100, 300, 1000, 3000};
static const char secret[] = "a secret of this benchmark";

static void expect_ok(enum kva_status status, const struct kva_err *err)
{
    if (status != KVA_OK)
        fail_msg("%s", err->message);
}

/* --- debtors ----------------------------------------------------------------------------------- */

/* An engine and its one sequence. Its remote measures, and answers by itself or asks. */
struct debtor {
    struct kva_transport *transport;
    struct fixture fixture;
    struct kva_sequence *seq;
    struct kva_debtor *link;
    struct kva_remote remote;
    bool asks;          /* the creditor; else: */
    uint64_t answer_ns; /* after which there is an answer */
    struct kva_remote_rows posted;
    uint64_t posted_ns;
    uint64_t local_ns;  /* of a step: between queries and answers, all layers */
    uint64_t waited_ns; /* of a step: from queries to answers */
    uint32_t loan;      /* number of the last */
};

static void post(void *self, uint32_t layer, const struct kva_remote_rows *rows, uint32_t count)
{
    struct debtor *d = self;
    const struct kva_remote *remote = kva_debtor_remote(d->link);
    assert_int_equal(count, 1);
    d->posted_ns = kva_time_ns();
    d->posted = rows[0];
    if (d->asks)
        remote->ops->post(remote->self, layer, rows, count);
}

/* Awake until the time has come, since a sleep is too coarse. An answer like any other: of one token
 * whose values are 0. */
static void answer_late(const struct debtor *d)
{
    const struct kva_model_config *c = &d->fixture.model->config;
    while (kva_time_ns() < d->posted_ns + d->answer_ns) {
    }
    for (uint32_t i = 0; i < c->heads * c->head_dim; i++)
        d->posted.out.a[i] = 0;
    for (uint32_t i = 0; i < c->heads; i++) {
        d->posted.out.m[i] = 0;
        d->posted.out.e[i] = 1;
    }
}

static bool collect(void *self, uint32_t index)
{
    struct debtor *d = self;
    const struct kva_remote *remote = kva_debtor_remote(d->link);
    bool answered = true;
    d->local_ns += kva_time_ns() - d->posted_ns;
    if (d->asks)
        answered = remote->ops->collect(remote->self, index);
    else
        answer_late(d);
    d->waited_ns += kva_time_ns() - d->posted_ns;
    return answered;
}

static const struct kva_remote_ops ops = {.post = post, .collect = collect};

static struct fixture_params fixture_of(const char *model)
{
    return (struct fixture_params){.model_path = model,
                                   .threads = 1,
                                   .context_max = CONTEXT_MAX,
                                   .step_tokens_max = 256,
                                   .device_bytes = tier_bytes,
                                   .host_bytes = tier_bytes};
}

static void start_sequence(struct debtor *d)
{
    static const struct kva_sampling_params greedy = {
        .top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1};
    static uint32_t prompt[PROMPT_TOKENS];
    fixture_prompt(prompt, PROMPT_TOKENS, VOCAB, 1);
    d->seq = fixture_start(&d->fixture,
                           &(struct kva_sequence_params){.prompt = prompt,
                                                         .prompt_tokens = PROMPT_TOKENS,
                                                         .tokens_max = CONTEXT_MAX,
                                                         .sampling = &greedy,
                                                         .kv = kva_kv_spec_default(KVA_KV_FULL)});
    fixture_prefill(&d->fixture, d->seq, 256);
}

static void open_debtor(struct debtor *d, const char *model, uint32_t node, bool waits,
                        const char *creditor)
{
    struct kva_err err;
    struct fixture_params params = fixture_of(model);
    *d = (struct debtor){.remote = {&ops, d}};
    expect_ok(kva_transport_create("127.0.0.1:0", 1, &d->transport, &err), &err);
    const struct kva_debtor_params link = {.transport = d->transport,
                                           .secret = secret,
                                           .secret_bytes = sizeof(secret),
                                           .heads = 32,
                                           .head_dim = 64,
                                           .act = KVA_F32,
                                           .rows_max = 1,
                                           .peers_max = 1,
                                           .answer_ns = FOREVER_S * KVA_NS_PER_S};
    expect_ok(kva_debtor_create(&link, &d->link, &err), &err);
    kva_debtor_identify(d->link, node, 1);
    expect_ok(kva_debtor_peer(d->link, CREDITOR, 1, creditor, &err), &err);
    params.remote = &d->remote;
    params.waits = waits;
    fixture_open(&d->fixture, &params);
    start_sequence(d);
}

static void close_debtor(struct debtor *d)
{
    d->fixture.engine->ops->destroy(d->fixture.engine->self, d->seq);
    fixture_close(&d->fixture);
    kva_debtor_destroy(d->link);
    kva_transport_destroy(d->transport);
}

/* --- the creditor ------------------------------------------------------------------------------- */

struct creditor {
    struct fixture fixture;
    struct kva_transport *transport;
    struct kva_device *device;
    struct kva_guests *guests;
    struct kva_guest_worker *worker;
    struct kva_creditor *link;
    char address[32];
};

static void open_creditor(struct creditor *c, const char *model)
{
    struct kva_err err;
    const struct fixture_params params = fixture_of(model);
    expect_ok(kva_transport_create("127.0.0.1:0", 2, &c->transport, &err), &err);
    const struct kva_creditor_params link = {.transport = c->transport,
                                             .listen = "127.0.0.1:0",
                                             .secret = secret,
                                             .secret_bytes = sizeof(secret),
                                             .heads = 32,
                                             .head_dim = 64,
                                             .layers = LAYERS,
                                             .act = KVA_F32,
                                             .rows_max = 1,
                                             .peers_max = 2};
    fixture_open(&c->fixture, &params);
    expect_ok(kva_device_open_cpu(&(struct kva_device_params){.threads = 1}, &c->device, &err),
              &err);
    expect_ok(kva_guests_create(c->fixture.engine, 2, &c->guests, &err), &err);
    expect_ok(kva_guest_worker_create(c->guests, c->device, 1, &c->worker, &err), &err);
    expect_ok(kva_creditor_create(&link, &c->link, &err), &err);
    kva_creditor_begin(c->link, CREDITOR, 1, c->worker);
    snprintf(c->address, sizeof(c->address), "127.0.0.1:%u", kva_creditor_port(c->link));
}

static void close_creditor(struct creditor *c)
{
    kva_creditor_destroy(c->link);
    kva_transport_destroy(c->transport);
    kva_guest_worker_destroy(c->worker);
    kva_guests_destroy(c->guests);
    kva_device_close(c->device);
    fixture_close(&c->fixture);
}

/* --- loans -------------------------------------------------------------------------------------- */

/* The first pages of the sequence go, all but those of the last `local` tokens or a few more. Their
 * homes stay. */
static struct kva_kv_loan lend(struct debtor *d, struct creditor *c, uint32_t local)
{
    struct kva_err err;
    struct kva_engine *engine = d->fixture.engine;
    struct kva_sequence_info info;
    engine->ops->sequence_info(engine->self, d->seq, &info);
    const uint32_t tokens = ((uint32_t)info.kept_tokens - local) / GRAIN_TOKENS * GRAIN_TOKENS;
    const struct kva_kv_loan loan = {.id = (uintptr_t)d + ++d->loan,
                                     .creditor = CREDITOR,
                                     .page_count = tokens / KVA_PAGE_TOKENS,
                                     .keeps_home = true};
    assert_true(kva_lending_lendable(engine, d->seq, 0, loan.page_count));
    expect_ok(kva_guests_reserve(c->guests, &loan, &err), &err);
    for (uint32_t i = 0; i < loan.page_count; i++)
        expect_ok(
            kva_guests_write(c->guests, loan.id, i, kva_lending_home_of(engine, d->seq, i), &err),
            &err);
    kva_lending_lend(engine, d->seq, &loan);
    return loan;
}

static void come_home(struct debtor *d, struct creditor *c, struct kva_kv_loan loan)
{
    struct kva_err err;
    uint32_t token;
    expect_ok(kva_lending_home_reserve(d->fixture.engine, d->seq, loan.id, &err), &err);
    kva_lending_come_home(d->fixture.engine, d->seq, loan.id);
    kva_guests_free(c->guests, loan.id);
    fixture_decode(&d->fixture, &d->seq, 1, &token); /* which takes device memory for them */
}

/* --- steps -------------------------------------------------------------------------------------- */

struct times {
    double step_ms[TURNS_MAX], local_ms[TURNS_MAX], waited_ms[TURNS_MAX];
};

static uint32_t step(struct debtor *d, struct times *times, uint32_t turn)
{
    uint32_t token;
    d->local_ns = d->waited_ns = 0;
    const uint64_t begin_ns = kva_time_ns();
    fixture_decode(&d->fixture, &d->seq, 1, &token);
    times->step_ms[turn] = (double)(kva_time_ns() - begin_ns) / 1e6;
    times->local_ms[turn] = (double)d->local_ns / 1e6;
    times->waited_ms[turn] = (double)d->waited_ns / 1e6;
    return token;
}

/* Steps of both in turns, who is first changing; they say the same. debtors[0] overlaps. */
static void measure(struct debtor *debtors, struct creditor *c, uint32_t local, int64_t answer_us,
                    uint32_t turns)
{
    static struct times times[2];
    struct kva_kv_loan loans[2];
    char answer[32] = "creditor";
    for (uint32_t i = 0; i < 2; i++) {
        debtors[i].asks = answer_us < 0;
        debtors[i].answer_ns = answer_us < 0 ? 0 : (uint64_t)answer_us * 1000;
        loans[i] = lend(&debtors[i], c, local);
    }
    for (uint32_t turn = 0; turn < turns + WARM_UP; turn++) {
        uint32_t tokens[2], at = turn < WARM_UP ? 0 : turn - WARM_UP;
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t who = (turn + i) % 2;
            tokens[who] = step(&debtors[who], &times[who], at);
        }
        assert_int_equal(tokens[0], tokens[1]);
    }
    for (uint32_t i = 0; i < 2; i++)
        come_home(&debtors[i], c, loans[i]);
    const double waits = kva_test_median(times[1].step_ms, turns);
    const double overlaps = kva_test_median(times[0].step_ms, turns);
    const double here = kva_test_median(times[0].local_ms, turns);
    const double there = kva_test_median(times[1].waited_ms, turns);
    if (answer_us >= 0)
        snprintf(answer, sizeof(answer), "%.1f ms", (double)answer_us / 1e3);
    printf("| %u | %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", local, answer, here,
           there, waits, overlaps, waits / overlaps, waits - overlaps, here < there ? here : there);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static struct debtor debtors[2];
    static struct creditor creditor;
    char model[FIXTURE_PATH_BYTES];
    uint32_t turns = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 31;
    if (turns < 1 || turns > TURNS_MAX) {
        fprintf(stderr, "bench_cluster_overlap: 1 to %d turns\n", TURNS_MAX);
        return 1;
    }
    fixture_make_model(config, 4, CONTEXT_MAX, model);
    open_creditor(&creditor, model);
    for (uint32_t i = 0; i < 2; i++)
        open_debtor(&debtors[i], model, CREDITOR + 1 + i, i == 1, creditor.address);
    printf(
        "| tokens here | answer of a layer | here, ms | answers, ms | waits, ms | overlaps, ms | "
        "ratio | saved, ms | expected, ms |\n|---|---|---|---|---|---|---|---|---|\n");
    for (uint32_t i = 0; i < KVA_COUNT_OF(local_tokens); i++) {
        for (uint32_t j = 0; j < KVA_COUNT_OF(answers_us); j++)
            measure(debtors, &creditor, local_tokens[i], (int64_t)answers_us[j], turns);
        measure(debtors, &creditor, local_tokens[i], -1, turns);
    }
    for (uint32_t i = 0; i < 2; i++)
        close_debtor(&debtors[i]);
    close_creditor(&creditor);
    fixture_remove_model(model);
    return 0;
}
