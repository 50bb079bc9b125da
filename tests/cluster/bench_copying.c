/* What lending costs while it happens (Figure 12 of Infinite-LLM): a debtor's steps of one row while
 * pages of its sequence go to a creditor in another process, by tokens copied in a step.
 *
 *     bench_cluster_copying MODEL [tokens of context [blocks]]
 *
 * A table in Markdown. The pages go the way that a server's go: the engine's thread copies them into a
 * mailbox, another thread sends them, at most so many unacknowledged as a loan may have; the other
 * process writes them where a creditor's device tier would be. Blocks of steps with and without are
 * taken in turns. */
#include "tests/cmocka.h"

#include "base/clock.h"
#include "cluster/link/link.h"
#include "cluster/link/transport.h"
#include "cluster/node/mailbox.h"
#include "cluster/remote/turn.h"
#include "engine/lending.h"
#include "tests/engine/fixture.h"

#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { UNACKED = 8, BLOCK = 48, SKIPPED = 8, BLOCKS_MAX = 64, MESSAGE_BYTES = 64 };

static const char secret[] = "a secret of this benchmark";
static const uint32_t rates[] = {8, 16, 32, 64, 128, 256, 512}; /* tokens a step */

/* A link and who uses it: the sender's thread, or the other process. */
struct side {
    struct kva_transport *transport;
    struct kva_link *link;
    bool up, down, answers;
    unsigned char *tier; /* of the answering side */
    size_t tier_bytes, at;

    struct kva_mailbox mailbox;
    pthread_t thread;
    atomic_bool quit;
    atomic_uint unacked;
};

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "bench_cluster_copying: %s\n", what);
    exit(1);
}

/* --- the link ---------------------------------------------------------------------------------- */

static void received(void *opaque, const struct kva_link_frame *frame)
{
    struct side *side = opaque;
    if (!side->answers) {
        atomic_fetch_sub(&side->unacked, 1);
        return;
    }
    side->at = side->at + frame->data_bytes > side->tier_bytes ? 0 : side->at;
    memcpy(side->tier + side->at, frame->data, frame->data_bytes);
    side->at += frame->data_bytes;
    if (kva_link_send(side->link, frame->node, 0, NULL, 0, NULL, 0) != KVA_OK)
        side->down = true;
}

static void changed(void *opaque, uint32_t node KVA_UNUSED, uint64_t life KVA_UNUSED, bool up,
                    const char *why KVA_UNUSED)
{
    struct side *side = opaque;
    side->up = up;
    side->down = !up;
}

static void open_side(struct side *side, uint32_t node)
{
    struct kva_err err;
    struct kva_link_params params = {.listen = "127.0.0.1:0",
                                     .secret = secret,
                                     .secret_bytes = sizeof(secret),
                                     .header_bytes_max = MESSAGE_BYTES,
                                     .data_bytes_max = 64 << 20,
                                     .unsent_bytes_max = 1 << 30,
                                     .unread_bytes_max = 1 << 30,
                                     .peers_max = 2,
                                     .hello_ns = 60 * KVA_NS_PER_S,
                                     .opaque = side,
                                     .received = received,
                                     .changed = changed};
    require(kva_transport_create(params.listen, 2, &params.transport, &err) == KVA_OK &&
                kva_link_create(&params, &side->link, &err) == KVA_OK,
            err.message);
    side->transport = params.transport;
    kva_link_identify(side->link, node, 1);
}

static void close_side(struct side *side)
{
    kva_link_destroy(side->link);
    kva_transport_destroy(side->transport);
}

/* --- the creditor's process --------------------------------------------------------------------- */

static int take_pages(const char *address)
{
    struct kva_err err;
    uint64_t idle_ns = 0;
    struct side side = {.answers = true, .tier_bytes = (size_t)256 << 20};
    side.tier = calloc(1, side.tier_bytes);
    open_side(&side, 2);
    if (!side.tier || kva_link_connect(side.link, 1, 1, address, &err) != KVA_OK)
        return 1;
    while (!side.down)
        kva_remote_turn(side.link, &idle_ns, UINT64_MAX);
    close_side(&side);
    free(side.tier);
    return 0;
}

static pid_t start_creditor(struct side *side)
{
    char address[32];
    uint64_t idle_ns = 0;
    snprintf(address, sizeof(address), "127.0.0.1:%u", kva_link_port(side->link));
    pid_t pid = fork();
    require(pid >= 0, "no second process");
    if (pid == 0) {
        execl("/proc/self/exe", "bench_cluster_copying", "--take", address, (char *)NULL);
        _exit(127);
    }
    while (!side->up)
        kva_remote_turn(side->link, &idle_ns, UINT64_MAX);
    return pid;
}

/* --- the cluster's thread ----------------------------------------------------------------------- */

static void send_out(struct side *side)
{
    struct kva_list notes;
    kva_mailbox_take(&side->mailbox, &notes);
    while (!kva_list_empty(&notes)) {
        struct kva_note *note = KVA_CONTAINER_OF(notes.next, struct kva_note, link);
        kva_list_remove(&note->link);
        require(kva_link_send(side->link, 2, 0, note->message, note->size, note->content,
                              note->content_bytes) == KVA_OK,
                "a page cannot be sent");
        kva_note_free(&side->mailbox, note);
    }
}

static void *run(void *opaque)
{
    struct side *side = opaque;
    while (!atomic_load(&side->quit)) {
        struct pollfd ready = {.fd = kva_link_fd(side->link), .events = POLLIN};
        send_out(side);
        if (!kva_link_progress(side->link, kva_time_ns()) && kva_link_arm(side->link))
            (void)poll(&ready, 1, 10);
    }
    return NULL;
}

/* --- the debtor's engine ------------------------------------------------------------------------- */

struct debtor {
    struct fixture fixture;
    struct kva_sampling_params sampling;
    struct kva_sequence *seq;
    struct side side;
    uint32_t *prompt;
    uint32_t tokens;
    uint32_t pages; /* that may leave */
    uint32_t next;
    double due;
    uint64_t copied, copy_ns; /* pages, in this block, and what they took this thread */
};

static void open_debtor(struct debtor *d, const char *model, uint32_t tokens, uint32_t steps)
{
    const struct fixture_params params = {.model_path = model,
                                          .threads = 1,
                                          .device_bytes = (uint64_t)4 << 30,
                                          .host_bytes = (uint64_t)4 << 30,
                                          .context_max = tokens + steps + 2};
    d->sampling = fixture_greedy();
    fixture_open(&d->fixture, &params);
    d->prompt = calloc(tokens, sizeof(*d->prompt));
    require(d->prompt, "no memory");
    fixture_prompt(d->prompt, tokens, d->fixture.model->config.vocab_size, 3);
    d->tokens = tokens;
    d->pages = tokens / KVA_PAGE_TOKENS - 1;
}

static void close_debtor(struct debtor *d)
{
    free(d->prompt);
    fixture_close(&d->fixture);
}

/* Each rate has a sequence of its own: one that has grown takes longer. */
static void start_sequence(struct debtor *d, uint32_t steps)
{
    const struct kva_sequence_params wanted = {.prompt = d->prompt,
                                               .prompt_tokens = d->tokens,
                                               .tokens_max = d->tokens + steps + 2,
                                               .sampling = &d->sampling,
                                               .kv = kva_kv_spec_default(KVA_KV_FULL),
                                               .cache_disabled = true};
    struct kva_err err;
    d->seq = fixture_start(&d->fixture, &wanted);
    require(kva_model_engine_fill(d->fixture.engine, d->seq, 5, &err) == KVA_OK, err.message);
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
    while (d->due >= 1 && atomic_load(&d->side.unacked) < UNACKED) {
        const void *page = kva_lending_home_of(d->fixture.engine, d->seq, d->next);
        d->next = (d->next + 1) % d->pages;
        d->due -= 1;
        d->copied++;
        atomic_fetch_add(&d->side.unacked, 1);
        kva_mailbox_put_message(&d->side.mailbox, message, sizeof(message), page,
                                kva_lending_page_bytes(d->fixture.engine));
        kva_link_wake(d->side.link);
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
    require(engine->ops->grow(engine->self, d->seq, &err) == KVA_OK &&
                engine->ops->step(engine->self, &item, 1, &err) == KVA_OK,
            err.message);
    require(item.status == KVA_OK, kva_status_info(item.status)->name);
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
    while (atomic_load(&d->side.unacked) > 0)
        usleep(100);
    const double steps = BLOCK - SKIPPED;
    return (struct measured){took_ms / steps, (double)d->copy_ns / 1e6 / steps,
                             (double)d->copied / steps};
}

/* --- the table ----------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* Each rate beside none, the one or the other first. */
static void measure(struct debtor *d, uint32_t blocks)
{
    static double none[BLOCKS_MAX], over[BLOCKS_MAX], copy[BLOCKS_MAX];
    printf("A page of %u tokens has %zu KiB.\n\n", KVA_PAGE_TOKENS,
           kva_lending_page_bytes(d->fixture.engine) >> 10);
    printf("| tokens a step | copied | ms a step without | copying in this thread | a step with, "
           "over without |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < KVA_COUNT_OF(rates); i++) {
        double pages = 0;
        start_sequence(d, 2 * blocks * BLOCK);
        for (uint32_t turn = 0; turn < blocks; turn++) {
            struct measured pair[2]; /* without, with */
            for (uint32_t j = 0; j < 2; j++) {
                const uint32_t with = (turn + j) % 2;
                pair[with] = run_block(d, with ? rates[i] : 0);
            }
            none[turn] = pair[0].ms;
            over[turn] = pair[1].ms / pair[0].ms;
            copy[turn] = pair[1].copy_ms;
            pages += pair[1].pages / blocks;
        }
        end_sequence(d);
        printf("| %u | %.0f | %.2f | %.3f | %.3f |\n", rates[i], pages * KVA_PAGE_TOKENS,
               median(none, blocks), median(copy, blocks), median(over, blocks));
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    static struct debtor d;
    if (argc == 3 && strcmp(argv[1], "--take") == 0)
        return take_pages(argv[2]);
    if (argc < 2) {
        fprintf(stderr, "usage: bench_cluster_copying MODEL [tokens of context [blocks]]\n");
        return 2;
    }
    const uint32_t tokens = argc > 2 ? (uint32_t)atoi(argv[2]) : 4096;
    uint32_t blocks = argc > 3 ? (uint32_t)atoi(argv[3]) : 12;
    blocks = blocks < 1 ? 1 : blocks > BLOCKS_MAX ? BLOCKS_MAX : blocks;
    mallopt(M_MMAP_THRESHOLD, 1 << 20); /* as `serve` does */
    open_side(&d.side, 1);
    pid_t creditor = start_creditor(&d.side);
    kva_mailbox_init(&d.side.mailbox, (size_t)256 << 20);
    open_debtor(&d, argv[1], tokens, 2 * blocks * BLOCK);
    require(pthread_create(&d.side.thread, NULL, run, &d.side) == 0, "no thread");
    measure(&d, blocks);
    atomic_store(&d.side.quit, true);
    kva_link_wake(d.side.link);
    pthread_join(d.side.thread, NULL);
    kva_mailbox_finish(&d.side.mailbox);
    close_side(&d.side);
    kill(creditor, SIGTERM);
    waitpid(creditor, NULL, 0);
    close_debtor(&d);
    return 0;
}
