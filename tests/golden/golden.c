#include "tests/golden/golden.h"

#include "tests/data.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const kva_golden_families[] = {
    "llama2_mha_f16",     "llama3_gqa_bf16", "llama_linear_f32",
    "llama_bias_sharded", "mistral_window",  "qwen2_tied",
    "qwen2_mixed_window", "qwen3_qk_norm",   "opt_relu_tied",
    "neox_parallel",      "neox_sequential", "gemma_tied",
    "llama_yarn",         "llama_dynamic",   NULL,
};

const char *kva_golden_path(const char *family, const char *file, char *out, size_t size)
{
    char name[256];
    snprintf(name, sizeof(name), "tests/golden/families/%s%s%s", family, file ? "/" : "",
             file ? file : "");
    return kva_test_source(name, out, size);
}

/* A list of numbers as doubles; NULL if it is empty or none. */
static double *read_numbers(const cJSON *root, const char *name, uint32_t *ret_count)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, name);
    uint32_t count = cJSON_IsArray(list) ? (uint32_t)cJSON_GetArraySize(list) : 0;
    double *numbers = count ? calloc(count, sizeof(*numbers)) : NULL;
    const cJSON *item = count ? list->child : NULL;
    for (uint32_t i = 0; numbers && i < count; i++, item = item->next)
        numbers[i] = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    *ret_count = count;
    return numbers;
}

static bool read_ids(const cJSON *root, const char *name, double limit, uint32_t **ret,
                     uint32_t *ret_count)
{
    double *numbers = read_numbers(root, name, ret_count);
    *ret = numbers ? calloc(*ret_count, sizeof(**ret)) : NULL;
    bool good = *ret != NULL;
    for (uint32_t i = 0; good && i < *ret_count; i++) {
        good = numbers[i] >= 0 && numbers[i] < limit;
        if (good)
            (*ret)[i] = (uint32_t)numbers[i];
    }
    free(numbers);
    return good;
}

static int base64_value(char c)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(letters, c) : NULL;
    return at ? (int)(at - letters) : -1;
}

/* Exactly `count` floats from base64 of their little-endian bytes. */
static bool read_floats(const char *text, float *out, size_t count)
{
    uint8_t word[4];
    size_t used = 0, floats = 0;
    uint32_t bits = 0;
    unsigned bit_count = 0;
    for (; *text && *text != '='; text++) {
        int value = base64_value(*text);
        if (value < 0)
            return false;
        bits = bits << 6 | (uint32_t)value;
        bit_count += 6;
        if (bit_count < 8)
            continue;
        bit_count -= 8;
        word[used++] = (uint8_t)(bits >> bit_count);
        if (used < 4)
            continue;
        if (floats == count)
            return false;
        uint32_t whole = (uint32_t)word[0] | (uint32_t)word[1] << 8 | (uint32_t)word[2] << 16 |
                         (uint32_t)word[3] << 24;
        memcpy(&out[floats++], &whole, sizeof(whole));
        used = 0;
    }
    return used == 0 && floats == count;
}

static bool read_golden(const cJSON *root, struct kva_golden *golden)
{
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(root, "format");
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(root, "vocab");
    const cJSON *logits = cJSON_GetObjectItemCaseSensitive(root, "logits");
    uint32_t margin_count;
    if (!cJSON_IsNumber(format) || format->valueint != 1 || !cJSON_IsNumber(vocab) ||
        vocab->valueint < 1 || !cJSON_IsString(logits))
        return false;
    golden->vocab = (uint32_t)vocab->valueint;
    if (!read_ids(root, "prompt", golden->vocab, &golden->prompt, &golden->prompt_count) ||
        !read_ids(root, "logit_positions", golden->prompt_count, &golden->positions,
                  &golden->position_count) ||
        !read_ids(root, "greedy", golden->vocab, &golden->greedy, &golden->greedy_count))
        return false;
    double *margins = read_numbers(root, "greedy_margins", &margin_count);
    golden->margins = calloc(golden->greedy_count, sizeof(float));
    bool good = margins && golden->margins && margin_count == golden->greedy_count;
    for (uint32_t i = 0; good && i < margin_count; i++)
        golden->margins[i] = (float)margins[i];
    free(margins);
    size_t count = (size_t)golden->position_count * golden->vocab;
    golden->logits = calloc(count, sizeof(float));
    return good && golden->logits && read_floats(logits->valuestring, golden->logits, count);
}

bool kva_golden_load(const char *family, struct kva_golden *ret)
{
    char path[4096];
    struct kva_golden golden = {0};
    char *text = kva_test_read(kva_golden_path(family, "expected.json", path, sizeof(path)), NULL);
    cJSON *root = text ? cJSON_Parse(text) : NULL;
    bool good = root && read_golden(root, &golden);
    cJSON_Delete(root);
    free(text);
    if (good) {
        *ret = golden;
    } else {
        printf("cannot read %s\n", path);
        kva_golden_finish(&golden);
    }
    return good;
}

void kva_golden_finish(struct kva_golden *golden)
{
    free(golden->prompt);
    free(golden->positions);
    free(golden->logits);
    free(golden->greedy);
    free(golden->margins);
    *golden = (struct kva_golden){0};
}
