#include "tests/cmocka.h"

#include "tests/engine/lent_world.h"

#include <string.h>

static char folder[FIXTURE_PATH_BYTES], windowed[FIXTURE_PATH_BYTES], deep[FIXTURE_PATH_BYTES];

#define MODEL(TYPE, ARCHITECTURE, MORE)                                                            \
    "{\"model_type\":\"" TYPE "\",\"architectures\":[\"" ARCHITECTURE "\"],\"hidden_size\":64,"    \
    "\"intermediate_size\":96,\"num_hidden_layers\":3,\"num_attention_heads\":4,"                  \
    "\"num_key_value_heads\":2,\"vocab_size\":300,\"max_position_embeddings\":1400,"               \
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","                        \
    "\"tie_word_embeddings\":false," MORE "\"torch_dtype\":\"bfloat16\"}"

static const char deep_config[] =
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,"
    "\"intermediate_size\":48,\"num_hidden_layers\":20,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":16,\"vocab_size\":300,"
    "\"max_position_embeddings\":1400,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"}";

int lent_make_models(void **state KVA_UNUSED)
{
    fixture_make_model(MODEL("llama", "LlamaForCausalLM", ""), 4, CONTEXT_MAX, folder);
    fixture_make_model(MODEL("mistral", "MistralForCausalLM", "\"sliding_window\":300,"), 5,
                       CONTEXT_MAX, windowed);
    fixture_make_model(deep_config, 6, CONTEXT_MAX, deep);
    return 0;
}

int lent_remove_models(void **state KVA_UNUSED)
{
    fixture_remove_model(folder);
    fixture_remove_model(windowed);
    fixture_remove_model(deep);
    return 0;
}

const char *lent_model(bool with_windows)
{
    return with_windows ? windowed : folder;
}

const char *lent_deep_model(void)
{
    return deep;
}

/* --- a debtor and its creditors -------------------------------------------------------------- */

static void open_world(struct lent_world *w, struct fixture_params params)
{
    params.context_max = CONTEXT_MAX;
    params.step_tokens_max = 64;
    params.copy_delay_max_us = 50;
    params.seed = 9;
    params.threads = 1;
    struct fixture_params creditor = params;
    creditor.device_bytes = 0;
    creditor.waits = false;
    loopback_open(&w->net, &creditor);
    params.remote = &w->net.remote;
    fixture_open(&w->debtor, &params);
}

void lent_open(struct lent_world *w, const char *model, uint32_t levels)
{
    lent_open_small(w, model, levels, 0);
}

void lent_open_small(struct lent_world *w, const char *model, uint32_t levels,
                     uint64_t device_bytes)
{
    open_world(w, (struct fixture_params){
                      .model_path = model, .cpu_level_mask = levels, .device_bytes = device_bytes});
    if (device_bytes > 0)
        kva_lending_set_others(w->debtor.engine, UINT64_MAX);
}

void lent_open_cached(struct lent_world *w, const char *model)
{
    open_world(w, (struct fixture_params){.model_path = model, .prefix_cache = true});
}

void lent_open_waiting(struct lent_world *w, const char *model)
{
    open_world(w, (struct fixture_params){.model_path = model, .waits = true});
}

void lent_close(struct lent_world *w)
{
    fixture_close(&w->debtor);
    loopback_close(&w->net);
}

/* --- a sequence that talks ------------------------------------------------------------------- */

/* What is drawn depends on how many tokens came before, and on which. */
static struct kva_sampling_params drawing(void)
{
    struct kva_sampling_params sampling = fixture_greedy();
    sampling.temperature = 0.8f;
    sampling.presence_penalty = 0.5f;
    sampling.seed = 77;
    sampling.logprobs = 0;
    return sampling;
}

void talker_begin(struct talker *t, struct lent_world *w, uint32_t prompt_tokens,
                  struct kva_kv_spec spec)
{
    *t = (struct talker){.world = w, .sampling = drawing()};
    fixture_prompt(t->prompt, prompt_tokens, VOCAB, prompt_tokens);
    t->seq =
        fixture_start(&w->debtor, &(struct kva_sequence_params){.prompt = t->prompt,
                                                                .prompt_tokens = prompt_tokens,
                                                                .tokens_max = prompt_tokens + STEPS,
                                                                .sampling = &t->sampling,
                                                                .kv = spec});
}

static void take(struct talker *t, const struct kva_step_item *item)
{
    struct kva_err err;
    const struct kva_engine *e = t->world->debtor.engine;
    uint32_t cached;
    assert_int_equal(item->status, KVA_OK);
    if (item->lost) {
        assert_false(item->emitted);
        assert_int_equal(e->ops->restart(e->self, t->seq, &err), KVA_OK);
        assert_int_equal(e->ops->admit(e->self, t->seq, &cached, NULL, &err), KVA_OK);
        t->restarts++;
        return;
    }
    t->retries += !item->emitted && item->prefill_tokens == 0;
    t->parked = item->parked;
    if (!item->emitted)
        return;
    t->talk.tokens[t->done] = item->token.token;
    t->talk.logprobs[t->done++] = item->token.chosen.logprob;
}

/* Room for the next token; false: it is parked for lack of it. */
static bool grow(struct talker *t)
{
    struct kva_err err;
    const struct kva_engine *e = t->world->debtor.engine;
    enum kva_status status = e->ops->grow(e->self, t->seq, &err);
    if (status == KVA_OK)
        return true;
    assert_int_equal(status, KVA_ELIMIT);
    assert_true(e->ops->resume_bytes(e->self, t->seq) + kva_lending_page_bytes(e) >
                e->limits.budget.device);
    e->ops->suspend(e->self, t->seq);
    t->parked = true;
    return false;
}

void talker_resume(struct talker *t)
{
    struct kva_err err = {0};
    const struct kva_engine *e = t->world->debtor.engine;
    if (e->ops->resume(e->self, t->seq, &err) != KVA_OK)
        fail_msg("%s", err.message);
    t->parked = false;
}

/* Steps of all of them together until each has `until` tokens, or is parked. */
void talkers_run(struct talker *const *talkers, uint32_t count, uint32_t until)
{
    struct kva_err err;
    const struct kva_engine *e = talkers[0]->world->debtor.engine;
    for (;;) {
        struct kva_step_item items[8];
        struct talker *owners[8];
        uint32_t n = 0;
        for (uint32_t i = 0; i < count; i++) {
            struct talker *t = talkers[i];
            if (t->done >= until || t->parked)
                continue;
            /* Prefills take their quota, and a decoding sequence ignores it. */
            struct kva_sequence_info info;
            e->ops->sequence_info(e->self, t->seq, &info);
            bool prompt = t->restarts > 0 ? info.kept_tokens < 1 : t->done == 0;
            if (!prompt && !grow(t))
                continue;
            uint32_t quota = t->quota ? t->quota : 50;
            owners[n] = t;
            items[n++] =
                (struct kva_step_item){.seq = t->seq, .prefill_tokens = prompt ? quota : 0};
        }
        if (n == 0)
            return;
        assert_int_equal(e->ops->step(e->self, items, n, &err), KVA_OK);
        for (uint32_t i = 0; i < n; i++)
            take(owners[i], &items[i]);
    }
}

void talker_speak(struct talker *t, uint32_t until)
{
    talkers_run(&t, 1, until);
}

void talker_end(struct talker *t)
{
    const struct kva_engine *e = t->world->debtor.engine;
    e->ops->destroy(e->self, t->seq);
}

struct talk talk_alone(struct lent_world *w, uint32_t prompt_tokens, struct kva_kv_spec spec)
{
    struct talker t;
    talker_begin(&t, w, prompt_tokens, spec);
    talker_speak(&t, STEPS);
    talker_end(&t);
    return t.talk;
}

void talk_expect_bits(const struct talk *got, const struct talk *want)
{
    assert_memory_equal(got->tokens, want->tokens, sizeof(want->tokens));
    assert_memory_equal(got->logprobs, want->logprobs, sizeof(want->logprobs));
}

struct kva_tier_bytes talker_bytes(const struct talker *t)
{
    const struct kva_engine *e = t->world->debtor.engine;
    struct kva_sequence_info info;
    e->ops->sequence_info(e->self, t->seq, &info);
    return info.bytes;
}

/* Nothing of anybody is left anywhere. */
void lent_expect_empty(const struct lent_world *w)
{
    struct kva_engine_usage usage;
    w->debtor.engine->ops->usage(w->debtor.engine->self, &usage);
    assert_int_equal(usage.used.host, usage.cached.host);
    for (uint32_t i = 0; i < LOOPBACK_CREDITORS; i++) {
        const struct kva_engine *e = w->net.creditors[i].fixture.engine;
        e->ops->usage(e->self, &usage);
        assert_int_equal(usage.used.device, 0);
        assert_int_equal(usage.used.host, 0);
    }
}
