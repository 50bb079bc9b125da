/* scripted_internal.h - what the scripted engine's own files share. */
#ifndef KVA_TESTS_SCHEDULER_SCRIPTED_INTERNAL_H
#define KVA_TESTS_SCHEDULER_SCRIPTED_INTERNAL_H

#include "tests/scheduler/scripted_engine.h"
#include "tests/scheduler/scripted_pages.h"

#include <pthread.h>

enum sequence_state { CREATED, ON_DEVICE, SUSPENDED };

struct kva_sequence {
    struct kva_sequence_params params;
    struct kva_sampling_params sampling;
    enum sequence_state state;
    uint64_t prompt_hash;
    uint64_t *page_hashes; /* of the prompt's full pages */
    uint32_t page_hash_count;
    struct scripted_page **shared; /* the prompt's first pages */
    uint32_t shared_count;
    uint32_t own_device_pages;
    uint32_t own_host_pages;
    uint32_t lent_pages; /* of own_device_pages */
    bool is_long;        /* longer than the device */
    bool wants_page;     /* there was no room to grow */
    bool broken;         /* what was lent is to come home, for which there is no room */
    uint32_t cached_tokens;
    uint32_t first_cached_tokens;
    bool was_admitted;
    uint32_t prefill_tokens; /* the prompt, and what had come out before a restart */
    uint32_t prefill_done;   /* cached ones included */
    bool lost;
    uint32_t outputs;
    uint32_t grown_outputs; /* when grow last succeeded */
    uint64_t last_step;
    struct kva_prompt_logprob *prompt_logprobs;
    float vector[KVA_SCRIPTED_WIDTH];
};

struct kva_scripted {
    struct kva_engine engine;
    struct kva_engine_ops ops;
    struct kva_scripted_params params;
    struct scripted_pool pool;
    struct kva_scripted_report report;
    uint32_t admitted;
    uint32_t on_device[KVA_KV_POLICY_COUNT];
    uint32_t partial_prefills; /* on the device or suspended */
    uint32_t failed_prefills;  /* of them, in the last step */
    uint64_t prefix_lookup_tokens;
    uint64_t prefix_hit_tokens;
    uint32_t others_used; /* pages */
    uint64_t asked, homes;
    uint64_t creates, items, decodes, losses, voids, admits, grows, prefill_grows, resumes;
    bool failed;
    bool has_thread;
    pthread_t thread;
};

/* engine.h: step. */
enum kva_status scripted_step(void *self, struct kva_step_item *items, uint32_t count,
                              struct kva_err *err);

static inline void check_thread(struct kva_scripted *e)
{
    if (!e->has_thread) {
        e->thread = pthread_self();
        e->has_thread = true;
    }
    SCRIPTED_CHECK(pthread_equal(e->thread, pthread_self()), "called on a second thread");
}

/* Every nth call fails. */
static inline bool injected(uint64_t *counter, uint32_t every)
{
    (*counter)++;
    return every != 0 && *counter % every == 0;
}

static inline struct kva_tier_bytes bytes_of(const struct kva_scripted *e,
                                             const struct kva_sequence *seq, uint32_t device_pages,
                                             uint32_t host_pages)
{
    const struct kva_tier_bytes *page = &e->params.page_bytes[seq->params.kv.policy];
    return (struct kva_tier_bytes){.device = device_pages * page->device,
                                   .host = host_pages * page->host};
}

/* Device pages of its own that a sequence has or takes, without those of the prefix cache. */
static inline uint32_t own_pages_here(const struct kva_sequence *seq)
{
    return seq->own_device_pages - seq->lent_pages;
}

/* scripted_step.c */
uint64_t scripted_resume_bytes(void *self, const struct kva_sequence *seq);
void scripted_come_home(struct kva_scripted *e, struct kva_sequence *seq);

static inline bool prefill_unfinished(const struct kva_sequence *seq)
{
    return seq->prefill_done < seq->prefill_tokens && seq->prefill_done > seq->cached_tokens;
}

static inline uint32_t device_capacity_tokens(const struct kva_scripted *e,
                                              const struct kva_sequence *seq)
{
    return (seq->shared_count + seq->own_device_pages) * e->params.page_tokens;
}

/* Tokens whose K and V are there: the newest output's come with the next decode. */
static inline uint32_t kv_tokens(const struct kva_sequence *seq)
{
    return seq->params.prompt_tokens + (seq->outputs > 0 ? seq->outputs - 1 : 0);
}

#endif
