/* lent_world.h - a debtor, its creditors (loopback.h), and sequences that talk there. */
#ifndef KVA_TESTS_ENGINE_LENT_WORLD_H
#define KVA_TESTS_ENGINE_LENT_WORLD_H

#include "tests/engine/loopback.h"
#include "tests/engine/trace.h"

enum { STEPS = 40, PROMPT_MAX = 1240, CONTEXT_MAX = 1400, PAGE = KVA_PAGE_TOKENS };

struct lent_world {
    struct loopback net;
    struct fixture debtor;
};

/* Checkpoints of noise, before and after a group of tests; one of them with sliding windows. */
int lent_make_models(void **state);
int lent_remove_models(void **state);
const char *lent_model(bool windowed);

/* A model of many layers, so that a few of them are little: what prompts are staged in. */
const char *lent_deep_model(void);

/* `levels` of the CPU, 0: all. */
void lent_open(struct lent_world *w, const char *model, uint32_t levels);

/* The same with a debtor of little device memory, whose creditors can lend as much as they like. */
void lent_open_small(struct lent_world *w, const char *model, uint32_t levels,
                     uint64_t device_bytes);

/* The same with a debtor that has a prefix cache. */
void lent_open_cached(struct lent_world *w, const char *model);

/* The same with a debtor whose device can only wait for answers. */
void lent_open_waiting(struct lent_world *w, const char *model);
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
    uint32_t quota;    /* of prompt tokens in a step; 0: 50 */
    uint32_t done;     /* tokens of the talk */
    uint32_t restarts; /* it was computed again */
    uint32_t retries;  /* steps that gave nothing */
    bool parked;       /* it waits until more of it is lent: talker_resume */
};

/* Tokens are drawn: each depends on how many came before, and on which. */
void talker_begin(struct talker *t, struct lent_world *w, uint32_t prompt_tokens,
                  struct kva_kv_spec spec);
void talker_end(struct talker *t);

/* Device memory for what is not lent. */
void talker_resume(struct talker *t);

/* Steps of all of them together until each has `until` tokens, or is parked; of one. */
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
