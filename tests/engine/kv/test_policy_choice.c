/* The settings of KV policies, and choices written in one line. */
#include "tests/cmocka.h"

#include "engine/kv/policy_choice.h"

#include <string.h>

static struct kva_kv_choice parsed(const char *spec)
{
    struct kva_err err = {0};
    struct kva_kv_choice choice;
    if (kva_kv_choice_parse(spec, &choice, &err))
        fail_msg("%s: %s", spec, err.message);
    return choice;
}

static void test_parse__names_and_defaults(void **state KVA_UNUSED)
{
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++) {
        const char *name = kva_kv_policy_name((enum kva_kv_policy_id)id);
        struct kva_kv_choice expected = kva_kv_choice_default((enum kva_kv_policy_id)id);
        struct kva_kv_choice choice = parsed(name);
        assert_memory_equal(&choice, &expected, sizeof(choice));
    }
}

static void test_parse__bare_numbers(void **state KVA_UNUSED)
{
    struct kva_kv_choice choice = parsed("specache:1:128");
    assert_int_equal(choice.policy, KVA_KV_SPECACHE);
    assert_int_equal(choice.bits, 1);
    assert_int_equal(choice.k, 128);
    assert_int_equal(parsed("kivi:4").bits, 4);
    choice = parsed("specache:1:predictor=sync");
    assert_int_equal(choice.bits, 1);
    assert_int_equal(choice.predictor, KVA_PREDICT_SYNC);
}

static void test_parse__every_setting(void **state KVA_UNUSED)
{
    struct kva_kv_choice choice =
        parsed("specache:bits=4:group=32:levels=paper:window=128:sinks=8:plain=64:exempt=3:topk=32:"
               "predictor=prev-query:correct=70:fetch=delta:miss=predecode");
    const struct kva_kv_choice expected = {.policy = KVA_KV_SPECACHE,
                                           .bits = 4,
                                           .group = 32,
                                           .levels = KVA_KV_LEVELS_PAPER,
                                           .window = 128,
                                           .sinks = 8,
                                           .plain = 64,
                                           .exempt = 3,
                                           .k = 32,
                                           .predictor = KVA_PREDICT_PREV_QUERY,
                                           .correct = 70,
                                           .fetch = KVA_FETCH_DELTA,
                                           .miss = KVA_MISS_PREDECODE};
    assert_memory_equal(&choice, &expected, sizeof(choice));
}

static void test_parse__rows_by_layer(void **state KVA_UNUSED)
{
    struct kva_kv_choice choice = parsed("specache:1:64+256@0-1+0@3+9@1");
    const uint32_t k[] = {256, 9, 64, 0, 64};
    for (uint32_t layer = 0; layer < KVA_COUNT_OF(k); layer++)
        assert_int_equal(kva_kv_choice_k(&choice, layer), k[layer]);
    assert_int_equal(kva_kv_choice_k_max(&choice), 256);
    char text[KVA_KV_K_TEXT_MAX];
    kva_kv_choice_write_k(&choice, text);
    assert_string_equal(text, "64+256@0-1+0@3+9@1");
    choice = parsed("specache:topk=7+65536@65535+65536@65534-65535+65536@0-65535+65536@65535");
    kva_kv_choice_write_k(&choice, text);
    assert_string_equal(text, "7+65536@65535+65536@65534-65535+65536@0-65535+65536@65535");
    assert_int_equal(kva_kv_choice_k(&choice, 65535), 65536);
    /* A number alone forgets what was there before. */
    assert_int_equal(kva_kv_choice_read_k("5", 1, 10, &choice, NULL), KVA_OK);
    struct kva_kv_choice expected = kva_kv_choice_default(KVA_KV_SPECACHE);
    expected.k = 5;
    assert_memory_equal(&choice, &expected, sizeof(choice));
}

static void test_read_k__refuses_and_leaves_the_choice(void **state KVA_UNUSED)
{
    static const char *const cases[] = {
        "",
        "+",
        "64+",
        "64+1",
        "64+1@",
        "64+@1",
        "64+1@-",
        "64+1@2-",
        "64+1@2-1",
        "64@1",
        "64+1@65536",
        "64+101@1",
        "101",
        "64 ",
        "64+1@1 +2@2",
        "-1",
        "64+1@1+1@2+1@3+1@4+1@5",
        "6.5",
    };
    const struct kva_kv_choice before = kva_kv_choice_default(KVA_KV_SPECACHE);
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_kv_choice choice = before;
        struct kva_err err = {0};
        enum kva_status status =
            kva_kv_choice_read_k(cases[i], strlen(cases[i]), 100, &choice, &err);
        if (status != KVA_EINVAL)
            fail_msg("'%s' is read", cases[i]);
        assert_string_equal(err.param, "topk");
        assert_non_null(strstr(err.message, "from 0 to 100"));
        assert_memory_equal(&choice, &before, sizeof(choice));
    }
}

/* Wherever it stands, paper=true is what the other settings start from. */
static void test_parse__paper(void **state KVA_UNUSED)
{
    struct kva_kv_choice expected = kva_kv_choice_paper(KVA_KV_SPECACHE);
    expected.bits = 1;
    expected.sinks = 4;
    struct kva_kv_choice before = parsed("specache:paper=true:bits=1:sinks=4");
    struct kva_kv_choice behind = parsed("specache:1:sinks=4:paper=true");
    assert_memory_equal(&before, &expected, sizeof(expected));
    assert_memory_equal(&behind, &expected, sizeof(expected));
    expected = kva_kv_choice_default(KVA_KV_SPECACHE);
    before = parsed("specache:paper=false");
    assert_memory_equal(&before, &expected, sizeof(expected));
    assert_int_equal(parsed("kivi:paper=true").window, 128);
}

static void test_parse__refuses(void **state KVA_UNUSED)
{
    static const struct {
        const char *spec, *param, *says;
    } cases[] = {
        {"", "policy", "no such policy"},
        {"fulll", "policy", "no such policy"},
        {"Full", "policy", "no such policy"},
        {":1", "policy", "no such policy"},
        {"kivi:", "policy", "nothing follows"},
        {"kivi:1:", "policy", "nothing follows"},
        {"kivi::1", "bits", "''"},
        {"specache:1:64:4", "policy", "'4' has no name"},
        {"specache:bits=1:64", "policy", "'64' has no name"},
        {"specache:1:bits=2", "policy", "bits is given twice"},
        {"specache:paper=true:paper=true", "policy", "paper is given twice"},
        {"specache:paper=yes", "paper", "true or false"},
        {"kivi:3", "bits", "1, 2 or 4"},
        {"kivi:5", "bits", "from 1 to 4"},
        {"kivi:-1", "bits", "from 1 to 4"},
        {"kivi:2x", "bits", "'2x'"},
        {"kivi:bits=", "bits", "''"},
        {"specache:topk=99999999999999999999999", "topk", "from 0 to 65536"},
        {"specache:window=100", "window", "multiple of 64"},
        {"specache:predictor=oracle", "predictor", "spec-token, prev-query, sync, auto"},
        {"specache:predictor=syn", "predictor", "spec-token, prev-query, sync, auto"},
        {"specache:miss=again", "miss", "chain, predecode"},
        {"specache:color=red", "policy", "'color' is no setting"},
        {"specache:=red", "policy", "'' is no setting"},
        {"specache:exact=true", "policy", "'exact' is no setting"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_err err = {0};
        struct kva_kv_choice choice, untouched;
        memset(&choice, 0x5a, sizeof(choice));
        untouched = choice;
        assert_int_equal(kva_kv_choice_parse(cases[i].spec, &choice, &err), KVA_EINVAL);
        if (strcmp(err.param, cases[i].param) != 0 || !strstr(err.message, cases[i].says))
            fail_msg("%s: param '%s', message '%s'", cases[i].spec, err.param, err.message);
        assert_memory_equal(&choice, &untouched, sizeof(choice));
    }
    assert_int_equal(kva_kv_choice_parse("none", &(struct kva_kv_choice){0}, NULL), KVA_EINVAL);
}

static void test_predictor__auto_is_sync_where_the_host_reads(void **state KVA_UNUSED)
{
    for (uint32_t i = 0; i < KVA_PREDICTOR_COUNT; i++) {
        const struct kva_kv_choice choice = {.policy = KVA_KV_SPECACHE,
                                             .predictor = (enum kva_kv_predictor)i};
        assert_int_equal(kva_kv_predictor_of(&choice, false), i);
        assert_int_equal(kva_kv_predictor_of(&choice, true),
                         i == KVA_PREDICT_AUTO ? KVA_PREDICT_SYNC : i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse__names_and_defaults),
        cmocka_unit_test(test_parse__bare_numbers),
        cmocka_unit_test(test_parse__every_setting),
        cmocka_unit_test(test_parse__rows_by_layer),
        cmocka_unit_test(test_read_k__refuses_and_leaves_the_choice),
        cmocka_unit_test(test_parse__paper),
        cmocka_unit_test(test_parse__refuses),
        cmocka_unit_test(test_predictor__auto_is_sync_where_the_host_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
