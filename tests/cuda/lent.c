/* lent.c - KV lent between two engines on one GPU, or on its simulation: queries go to the host and
 * results back to the device, and what a sequence says is bit for bit what it says alone, before and
 * after its creditor is lost.
 *
 *     lent --module MODULE
 *
 * No test library: this runs on GPU machines that have none. */
#include "engine/lending.h"
#include "engine/model/synthetic.h"
#include "engine/model_engine.h"
#include "kernels/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PROMPT = 340,
    TOKENS = 10,
    LENT_AFTER = 3,
    PAGES = 4,
    LAST = PROMPT + TOKENS,
    CONTEXT = 512
};

struct side {
    struct kva_device *device;
    struct kva_engine *engine;
};

static struct {
    const char *module;
    struct kva_model *model;
    struct side debtor, creditor;
    struct kva_device *worker_device;
    struct kva_guests *guests;
    struct kva_guest_worker *worker;
    const struct kva_remote_rows *posted;
    uint32_t layer;
    uint64_t messages, dies_at;
} lent;

static void expect_ok(enum kva_status status, const struct kva_err *err, const char *what)
{
    if (status == KVA_OK)
        return;
    printf("FAILED %s: %s\n", what, err->message);
    exit(1);
}

static void expect(bool holds, const char *what)
{
    if (holds)
        return;
    printf("FAILED: %s\n", what);
    exit(1);
}

/* --- from one to the other -------------------------------------------------------------------- */

static void post(void *self, uint32_t layer, const struct kva_remote_rows *rows, uint32_t count)
{
    (void)self;
    expect(count == 1, "one sequence has lent");
    lent.posted = rows;
    lent.layer = layer;
    lent.messages++;
}

static bool collect(void *self, uint32_t index)
{
    struct kva_err err = {0};
    bool found = false;
    (void)self;
    if (lent.dies_at > 0 && lent.messages >= lent.dies_at)
        return false;
    expect_ok(kva_guests_attend(lent.worker, lent.layer, &lent.posted[index], 1, &found, &err),
              &err, "attend");
    return found;
}

static const struct kva_remote_ops remote_ops = {.post = post, .collect = collect};
static const struct kva_remote remote = {&remote_ops, NULL};

/* --- the two ----------------------------------------------------------------------------------- */

static struct kva_device *open_device(void)
{
    struct kva_err err = {0};
    struct kva_device *device;
    const struct kva_device_params params = {.act = KVA_BF16};
    expect_ok(kva_device_open_cuda(lent.module, &params, &device, &err), &err, "open");
    return device;
}

static void open_side(struct side *side)
{
    struct kva_err err = {0};
    side->device = open_device();
    const struct kva_model_engine_params params = {
        .device = side->device,
        .model = lent.model,
        .budget = {64ull << 20, 64ull << 20},
        .sequences_max = 2,
        .step_tokens_max = 256,
        .kv_dtype = KVA_BF16,
        .remote = &remote,
    };
    expect_ok(kva_model_engine_create(&params, &side->engine, &err), &err, "engine");
}

static void close_side(struct side *side)
{
    kva_model_engine_destroy(side->engine);
    kva_device_close(side->device);
}

static void lend(struct kva_sequence *seq, bool keeps_home)
{
    struct kva_err err = {0};
    const struct kva_kv_loan loan = {
        .id = 7, .creditor = 2, .page_count = PAGES, .keeps_home = keeps_home};
    expect(kva_lending_lendable(lent.debtor.engine, seq, 0, PAGES), "pages may be lent");
    expect_ok(kva_guests_reserve(lent.guests, &loan, &err), &err, "reserve");
    for (uint32_t i = 0; i < PAGES; i++)
        expect_ok(kva_guests_write(lent.guests, loan.id, i,
                                   kva_lending_home_of(lent.debtor.engine, seq, i), &err),
                  &err, "write");
    kva_lending_lend(lent.debtor.engine, seq, &loan);
}

/* --- a sequence -------------------------------------------------------------------------------- */

struct said {
    uint32_t tokens[TOKENS];
    float logprobs[TOKENS];
    uint32_t restarts, retries;
};

enum how { ALONE, LENT, LOST, LOST_WITH_HOMES };

static struct said say(enum how how)
{
    static uint32_t prompt[PROMPT];
    const struct kva_engine *engine = lent.debtor.engine;
    const struct kva_engine_ops *ops = engine->ops;
    const struct kva_sampling_params sampling = {
        .temperature = 0.8f, .top_p = 1, .repetition_penalty = 1, .seed = 3, .prompt_logprobs = -1};
    struct kva_err err = {0};
    struct said said = {0};
    struct kva_step_item item = {.prefill_tokens = LAST};
    uint32_t cached;
    for (uint32_t i = 0; i < PROMPT; i++)
        prompt[i] = (i * 37 + i / 11) % lent.model->config.vocab_size;
    const struct kva_sequence_params params = {.prompt = prompt,
                                               .prompt_tokens = PROMPT,
                                               .tokens_max = LAST,
                                               .sampling = &sampling,
                                               .cache_disabled = true,
                                               .kv = kva_kv_spec_default(KVA_KV_FULL)};
    expect_ok(ops->create(engine->self, &params, &item.seq, &err), &err, "create");
    expect_ok(ops->admit(engine->self, item.seq, &cached, NULL, &err), &err, "admit");
    lent.messages = lent.dies_at = 0;
    for (uint32_t at = 0; at < TOKENS;) {
        if (item.prefill_tokens == 0)
            expect_ok(ops->grow(engine->self, item.seq, &err), &err, "grow");
        expect_ok(ops->step(engine->self, &item, 1, &err), &err, "step");
        if (item.lost) {
            expect_ok(ops->restart(engine->self, item.seq, &err), &err, "restart");
            expect_ok(ops->admit(engine->self, item.seq, &cached, NULL, &err), &err, "admit");
            item.prefill_tokens = LAST;
            said.restarts++;
            continue;
        }
        said.retries += !item.emitted && item.prefill_tokens == 0;
        if (!item.emitted)
            continue;
        item.prefill_tokens = 0;
        said.tokens[at] = item.token.token;
        said.logprobs[at++] = item.token.chosen.logprob;
        if (how != ALONE && at == LENT_AFTER) {
            lend(item.seq, how == LOST_WITH_HOMES);
            lent.dies_at = how == LENT ? 0 : 2 * lent.model->config.layer_count;
        }
    }
    expect((lent.messages > 0) == (how != ALONE), "who has lent asks its creditor");
    ops->destroy(engine->self, item.seq);
    kva_guests_free(lent.guests, 7);
    return said;
}

static void expect_same(enum how how, const struct said *alone, const char *what)
{
    const struct said said = say(how);
    expect(said.restarts == (how == LOST) && said.retries == (how == LOST_WITH_HOMES), what);
    expect(memcmp(said.tokens, alone->tokens, sizeof(said.tokens)) == 0, what);
    expect(memcmp(said.logprobs, alone->logprobs, sizeof(said.logprobs)) == 0, what);
    printf("%s: the same bits\n", what);
}

/* A model of noise, whose folder is gone when it is open. */
static void open_model(void)
{
    static const char config[] =
        "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,"
        "\"intermediate_size\":96,\"num_hidden_layers\":3,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"vocab_size\":300,\"max_position_embeddings\":512,"
        "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
        "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"}";
    char path[] = "/tmp/kvahead-lent-XXXXXX", command[64];
    struct kva_err err = {0};
    struct kva_synthetic_info info;
    expect(mkdtemp(path) != NULL, "a folder in /tmp");
    const struct kva_synthetic_params params = {
        .dir_path = path, .config_json = config, .seed = 4, .context_max = CONTEXT, .threads = 1};
    const struct kva_model_open_params open = {.path = path};
    expect_ok(kva_synthetic_write(&params, &info, &err), &err, "model");
    expect_ok(kva_model_open(&open, &lent.model, &err), &err, "model");
    snprintf(command, sizeof(command), "rm -r '%s'", path);
    expect(system(command) == 0, "the folder is removed");
}

int main(int argc, char **argv)
{
    struct kva_err err = {0};
    if (argc != 3 || strcmp(argv[1], "--module") != 0) {
        fprintf(stderr, "usage: lent --module MODULE\n");
        return 2;
    }
    lent.module = argv[2];
    open_model();
    open_side(&lent.debtor);
    open_side(&lent.creditor);
    lent.worker_device = open_device();
    expect_ok(kva_guests_create(lent.creditor.engine, 2, &lent.guests, &err), &err, "guests");
    expect_ok(kva_guest_worker_create(lent.guests, lent.worker_device, 4, &lent.worker, &err), &err,
              "worker");
    const struct said alone = say(ALONE);
    expect_same(LENT, &alone, "lent");
    expect_same(LOST, &alone, "lost");
    expect_same(LOST_WITH_HOMES, &alone, "lost with homes");
    kva_guest_worker_destroy(lent.worker);
    kva_guests_destroy(lent.guests);
    kva_device_close(lent.worker_device);
    close_side(&lent.creditor);
    close_side(&lent.debtor);
    kva_model_close(lent.model);
    return 0;
}
