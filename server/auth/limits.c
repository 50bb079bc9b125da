/* limits.c - what a key uses, against what it may. */
#include "server/auth/internal.h"

#include "base/clock.h"

#include <math.h>

#define MINUTE_NS (60.0 * (double)KVA_NS_PER_S)

void kva_bucket_fill(struct kva_bucket *bucket, double per_minute, double capacity, uint64_t now_ns)
{
    if (!bucket->started) {
        *bucket = (struct kva_bucket){.level = capacity, .since_ns = now_ns, .started = true};
        return;
    }
    if (now_ns > bucket->since_ns) {
        bucket->level += (double)(now_ns - bucket->since_ns) * per_minute / MINUTE_NS;
        bucket->since_ns = now_ns;
    }
    bucket->level = fmin(bucket->level, capacity);
}

uint32_t kva_bucket_wait_s(const struct kva_bucket *bucket, double per_minute, double want)
{
    double seconds = ceil((want - bucket->level) * 60.0 / per_minute - 1e-6);
    return seconds < 1 ? 1 : seconds > 86400 ? 86400 : (uint32_t)seconds;
}

static struct kva_key *find(struct kva_auth *auth, int key)
{
    return key >= 0 && (uint32_t)key < auth->count ? &auth->keys[key] : NULL;
}

enum kva_status kva_auth_take(struct kva_auth *auth, int key, uint64_t now_ns,
                              uint32_t *ret_retry_s, struct kva_err *err)
{
    struct kva_key *entry = find(auth, key);
    if (!entry)
        return KVA_OK;
    uint32_t rate = entry->limits.requests_per_minute;
    if (rate > 0) {
        kva_bucket_fill(&entry->requests, rate, rate, now_ns);
        if (entry->requests.level < 1) {
            auth->refused[KVA_AUTH_REQUESTS]++;
            *ret_retry_s = kva_bucket_wait_s(&entry->requests, rate, 1);
            return kva_fail(err, KVA_ERATE,
                            "This key has made its %u requests per minute (requests-per-minute); "
                            "retry in %u s.",
                            rate, *ret_retry_s);
        }
        entry->requests.level -= 1;
    }
    auth->rows[entry->row].requests++;
    return KVA_OK;
}

static enum kva_status check_tokens(struct kva_auth *auth, struct kva_key *entry, uint64_t tokens,
                                    uint64_t now_ns, uint32_t *ret_retry_s, struct kva_err *err)
{
    uint32_t rate = entry->limits.tokens_per_minute;
    if (rate == 0)
        return KVA_OK;
    if (tokens > rate)
        return kva_fail(err, KVA_EINVAL,
                        "The request has %llu tokens, prompt and requested output; this key may "
                        "use %u per minute (tokens-per-minute).",
                        (unsigned long long)tokens, rate);
    kva_bucket_fill(&entry->tokens, rate, rate, now_ns);
    if (entry->tokens.level >= (double)tokens)
        return KVA_OK;
    auth->refused[KVA_AUTH_TOKENS]++;
    *ret_retry_s = kva_bucket_wait_s(&entry->tokens, rate, (double)tokens);
    return kva_fail(
        err, KVA_ERATE,
        "The request has %llu tokens, prompt and requested output, and %.0f are left "
        "of the %u that this key may use per minute (tokens-per-minute); retry in %u s.",
        (unsigned long long)tokens, fmax(entry->tokens.level, 0), rate, *ret_retry_s);
}

/* Its own bound on what waits, then its share of the queue. */
static enum kva_status check_waiting(struct kva_auth *auth, struct kva_key *entry,
                                     const struct kva_auth_work *work, uint32_t *ret_retry_s,
                                     struct kva_err *err)
{
    uint32_t limit = entry->limits.waiting, waiting = entry->waiting;
    if (limit > 0 && work->choices > limit)
        return kva_fail(err, KVA_EINVAL,
                        "The request has %u choices; of this key %u may wait at once (waiting).",
                        work->choices, limit);
    if (limit > 0 && (uint64_t)waiting + work->choices > limit) {
        auth->refused[KVA_AUTH_WAITING]++;
        *ret_retry_s = 1;
        return kva_fail(err, KVA_ERATE,
                        "%u choices of this key wait and the request has %u more; %u may wait at "
                        "once (waiting); retry in %u s.",
                        waiting, work->choices, limit, *ret_retry_s);
    }
    /* Nobody else can come: the queue's own bound is enough. */
    if (work->waiting_max == 0 || auth->live_count < 2)
        return KVA_OK;
    uint64_t others = auth->waiting - waiting;
    uint64_t room = work->waiting_max > others ? work->waiting_max - others : 0;
    uint64_t weight = entry->limits.weight;
    /* waiting + choices <= weight * (room - waiting - choices) */
    uint64_t share = room * weight / (weight + 1);
    if ((uint64_t)waiting + work->choices <= share)
        return KVA_OK;
    if (work->choices > work->waiting_max * weight / (weight + 1))
        return kva_fail(
            err, KVA_EINVAL,
            "The request has %u choices; one key may have %llu in the queue of %u.", work->choices,
            (unsigned long long)(work->waiting_max * weight / (weight + 1)), work->waiting_max);
    return kva_fail(err, KVA_EBUSY,
                    "The queue is full for this key: %u of its choices wait and the request has %u "
                    "more; its share is %llu of %u now; retry later.",
                    waiting, work->choices, (unsigned long long)share, work->waiting_max);
}

enum kva_status kva_auth_enter(struct kva_auth *auth, int key, const struct kva_auth_work *work,
                               uint64_t now_ns, uint32_t *ret_retry_s, struct kva_err *err)
{
    struct kva_key *entry = find(auth, key);
    if (!entry)
        return KVA_OK;
    enum kva_status status = check_waiting(auth, entry, work, ret_retry_s, err);
    if (status == KVA_OK)
        status = check_tokens(auth, entry, work->tokens, now_ns, ret_retry_s, err);
    if (status != KVA_OK)
        return status;
    entry->tokens.level -= (double)work->tokens;
    entry->waiting += work->choices;
    auth->waiting += work->choices;
    return KVA_OK;
}

void kva_auth_begun(struct kva_auth *auth, int key, uint32_t choices)
{
    struct kva_key *entry = find(auth, key);
    if (!entry)
        return;
    choices = kva_min_u32(choices, entry->waiting);
    entry->waiting -= choices;
    auth->waiting -= choices;
}

void kva_auth_settle(struct kva_auth *auth, int key, uint64_t tokens_entered, uint64_t tokens_used)
{
    struct kva_key *entry = find(auth, key);
    if (!entry)
        return;
    entry->tokens.level += (double)tokens_entered - (double)tokens_used;
    auth->rows[entry->row].tokens += tokens_used;
}
