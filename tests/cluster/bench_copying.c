/* What lending costs while it happens (Figure 12 of Infinite-LLM): a debtor's steps of one row while
 * pages of its sequence go to a creditor in another process, by tokens copied in a step.
 *
 *     bench_cluster_copying MODEL [tokens of context [blocks [tokens a step ...]]]
 *
 * A table in Markdown, with medians over pairs of blocks, and an interval in which the last one is
 * with 95%. The pages go the way that a server's go: the engine's thread copies them into a
 * mailbox, another thread sends them, at most so many unacknowledged as a loan may have; the other
 * process writes them where a creditor's device tier would be. Blocks of steps with and without are
 * taken in turns. */
#include "tests/cmocka.h"

#include "base/clock.h"
#include "cluster/node/mailbox.h"
#include "engine/lending.h"
#include "tests/cluster/bench_end.h"
#include "tests/engine/fixture.h"
#include "tests/median.h"

#include <malloc.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { UNACKED = 8, BLOCK = 48, SKIPPED = 8, BLOCKS_MAX = 512, MESSAGE_BYTES = 64 };

/* A sequence grows with each step, and its steps with it: so many pairs, then another. */
#define SEQUENCE_BLOCKS 16u
#define SEQUENCE_STEPS  (2 * SEQUENCE_BLOCKS * BLOCK)

/* --- the creditor's process --------------------------------------------------------------------- */

/* Where pages go, one behind the other, and again from the beginning. */
struct tier {
    unsigned char *bytes;
    size_t size, at;
};

static void take_page(struct bench_end *end, const struct kva_link_frame *frame)
{
    struct tier *tier = end->opaque;
    tier->at = tier->at + frame->data_bytes > tier->size ? 0 : tier->at;
    memcpy(tier->bytes + tier->at, frame->data, frame->data_bytes);
    tier->at += frame->data_bytes;
    bench_end_send(end, frame->node, NULL, 0, NULL, 0);
}

static void take_pages(const char *address)
{
    struct tier tier = {.size = (size_t)256 << 20};
    struct bench_end end = {.then = take_page, .opaque = &tier};
    tier.bytes = calloc(1, tier.size);
    bench_require(tier.bytes, "no memory");
    bench_end_serve(&end, address);
    free(tier.bytes);
}

/* --- the cluster's thread ----------------------------------------------------------------------- */

struct sender {
    struct bench_end end;
    struct kva_mailbox mailbox;
    pthread_t thread;
    atomic_bool quit;
    atomic_uint unacked;
};

static void acknowledged(struct bench_end *end, const struct kva_link_frame *frame KVA_UNUSED)
{
    struct sender *sender = end->opaque;
    atomic_fetch_sub(&sender->unacked, 1);
}

static void send_out(struct sender *sender)
{
    struct kva_list notes;
    kva_mailbox_take(&sender->mailbox, &notes);
    while (!kva_list_empty(&notes)) {
        struct kva_note *note = KVA_CONTAINER_OF(notes.next, struct kva_note, link);
        kva_list_remove(&note->link);
        bench_end_send(&sender->end, BENCH_END_OTHER, note->message, note->size, note->content,
                       note->content_bytes);
        kva_note_free(&sender->mailbox, note);
    }
}

static void *run(void *opaque)
{
    struct sender *sender = opaque;
    struct kva_link *link = sender->end.link;
    while (!atomic_load(&sender->quit)) {
        struct pollfd ready = {.fd = kva_link_fd(link), .events = POLLIN};
        send_out(sender);
        if (!kva_link_progress(link, kva_time_ns()) && kva_link_arm(link))
            (void)poll(&ready, 1, 10);
    }
    return NULL;
}

static void start_sender(struct sender *sender, pid_t *ret_creditor)
{
    sender->end = (struct bench_end){.then = acknowledged, .opaque = sender};
    bench_end_open(&sender->end, "--take", ret_creditor);
    kva_mailbox_init(&sender->mailbox, (size_t)256 << 20);
    bench_require(pthread_create(&sender->thread, NULL, run, sender) == 0, "no thread");
}

static void end_sender(struct sender *sender)
{
    atomic_store(&sender->quit, true);
    kva_link_wake(sender->end.link);
    pthread_join(sender->thread, NULL);
    kva_mailbox_finish(&sender->mailbox);
    bench_end_close(&sender->end);
}

/* --- the debtor's engine ------------------------------------------------------------------------- */

struct debtor {
    struct fixture fixture;
    struct kva_sampling_params sampling;
    struct kva_sequence *seq;
    struct sender sender;
    uint32_t *prompt;
    uint32_t tokens;
    uint32_t pages; /* that may leave */
    uint32_t next;
    double due;
    uint64_t copied, copy_ns; /* pages, in this block, and what they took this thread */
};

static void open_debtor(struct debtor *d, const char *model, uint32_t tokens)
{
    const struct fixture_params params = {.model_path = model,
                                          .threads = 1,
                                          .device_bytes = (uint64_t)4 << 30,
                                          .host_bytes = (uint64_t)4 << 30,
                                          .context_max = tokens + SEQUENCE_STEPS + 2};
    d->sampling = fixture_greedy();
    fixture_open(&d->fixture, &params);
    d->prompt = calloc(tokens, sizeof(*d->prompt));
    bench_require(d->prompt, "no memory");
    fixture_prompt(d->prompt, tokens, d->fixture.model->config.vocab_size, 3);
    d->tokens = tokens;
    d->pages = tokens / KVA_PAGE_TOKENS - 1;
}

static void close_debtor(struct debtor *d)
{
    free(d->prompt);
    fixture_close(&d->fixture);
}

static void start_sequence(struct debtor *d)
{
    const struct kva_sequence_params wanted = {.prompt = d->prompt,
                                               .prompt_tokens = d->tokens,
                                               .tokens_max = d->tokens + SEQUENCE_STEPS + 2,
                                               .sampling = &d->sampling,
                                               .kv = kva_kv_spec_default(KVA_KV_FULL),
                                               .cache_disabled = true};
    struct kva_err err;
    d->seq = fixture_start(&d->fixture, &wanted);
    bench_require(kva_model_engine_fill(d->fixture.engine, d->seq, 5, &err) == KVA_OK, err.message);
}

static void end_sequence(struct debtor *d)
{
    d->fixture.engine->ops->destroy(d->fixture.engine->self, d->seq);
}

/* Pages that are due leave, as far as those before them have arrived. */
static void copy_pages(struct debtor *d, uint32_t rate)
{
    const unsigned char message[MESSAGE_BYTES] = {0};
    const uint64_t begin_ns = kva_time_ns();
    d->due += (double)rate / KVA_PAGE_TOKENS;
    while (d->due >= 1 && atomic_load(&d->sender.unacked) < UNACKED) {
        const void *page = kva_lending_home_of(d->fixture.engine, d->seq, d->next);
        d->next = (d->next + 1) % d->pages;
        d->due -= 1;
        d->copied++;
        atomic_fetch_add(&d->sender.unacked, 1);
        kva_mailbox_put_message(&d->sender.mailbox, message, sizeof(message), page,
                                kva_lending_page_bytes(d->fixture.engine));
        kva_link_wake(d->sender.end.link);
    }
    d->due = d->due > UNACKED ? UNACKED : d->due;
    d->copy_ns += kva_time_ns() - begin_ns;
}

static void step(struct debtor *d, uint32_t rate)
{
    const struct kva_engine *engine = d->fixture.engine;
    struct kva_step_item item = {.seq = d->seq};
    struct kva_err err;
    copy_pages(d, rate);
    bench_require(engine->ops->grow(engine->self, d->seq, &err) == KVA_OK &&
                      engine->ops->step(engine->self, &item, 1, &err) == KVA_OK,
                  err.message);
    bench_require(item.status == KVA_OK, kva_status_info(item.status)->name);
}

/* Of a step, on average over a block. */
struct measured {
    double ms, copy_ms, pages;
};

static struct measured run_block(struct debtor *d, uint32_t rate)
{
    d->due = 0;
    for (uint32_t i = 0; i < SKIPPED; i++)
        step(d, rate);
    d->copied = d->copy_ns = 0;
    uint64_t begin_ns = kva_time_ns();
    for (uint32_t i = SKIPPED; i < BLOCK; i++)
        step(d, rate);
    double took_ms = (double)(kva_time_ns() - begin_ns) / 1e6;
    while (atomic_load(&d->sender.unacked) > 0)
        usleep(100);
    const double steps = BLOCK - SKIPPED;
    return (struct measured){took_ms / steps, (double)d->copy_ns / 1e6 / steps,
                             (double)d->copied / steps};
}

/* --- the table ----------------------------------------------------------------------------------- */

/* Of pairs of blocks. */
struct pairs {
    double none_ms[BLOCKS_MAX], copy_ms[BLOCKS_MAX];
    double over[BLOCKS_MAX]; /* with, over without */
    double pages;            /* of a step, all */
};

/* Each rate beside none, the one or the other first. */
static void run_pairs(struct debtor *d, uint32_t rate, uint32_t blocks, struct pairs *ret)
{
    ret->pages = 0;
    for (uint32_t turn = 0; turn < blocks; turn++) {
        struct measured pair[2]; /* without, with */
        if (turn % SEQUENCE_BLOCKS == 0)
            start_sequence(d);
        for (uint32_t j = 0; j < 2; j++) {
            const uint32_t with = (turn + j) % 2;
            pair[with] = run_block(d, with ? rate : 0);
        }
        ret->none_ms[turn] = pair[0].ms;
        ret->copy_ms[turn] = pair[1].copy_ms;
        ret->over[turn] = pair[1].ms / pair[0].ms;
        ret->pages += pair[1].pages;
        if (turn % SEQUENCE_BLOCKS == SEQUENCE_BLOCKS - 1 || turn + 1 == blocks)
            end_sequence(d);
    }
}

static void measure(struct debtor *d, uint32_t blocks, const uint32_t *rates, size_t count)
{
    static struct pairs pairs;
    printf("A page of %u tokens has %zu KiB.\n\n", KVA_PAGE_TOKENS,
           kva_lending_page_bytes(d->fixture.engine) >> 10);
    printf("| tokens a step | copied | ms a step without | copying in this thread | a step with, "
           "over without | between |\n|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < count; i++) {
        run_pairs(d, rates[i], blocks, &pairs);
        double middle = kva_test_median(pairs.over, blocks);
        /* Of ranks: half of the pairs are below the median, with a binomial's deviation. */
        uint32_t away = (uint32_t)ceil(0.98 * sqrt(blocks));
        uint32_t low = blocks / 2 > away ? blocks / 2 - away : 0;
        printf("| %u | %.0f | %.2f | %.3f | %.3f | %.3f to %.3f |\n", rates[i],
               pairs.pages / blocks * KVA_PAGE_TOKENS, kva_test_median(pairs.none_ms, blocks),
               kva_test_median(pairs.copy_ms, blocks), middle, pairs.over[low],
               pairs.over[blocks - 1 - low]);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    static struct debtor d;
    uint32_t rates[16] = {8, 16, 32, 64, 128, 256, 512}; /* tokens a step */
    size_t count = 7;
    pid_t creditor;
    if (argc == 3 && strcmp(argv[1], "--take") == 0) {
        take_pages(argv[2]);
        return 0;
    }
    const uint32_t tokens = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 4096;
    const uint32_t blocks = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 10;
    bench_require(argc <= 4 + (int)KVA_COUNT_OF(rates), "at most 16 rates");
    for (int i = 4; i < argc; i++) {
        rates[i - 4] = (uint32_t)strtoul(argv[i], NULL, 10);
        bench_require(rates[i - 4] > 0, "tokens a step: 1 or more");
        count = (size_t)i - 3;
    }
    bench_require(argc > 1 && tokens >= 2 * KVA_PAGE_TOKENS && blocks > 0 && blocks <= BLOCKS_MAX,
                  "MODEL [tokens of context, 128 or more [blocks, 1 to 512 [tokens a step ...]]]");
    mallopt(M_MMAP_THRESHOLD, 1 << 20); /* as `serve` does */
    open_debtor(&d, argv[1], tokens);
    start_sender(&d.sender, &creditor);
    measure(&d, blocks, rates, count);
    end_sender(&d.sender);
    waitpid(creditor, NULL, 0);
    close_debtor(&d);
    return 0;
}
