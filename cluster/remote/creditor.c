/* creditor.c - see creditor.h. */
#include "cluster/remote/creditor.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "cluster/link/link.h"
#include "cluster/remote/turn.h"
#include "cluster/remote/wire.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define HELLO_NS (10 * KVA_NS_PER_S)

struct kva_creditor {
    struct kva_wire_shape shape;
    struct kva_link *link; /* the thread's, once it runs */
    pthread_t thread;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    uint32_t node; /* 0: not known yet */
    uint64_t life;
    struct kva_guest_worker *worker;
    bool attending; /* the thread uses the worker */
    bool quit;
    struct kva_creditor_stats stats;

    /* The thread's. */
    bool identified;
    struct kva_remote_waiter waiter;
    uint32_t connections;
    struct kva_wire_entry *entries; /* [rows_max] */
    struct kva_remote_rows *rows;   /* [rows_max] */
    bool *found;                    /* [rows_max] */
    uint8_t *header;                /* of an answer */
    float *results;                 /* [rows_max] partial results */
};

/* --- a question -------------------------------------------------------------------------------- */

/* Where the rows of a question are, and where their results go: each entry's behind the one before
 * it, as the wire has them if all are found. */
static void lay_out(struct kva_creditor *c, const struct kva_wire_question *question,
                    const uint8_t *q)
{
    const struct kva_wire_shape *shape = &c->shape;
    float *at = c->results;
    for (uint32_t i = 0; i < question->count; i++) {
        const struct kva_wire_entry *entry = &c->entries[i];
        size_t pairs = (size_t)entry->row_count * shape->heads;
        c->rows[i] = (struct kva_remote_rows){
            .loan = entry->loan,
            .row_count = entry->row_count,
            .position_first = entry->position_first,
            .q = q,
            .out = {at, at + pairs * shape->head_dim, at + pairs * (shape->head_dim + 1)}};
        at += pairs * (shape->head_dim + 2);
        q += kva_wire_query_bytes(shape, entry->row_count);
    }
}

/* Close the gaps of entries that were not found; bytes of the rest. */
static size_t compact(struct kva_creditor *c, uint32_t count)
{
    size_t size = 0;
    for (uint32_t i = 0; i < count; i++) {
        size_t bytes = kva_wire_partial_bytes(&c->shape, c->rows[i].row_count);
        if (!c->found[i])
            continue;
        memmove((uint8_t *)c->results + size, c->rows[i].out.a, bytes);
        size += bytes;
    }
    return size;
}

/* The worker, if there is one, for as long as it takes to answer. */
static struct kva_guest_worker *take_worker(struct kva_creditor *c)
{
    pthread_mutex_lock(&c->lock);
    struct kva_guest_worker *worker = c->worker;
    c->attending = worker != NULL;
    pthread_mutex_unlock(&c->lock);
    return worker;
}

static void return_worker(struct kva_creditor *c, uint32_t rows, uint64_t taken_ns)
{
    pthread_mutex_lock(&c->lock);
    c->attending = false;
    c->stats.answers++;
    c->stats.rows += rows;
    c->stats.attend_ns += taken_ns;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* False: there is nobody who attends. */
static bool attend(struct kva_creditor *c, const struct kva_wire_question *question)
{
    struct kva_err err;
    struct kva_guest_worker *worker = take_worker(c);
    if (!worker)
        return false;
    uint64_t begin_ns = kva_time_ns();
    memset(c->found, 0, question->count * sizeof(*c->found));
    if (kva_guests_attend(worker, question->layer, c->rows, question->count, c->found, &err)) {
        kva_log(KVA_LOG_WARN, "cluster: attention for others: %s", err.message);
        memset(c->found, 0, question->count * sizeof(*c->found));
    }
    return_worker(c, question->rows, kva_time_ns() - begin_ns);
    return true;
}

static void refuse(struct kva_creditor *c, uint32_t node, const char *why)
{
    kva_log(KVA_LOG_WARN, "cluster: node %u asks what is no question: %s", node, why);
    pthread_mutex_lock(&c->lock);
    c->stats.refused++;
    pthread_mutex_unlock(&c->lock);
}

static void received(void *opaque, const struct kva_link_frame *frame)
{
    struct kva_creditor *c = opaque;
    struct kva_wire_question question;
    struct kva_err err;
    enum kva_status status =
        frame->kind == KVA_WIRE_QUESTION
            ? kva_wire_read_question(&c->shape, frame->header, frame->header_bytes,
                                     frame->data_bytes, &question, c->entries, &err)
            : kva_fail(&err, KVA_EFORMAT, "a frame of kind %u", frame->kind);
    if (status) {
        refuse(c, frame->node, err.message);
    } else {
        lay_out(c, &question, frame->data);
        status = attend(c, &question) ? KVA_OK : KVA_ENOTFOUND;
    }
    if (!status) {
        size_t bytes = compact(c, question.count);
        kva_wire_write_answer(c->header, question.id, c->found, question.count);
        status = kva_link_send(c->link, frame->node, KVA_WIRE_ANSWER, c->header,
                               kva_wire_answer_bytes(question.count), c->results, bytes);
    }
    if (status) {
        kva_link_disconnect(c->link, frame->node);
        c->connections--; /* `changed` is not told of that */
    }
}

static void changed(void *opaque, uint32_t node KVA_UNUSED, uint64_t life KVA_UNUSED, bool up,
                    const char *why KVA_UNUSED)
{
    struct kva_creditor *c = opaque;
    c->connections += up ? 1 : UINT32_MAX;
}

/* --- the thread -------------------------------------------------------------------------------- */

/* Take note of what others have asked of the thread; false: to end. */
static bool attend_to_orders(struct kva_creditor *c)
{
    pthread_mutex_lock(&c->lock);
    bool quit = c->quit;
    uint32_t node = c->node;
    uint64_t life = c->life;
    c->stats.connections = c->connections;
    pthread_mutex_unlock(&c->lock);
    if (node != 0 && !c->identified) {
        kva_link_identify(c->link, node, life);
        c->identified = true;
    }
    return !quit;
}

static void *serve(void *opaque)
{
    struct kva_creditor *c = opaque;
    kva_thread_be_prompt();
    while (attend_to_orders(c))
        kva_remote_turn(c->link, &c->waiter, UINT64_MAX);
    return NULL;
}

/* --- what callers see -------------------------------------------------------------------------- */

static enum kva_status open_link(struct kva_creditor *c, const struct kva_creditor_params *params,
                                 struct kva_err *err)
{
    const size_t question = kva_wire_question_bytes(params->rows_max) +
                            kva_wire_query_bytes(&c->shape, params->rows_max);
    const size_t answer = kva_wire_partial_bytes(&c->shape, params->rows_max) +
                          kva_wire_answer_bytes(params->rows_max);
    const struct kva_link_params link = {
        .transport = params->transport,
        .listen = params->listen,
        .secret = params->secret,
        .secret_bytes = params->secret_bytes,
        .header_bytes_max = kva_wire_question_bytes(params->rows_max),
        .data_bytes_max = kva_wire_query_bytes(&c->shape, params->rows_max),
        .unsent_bytes_max = 4 * answer + (1 << 20),
        .unread_bytes_max = 4 * question + (1 << 20),
        .peers_max = params->peers_max,
        .hello_ns = HELLO_NS,
        .opaque = c,
        .received = received,
        .changed = changed,
    };
    return kva_link_create(&link, &c->link, err);
}

static enum kva_status allocate(struct kva_creditor *c, struct kva_err *err)
{
    uint32_t rows_max = c->shape.rows_max;
    c->entries = calloc(rows_max, sizeof(*c->entries));
    c->rows = calloc(rows_max, sizeof(*c->rows));
    c->found = calloc(rows_max, sizeof(*c->found));
    c->header = malloc(kva_wire_answer_bytes(rows_max));
    c->results = malloc(kva_wire_partial_bytes(&c->shape, rows_max));
    if (c->entries && c->rows && c->found && c->header && c->results)
        return KVA_OK;
    return kva_fail(err, KVA_ENOMEM, "no memory for answers of %u rows", rows_max);
}

static void discard(struct kva_creditor *c)
{
    kva_link_destroy(c->link);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c->entries);
    free(c->rows);
    free(c->found);
    free(c->header);
    free(c->results);
    free(c);
}

enum kva_status kva_creditor_create(const struct kva_creditor_params *params,
                                    struct kva_creditor **ret, struct kva_err *err)
{
    const struct kva_wire_shape shape = {.heads = params->heads,
                                         .head_dim = params->head_dim,
                                         .layers = params->layers,
                                         .act = params->act,
                                         .rows_max = params->rows_max};
    enum kva_status status = kva_wire_check_shape(&shape, err);
    if (!status && !params->listen)
        status = kva_fail(err, KVA_EINVAL, "a creditor needs an address to listen at");
    if (status)
        return status;
    struct kva_creditor *c = calloc(1, sizeof(*c));
    if (!c)
        return kva_fail(err, KVA_ENOMEM, "no memory for a creditor");
    c->shape = shape;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    status = allocate(c, err);
    if (!status)
        status = open_link(c, params, err);
    if (!status && pthread_create(&c->thread, NULL, serve, c) != 0)
        status = kva_fail(err, KVA_ENOMEM, "no thread for a creditor");
    if (status)
        discard(c);
    else
        *ret = c;
    return status;
}

void kva_creditor_destroy(struct kva_creditor *creditor)
{
    if (!creditor)
        return;
    pthread_mutex_lock(&creditor->lock);
    creditor->quit = true;
    pthread_mutex_unlock(&creditor->lock);
    kva_link_wake(creditor->link);
    pthread_join(creditor->thread, NULL);
    discard(creditor);
}

uint16_t kva_creditor_port(const struct kva_creditor *creditor)
{
    return kva_link_port(creditor->link);
}

void kva_creditor_begin(struct kva_creditor *creditor, uint32_t node, uint64_t life,
                        struct kva_guest_worker *worker)
{
    pthread_mutex_lock(&creditor->lock);
    creditor->node = node;
    creditor->life = life;
    creditor->worker = worker;
    pthread_mutex_unlock(&creditor->lock);
    kva_link_wake(creditor->link);
}

void kva_creditor_stop(struct kva_creditor *creditor)
{
    pthread_mutex_lock(&creditor->lock);
    creditor->worker = NULL;
    while (creditor->attending)
        pthread_cond_wait(&creditor->changed, &creditor->lock);
    pthread_mutex_unlock(&creditor->lock);
}

void kva_creditor_get_stats(struct kva_creditor *creditor, struct kva_creditor_stats *ret)
{
    pthread_mutex_lock(&creditor->lock);
    *ret = creditor->stats;
    pthread_mutex_unlock(&creditor->lock);
}
