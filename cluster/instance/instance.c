/* instance.c - an rManager's callbacks, carried out on an engine and a scheduler. */
#include "cluster/instance/instance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A request that may have loans: it was found lendable. */
struct borrower {
    uint64_t request;
    uint32_t generation;
};

/* How long a first in line has lacked memory. */
struct line {
    bool lacks;
    uint64_t request;
    uint64_t since_ns;
};

struct kva_instance {
    struct kva_instance_params params;
    struct kva_rmanager *rmanager;
    struct kva_guests *guests;
    size_t page_bytes;
    struct borrower *borrowers; /* [live_max] */
    uint32_t borrower_count;
    struct kva_choice_place *places; /* [live_max] */
    uint32_t live_max;               /* choices with KV */
    unsigned char *content;          /* of unacked_pages pages, that go out */
    const unsigned char *arrived;    /* of the message being received */
    double due_pages;                /* of loans, to be copied */
    bool loans;                      /* whether there are any, in either role */
    uint64_t loans_steps;            /* decoding ones, when that was otherwise last */
    struct kva_scheduler_pace steps; /* of those since, when there were enough */
    bool steps_loans;                /* whether they had loans */
    bool keeps;      /* what is free, since its first in line has waited for long enough */
    struct line own; /* of those that it could hold alone */
    struct line all; /* and of those that it could not */
};

/* --- who is who ------------------------------------------------------------------------------ */

/* The choice whose KV a loan is of, if it still is. */
static bool find_owner(const struct kva_instance *instance, const struct kva_loan *loan,
                       struct kva_choice_place *ret)
{
    return kva_scheduler_find_place(instance->params.scheduler, loan->request, ret) &&
           ret->generation == loan->generation && ret->stage == KVA_STAGE_DECODE;
}

static struct kva_kv_loan kv_loan_of(const struct kva_instance *instance,
                                     const struct kva_loan *loan)
{
    return (struct kva_kv_loan){.id = loan->id,
                                .creditor = loan->creditor,
                                .first_page = loan->first_page,
                                .page_count = loan->pages,
                                .keeps_home = instance->params.keeps_homes};
}

static void remember(struct kva_instance *instance, const struct kva_loan *loan)
{
    for (uint32_t i = 0; i < instance->borrower_count; i++) {
        if (instance->borrowers[i].request == loan->request &&
            instance->borrowers[i].generation == loan->generation)
            return;
    }
    if (instance->borrower_count < instance->live_max)
        instance->borrowers[instance->borrower_count++] =
            (struct borrower){loan->request, loan->generation};
}

/* --- messages -------------------------------------------------------------------------------- */

/* The content of PAGES. False: the request has just ended. */
static bool gather(struct kva_instance *instance, const struct kva_message *message)
{
    const uint32_t first = message->pages.first_page;
    struct kva_loan loan;
    struct kva_choice_place owner;
    for (uint32_t i = 0; i < message->pages.pages; i++) {
        unsigned char *to = instance->content + i * instance->page_bytes;
        if (message->pages.home) {
            if (kva_guests_read(instance->guests, message->pages.loan, first + i, to, NULL))
                return false;
            continue;
        }
        if (!kva_rmanager_find_loan(instance->rmanager, message->pages.loan, &loan) ||
            !find_owner(instance, &loan, &owner))
            return false;
        const void *page =
            kva_lending_home_of(instance->params.engine, owner.seq, loan.first_page + first + i);
        if (!page)
            return false;
        memcpy(to, page, instance->page_bytes);
    }
    return true;
}

static void send(void *opaque, const struct kva_message *message)
{
    struct kva_instance *instance = opaque;
    bool pages = message->type == KVA_MESSAGE_PAGES;
    if (pages && !gather(instance, message))
        return; /* as if the network had lost it */
    instance->params.send(instance->params.opaque, message, pages ? instance->content : NULL);
}

static void take(void *opaque, const struct kva_loan *loan, uint32_t first, uint32_t count)
{
    struct kva_instance *instance = opaque;
    struct kva_choice_place owner;
    bool home = loan->debtor == instance->params.rmanager.node;
    if (home && !find_owner(instance, loan, &owner))
        return;
    for (uint32_t i = 0; i < count; i++) {
        const unsigned char *from = instance->arrived + i * instance->page_bytes;
        if (home)
            memcpy(kva_lending_home_of(instance->params.engine, owner.seq,
                                       loan->first_page + first + i),
                   from, instance->page_bytes);
        else if (kva_guests_write(instance->guests, loan->id, first + i, from, NULL))
            return; /* not a loan that was reserved here */
    }
}

/* --- reports --------------------------------------------------------------------------------- */

/* What is asked for a stranded request, so that it does not stop at its next page already: room for
 * an eighth of the device tier, or to its end, if that is nearer. */
#define GROWTH_SHARE 8u

static uint32_t wanted_pages(const struct kva_instance *instance,
                             const struct kva_choice_place *place, uint32_t pages, bool is_head)
{
    const struct kva_lending_need need =
        kva_lending_need_of(instance->params.engine, place->seq, is_head);
    uint32_t growth = place->stranded ? pages / GROWTH_SHARE : 0;
    return need.pages + kva_min_u32(growth, need.pages_max - need.pages);
}

/* Of the `count` places, the first that waits for memory; one that is stranded before others, since
 * only a plan can help it, or none of those. UINT32_MAX: nobody waits. */
static uint32_t find_head(const struct kva_instance *instance, uint32_t count, bool stranded_too)
{
    uint32_t first = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const struct kva_choice_place *place = &instance->places[i];
        if (place->stranded && stranded_too)
            return i;
        if (place->stranded)
            continue;
        if (first == UINT32_MAX && (place->stage == KVA_STAGE_WAITING || place->suspended))
            first = i;
    }
    return first;
}

/* So many steps tell how fast an instance is: the means are of the last ten, mostly, and among few of
 * them one that is disturbed is all that is known. */
#define STEPS_MIN 20u

/* How it steps, with loans or without: what it was before that changed does not count. */
static void note_steps(struct kva_instance *instance)
{
    struct kva_scheduler_pace pace;
    struct kva_rmanager_stats stats;
    kva_scheduler_get_pace(instance->params.scheduler, &pace);
    kva_rmanager_get_stats(instance->rmanager, &stats);
    bool loans = stats.loans + stats.guests > 0;
    if (loans != instance->loans) {
        instance->loans = loans;
        instance->loans_steps = pace.decode_steps;
    } else if (pace.decode_steps - instance->loans_steps >= STEPS_MIN) {
        instance->steps = pace;
        instance->steps_loans = loans;
    }
}

/* As a message can say it. */
static uint64_t span_ns(double ns)
{
    return (uint64_t)fmin(ns, (double)KVA_MESSAGE_TTL_MAX_NS);
}

/* Nanoseconds that prompts take for each token that is said: prompts that wait are known, and how
 * much will be said is what others have said. */
static uint64_t prompt_ns(const struct kva_instance *instance, uint64_t waiting_tokens,
                          uint32_t waiting)
{
    struct kva_scheduler_pace pace;
    struct kva_scheduler_stats stats;
    kva_scheduler_get_pace(instance->params.scheduler, &pace);
    kva_scheduler_get_stats(instance->params.scheduler, &stats);
    double computed = (double)stats.prompt_tokens_computed,
           cached = (double)stats.prompt_tokens_cached;
    if (pace.output_tokens == 0)
        return 0;
    double tokens = pace.prompt_tokens;
    if (waiting > 0)
        tokens = (double)waiting_tokens / waiting * computed / fmax(computed + cached, 1);
    return span_ns(tokens / pace.output_tokens * pace.prefill_token_ns);
}

static void note_memory(const struct kva_instance *instance, struct kva_message_load *ret)
{
    const struct kva_engine *engine = instance->params.engine;
    struct kva_engine_usage usage;
    engine->ops->usage(engine->self, &usage);
    uint64_t used = usage.used.device - usage.cached.device;
    ret->pages = (uint32_t)(usage.budget.device / instance->page_bytes);
    ret->free_pages = (uint32_t)((usage.budget.device - used) / instance->page_bytes);
}

static void load(void *opaque, struct kva_message_load *ret)
{
    const struct kva_instance *instance = opaque;
    uint32_t count =
        kva_scheduler_get_places(instance->params.scheduler, instance->places, instance->live_max);
    *ret = (struct kva_message_load){
        .batch_max = instance->params.running_max,
        .keeps = instance->keeps,
        .step_loans = instance->steps_loans,
        .step_ns = span_ns(instance->steps.decode_step_ns),
        .step_tokens = (uint64_t)instance->steps.decode_tokens,
        .step_millirows = (uint32_t)(instance->steps.decode_rows * 1000),
    };
    note_memory(instance, ret);
    uint64_t prompt_tokens = 0;
    uint32_t head = find_head(instance, count, true), prompts = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct kva_choice_place *place = &instance->places[i];
        if (place->stage != KVA_STAGE_WAITING && !place->suspended) {
            ret->batch++;
            ret->tokens += place->tokens;
            continue;
        }
        uint32_t pages = wanted_pages(instance, place, ret->pages, i == head);
        ret->head_pages = i == head ? pages : ret->head_pages;
        ret->waiting++;
        ret->waiting_pages += pages;
        prompts += place->stage == KVA_STAGE_WAITING; /* who is suspended only comes back */
        prompt_tokens += place->stage == KVA_STAGE_WAITING ? place->tokens : 0;
    }
    ret->prompt_ns = prompt_ns(instance, prompt_tokens, prompts);
}

static uint32_t requests(void *opaque, struct kva_message_entry *ret, uint32_t max)
{
    const struct kva_instance *instance = opaque;
    uint32_t count = 0, all = kva_scheduler_get_places(instance->params.scheduler, instance->places,
                                                       instance->live_max);
    uint32_t head = find_head(instance, all, true);
    for (uint32_t i = 0; i < all && count < max; i++) {
        const struct kva_choice_place *place = &instance->places[i];
        /* Who is suspended has nothing here that lending would free, but the first needs less then. */
        bool frees = place->stage == KVA_STAGE_DECODE && (!place->suspended || i == head);
        uint32_t pages =
            frees ? kva_lending_lendable_pages(instance->params.engine, place->seq) : 0;
        if (pages == 0)
            continue;
        ret[count++] = (struct kva_message_entry){
            .request = place->id,
            .generation = place->generation,
            .pages = pages,
            .flags =
                (uint8_t)(KVA_ENTRY_LOCAL | (i == head && place->stranded ? KVA_ENTRY_HEAD : 0)),
        };
    }
    return count;
}

/* --- as creditor ----------------------------------------------------------------------------- */

static bool guest_reserve(void *opaque, const struct kva_loan *loan)
{
    struct kva_instance *instance = opaque;
    const struct kva_kv_loan guest = kv_loan_of(instance, loan);
    return kva_guests_reserve(instance->guests, &guest, NULL) == KVA_OK;
}

static void guest_free(void *opaque, const struct kva_loan *loan)
{
    struct kva_instance *instance = opaque;
    kva_guests_free(instance->guests, loan->id);
}

/* --- as debtor ------------------------------------------------------------------------------- */

static uint32_t lendable_from(void *opaque, const struct kva_loan *loan)
{
    struct kva_instance *instance = opaque;
    struct kva_choice_place owner;
    if (!find_owner(instance, loan, &owner))
        return 0;
    return kva_lending_lendable_from(instance->params.engine, owner.seq);
}

static bool lendable(void *opaque, const struct kva_loan *loan)
{
    struct kva_instance *instance = opaque;
    struct kva_choice_place owner;
    if (!find_owner(instance, loan, &owner) ||
        !kva_lending_lendable(instance->params.engine, owner.seq, loan->first_page, loan->pages))
        return false;
    remember(instance, loan);
    return true;
}

static bool may_ask(void *opaque, uint32_t creditor)
{
    struct kva_instance *instance = opaque;
    return instance->params.may_ask(instance->params.opaque, creditor);
}

static bool reaches(void *opaque, uint32_t creditor)
{
    struct kva_instance *instance = opaque;
    return instance->params.reaches(instance->params.opaque, creditor);
}

static void lent(void *opaque, const struct kva_loan *loan)
{
    struct kva_instance *instance = opaque;
    const struct kva_kv_loan out = kv_loan_of(instance, loan);
    struct kva_choice_place owner;
    if (find_owner(instance, loan, &owner))
        kva_lending_lend(instance->params.engine, owner.seq, &out);
}

static bool home_reserve(void *opaque, const struct kva_loan *loan)
{
    struct kva_instance *instance = opaque;
    struct kva_choice_place owner;
    return find_owner(instance, loan, &owner) &&
           kva_lending_home_reserve(instance->params.engine, owner.seq, loan->id, NULL) == KVA_OK;
}

static void came_home(void *opaque, const struct kva_loan *loan)
{
    struct kva_instance *instance = opaque;
    struct kva_choice_place owner;
    if (find_owner(instance, loan, &owner))
        kva_lending_come_home(instance->params.engine, owner.seq, loan->id);
}

static void lost(void *opaque, uint64_t request, uint32_t generation)
{
    struct kva_instance *instance = opaque;
    const struct kva_loan loan = {.request = request, .generation = generation};
    struct kva_choice_place owner;
    if (find_owner(instance, &loan, &owner))
        kva_lending_lose(instance->params.engine, owner.seq);
}

/* --- between steps --------------------------------------------------------------------------- */

/* What the engine knows first: requests that have ended or begun anew, and loans whose answers did
 * not come. */
static void tell_ends(struct kva_instance *instance, uint64_t now_ns)
{
    for (uint32_t i = instance->borrower_count; i-- > 0;) {
        const struct borrower b = instance->borrowers[i];
        const struct kva_loan loan = {.request = b.request, .generation = b.generation};
        struct kva_kv_loan loans[KVA_KV_LOANS_MAX];
        struct kva_choice_place owner;
        bool there = find_owner(instance, &loan, &owner);
        if (there && (kva_lending_loans(owner.seq, loans) > 0 ||
                      kva_rmanager_lent(instance->rmanager, b.request, NULL, 0) == 0))
            continue;
        kva_rmanager_request_end(instance->rmanager, b.request, b.generation, now_ns);
        if (!there)
            instance->borrowers[i] = instance->borrowers[--instance->borrower_count];
    }
}

/* Device pages that the first in line lacks; 0: none waits, it has what it needs, or it waits for its
 * turn in a full batch. Of those that the instance could hold alone, or of all. */
static uint32_t lacking(struct kva_instance *instance, bool stranded_too, uint64_t *ret_request)
{
    uint32_t count =
        kva_scheduler_get_places(instance->params.scheduler, instance->places, instance->live_max);
    uint32_t head = find_head(instance, count, stranded_too), running = 0;
    for (uint32_t i = 0; i < count; i++)
        running += instance->places[i].stage != KVA_STAGE_WAITING && !instance->places[i].suspended;
    if (head == UINT32_MAX ||
        (running >= instance->params.running_max && !instance->places[head].stranded))
        return 0;
    struct kva_message_load now = {0};
    note_memory(instance, &now);
    uint32_t wanted = wanted_pages(instance, &instance->places[head], now.pages, true);
    *ret_request = instance->places[head].id;
    return wanted > now.free_pages ? wanted - now.free_pages : 0;
}

/* Whether what lacks `pages` has done so for long enough. */
static bool has_waited(const struct kva_instance *instance, struct line *line, uint32_t pages,
                       uint64_t request, uint64_t now_ns)
{
    if (!line->lacks || line->request != request)
        line->since_ns = now_ns;
    line->lacks = pages > 0;
    line->request = request;
    return line->lacks && now_ns - line->since_ns >= instance->params.patience_ns;
}

/* How long the first in line has lacked memory, and what follows from it. For one that does not fit
 * here alone nothing is recalled: it would not help, and two instances would take each other's loans
 * away for ever. */
static void note_line(struct kva_instance *instance, uint64_t now_ns)
{
    uint64_t request = 0;
    uint32_t pages = lacking(instance, false, &request);
    bool own = has_waited(instance, &instance->own, pages, request, now_ns);
    if (own && kva_guests_pages(instance->guests) > 0)
        kva_rmanager_reclaim(instance->rmanager, pages, now_ns);
    pages = lacking(instance, true, &request);
    instance->keeps = has_waited(instance, &instance->all, pages, request, now_ns) || own;
}

/* What is to be copied now. While nothing runs it holds nobody up. */
static uint32_t due_pages(struct kva_instance *instance)
{
    const double rate = instance->params.step_pages;
    struct kva_scheduler_stats stats;
    kva_scheduler_get_stats(instance->params.scheduler, &stats);
    if (stats.running == 0)
        return UINT32_MAX;
    instance->due_pages = fmin(instance->due_pages + rate, fmax(rate, 1.0));
    const uint32_t pages = (uint32_t)instance->due_pages;
    instance->due_pages -= pages;
    return pages;
}

void kva_instance_between_steps(struct kva_instance *instance, uint64_t now_ns)
{
    note_steps(instance);
    tell_ends(instance, now_ns);
    kva_rmanager_tick(instance->rmanager, now_ns);
    note_line(instance, now_ns);
    kva_rmanager_step(instance->rmanager, due_pages(instance), now_ns);
}

enum kva_status kva_instance_receive(struct kva_instance *instance,
                                     const struct kva_message *message, const void *content,
                                     size_t bytes, uint64_t now_ns, struct kva_err *err)
{
    uint32_t pages = message->type == KVA_MESSAGE_PAGES ? message->pages.pages : 0;
    if (bytes != pages * instance->page_bytes)
        return kva_fail(
            err, KVA_EFORMAT, "%s of node %u comes with %zu bytes, %u pages of %zu are expected",
            kva_message_name(message->type), message->source, bytes, pages, instance->page_bytes);
    instance->arrived = content;
    kva_rmanager_receive(instance->rmanager, message, now_ns);
    instance->arrived = NULL;
    return KVA_OK;
}

void kva_instance_peer_lost(struct kva_instance *instance, uint32_t node, uint64_t now_ns)
{
    kva_rmanager_peer_lost(instance->rmanager, node, now_ns);
}

void kva_instance_drain(struct kva_instance *instance, uint64_t now_ns)
{
    kva_rmanager_drain(instance->rmanager, now_ns);
}

struct kva_guests *kva_instance_guests(struct kva_instance *instance)
{
    return instance->guests;
}

size_t kva_instance_page_bytes(const struct kva_instance *instance)
{
    return instance->page_bytes;
}

void kva_instance_get_stats(const struct kva_instance *instance, struct kva_rmanager_stats *ret)
{
    kva_rmanager_get_stats(instance->rmanager, ret);
}

/* --- life ------------------------------------------------------------------------------------ */

static enum kva_status create_tables(struct kva_instance *instance, struct kva_err *err)
{
    const struct kva_instance_params *p = &instance->params;
    const struct kva_rmanager_ops ops = {.opaque = instance,
                                         .send = send,
                                         .load = load,
                                         .requests = requests,
                                         .take = take,
                                         .guest_reserve = guest_reserve,
                                         .guest_free = guest_free,
                                         .lendable_from = lendable_from,
                                         .lendable = lendable,
                                         .may_ask = may_ask,
                                         .reaches = reaches,
                                         .lent = lent,
                                         .home_reserve = home_reserve,
                                         .came_home = came_home,
                                         .lost = lost};
    struct kva_rmanager_params rmanager = p->rmanager;
    if (rmanager.request_loans_max == 0 || rmanager.request_loans_max > KVA_KV_LOANS_MAX)
        rmanager.request_loans_max = KVA_KV_LOANS_MAX;
    instance->content = calloc(rmanager.unacked_pages, instance->page_bytes);
    instance->borrowers = calloc(instance->live_max, sizeof(*instance->borrowers));
    instance->places = calloc(instance->live_max, sizeof(*instance->places));
    if (!instance->content || !instance->borrowers || !instance->places)
        return kva_fail(err, KVA_ENOMEM, "out of memory for an instance of a cluster");
    enum kva_status status =
        kva_guests_create(p->engine, rmanager.loans_max, &instance->guests, err);
    return status ? status : kva_rmanager_create(&rmanager, &ops, &instance->rmanager, err);
}

enum kva_status kva_instance_create(const struct kva_instance_params *params,
                                    struct kva_instance **ret, struct kva_err *err)
{
    struct kva_instance *instance = calloc(1, sizeof(*instance));
    if (!instance)
        return kva_fail(err, KVA_ENOMEM, "out of memory for an instance of a cluster");
    instance->params = *params;
    instance->page_bytes = kva_lending_page_bytes(params->engine);
    instance->live_max = params->rmanager.entries_max;
    enum kva_status status = create_tables(instance, err);
    if (status) {
        kva_instance_destroy(instance);
        return status;
    }
    *ret = instance;
    return KVA_OK;
}

void kva_instance_destroy(struct kva_instance *instance)
{
    if (!instance)
        return;
    kva_guests_destroy(instance->guests);
    kva_rmanager_destroy(instance->rmanager);
    free(instance->content);
    free(instance->borrowers);
    free(instance->places);
    free(instance);
}
