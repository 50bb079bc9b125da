/* fixture.h - an engine on a small model, and ways to drive it without a scheduler. */
#ifndef KVA_TESTS_ENGINE_FIXTURE_H
#define KVA_TESTS_ENGINE_FIXTURE_H

#include "engine/forward.h"
#include "engine/model/packed.h"
#include "engine/model_engine.h"
#include "kernels/device.h"
#include "kernels/ops.h"

struct kva_profile;

#define FIXTURE_PATH_BYTES 64

/* Instrumented programs take one of so many cases: theirs is another question. */
#if defined(__SANITIZE_THREAD__)
#define FIXTURE_EVERY 19
#elif defined(__SANITIZE_ADDRESS__)
#define FIXTURE_EVERY 5
#else
#define FIXTURE_EVERY 1
#endif
#define FIXTURE_QUICK (FIXTURE_EVERY > 1)

struct fixture_params {
    const char *model_path; /* relative to the source root, or absolute */
    uint32_t threads;
    uint32_t cpu_level_mask;
    uint32_t cpu_levels_emulated; /* amx_emulated_levels: what else may be in the mask */
    uint32_t copy_delay_max_us;
    uint64_t seed;
    uint64_t device_bytes; /* 0: plenty */
    uint64_t host_bytes;
    uint32_t context_max;
    uint32_t step_tokens_max; /* 0: 64 */
    bool prefix_cache;
    enum kva_model_weights weights; /* what matrices become; kept nowhere */
    bool unfused;                   /* a device without attend_select_fetch */
    bool waits;                     /* a device without attend_apart and attend_join */
    bool at_once; /* a device with weigh_choose, which leaves anything where weights would be */
    /* The model's skew, as a file would have it; NULL: there is none. */
    struct kva_skew *(*make_skew)(const struct kva_model *model);
    uint32_t planes_percent;         /* of the query weights (engine/planes.h) */
    struct kva_profile *profile;     /* counts the device's operators; NULL: nobody counts */
    const struct kva_remote *remote; /* the engine's */
};

struct fixture {
    struct kva_device *device;
    struct kva_model *model;
    struct kva_engine *engine;
    struct kva_ops fewer; /* the device's, if it is to have fewer */
};

/* Fails the test on any error. */
/* A checkpoint of noise in a new folder, whose path is written to `path`. */
void fixture_make_model(const char *config_json, uint64_t seed, uint32_t context_max,
                        char path[FIXTURE_PATH_BYTES]);
void fixture_remove_model(const char *path);

/* Calls of weigh_choose so far, of all devices that have it by `at_once`. */
uint32_t fixture_chosen_at_once(void);

/* The operators of such a device without it. */
const struct kva_ops *fixture_without_peaks(void);

void fixture_open(struct fixture *fixture, const struct fixture_params *params);
void fixture_close(struct fixture *fixture);

/* Greedy, nothing else. */
struct kva_sampling_params fixture_greedy(void);

/* The levels of this machine that do not round what meets bf16: two ways to the same attention give
 * the same numbers there, all but for the order of additions. */
uint32_t fixture_unrounded_levels(void);

/* A sequence as `params` describes it, admitted. */
struct kva_sequence *fixture_start(struct fixture *fixture,
                                   const struct kva_sequence_params *params);

/* Prefill in quotas of `quota` tokens; the first output token. */
uint32_t fixture_prefill(struct fixture *fixture, struct kva_sequence *seq, uint32_t quota);

/* One decode step of some sequences; tokens[i] is sequence i's. */
void fixture_decode(struct fixture *fixture, struct kva_sequence *const *seqs, uint32_t count,
                    uint32_t *tokens);

/* Prompt of `count` ids that look random, the same for the same seed, below `vocab`. */
void fixture_prompt(uint32_t *ids, uint32_t count, uint32_t vocab, uint64_t seed);

/* K and behind it V of a token of the view's sequence, in the KV's format, wherever its page is. */
const uint16_t *fixture_kv_row(const struct fixture *fixture, const struct kva_forward_view *view,
                               uint32_t kv_head, uint32_t token);

/* One number of such a row. */
double fixture_kv_number(const struct fixture *fixture, const uint16_t *at);

#endif
