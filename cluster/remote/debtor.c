/* debtor.c - see debtor.h. */
#include "cluster/remote/debtor.h"

#include "base/clock.h"
#include "base/log.h"
#include "cluster/link/address.h"
#include "cluster/link/link.h"
#include "cluster/remote/turn.h"
#include "cluster/remote/wire.h"

#include <stdlib.h>
#include <string.h>

/* Whoever comes up later than this is connected with again, if he is asked again. */
#define HELLO_NS (10 * KVA_NS_PER_S)
#define AGAIN_NS KVA_NS_PER_S /* between attempts at one that was given up */

enum {
    ANSWER_PARTS = 32, /* of answer_ns: one at most passes in a turn */
    TURNS_MAX = 4,     /* between steps: what is still to be done then is the next time's */
};

enum entry_state { ENTRY_WAITS, ENTRY_ANSWERED, ENTRY_LOST };

/* A creditor. */
struct peer {
    uint32_t node; /* 0: none */
    uint64_t life;
    char address[KVA_LINK_ADDRESS_TEXT];
    bool lost;    /* given up, and not connected with again yet */
    bool unheard; /* no connection could be made, and none was since */
    bool to_tell; /* given up, and take_lost has not said so */
    bool calling; /* a connection is being made */
    uint64_t called_ns;
    bool asked; /* entries of what was posted last wait for it */
    bool sent;  /* and it has been sent the question */
};

struct kva_debtor {
    struct kva_debtor_params params;
    struct kva_wire_shape shape;
    struct kva_remote remote;
    struct kva_link *link;
    struct kva_remote_waiter waiter;
    bool identified;
    struct peer *peers; /* [peers_max] */
    struct kva_debtor_stats stats;

    /* What was posted last. */
    uint64_t id;
    uint32_t layer, count;
    struct kva_remote_rows *posted; /* [rows_max] */
    enum entry_state *states;       /* [rows_max] */

    /* Of one frame. */
    uint8_t *header;
    uint8_t *queries;
    uint32_t *entries; /* [rows_max]: of what was posted */
    uint32_t *row_counts;
    bool *found;
};

/* --- creditors --------------------------------------------------------------------------------- */

static struct peer *find(const struct kva_debtor *d, uint32_t node)
{
    for (uint32_t i = 0; i < d->params.peers_max; i++)
        if (node != 0 && d->peers[i].node == node)
            return &d->peers[i];
    return NULL;
}

/* Nothing of what was posted is waited for from it any more. */
static void lose_entries(struct kva_debtor *d, const struct peer *peer)
{
    for (uint32_t i = 0; i < d->count; i++)
        if (d->posted[i].creditor == peer->node && d->states[i] == ENTRY_WAITS)
            d->states[i] = ENTRY_LOST;
}

static void give_up(struct kva_debtor *d, struct peer *peer, uint64_t *counter, const char *why)
{
    kva_log(KVA_LOG_WARN, "cluster: creditor %u at %s is given up: %s", peer->node, peer->address,
            why);
    lose_entries(d, peer);
    peer->lost = peer->to_tell = true;
    peer->calling = peer->asked = peer->sent = false;
    (*counter)++;
    kva_link_disconnect(d->link, peer->node);
}

/* Begin to connect, unless there is a connection. Whether there may be one soon. */
static bool call(struct kva_debtor *d, struct peer *peer)
{
    struct kva_err err;
    if (peer->calling || kva_link_is_up(d->link, peer->node))
        return true;
    enum kva_status status =
        d->identified ? kva_link_connect(d->link, peer->node, peer->life, peer->address, &err)
                      : kva_fail(&err, KVA_EINVAL, "this node has no number yet");
    peer->called_ns = kva_time_ns();
    peer->calling = status == KVA_OK;
    peer->unheard |= status != KVA_OK;
    if (status)
        kva_log(KVA_LOG_WARN, "cluster: creditor %u at %s: %s", peer->node, peer->address,
                err.message);
    return peer->calling;
}

/* One that was given up is asked now and then whether it is there again, for steps to come. */
static void call_again(struct kva_debtor *d, struct peer *peer)
{
    if (kva_time_ns() - peer->called_ns >= AGAIN_NS)
        (void)call(d, peer);
}

/* --- questions --------------------------------------------------------------------------------- */

/* The creditor's entries, which wait: how many, their indices, and rows of all of them. */
static uint32_t gather(struct kva_debtor *d, const struct peer *peer, uint32_t *ret_rows)
{
    uint32_t count = 0, rows = 0;
    for (uint32_t i = 0; i < d->count; i++) {
        if (d->posted[i].creditor != peer->node || d->states[i] != ENTRY_WAITS)
            continue;
        d->row_counts[count] = d->posted[i].row_count;
        d->entries[count++] = i;
        rows += d->posted[i].row_count;
    }
    *ret_rows = rows;
    return count;
}

/* Its rows go to a creditor with which there is a connection. */
static void ask(struct kva_debtor *d, struct peer *peer)
{
    uint32_t rows, count = gather(d, peer, &rows);
    size_t at = 0, header_bytes = kva_wire_question_bytes(count);
    kva_wire_write_question(d->header, d->id, d->layer, count);
    for (uint32_t i = 0; i < count; i++) {
        const struct kva_remote_rows *from = &d->posted[d->entries[i]];
        kva_wire_write_entry(
            d->header, i,
            &(struct kva_wire_entry){from->loan, from->row_count, from->position_first});
        size_t bytes = kva_wire_query_bytes(&d->shape, from->row_count);
        memcpy(d->queries + at, from->q, bytes);
        at += bytes;
    }
    enum kva_status status = kva_link_send(d->link, peer->node, KVA_WIRE_QUESTION, d->header,
                                           header_bytes, d->queries, at);
    if (status == KVA_EBUSY) {
        give_up(d, peer, &d->stats.late, "it does not take what it is sent");
    } else if (status) {
        give_up(d, peer, &d->stats.broken, "the connection broke");
    } else {
        peer->sent = true;
        d->stats.questions++;
        d->stats.rows += rows;
        d->stats.bytes_out += header_bytes + at;
    }
}

/* Keep what is posted, as far as there is room and somebody to ask. */
static void keep(struct kva_debtor *d, const struct kva_remote_rows *rows, uint32_t count)
{
    uint32_t row = 0;
    d->count = 0;
    for (uint32_t i = 0; i < count && i < d->shape.rows_max; i++) {
        struct peer *peer = find(d, rows[i].creditor);
        bool fits = rows[i].row_count > 0 && rows[i].row_count <= d->shape.rows_max - row;
        d->posted[i] = rows[i];
        d->states[i] = peer && fits && !peer->lost ? ENTRY_WAITS : ENTRY_LOST;
        d->count++;
        row += fits ? rows[i].row_count : 0;
        if (peer && d->states[i] == ENTRY_WAITS)
            peer->asked = true;
        else if (peer && peer->lost)
            call_again(d, peer);
    }
}

static void post(void *self, uint32_t layer, const struct kva_remote_rows *rows, uint32_t count)
{
    struct kva_debtor *d = self;
    d->id++;
    d->layer = layer;
    for (uint32_t i = 0; i < d->params.peers_max; i++)
        d->peers[i].asked = d->peers[i].sent = false;
    keep(d, rows, count);
    for (uint32_t i = 0; i < d->params.peers_max; i++) {
        struct peer *peer = &d->peers[i];
        if (!peer->asked)
            continue;
        if (kva_link_is_up(d->link, peer->node))
            ask(d, peer);
        else if (!call(d, peer))
            give_up(d, peer, &d->stats.broken, "no connection can be made");
    }
}

/* --- answers ----------------------------------------------------------------------------------- */

/* What the creditor has found goes where the rows want it. */
static void deliver(struct kva_debtor *d, uint32_t count, const uint8_t *data)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct kva_remote_rows *rows = &d->posted[d->entries[i]];
        size_t pairs = (size_t)rows->row_count * d->shape.heads * sizeof(float);
        d->states[d->entries[i]] = d->found[i] ? ENTRY_ANSWERED : ENTRY_LOST;
        d->stats.not_found += !d->found[i];
        if (!d->found[i])
            continue;
        memcpy(rows->out.a, data, pairs * d->shape.head_dim);
        memcpy(rows->out.m, data + pairs * d->shape.head_dim, pairs);
        memcpy(rows->out.e, data + pairs * (d->shape.head_dim + 1), pairs);
        data += pairs * (d->shape.head_dim + 2);
    }
}

static void received(void *opaque, const struct kva_link_frame *frame)
{
    struct kva_debtor *d = opaque;
    struct peer *peer = find(d, frame->node);
    struct kva_err err;
    uint64_t id = 0;
    uint32_t rows;
    if (!peer)
        return;
    d->stats.bytes_in += frame->header_bytes + frame->data_bytes;
    enum kva_status status =
        frame->kind == KVA_WIRE_ANSWER
            ? kva_wire_read_answer_id(frame->header, frame->header_bytes, &id, &err)
            : kva_fail(&err, KVA_EFORMAT, "a frame of kind %u", frame->kind);
    if (!status && id < d->id)
        return; /* to a question that nobody asks any more */
    if (!status && (id > d->id || !peer->sent))
        status = kva_fail(&err, KVA_EFORMAT, "an answer that nobody has asked for");
    uint32_t count = gather(d, peer, &rows);
    if (!status)
        status = kva_wire_read_answer(&d->shape, d->row_counts, count, frame->header,
                                      frame->header_bytes, frame->data_bytes, d->found, &err);
    if (status) {
        give_up(d, peer, &d->stats.broken, err.message);
        return;
    }
    peer->asked = peer->sent = false;
    deliver(d, count, frame->data);
}

static void changed(void *opaque, uint32_t node, uint64_t life KVA_UNUSED, bool up, const char *why)
{
    struct kva_debtor *d = opaque;
    struct peer *peer = find(d, node);
    if (!peer)
        return;
    peer->unheard = !up && (peer->unheard || peer->calling);
    peer->calling = false;
    if (up)
        peer->lost = false;
    if (up && peer->asked)
        ask(d, peer);
    else if (!up && peer->asked)
        give_up(d, peer, &d->stats.broken, why);
}

/* What counts of the time that one turn took. More than this thread lets a turn take is time in which
 * its process or its machine stood still: nobody waited then, and the answer may lie unread. */
static uint64_t counted(const struct kva_debtor *d, uint64_t turn_ns)
{
    const uint64_t most_ns = d->params.answer_ns / ANSWER_PARTS + 1;
    return turn_ns < most_ns ? turn_ns : most_ns;
}

static bool collect(void *self, uint32_t index)
{
    struct kva_debtor *d = self;
    uint64_t begin_ns = kva_time_ns(), last_ns = begin_ns, waited_ns = 0;
    if (index >= d->count)
        return false;
    d->waiter.since_ns = 0;
    while (d->states[index] == ENTRY_WAITS) {
        uint64_t now_ns = kva_time_ns();
        waited_ns += counted(d, now_ns - last_ns);
        last_ns = now_ns;
        kva_remote_turn(d->link, &d->waiter, now_ns + counted(d, UINT64_MAX));
        struct peer *peer = find(d, d->posted[index].creditor);
        if (waited_ns >= d->params.answer_ns && d->states[index] == ENTRY_WAITS)
            give_up(d, peer, &d->stats.late, "it has not answered in time");
    }
    d->stats.wait_ns += kva_time_ns() - begin_ns;
    return d->states[index] == ENTRY_ANSWERED;
}

/* --- what callers see -------------------------------------------------------------------------- */

static const struct kva_remote_ops ops = {.post = post, .collect = collect};

static enum kva_status allocate(struct kva_debtor *d, struct kva_err *err)
{
    uint32_t rows_max = d->shape.rows_max;
    d->peers = calloc(d->params.peers_max, sizeof(*d->peers));
    d->posted = calloc(rows_max, sizeof(*d->posted));
    d->states = calloc(rows_max, sizeof(*d->states));
    d->header = malloc(kva_wire_question_bytes(rows_max));
    d->queries = malloc(kva_wire_query_bytes(&d->shape, rows_max));
    d->entries = calloc(rows_max, sizeof(*d->entries));
    d->row_counts = calloc(rows_max, sizeof(*d->row_counts));
    d->found = calloc(rows_max, sizeof(*d->found));
    if (d->peers && d->posted && d->states && d->header && d->queries && d->entries &&
        d->row_counts && d->found)
        return KVA_OK;
    return kva_fail(err, KVA_ENOMEM, "no memory for questions of %u rows", rows_max);
}

static enum kva_status open_link(struct kva_debtor *d, const struct kva_debtor_params *params,
                                 struct kva_err *err)
{
    const size_t question = kva_wire_question_bytes(params->rows_max) +
                            kva_wire_query_bytes(&d->shape, params->rows_max);
    const size_t answer = kva_wire_answer_bytes(params->rows_max) +
                          kva_wire_partial_bytes(&d->shape, params->rows_max);
    const struct kva_link_params link = {
        .transport = params->transport,
        .secret = params->secret,
        .secret_bytes = params->secret_bytes,
        .header_bytes_max = kva_wire_answer_bytes(params->rows_max),
        .data_bytes_max = kva_wire_partial_bytes(&d->shape, params->rows_max),
        .unsent_bytes_max = 4 * question + (1 << 20),
        .unread_bytes_max = 4 * answer + (1 << 20),
        .peers_max = params->peers_max,
        .hello_ns = HELLO_NS,
        .opaque = d,
        .received = received,
        .changed = changed,
    };
    return kva_link_create(&link, &d->link, err);
}

enum kva_status kva_debtor_create(const struct kva_debtor_params *params, struct kva_debtor **ret,
                                  struct kva_err *err)
{
    const struct kva_wire_shape shape = {.heads = params->heads,
                                         .head_dim = params->head_dim,
                                         .layers = 1, /* which is the creditor's to check */
                                         .act = params->act,
                                         .rows_max = params->rows_max};
    enum kva_status status = kva_wire_check_shape(&shape, err);
    if (!status && (params->answer_ns == 0 || params->peers_max == 0))
        status = kva_fail(err, KVA_EINVAL, "%u creditors with %llu ns to answer: neither may be 0",
                          params->peers_max, (unsigned long long)params->answer_ns);
    if (status)
        return status;
    struct kva_debtor *d = calloc(1, sizeof(*d));
    if (!d)
        return kva_fail(err, KVA_ENOMEM, "no memory for a debtor");
    d->params = *params;
    d->shape = shape;
    d->remote = (struct kva_remote){&ops, d};
    status = allocate(d, err);
    if (!status)
        status = open_link(d, params, err);
    d->params.secret = NULL; /* the link has its own */
    if (status)
        kva_debtor_destroy(d);
    else
        *ret = d;
    return status;
}

void kva_debtor_destroy(struct kva_debtor *debtor)
{
    if (!debtor)
        return;
    kva_link_destroy(debtor->link);
    free(debtor->peers);
    free(debtor->posted);
    free(debtor->states);
    free(debtor->header);
    free(debtor->queries);
    free(debtor->entries);
    free(debtor->row_counts);
    free(debtor->found);
    free(debtor);
}

const struct kva_remote *kva_debtor_remote(struct kva_debtor *debtor)
{
    return &debtor->remote;
}

void kva_debtor_identify(struct kva_debtor *debtor, uint32_t node, uint64_t life)
{
    kva_link_identify(debtor->link, node, life);
    debtor->identified = true;
}

enum kva_status kva_debtor_peer(struct kva_debtor *debtor, uint32_t node, uint64_t life,
                                const char *address, struct kva_err *err)
{
    struct kva_link_address resolved;
    char text[KVA_LINK_ADDRESS_TEXT];
    enum kva_status status = kva_link_address_resolve(address, false, &resolved, err);
    if (status)
        return status;
    kva_link_address_write(&resolved.socket, text);
    struct peer *peer = find(debtor, node);
    if (peer && peer->life == life && strcmp(peer->address, text) == 0)
        return KVA_OK;
    if (peer)
        kva_debtor_peer_gone(debtor, node);
    for (uint32_t i = 0; i < debtor->params.peers_max && !peer; i++)
        if (debtor->peers[i].node == 0)
            peer = &debtor->peers[i];
    if (!peer)
        return kva_fail(err, KVA_ELIMIT, "there are %u creditors already",
                        debtor->params.peers_max);
    *peer = (struct peer){.node = node, .life = life};
    memcpy(peer->address, text, sizeof(text));
    return KVA_OK;
}

void kva_debtor_peer_gone(struct kva_debtor *debtor, uint32_t node)
{
    struct peer *peer = find(debtor, node);
    if (!peer)
        return;
    lose_entries(debtor, peer);
    kva_link_disconnect(debtor->link, node);
    *peer = (struct peer){0};
}

bool kva_debtor_may_ask(struct kva_debtor *debtor, uint32_t node)
{
    struct peer *peer = find(debtor, node);
    if (!peer)
        return false;
    if (!peer->lost && !peer->unheard)
        return true;
    call_again(debtor, peer);
    return false;
}

bool kva_debtor_reaches(struct kva_debtor *debtor, uint32_t node)
{
    struct peer *peer = find(debtor, node);
    if (!peer)
        return false;
    if (kva_link_is_up(debtor->link, node))
        return true;
    call_again(debtor, peer);
    return false;
}

bool kva_debtor_calls(const struct kva_debtor *debtor)
{
    for (uint32_t i = 0; i < debtor->params.peers_max; i++)
        if (debtor->peers[i].node != 0 && debtor->peers[i].calling)
            return true;
    return false;
}

void kva_debtor_prepare(struct kva_debtor *debtor, uint32_t node)
{
    struct peer *peer = find(debtor, node);
    if (peer)
        (void)call(debtor, peer);
}

void kva_debtor_progress(struct kva_debtor *debtor)
{
    for (int i = 0; i < TURNS_MAX && kva_link_progress(debtor->link, kva_time_ns()); i++)
        ;
}

uint32_t kva_debtor_take_lost(struct kva_debtor *debtor, uint32_t *ret_nodes, uint32_t max)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < debtor->params.peers_max && count < max; i++) {
        struct peer *peer = &debtor->peers[i];
        if (!peer->to_tell)
            continue;
        peer->to_tell = false;
        ret_nodes[count++] = peer->node;
    }
    return count;
}

void kva_debtor_get_stats(const struct kva_debtor *debtor, struct kva_debtor_stats *ret)
{
    *ret = debtor->stats;
}
