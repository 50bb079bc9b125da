/* bench_steps.c - what the engine gives under load, without server and clients: the scheduler and a
 * real model in one process, a closed loop of clients that ask again when they have their answer.
 *
 * Usage: bench_steps MODEL THREADS CLIENTS REQUESTS [cpu] [memory=MIB] [fresh] [greedy]
 *                    [share=PERCENT] [rows=STEP_TOKENS]
 *
 * Prompts and answers have the lengths of docs/pictures/load.sh (lognormal, medians 300 and 100,
 * sigmas 0.7 and 0.6), prompts of random tokens. As many requests as there are clients come first
 * and are not counted.
 *
 *     cpu      processor time of all threads instead of the clock's: with one thread, for a machine
 *              that has other work
 *     memory   of each tier (300): small enough to have been used before, as a server's that has
 *              run for a while
 *     fresh    memory that was never touched
 *     greedy   the best token instead of a drawn one
 *
 * The last line has a hash of all requests' tokens: it changes with the model's arithmetic and with
 * nothing else, whatever the steps were. */
#include "base/clock.h"
#include "engine/model_engine.h"
#include "engine/sampler.h"
#include "kernels/profile.h"
#include "scheduler/scheduler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)1 << 20)
#define SEQUENCES   64u

struct run {
    const char *model_path;
    uint32_t threads, clients, requests, memory_mib, share, step_tokens;
    bool cpu, fresh, greedy;

    struct kva_model *model;
    struct kva_device *device;
    struct kva_profile profile;
    struct kva_engine *engine;
    struct kva_scheduler *scheduler;
    uint32_t submitted, ended;
    uint64_t *hashes; /* [requests + clients]: of a request's tokens so far */
};

static void check(enum kva_status status, const struct kva_err *err)
{
    if (status == KVA_OK)
        return;
    fprintf(stderr, "bench_steps: %s\n", err->message);
    exit(1);
}

/* --- the clients ----------------------------------------------------------------------------- */

/* Draw `index` of a lognormal distribution, by Box and Muller. */
static uint32_t lognormal(double median, double sigma, uint64_t seed, uint64_t index)
{
    double u = kva_sampler_uniform(seed, 2 * index), v = kva_sampler_uniform(seed, 2 * index + 1);
    double normal = sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v);
    double value = median * exp(sigma * normal);
    return value < 1 ? 1 : value > 4000 ? 4000 : (uint32_t)value;
}

static void submit(struct run *run)
{
    struct kva_request *request = kva_request_create(ARENA_BYTES);
    struct kva_err err = {.message = "out of memory for a request"};
    check(request ? KVA_OK : KVA_ENOMEM, &err);
    uint32_t id = run->submitted++, tokens = lognormal(300, 0.7, 1, id);
    uint32_t *prompt = kva_arena_calloc(&request->arena, tokens, sizeof(*prompt));
    check(prompt ? KVA_OK : KVA_ENOMEM, &err);
    for (uint32_t i = 0; i < tokens; i++)
        prompt[i] = (uint32_t)(kva_sampler_uniform(id + 1000u, i) * run->model->config.vocab_size);
    request->id = id;
    request->prompt = prompt;
    request->prompt_tokens = tokens;
    request->output_tokens_max = lognormal(100, 0.6, 2, id);
    request->choices = 1;
    request->submitted_ns = kva_time_ns();
    request->sampling = (struct kva_sampling_params){
        .temperature = run->greedy ? 0 : 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .seed = id,
        .logprobs = -1,
        .prompt_logprobs = -1,
    };
    request->kv.policy = KVA_KV_FULL;
    run->hashes[id] = id;
    check(kva_scheduler_submit(run->scheduler, request, &err), &err);
}

static void on_output(void *opaque, const struct kva_output *output)
{
    struct run *run = opaque;
    uint64_t *hash = &run->hashes[output->request_id];
    if (output->kind == KVA_OUTPUT_TOKEN)
        *hash = (*hash ^ output->token.token) * 0x100000001B3ull; /* FNV-1a */
    run->ended += output->kind == KVA_OUTPUT_END;
}

/* Steps until `ended` requests have; whoever has an answer asks again. */
static void run_until(struct run *run, uint32_t ended)
{
    while (run->ended < ended) {
        while (run->submitted < run->requests + run->clients &&
               run->submitted < run->ended + run->clients)
            submit(run);
        bool idle;
        uint64_t wake_ns;
        struct kva_err err;
        check(kva_scheduler_step(run->scheduler, &idle, &wake_ns, &err), &err);
    }
}

/* --- the rest -------------------------------------------------------------------------------- */

static void open_run(struct run *run)
{
    struct kva_err err;
    const struct kva_model_open_params open = {.path = run->model_path, .prefetch = true};
    const struct kva_device_params device = {.threads = run->threads};
    const uint64_t bytes = (uint64_t)run->memory_mib << 20;
    check(kva_model_open(&open, &run->model, &err), &err);
    check(kva_device_open_cpu(&device, &run->device, &err), &err);
    kva_profile_attach(&run->profile, run->device);
    run->profile.now_ns = run->cpu ? kva_cpu_time_ns : kva_time_ns;
    const struct kva_model_engine_params engine = {
        .device = run->device,
        .model = run->model,
        .budget = {bytes, bytes},
        .sequences_max = SEQUENCES,
        .step_tokens_max = run->step_tokens,
        .prefix_cache = true,
    };
    check(kva_model_engine_create(&engine, &run->engine, &err), &err);
    const struct kva_scheduler_params scheduler = {
        .engine = run->engine,
        .clock = kva_clock_real(),
        .running_max = SEQUENCES,
        .waiting_max = run->clients,
        .step_tokens_max = run->step_tokens,
        .prefill_share_pct = run->share,
        .on_output = on_output,
        .opaque = run,
    };
    check(kva_scheduler_create(&scheduler, &run->scheduler, &err), &err);
}

/* Pages that one tier has are used once, so that none of them is new to the machine. */
static void touch_memory(struct run *run)
{
    uint32_t context = run->engine->limits.context_max;
    uint64_t tokens =
        run->memory_mib * 1024ull * 1024 / kva_model_kv_bytes_per_token(&run->model->config);
    const struct kva_sampling_params sampling = {
        .top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1};
    const struct kva_kv_spec kv = {.policy = KVA_KV_FULL};
    uint32_t *prompt = calloc(context, sizeof(*prompt));
    for (uint64_t done = 0; prompt && done < tokens; done += context - 2) {
        prompt[0] = (uint32_t)(done / context); /* no two of them share pages */
        const struct kva_sequence_params params = {.prompt = prompt,
                                                   .prompt_tokens = context - 2,
                                                   .tokens_max = context,
                                                   .sampling = &sampling,
                                                   .kv = kv};
        struct kva_sequence *seq;
        struct kva_err err;
        uint32_t cached;
        const struct kva_engine_ops *ops = run->engine->ops;
        check(ops->create(run->engine->self, &params, &seq, &err), &err);
        check(ops->admit(run->engine->self, seq, &cached, NULL, &err), &err);
        check(kva_model_engine_fill(run->engine, seq, done, &err), &err);
        ops->destroy(run->engine->self, seq);
    }
    free(prompt);
}

static void report(const struct run *run, const struct kva_scheduler_stats *before, double seconds)
{
    struct kva_scheduler_stats after;
    kva_scheduler_get_stats(run->scheduler, &after);
    double steps = (double)(after.steps - before->steps);
    double prompts = (double)(after.prompt_tokens_computed - before->prompt_tokens_computed);
    double outputs = (double)(after.output_tokens - before->output_tokens);
    printf("%.0f steps, %.1f rows each, %.3f ms each: %.1f requests/s, %.0f tokens/s of answers, "
           "%.0f of prompts\n",
           steps, (double)(after.step_rows - before->step_rows) / steps, seconds * 1e3 / steps,
           run->requests / seconds, outputs / seconds, prompts / seconds);
    double rest = seconds;
    for (int i = 0; i < KVA_PROFILE_COUNT; i++) {
        double part = (double)run->profile.counts.ns[i] / 1e9;
        rest -= part;
        printf("%s %.3f ms (%.0f%%)  ", kva_profile_kind_name((enum kva_profile_kind)i),
               part * 1e3 / steps, part * 100 / seconds);
    }
    printf("other %.3f ms (%.0f%%)\n", rest * 1e3 / steps, rest * 100 / seconds);
    uint64_t hash = 0;
    for (uint32_t i = 0; i < run->requests + run->clients; i++)
        hash = (hash ^ run->hashes[i]) * 0x100000001B3ull;
    printf("tokens %016llx\n", (unsigned long long)hash);
}

static void close_run(struct run *run)
{
    kva_scheduler_destroy(run->scheduler);
    kva_model_engine_destroy(run->engine);
    kva_device_close(run->device);
    kva_model_close(run->model);
    free(run->hashes);
}

static bool read_option(struct run *run, const char *text)
{
    unsigned value;
    run->cpu |= strcmp(text, "cpu") == 0;
    run->fresh |= strcmp(text, "fresh") == 0;
    run->greedy |= strcmp(text, "greedy") == 0;
    if (sscanf(text, "memory=%u", &value) == 1)
        run->memory_mib = value;
    else if (sscanf(text, "share=%u", &value) == 1)
        run->share = value;
    else if (sscanf(text, "rows=%u", &value) == 1)
        run->step_tokens = value;
    else
        return strcmp(text, "cpu") == 0 || strcmp(text, "fresh") == 0 ||
               strcmp(text, "greedy") == 0;
    return true;
}

int main(int argc, char **argv)
{
    struct run run = {.memory_mib = 300, .share = 50, .step_tokens = 256};
    bool good = argc >= 5;
    if (good) {
        run.model_path = argv[1];
        run.threads = (uint32_t)strtoul(argv[2], NULL, 10);
        run.clients = (uint32_t)strtoul(argv[3], NULL, 10);
        run.requests = (uint32_t)strtoul(argv[4], NULL, 10);
    }
    for (int i = 5; i < argc; i++)
        good &= read_option(&run, argv[i]);
    if (!good || run.clients == 0 || run.requests == 0) {
        fprintf(stderr, "usage: bench_steps MODEL THREADS CLIENTS REQUESTS [cpu] [memory=MIB] "
                        "[fresh] [greedy] [share=PERCENT] [rows=STEP_TOKENS]\n");
        return 2;
    }
    run.hashes = calloc((size_t)run.requests + run.clients, sizeof(*run.hashes));
    if (!run.hashes)
        return 1;
    open_run(&run);
    if (!run.fresh)
        touch_memory(&run);
    run_until(&run, run.clients);
    struct kva_scheduler_stats before;
    kva_scheduler_get_stats(run.scheduler, &before);
    kva_profile_clear(&run.profile);
    uint64_t start_ns = run.profile.now_ns();
    run_until(&run, run.clients + run.requests);
    report(&run, &before, (double)(run.profile.now_ns() - start_ns) / 1e9);
    close_run(&run);
    return 0;
}
