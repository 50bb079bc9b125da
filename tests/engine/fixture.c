#include "tests/cmocka.h"

#include "tests/engine/fixture.h"

#include "engine/model/packed.h"
#include "engine/model/synthetic.h"
#include "engine/sampler.h"
#include "kernels/backend.h"
#include "kernels/convert.h"
#include "kernels/profile.h"
#include "tests/data.h"
#include "tests/kernels/by_scores.h"

#include <stdlib.h>
#include <string.h>

static void expect_ok(enum kva_status status, const struct kva_err *err)
{
    if (status)
        fail_msg("%s: %s", kva_status_info(status)->name, err->message);
}

uint32_t fixture_unrounded_levels(void)
{
    struct kva_device *device;
    struct kva_err err;
    expect_ok(kva_device_open_cpu(&(struct kva_device_params){.threads = 1}, &device, &err), &err);
    uint32_t levels =
        kva_device_get_info(device)->cpu_levels & ~(uint32_t)(KVA_CPU_AVX512BF16 | KVA_CPU_AMX);
    kva_device_close(device);
    return levels;
}

void fixture_make_model(const char *config_json, uint64_t seed, uint32_t context_max,
                        char path[FIXTURE_PATH_BYTES])
{
    struct kva_err err = {0};
    struct kva_synthetic_info info;
    snprintf(path, FIXTURE_PATH_BYTES, "/tmp/kvahead-model-XXXXXX");
    assert_non_null(mkdtemp(path));
    const struct kva_synthetic_params params = {.dir_path = path,
                                                .config_json = config_json,
                                                .seed = seed,
                                                .context_max = context_max,
                                                .threads = 1};
    expect_ok(kva_synthetic_write(&params, &info, &err), &err);
}

void fixture_remove_model(const char *path)
{
    char command[FIXTURE_PATH_BYTES + 16];
    snprintf(command, sizeof command, "rm -r '%s'", path);
    assert_int_equal(system(command), 0);
}

static uint32_t chosen_at_once;

/* The devices' own, which have no peaks. */
static const struct kva_ops *without_peaks;

static void attend_lowbit(struct kva_device *device, const struct kva_attend_lowbit_args *args)
{
    by_scores_attend(device, without_peaks, args);
}

static void weigh_choose(struct kva_device *device, const struct kva_weigh_choose_args *args)
{
    by_scores_choose(device, without_peaks, args);
    chosen_at_once++;
}

const struct kva_ops *fixture_without_peaks(void)
{
    return without_peaks;
}

uint32_t fixture_chosen_at_once(void)
{
    return chosen_at_once;
}

void fixture_open(struct fixture *fixture, const struct fixture_params *params)
{
    struct kva_err err = {0};
    char path[4096];
    if (params->model_path[0] == '/')
        snprintf(path, sizeof(path), "%s", params->model_path);
    else
        kva_test_source(params->model_path, path, sizeof(path));
    const struct kva_device_params device = {
        .threads = params->threads,
        .cpu_level_mask = params->cpu_level_mask,
        .cpu_levels_emulated = params->cpu_levels_emulated,
        .copy_delay_max_us = params->copy_delay_max_us,
        .copy_delay_seed = params->seed,
    };
    expect_ok(kva_device_open_cpu(&device, &fixture->device, &err), &err);
    if (params->unfused || params->waits || params->at_once) {
        struct kva_device_base *base = (struct kva_device_base *)fixture->device;
        fixture->fewer = *base->ops;
        if (params->unfused)
            fixture->fewer.attend_select_fetch = NULL;
        if (params->waits)
            fixture->fewer.attend_apart = fixture->fewer.attend_join = NULL;
        if (params->at_once) {
            without_peaks = base->ops;
            fixture->fewer.attend_lowbit = attend_lowbit;
            fixture->fewer.weigh_choose = weigh_choose;
        }
        base->ops = &fixture->fewer;
    }
    if (params->profile)
        kva_profile_attach(params->profile, fixture->device);
    const struct kva_model_open_params open = {.path = path, .packed = true};
    expect_ok(kva_model_open(&open, &fixture->model, &err), &err);
    /* No folder, so that nothing is left behind in the source tree. */
    const struct kva_model_pack_params pack = {
        .weights = params->weights, .path = path, .cache_path = "/dev/null", .threads = 1};
    expect_ok(kva_model_pack(fixture->model, &pack, &err), &err);
    assert_true(!fixture->model->packed || !fixture->model->packed->shared);
    if (params->make_skew)
        fixture->model->skew = params->make_skew(fixture->model);
    uint64_t plenty = 64ull << 20;
    const struct kva_model_engine_params engine = {
        .device = fixture->device,
        .model = fixture->model,
        .budget = {params->device_bytes ? params->device_bytes : plenty,
                   params->host_bytes ? params->host_bytes : plenty},
        .context_max = params->context_max,
        .planes_percent = params->planes_percent,
        .sequences_max = 16,
        .step_tokens_max = params->step_tokens_max ? params->step_tokens_max : 64,
        .prefix_cache = params->prefix_cache,
        .kv_dtype = KVA_F32,
        .remote = params->remote,
    };
    expect_ok(kva_model_engine_create(&engine, &fixture->engine, &err), &err);
}

void fixture_close(struct fixture *fixture)
{
    kva_model_engine_destroy(fixture->engine);
    kva_model_close(fixture->model);
    kva_device_close(fixture->device);
    *fixture = (struct fixture){0};
}

struct kva_sampling_params fixture_greedy(void)
{
    return (struct kva_sampling_params){
        .top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1};
}

struct kva_sequence *fixture_start(struct fixture *fixture,
                                   const struct kva_sequence_params *params)
{
    struct kva_err err = {0};
    struct kva_sequence *seq;
    struct kva_engine *engine = fixture->engine;
    uint32_t cached;
    expect_ok(engine->ops->create(engine->self, params, &seq, &err), &err);
    expect_ok(engine->ops->admit(engine->self, seq, &cached, NULL, &err), &err);
    return seq;
}

uint32_t fixture_prefill(struct fixture *fixture, struct kva_sequence *seq, uint32_t quota)
{
    struct kva_err err = {0};
    struct kva_engine *engine = fixture->engine;
    for (int step = 0; step < 100000; step++) {
        struct kva_step_item item = {.seq = seq, .prefill_tokens = quota};
        expect_ok(engine->ops->step(engine->self, &item, 1, &err), &err);
        assert_int_equal(item.status, KVA_OK);
        assert_true(item.prefill_done <= quota);
        if (item.emitted)
            return item.token.token;
    }
    fail_msg("the prefill does not end");
    return 0;
}

void fixture_decode(struct fixture *fixture, struct kva_sequence *const *seqs, uint32_t count,
                    uint32_t *tokens)
{
    struct kva_err err = {0};
    struct kva_engine *engine = fixture->engine;
    struct kva_step_item items[16] = {0};
    for (uint32_t i = 0; i < count; i++) {
        items[i].seq = seqs[i];
        expect_ok(engine->ops->grow(engine->self, seqs[i], &err), &err);
    }
    expect_ok(engine->ops->step(engine->self, items, count, &err), &err);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(items[i].status, KVA_OK);
        assert_true(items[i].emitted);
        tokens[i] = items[i].token.token;
    }
}

void fixture_prompt(uint32_t *ids, uint32_t count, uint32_t vocab, uint64_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (uint32_t)(kva_sampler_uniform(seed, i) * vocab);
}

const uint16_t *fixture_kv_row(const struct fixture *fixture, const struct kva_forward_view *view,
                               uint32_t kv_head, uint32_t token)
{
    const struct kva_model_config *c = &fixture->model->config;
    const struct kva_kv_seq *seq = view->rows->seq;
    uint32_t page = token / KVA_PAGE_TOKENS;
    size_t block = kva_kv_block_bytes(c->kv_heads, c->head_dim);
    const void *at = page < seq->offloaded ? seq->pages[page]->host + view->layer * block
                                           : *kva_kv_block_at(view->rows, page);
    size_t row = (size_t)kv_head * KVA_PAGE_TOKENS + token % KVA_PAGE_TOKENS;
    return (const uint16_t *)at + row * 2 * c->head_dim;
}

double fixture_kv_number(const struct fixture *fixture, const uint16_t *at)
{
    return kva_model_engine_kv_dtype(fixture->model) == KVA_BF16 ? (double)kva_f32_of_bf16(*at)
                                                                 : (double)kva_f32_of_f16(*at);
}
