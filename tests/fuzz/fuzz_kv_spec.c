/* fuzz_kv_spec.c - a KV policy with its settings on one line, lines of an operator, and rows fetched
 * by layer, from any bytes. What is accepted keeps its bounds, and is what its own spelling reads
 * as. */
#include "tests/fuzz/fuzz.h"

#include "engine/kv/spec.h"

#include <stdlib.h>
#include <string.h>

#define LINES_MAX 8u

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void check_k(const struct kva_kv_spec *spec, uint32_t max)
{
    char spelled[KVA_KV_K_TEXT_MAX];
    struct kva_kv_spec again = *spec;
    struct kva_err err = {0};
    require(spec->k_range_count <= KVA_KV_K_RANGES_MAX && kva_kv_spec_k_max(spec) <= max);
    memset(spelled, 0x55, sizeof(spelled));
    kva_kv_spec_write_k(spec, spelled);
    require(memchr(spelled, '\0', sizeof(spelled)) != NULL);
    require(kva_kv_spec_read_k(spelled, strlen(spelled), max, &again, &err) == KVA_OK);
    require(again.k == spec->k && again.k_range_count == spec->k_range_count);
    for (uint32_t i = 0; i < spec->k_range_count; i++) {
        const struct kva_kv_k_range *range = &spec->k_ranges[i];
        require(range->first < range->end && range->end <= KVA_KV_LAYER_MAX + 1);
        require(memcmp(range, &again.k_ranges[i], sizeof(*range)) == 0);
        require(kva_kv_spec_k(spec, range->first) == kva_kv_spec_k(&again, range->first));
    }
}

static void check(struct kva_kv_spec *spec)
{
    size_t count;
    struct kva_err err = {0};
    require(spec->policy < KVA_KV_POLICY_COUNT);
    const struct kva_kv_policy_setting *has = kva_kv_policy_settings(spec->policy, &count);
    for (size_t i = 0; i < count; i++) {
        const struct kva_kv_setting *setting = kva_kv_setting_at(has[i].id);
        uint32_t value = *kva_kv_setting_value(setting, spec), words = 0;
        while (setting->words && setting->words[words])
            words++;
        if (setting->kind == KVA_SETTING_WORD)
            require(value < words);
        else if (kva_kv_setting_is_amount(setting) && value & KVA_KV_PERCENT)
            require((value & ~KVA_KV_PERCENT) <= 100);
        else if (!setting->among)
            require(value >= setting->min && value <= setting->max);
    }
    check_k(spec, KVA_KV_K_MAX);
    require(kva_kv_spec_check(spec, &err) == KVA_OK);
}

static void parse_lines(char *text)
{
    char *lines[LINES_MAX];
    uint32_t count = 0;
    struct kva_kv_spec specs[KVA_KV_POLICY_COUNT];
    enum kva_kv_policy_id first = KVA_KV_FULL;
    struct kva_err err = {0};
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++)
        specs[id] = kva_kv_spec_default((enum kva_kv_policy_id)id);
    for (char *line = strtok(text, "\n"); line && count < LINES_MAX; line = strtok(NULL, "\n"))
        lines[count++] = line;
    enum kva_status status = kva_kv_spec_parse_list(lines, count, specs, &first, &err);
    require(status == KVA_OK || (status == KVA_EINVAL && err.message[0]));
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT && !status; id++) {
        require(specs[id].policy == (enum kva_kv_policy_id)id && first < KVA_KV_POLICY_COUNT);
        check(&specs[id]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t maxima[] = {0, 64, KVA_KV_K_MAX};
    struct kva_err err = {0};
    char *text = malloc(size + 1);
    require(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    struct kva_kv_spec spec;
    enum kva_status status = kva_kv_spec_parse(text, NULL, &spec, &err);
    require(status == KVA_OK || (status == KVA_EINVAL && err.message[0] && err.param[0]));
    if (!status)
        check(&spec);
    parse_lines(text);
    free(text);
    for (size_t i = 0; i < KVA_COUNT_OF(maxima); i++) {
        spec = kva_kv_spec_default(KVA_KV_SPECACHE);
        status = kva_kv_spec_read_k((const char *)data, size, maxima[i], &spec, &err);
        require(status == KVA_OK || status == KVA_EINVAL);
        if (!status)
            check_k(&spec, maxima[i]);
    }
    return 0;
}
