/* masks.c - states that follow a grammar, and the threads that make their masks.
 *
 * A state is the engine's, which asks (take, expect) and later waits for what it asked for (mask);
 * between the two a thread has it. What is asked is noted under the lock, so that asking never
 * waits. Only one thread at a time works on a state; it alone touches the matcher. */
#include "server/grammar/internal.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A mask that came later than this was slow: its sequence's next one is not waited for. Normal ones
 * take tens of microseconds, and a step some milliseconds. */
#define SLOW_NS (5 * KVA_NS_PER_MS)
/* How long a step waits that has nobody in it. */
#define WAIT_NS (2 * KVA_NS_PER_MS)

static const double mask_bounds[] = {5e-6, 1e-5, 2e-5,   3e-5,   5e-5, 7.5e-5, 1e-4,
                                     2e-4, 5e-4, 1e-3,   2e-3,   5e-3, 1e-2,   2e-2,
                                     5e-2, 1e-1, 2.5e-1, 5.0e-1, 1.0};

/* What is wanted of a state. */
struct wish {
    bool first; /* the mask of the beginning */
    bool take;
    uint32_t token;
    bool expect;
    uint32_t expected;
};

struct kva_constraint_state {
    struct kva_grammar_entry *entry;
    struct kva_masks *masks;

    /* Under the lock. */
    struct kva_list link; /* of the queue */
    bool queued;
    bool busy;    /* a thread has it */
    bool closing; /* and frees it */
    struct wish wish;
    bool ready;        /* `mask` is what was asked for last, or `status` says why not */
    bool expect_asked; /* since the last take */
    bool behind_ready;
    bool slow;
    uint64_t asked_ns;
    enum kva_status status, behind_status;

    /* The thread's, and the engine's once they are ready. */
    struct kva_grammar_matcher *matcher;
    uint32_t *mask, *behind;
    bool has_behind; /* `behind` is of `followed`, which may be the next token */
    uint32_t followed;
    bool broken; /* the matcher has no meaning any more */
};

/* --- on a thread ----------------------------------------------------------------------------- */

static enum kva_status make_mask(struct kva_constraint_state *s, uint32_t *mask)
{
    return kva_grammar_matcher_mask(s->matcher, mask, &s->entry->grammars->params.work);
}

static enum kva_status take_token(struct kva_constraint_state *s, uint32_t token)
{
    const struct kva_grammar_work *work = &s->entry->grammars->params.work;
    bool followed = s->has_behind && s->followed == token;
    s->has_behind = false;
    enum kva_status status = kva_grammar_matcher_take(s->matcher, token, work);
    if (status)
        return status;
    if (!followed)
        return make_mask(s, s->mask);
    uint32_t *mask = s->mask;
    s->mask = s->behind;
    s->behind = mask;
    return KVA_OK;
}

static enum kva_status follow(struct kva_constraint_state *s, uint32_t token)
{
    s->has_behind = false;
    enum kva_status status =
        kva_grammar_matcher_take(s->matcher, token, &s->entry->grammars->params.work);
    if (status)
        return status;
    status = make_mask(s, s->behind);
    if (status != KVA_ETOOBIG)
        kva_grammar_matcher_undo(s->matcher);
    s->has_behind = status == KVA_OK;
    s->followed = token;
    return status;
}

static void state_free(struct kva_constraint_state *s)
{
    kva_grammar_matcher_destroy(s->matcher);
    free(s->mask);
    free(s->behind);
    kva_grammar_entry_release(s->entry);
    free(s);
}

/* Under the lock. */
static void enqueue(struct kva_constraint_state *s)
{
    if (s->queued || s->busy)
        return;
    s->queued = true;
    kva_list_append(&s->masks->queue, &s->link);
    pthread_cond_signal(&s->masks->work);
}

/* Under the lock, which is given up while there is work. */
static void work_on(struct kva_masks *masks, struct kva_constraint_state *s)
{
    const struct wish wish = s->wish;
    s->wish = (struct wish){.first = false};
    s->busy = true;
    pthread_mutex_unlock(&masks->lock);
    uint64_t begun_ns = kva_time_ns();
    enum kva_status status = s->broken ? KVA_ETOOBIG : KVA_OK;
    if (!status && wish.take)
        status = take_token(s, wish.token);
    else if (!status && wish.first)
        status = make_mask(s, s->mask);
    s->broken = s->broken || status == KVA_ETOOBIG;
    uint64_t ended_ns = kva_time_ns();
    pthread_mutex_lock(&masks->lock);
    if (wish.take || wish.first) {
        kva_histogram_observe(&masks->seconds, (double)(ended_ns - begun_ns) / KVA_NS_PER_S);
        s->slow = ended_ns - s->asked_ns > SLOW_NS;
        s->status = status;
        s->ready = true;
        pthread_cond_broadcast(&masks->ready);
    }
    if (wish.expect) {
        pthread_mutex_unlock(&masks->lock);
        status = s->broken ? KVA_ETOOBIG : follow(s, wish.expected);
        s->broken = s->broken || status == KVA_ETOOBIG;
        pthread_mutex_lock(&masks->lock);
        /* Not if a token was taken meanwhile. */
        s->behind_ready = !s->wish.take;
        s->behind_status = status;
        pthread_cond_broadcast(&masks->ready);
    }
    s->busy = false;
    if (s->closing) {
        pthread_mutex_unlock(&masks->lock);
        state_free(s);
        pthread_mutex_lock(&masks->lock);
    } else if (s->wish.take || s->wish.expect) {
        enqueue(s);
    }
}

static void *mask_thread(void *opaque)
{
    struct kva_masks *masks = opaque;
    pthread_mutex_lock(&masks->lock);
    for (;;) {
        while (kva_list_empty(&masks->queue) && !masks->stopping)
            pthread_cond_wait(&masks->work, &masks->lock);
        if (kva_list_empty(&masks->queue))
            break;
        struct kva_constraint_state *s =
            KVA_CONTAINER_OF(masks->queue.next, struct kva_constraint_state, link);
        kva_list_remove(&s->link);
        s->queued = false;
        work_on(masks, s);
    }
    pthread_mutex_unlock(&masks->lock);
    return NULL;
}

void kva_masks_seconds_init(struct kva_histogram *seconds)
{
    kva_histogram_init(seconds, mask_bounds, KVA_COUNT_OF(mask_bounds));
}

enum kva_status kva_masks_start(struct kva_grammars *g, struct kva_err *err)
{
    struct kva_masks *masks = &g->masks;
    uint32_t count = kva_min_u32(kva_max_u32(g->params.mask_threads, 1), KVA_MASK_THREADS_MAX);
    kva_list_init(&masks->queue);
    kva_masks_seconds_init(&masks->seconds);
    pthread_mutex_init(&masks->lock, NULL);
    pthread_cond_init(&masks->work, NULL);
    pthread_cond_init(&masks->ready, NULL);
    for (; masks->thread_count < count; masks->thread_count++) {
        if (pthread_create(&masks->threads[masks->thread_count], NULL, mask_thread, masks) == 0)
            continue;
        kva_masks_stop(g);
        return kva_fail(err, KVA_ENOMEM, "the system refuses a thread for masks");
    }
    return KVA_OK;
}

void kva_masks_stop(struct kva_grammars *g)
{
    struct kva_masks *masks = &g->masks;
    pthread_mutex_lock(&masks->lock);
    masks->stopping = true;
    pthread_cond_broadcast(&masks->work);
    pthread_mutex_unlock(&masks->lock);
    for (uint32_t i = 0; i < masks->thread_count; i++)
        pthread_join(masks->threads[i], NULL);
    pthread_cond_destroy(&masks->ready);
    pthread_cond_destroy(&masks->work);
    pthread_mutex_destroy(&masks->lock);
}

/* --- the engine's side ----------------------------------------------------------------------- */

static struct kva_grammar_entry *entry_of(struct kva_constraint *constraint)
{
    return KVA_CONTAINER_OF(constraint, struct kva_grammar_entry, constraint);
}

static void hold(struct kva_constraint *constraint)
{
    atomic_fetch_add(&entry_of(constraint)->references, 1);
}

static void release(struct kva_constraint *constraint)
{
    kva_grammar_entry_release(entry_of(constraint));
}

static enum kva_status begin(struct kva_constraint *constraint, struct kva_constraint_state **ret,
                             struct kva_err *err)
{
    struct kva_grammar_entry *entry = entry_of(constraint);
    struct kva_constraint_state *s = calloc(1, sizeof(*s));
    if (!s)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a grammar's state");
    hold(constraint);
    s->entry = entry;
    s->masks = &entry->grammars->masks;
    uint32_t words = kva_grammar_mask_words(entry->grammars->params.vocab.vocab_size);
    s->mask = calloc(words, sizeof(*s->mask));
    s->behind = calloc(words, sizeof(*s->behind));
    enum kva_status status = s->mask && s->behind
                                 ? kva_grammar_matcher_create(entry->grammar, &s->matcher, err)
                                 : kva_fail(err, KVA_ENOMEM, "out of memory for a mask");
    if (status) {
        state_free(s);
        return status;
    }
    pthread_mutex_lock(&s->masks->lock);
    s->wish.first = true;
    s->asked_ns = kva_time_ns();
    enqueue(s);
    pthread_mutex_unlock(&s->masks->lock);
    *ret = s;
    return KVA_OK;
}

static void end(struct kva_constraint_state *s)
{
    struct kva_masks *masks = s->masks;
    pthread_mutex_lock(&masks->lock);
    if (s->queued)
        kva_list_remove(&s->link);
    s->queued = false;
    s->closing = true;
    bool busy = s->busy;
    pthread_mutex_unlock(&masks->lock);
    if (!busy)
        state_free(s);
}

static void take(struct kva_constraint_state *s, uint32_t token)
{
    pthread_mutex_lock(&s->masks->lock);
    /* A token that nobody asked the mask of: the one before it has to be taken first. */
    while (s->wish.take || s->wish.first)
        pthread_cond_wait(&s->masks->ready, &s->masks->lock);
    s->wish = (struct wish){.take = true, .token = token};
    s->ready = s->behind_ready = s->expect_asked = false;
    s->asked_ns = kva_time_ns();
    enqueue(s);
    pthread_mutex_unlock(&s->masks->lock);
}

static void expect(struct kva_constraint_state *s, uint32_t token)
{
    pthread_mutex_lock(&s->masks->lock);
    if (!s->expect_asked) {
        s->expect_asked = true;
        s->wish.expect = true;
        s->wish.expected = token;
        enqueue(s);
    }
    pthread_mutex_unlock(&s->masks->lock);
}

static enum kva_status mask(struct kva_constraint_state *s, bool behind_expected,
                            const uint32_t **ret)
{
    pthread_mutex_lock(&s->masks->lock);
    enum kva_status status = KVA_EINVAL;
    if (!behind_expected) {
        while (!s->ready)
            pthread_cond_wait(&s->masks->ready, &s->masks->lock);
        status = s->status;
    } else if (s->expect_asked) {
        while (!s->behind_ready)
            pthread_cond_wait(&s->masks->ready, &s->masks->lock);
        status = s->behind_status;
    }
    if (!status)
        *ret = behind_expected ? s->behind : s->mask;
    pthread_mutex_unlock(&s->masks->lock);
    return status;
}

static bool is_late(struct kva_constraint_state *s)
{
    pthread_mutex_lock(&s->masks->lock);
    bool late = s->slow && !s->ready;
    s->masks->late += late;
    pthread_mutex_unlock(&s->masks->lock);
    return late;
}

static void wait_late(struct kva_constraint_state *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)WAIT_NS;
    until.tv_sec += until.tv_nsec / (long)KVA_NS_PER_S;
    until.tv_nsec %= (long)KVA_NS_PER_S;
    pthread_mutex_lock(&s->masks->lock);
    if (!s->ready)
        pthread_cond_timedwait(&s->masks->ready, &s->masks->lock, &until);
    pthread_mutex_unlock(&s->masks->lock);
}

const struct kva_constraint_ops kva_grammar_constraint_ops = {
    .hold = hold,
    .release = release,
    .begin = begin,
    .end = end,
    .take = take,
    .expect = expect,
    .mask = mask,
    .is_late = is_late,
    .wait = wait_late,
};
