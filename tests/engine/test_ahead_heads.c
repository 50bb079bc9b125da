/* Rows chosen a layer ahead, by heads and in company: what a KV head fetches is what its query heads
 * would, each with keys of its own; and how many sequences there are does not matter. */
#include "tests/cmocka.h"

#include "base/file.h"
#include "engine/kv/parts/ahead_internal.h"
#include "engine/model/skew.h"
#include "tests/data.h"
#include "tests/engine/fixture.h"
#include "tests/engine/trace.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, HEADS = 6, KV_HEADS = 2, PROMPT = 200, FILE_BYTES_MAX = 1 << 24 };

static const char grouped_config[] =
    "{\"model_type\": \"llama\", \"head_dim\": 16, \"hidden_size\": 96, \"hidden_act\": \"silu\","
    " \"intermediate_size\": 96, \"max_position_embeddings\": 256, \"num_attention_heads\": 6,"
    " \"num_hidden_layers\": 4, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-5,"
    " \"rope_theta\": 10000.0, \"vocab_size\": 301, \"torch_dtype\": \"bfloat16\"}";

/* The same with a KV head for each head, whose weights are those of the one that was shared. */
static char grouped[FIXTURE_PATH_BYTES], cloned[FIXTURE_PATH_BYTES];

/* --- the clone ------------------------------------------------------------------------------- */

struct tensors {
    struct kva_buf file;
    cJSON *names;
    unsigned char *data;
};

static struct tensors read_tensors(const char *folder)
{
    struct tensors tensors;
    struct kva_err err = {.message = ""};
    char path[FIXTURE_PATH_BYTES + 32];
    uint64_t header_bytes;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    kva_buf_init(&tensors.file, FILE_BYTES_MAX);
    if (kva_file_read(AT_FDCWD, path, &tensors.file, &err))
        fail_msg("%s", err.message);
    memcpy(&header_bytes, tensors.file.data, sizeof header_bytes);
    tensors.names = cJSON_ParseWithLength((char *)tensors.file.data + 8, header_bytes);
    tensors.data = (unsigned char *)tensors.file.data + 8 + header_bytes;
    assert_non_null(tensors.names);
    return tensors;
}

static void forget_tensors(struct tensors *tensors)
{
    cJSON_Delete(tensors->names);
    kva_buf_finish(&tensors->file);
}

static size_t edge_of(const cJSON *tensor, int index)
{
    const cJSON *edges = cJSON_GetObjectItem(tensor, "data_offsets");
    return (size_t)cJSON_GetArrayItem(edges, index)->valuedouble;
}

/* A tensor of the clone: the other's, each KV head as many times as there are heads to it. */
static void clone_tensor(const struct tensors *to, const cJSON *to_tensor,
                         const struct tensors *from)
{
    const cJSON *tensor = cJSON_GetObjectItem(from->names, to_tensor->string);
    const size_t at = edge_of(tensor, 0), bytes = edge_of(tensor, 1) - at;
    const size_t to_at = edge_of(to_tensor, 0), times = (edge_of(to_tensor, 1) - to_at) / bytes;
    const size_t heads = times > 1 ? KV_HEADS : 1, piece = bytes / heads;
    for (size_t i = 0; i < heads * times; i++)
        memcpy(to->data + to_at + i * piece, from->data + at + i / times * piece, piece);
}

static void clone_model(void)
{
    char config[sizeof grouped_config + 8], path[FIXTURE_PATH_BYTES + 32];
    const char *shared = strstr(grouped_config, "\"num_key_value_heads\": 2");
    snprintf(config, sizeof config, "%.*s\"num_key_value_heads\": 6%s",
             (int)(shared - grouped_config), grouped_config,
             shared + strlen("\"num_key_value_heads\": 2"));
    fixture_make_model(config, 3, 0, cloned);
    struct tensors from = read_tensors(grouped), to = read_tensors(cloned);
    const cJSON *tensor;
    uint32_t count = 0;
    cJSON_ArrayForEach(tensor, to.names)
    {
        if (!cJSON_GetObjectItem(tensor, "data_offsets"))
            continue;
        clone_tensor(&to, tensor, &from);
        count++;
    }
    assert_true(count > LAYERS * 9);
    snprintf(path, sizeof path, "%s/model.safetensors", cloned);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(to.file.data, 1, to.file.length, file), to.file.length);
    assert_int_equal(fclose(file), 0);
    forget_tensors(&from);
    forget_tensors(&to);
}

static int make_models(void **state KVA_UNUSED)
{
    fixture_make_model(grouped_config, 3, 0, grouped);
    clone_model();
    return 0;
}

static int remove_models(void **state KVA_UNUSED)
{
    fixture_remove_model(grouped);
    fixture_remove_model(cloned);
    return 0;
}

/* --- by heads -------------------------------------------------------------------------------- */

static struct kva_kv_spec spec_of(uint32_t alpha)
{
    struct kva_kv_spec spec = kva_kv_spec_default(KVA_KV_INFINIGEN);
    spec.alpha = alpha;
    spec.cap = KVA_KV_PERCENT | 100;
    spec.partial = 50;
    spec.skew = KVA_SKEW_NONE;
    spec.min_tokens = 0;
    spec.skip_layers = 1;
    return spec;
}

/* Tokens that a KV head of a layer has fetched in the first step. */
struct seen {
    struct fixture *f;
    bool has[LAYERS][HEADS][CONTEXT];
};

static void see_layer(void *opaque, const struct kva_forward_view *view)
{
    struct seen *seen = opaque;
    const struct kva_kv_range *range = kva_kv_find_range(view->rows, KVA_RANGE_ROWS);
    if (!range || view->rows->position_first != PROMPT)
        return;
    kva_device_sync(seen->f->device, KVA_QUEUE_COPY);
    for (uint32_t head = 0; head < seen->f->model->config.kv_heads; head++) {
        const size_t at = (size_t)head * range->rows->slots;
        for (uint32_t i = 0; i < range->rows->count[head]; i++)
            seen->has[view->layer][head][range->rows->tokens[at + range->rows->order[at + i]]] =
                true;
    }
}

static struct trace see(const char *path, const struct kva_kv_spec *spec, struct seen *seen)
{
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = path,
                                              .cpu_level_mask = fixture_unrounded_levels()});
    memset(seen, 0, sizeof *seen);
    seen->f = &f;
    const struct kva_forward_observer observer = {.attended = see_layer, .opaque = seen};
    kva_model_engine_observe(f.engine, &observer);
    const struct trace trace = trace_run(
        &f, &(struct run){.prompt_tokens = PROMPT, .prompt_seed = 2, .outputs = 9, .kv = *spec});
    fixture_close(&f);
    return trace;
}

/* Layers 1 and 2 are rehearsed from what is the same in both: nobody has lacked a token yet. */
static void test_ahead_heads__grouped_ones_are_a_clones_together(void **state KVA_UNUSED)
{
    const struct kva_kv_spec few = spec_of(1), all = spec_of(1000);
    struct seen *one = malloc(sizeof *one), *other = malloc(sizeof *other);
    const uint32_t group = HEADS / KV_HEADS, away = 128;
    uint32_t fetched = 0, differing = 0;
    assert_true(one && other);
    see(grouped, &few, one);
    see(cloned, &few, other);
    for (uint32_t i = 0; i < 2 * KV_HEADS * away; i++) {
        const uint32_t layer = 1 + i / (KV_HEADS * away), head = i / away % KV_HEADS, t = i % away;
        uint32_t wants = 0;
        for (uint32_t h = 0; h < group; h++)
            wants += other->has[layer][head * group + h][t];
        if (one->has[layer][head][t] != (wants > 0))
            fail_msg("layer %u, KV head %u, token %u: %u heads want it", layer, head, t, wants);
        fetched += wants > 0;
        differing += wants > 0 && wants < group;
    }
    assert_true(fetched < 2 * KV_HEADS * away && differing > 0);
    const struct trace want = see(grouped, &all, one), got = see(cloned, &all, other);
    for (uint32_t i = 0; i < 9; i++) {
        assert_int_equal(got.tokens[i], want.tokens[i]);
        assert_true(fabsf(got.logprobs[i] - want.logprobs[i]) < 1e-4f);
    }
    free(one);
    free(other);
}

/* --- many at once ---------------------------------------------------------------------------- */

/* Each says what it says alone, in the same bits. */
static void test_ahead_heads__one_is_one_of_many(void **state KVA_UNUSED)
{
    enum { COUNT = 16, STEPS = 4 };
    const struct kva_sampling_params sampling = trace_sampling();
    struct kva_step_item items[COUNT] = {0};
    struct trace want[COUNT];
    struct fixture f;
    const struct fixture_params params = {.model_path = grouped};
    fixture_open(&f, &params);
    for (uint32_t i = 0; i < COUNT; i++)
        want[i] = trace_run(&f, &(struct run){.prompt_tokens = 130 + i,
                                              .prompt_seed = i,
                                              .outputs = 1 + STEPS,
                                              .kv = spec_of(1)});
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t prompt[CONTEXT];
        fixture_prompt(prompt, 130 + i, VOCAB, i);
        items[i].seq =
            fixture_start(&f, &(struct kva_sequence_params){.prompt = prompt,
                                                            .prompt_tokens = 130 + i,
                                                            .tokens_max = 131 + i + STEPS,
                                                            .sampling = &sampling,
                                                            .kv = spec_of(1)});
        assert_int_equal(fixture_prefill(&f, items[i].seq, CONTEXT), want[i].tokens[0]);
    }
    trace_expect_together(&f, items, want, COUNT, STEPS + 1);
    fixture_close(&f);
}

/* An own energy for each column, so that heads have other planes; directions as they are. */
static struct kva_skew *make_skew(const struct kva_model *model)
{
    const struct kva_model_config *c = &model->config;
    struct kva_skew *skew;
    struct kva_err err;
    assert_int_equal(kva_skew_create(c->layer_count, c->kv_heads, c->head_dim, &skew, &err),
                     KVA_OK);
    for (uint32_t i = 0; i < c->layer_count * c->kv_heads * c->head_dim; i++) {
        skew->energy[i] = (float)(i * 37 % 101);
        skew->basis[(size_t)i * c->head_dim + i % c->head_dim] = 1;
    }
    kva_skew_sort(skew);
    return skew;
}

/* Whole queries and those of planes are rehearsed for the same pass, each for whom it is. */
static void test_ahead_heads__skews_beside_each_other(void **state KVA_UNUSED)
{
    enum { COUNT = 4, STEPS = 8 };
    static const enum kva_kv_skew_mode skews[COUNT] = {KVA_SKEW_PLANES, KVA_SKEW_NONE,
                                                       KVA_SKEW_PLANES, KVA_SKEW_AFTER};
    const struct kva_sampling_params sampling = trace_sampling();
    struct kva_step_item items[COUNT] = {0};
    struct trace want[COUNT];
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){
                         .model_path = grouped, .make_skew = make_skew, .planes_percent = 50});
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t prompt[CONTEXT];
        struct kva_kv_spec spec = spec_of(1);
        spec.skew = skews[i];
        want[i] = trace_run(
            &f, &(struct run){
                    .prompt_tokens = PROMPT, .prompt_seed = 8, .outputs = 1 + STEPS, .kv = spec});
        fixture_prompt(prompt, PROMPT, VOCAB, 8);
        items[i].seq =
            fixture_start(&f, &(struct kva_sequence_params){.prompt = prompt,
                                                            .prompt_tokens = PROMPT,
                                                            .tokens_max = PROMPT + 1 + STEPS,
                                                            .sampling = &sampling,
                                                            .kv = spec});
        assert_int_equal(fixture_prefill(&f, items[i].seq, CONTEXT), want[i].tokens[0]);
    }
    trace_expect_same(&want[0], &want[2], "the same request");
    assert_memory_not_equal(want[0].logprobs, want[1].logprobs, sizeof want[0].logprobs);
    trace_expect_together(&f, items, want, COUNT, STEPS + 1);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ahead_heads__grouped_ones_are_a_clones_together),
        cmocka_unit_test(test_ahead_heads__one_is_one_of_many),
        cmocka_unit_test(test_ahead_heads__skews_beside_each_other),
    };
    return cmocka_run_group_tests(tests, make_models, remove_models);
}
