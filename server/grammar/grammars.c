/* grammars.c - making grammars, and keeping those that were used last. */
#include "server/grammar/internal.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How often whoever waits for another thread's grammar looks whether somebody still wants it. */
#define LOOK_NS (100 * KVA_NS_PER_MS)

static const double make_bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                     0.25,   0.5,   1.0,    2.5,   5.0,  10.0,  30.0};

/* --- entries --------------------------------------------------------------------------------- */

/* FNV-1a; the text is compared in full, too. */
static uint64_t hash_of(const struct kva_grammar_source *source)
{
    uint64_t hash = 14695981039346656037ull + (uint64_t)source->kind * 2 + source->strict;
    for (size_t i = 0; i < source->length; i++)
        hash = (hash ^ (unsigned char)source->text[i]) * 1099511628211ull;
    return hash;
}

static bool is_same(const struct kva_grammar_source *a, const struct kva_grammar_source *b)
{
    return a->kind == b->kind && a->strict == b->strict && a->length == b->length &&
           memcmp(a->text, b->text, a->length) == 0;
}

static struct kva_grammar_entry *entry_at(struct kva_list *at)
{
    return KVA_CONTAINER_OF(at, struct kva_grammar_entry, link);
}

void kva_grammar_entry_release(struct kva_grammar_entry *entry)
{
    if (atomic_fetch_sub(&entry->references, 1) != 1)
        return;
    kva_grammar_destroy(entry->grammar);
    free(entry);
}

static struct kva_grammar_entry *
entry_create(struct kva_grammars *g, const struct kva_grammar_source *source, uint64_t hash)
{
    struct kva_grammar_entry *entry = calloc(1, sizeof(*entry) + source->length + 1);
    if (!entry)
        return NULL;
    entry->constraint.ops = &kva_grammar_constraint_ops;
    entry->grammars = g;
    entry->making = true;
    entry->hash = hash;
    entry->source = *source;
    memcpy(entry->text, source->text, source->length);
    entry->source.text = entry->text;
    atomic_init(&entry->references, 2); /* the list's, and whoever makes it */
    return entry;
}

/* Under the lock, as are the next ones. */
static struct kva_grammar_entry *find(struct kva_grammars *g,
                                      const struct kva_grammar_source *source, uint64_t hash)
{
    for (struct kva_list *at = g->entries.next; at != &g->entries; at = at->next) {
        struct kva_grammar_entry *entry = entry_at(at);
        if (entry->hash == hash && is_same(&entry->source, source))
            return entry;
    }
    return NULL;
}

static void list_first(struct kva_grammars *g, struct kva_grammar_entry *entry)
{
    /* Before the first is behind the head. */
    entry->link.prev = &g->entries;
    entry->link.next = g->entries.next;
    g->entries.next->prev = &entry->link;
    g->entries.next = &entry->link;
}

static void unlist(struct kva_grammars *g, struct kva_grammar_entry *entry)
{
    if (!entry->listed)
        return;
    entry->listed = false;
    kva_list_remove(&entry->link);
    g->kept--;
    g->kept_bytes -= entry->bytes;
    kva_grammar_entry_release(entry);
}

/* The least recently used go, but not `keep`, nor those that are being made. */
static void shrink(struct kva_grammars *g, const struct kva_grammar_entry *keep)
{
    struct kva_list *at = g->entries.prev;
    while (at != &g->entries &&
           (g->kept > g->params.kept_max || g->kept_bytes > g->params.kept_bytes)) {
        struct kva_grammar_entry *entry = entry_at(at);
        at = at->prev;
        if (entry != keep && !entry->making)
            unlist(g, entry);
    }
}

/* A grammar grows with what follows it. */
static void measure(struct kva_grammars *g, struct kva_grammar_entry *entry)
{
    if (!entry->grammar || !entry->listed)
        return;
    g->kept_bytes -= entry->bytes;
    entry->bytes = kva_grammar_bytes(entry->grammar) + sizeof(*entry) + entry->source.length;
    g->kept_bytes += entry->bytes;
    shrink(g, entry);
}

/* --- making ---------------------------------------------------------------------------------- */

static void make(struct kva_grammars *g, struct kva_grammar_entry *entry)
{
    struct kva_err err = {.status = KVA_OK};
    struct kva_grammar *grammar = NULL;
    uint64_t begun_ns = kva_time_ns();
    enum kva_status status =
        kva_grammar_create(g->vocab, &entry->source, &g->params.limits, &grammar, &err);
    pthread_mutex_lock(&g->lock);
    kva_histogram_observe(&g->make_seconds, (double)(kva_time_ns() - begun_ns) / KVA_NS_PER_S);
    entry->making = false;
    entry->status = status;
    entry->err = err;
    if (status) {
        g->failures++;
        unlist(g, entry);
    } else {
        entry->grammar = grammar;
        measure(g, entry);
    }
    pthread_cond_broadcast(&g->made);
    pthread_mutex_unlock(&g->lock);
}

/* Under the lock, which is given up meanwhile. */
static bool wait_made(struct kva_grammars *g, const struct kva_grammar_entry *entry,
                      const atomic_bool *cancelled)
{
    while (entry->making) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (long)LOOK_NS;
        until.tv_sec += until.tv_nsec / (long)KVA_NS_PER_S;
        until.tv_nsec %= (long)KVA_NS_PER_S;
        pthread_cond_timedwait(&g->made, &g->lock, &until);
        if (cancelled && atomic_load(cancelled))
            return false;
    }
    return true;
}

bool kva_grammars_holds(struct kva_grammars *g, const struct kva_grammar_source *source)
{
    pthread_mutex_lock(&g->lock);
    const struct kva_grammar_entry *entry = find(g, source, hash_of(source));
    bool result = entry && !entry->making;
    pthread_mutex_unlock(&g->lock);
    return result;
}

enum kva_status kva_grammars_get(struct kva_grammars *g, const struct kva_grammar_source *source,
                                 const atomic_bool *cancelled, struct kva_constraint **ret,
                                 struct kva_err *err)
{
    uint64_t hash = hash_of(source);
    bool waited = true;
    pthread_mutex_lock(&g->lock);
    struct kva_grammar_entry *entry = find(g, source, hash);
    if (entry) {
        g->hits++;
        atomic_fetch_add(&entry->references, 1);
        kva_list_remove(&entry->link);
        list_first(g, entry);
        measure(g, entry);
        waited = wait_made(g, entry, cancelled);
        pthread_mutex_unlock(&g->lock);
    } else {
        g->misses++;
        entry = entry_create(g, source, hash);
        if (entry) {
            entry->listed = true;
            g->kept++;
            list_first(g, entry);
        }
        pthread_mutex_unlock(&g->lock);
        if (!entry)
            return kva_fail(err, KVA_ENOMEM, "out of memory for a grammar");
        make(g, entry);
    }
    enum kva_status status = waited ? entry->status : KVA_ECANCELLED;
    if (status == KVA_OK) {
        *ret = &entry->constraint;
        return KVA_OK;
    }
    if (err && waited)
        *err = entry->err;
    kva_grammar_entry_release(entry);
    return waited ? status : kva_fail(err, status, "nobody waits for the grammar any more");
}

/* --- life ------------------------------------------------------------------------------------ */

enum kva_status kva_grammars_create(const struct kva_grammars_params *params,
                                    struct kva_grammars **ret, struct kva_err *err)
{
    struct kva_grammars *g = calloc(1, sizeof(*g));
    if (!g)
        return kva_fail(err, KVA_ENOMEM, "out of memory for grammars");
    g->params = *params;
    kva_list_init(&g->entries);
    kva_histogram_init(&g->make_seconds, make_bounds, KVA_COUNT_OF(make_bounds));
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->made, NULL);
    enum kva_status status = kva_grammar_vocab_create(&params->vocab, &g->vocab, err);
    if (!status)
        status = kva_masks_start(g, err);
    if (status) {
        kva_grammar_vocab_destroy(g->vocab);
        pthread_cond_destroy(&g->made);
        pthread_mutex_destroy(&g->lock);
        free(g);
        return status;
    }
    *ret = g;
    return KVA_OK;
}

void kva_grammars_destroy(struct kva_grammars *g)
{
    if (!g)
        return;
    kva_masks_stop(g);
    while (!kva_list_empty(&g->entries))
        unlist(g, entry_at(g->entries.next));
    kva_grammar_vocab_destroy(g->vocab);
    pthread_cond_destroy(&g->made);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

void kva_grammars_get_stats(struct kva_grammars *g, struct kva_grammars_stats *ret)
{
    *ret = (struct kva_grammars_stats){.hits = 0};
    kva_histogram_init(&ret->make_seconds, make_bounds, KVA_COUNT_OF(make_bounds));
    kva_masks_seconds_init(&ret->mask_seconds);
    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    ret->hits = g->hits;
    ret->misses = g->misses;
    ret->failures = g->failures;
    ret->kept = g->kept;
    ret->kept_bytes = g->kept_bytes;
    ret->make_seconds = g->make_seconds;
    pthread_mutex_unlock(&g->lock);
    pthread_mutex_lock(&g->masks.lock);
    ret->late = g->masks.late;
    ret->mask_seconds = g->masks.seconds;
    pthread_mutex_unlock(&g->masks.lock);
}
