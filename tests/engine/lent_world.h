/* lent_world.h - a debtor, its creditors (loopback.h), and sequences that talk there. */
#ifndef KVA_TESTS_ENGINE_LENT_WORLD_H
#define KVA_TESTS_ENGINE_LENT_WORLD_H

#include "tests/engine/loopback.h"
#include "tests/engine/trace.h"

enum { STEPS = 40, PROMPT_MAX = 1000, CONTEXT_MAX = 1200, PAGE = KVA_PAGE_TOKENS };

struct lent_world {
    struct loopback net;
    struct fixture debtor;
};

/* Checkpoints of noise, before and after a group of tests; one of them with sliding windows. */
int lent_make_models(void **state);
int lent_remove_models(void **state);
const char *lent_model(bool windowed);

/* `levels` of the CPU, 0: all. */
void lent_open(struct lent_world *w, const char *model, uint32_t levels);
void lent_close(struct lent_world *w);

/* Nothing of anybody is left anywhere. */
void lent_expect_empty(const struct lent_world *w);

struct talk {
    uint32_t tokens[STEPS];
    float logprobs[STEPS];
};

struct talker {
    struct lent_world *world;
    struct kva_sequence *seq;
    struct kva_sampling_params sampling;
    uint32_t prompt[PROMPT_MAX];
    struct talk talk;
    uint32_t done;     /* tokens of the talk */
    uint32_t restarts; /* it was computed again */
    uint32_t retries;  /* steps that gave nothing */
};

/* Tokens are drawn: each depends on how many came before, and on which. */
void talker_begin(struct talker *t, struct lent_world *w, uint32_t prompt_tokens,
                  struct kva_kv_spec spec);
void talker_end(struct talker *t);

/* Steps of all of them together until each has `until` tokens; of one. */
void talkers_run(struct talker *const *talkers, uint32_t count, uint32_t until);
void talker_speak(struct talker *t, uint32_t until);

struct kva_tier_bytes talker_bytes(const struct talker *t);

/* What it says undisturbed. */
struct talk talk_alone(struct lent_world *w, uint32_t prompt_tokens, struct kva_kv_spec spec);
void talk_expect_bits(const struct talk *got, const struct talk *want);

static inline struct kva_kv_spec full(void)
{
    return kva_kv_spec_default(KVA_KV_FULL);
}

#endif
