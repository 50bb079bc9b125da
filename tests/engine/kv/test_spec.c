/* The settings of KV policies, and specs written in one line. */
#include "tests/cmocka.h"

#include "engine/kv/spec.h"

#include <string.h>

static struct kva_kv_spec parsed(const char *text)
{
    struct kva_err err = {0};
    struct kva_kv_spec spec;
    if (kva_kv_spec_parse(text, NULL, &spec, &err))
        fail_msg("%s: %s", text, err.message);
    return spec;
}

static void test_parse__names_and_defaults(void **state KVA_UNUSED)
{
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++) {
        const char *name = kva_kv_policy_name((enum kva_kv_policy_id)id);
        struct kva_kv_spec expected = kva_kv_spec_default((enum kva_kv_policy_id)id);
        struct kva_kv_spec spec = parsed(name);
        assert_memory_equal(&spec, &expected, sizeof(spec));
    }
}

static void test_parse__bare_numbers(void **state KVA_UNUSED)
{
    struct kva_kv_spec spec = parsed("specache:1:128");
    assert_int_equal(spec.policy, KVA_KV_SPECACHE);
    assert_int_equal(spec.bits, 1);
    assert_int_equal(spec.k, 128);
    assert_int_equal(parsed("kivi:4").bits, 4);
    assert_int_equal(parsed("kivi:1:levels=extremes").levels, KVA_KV_LEVELS_EXTREMES);
    spec = parsed("specache:1:predictor=sync");
    assert_int_equal(spec.bits, 1);
    assert_int_equal(spec.predictor, KVA_PREDICT_SYNC);
}

static void test_parse__every_setting(void **state KVA_UNUSED)
{
    struct kva_kv_spec spec =
        parsed("specache:bits=4:group=32:levels=minmax:window=128:sinks=8:min_tokens=64:skip_"
               "layers=3:topk=32:"
               "predictor=prev-query:reselect_below=70:fetch=delta:successor=20:on_mispredict="
               "predecode");
    const struct kva_kv_spec expected = {.policy = KVA_KV_SPECACHE,
                                         .bits = 4,
                                         .group = 32,
                                         .levels = KVA_KV_LEVELS_MINMAX,
                                         .window = 128,
                                         .sinks = 8,
                                         .min_tokens = 64,
                                         .skip_layers = 3,
                                         .k = 32,
                                         .predictor = KVA_PREDICT_PREV_QUERY,
                                         .reselect_below = 70,
                                         .fetch = KVA_FETCH_DELTA,
                                         .successor = 20,
                                         .on_mispredict = KVA_MISPREDICT_PREDECODE};
    assert_memory_equal(&spec, &expected, sizeof(spec));
}

static void test_parse__rows_by_layer(void **state KVA_UNUSED)
{
    struct kva_kv_spec spec = parsed("specache:1:64+256@0-1+0@3+9@1");
    const uint32_t k[] = {256, 9, 64, 0, 64};
    for (uint32_t layer = 0; layer < KVA_COUNT_OF(k); layer++)
        assert_int_equal(kva_kv_spec_k(&spec, layer), k[layer]);
    assert_int_equal(kva_kv_spec_k_max(&spec), 256);
    char text[KVA_KV_K_TEXT_MAX];
    kva_kv_spec_write_k(&spec, text);
    assert_string_equal(text, "64+256@0-1+0@3+9@1");
    spec = parsed("specache:topk=7+16384@65535+16384@65534-65535+16384@0-65535+16384@65535");
    kva_kv_spec_write_k(&spec, text);
    assert_string_equal(text, "7+16384@65535+16384@65534-65535+16384@0-65535+16384@65535");
    assert_int_equal(kva_kv_spec_k(&spec, 65535), 16384);
    /* A number alone forgets what was there before. */
    assert_int_equal(kva_kv_spec_read_k("5", 1, 10, &spec, NULL), KVA_OK);
    struct kva_kv_spec expected = kva_kv_spec_default(KVA_KV_SPECACHE);
    expected.k = 5;
    assert_memory_equal(&spec, &expected, sizeof(spec));
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
    const struct kva_kv_spec before = kva_kv_spec_default(KVA_KV_SPECACHE);
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_kv_spec spec = before;
        struct kva_err err = {0};
        enum kva_status status = kva_kv_spec_read_k(cases[i], strlen(cases[i]), 100, &spec, &err);
        if (status != KVA_EINVAL)
            fail_msg("'%s' is read", cases[i]);
        assert_string_equal(err.param, "topk");
        assert_non_null(strstr(err.message, "from 0 to 100"));
        assert_memory_equal(&spec, &before, sizeof(spec));
    }
}

/* Tokens, or percent of a prompt; and what they come to. */
static void test_parse__amounts(void **state KVA_UNUSED)
{
    struct kva_kv_spec spec = parsed("h2o:heavy=15%:recent=128:mass=all"), resolved;
    assert_int_equal(spec.heavy, KVA_KV_PERCENT | 15);
    assert_int_equal(spec.recent, 128);
    assert_int_equal(spec.mass, KVA_MASS_ALL);
    resolved = kva_kv_spec_resolve(&spec, 1001, 2000);
    assert_int_equal(resolved.heavy, 151);
    assert_int_equal(resolved.recent, 128);
    const struct kva_kv_spec again = kva_kv_spec_resolve(&resolved, 7, 9);
    assert_memory_equal(&again, &resolved, sizeof(resolved));
    assert_int_equal(parsed("h2o:heavy=0%").heavy, KVA_KV_PERCENT);
    assert_int_equal(parsed("h2o:heavy=100%").heavy, KVA_KV_PERCENT | 100);
    assert_int_equal(parsed("h2o:heavy=16777216").heavy, 1 << 24);
    /* Recent tokens: as many as the window has in any case. */
    spec = parsed("h2o:recent=1%");
    assert_int_equal(kva_kv_spec_resolve(&spec, 1000, 1000).recent, 64);
    /* Shares of what there is at the time are left as they are. */
    spec = parsed("infinigen:cap=25%:alpha=0:partial=100:skew=fold");
    assert_int_equal(kva_kv_spec_resolve(&spec, 1000, 1500).cap, KVA_KV_PERCENT | 25);
    assert_int_equal(kva_kv_spec_resolve(&spec, 1000, 1500).tokens_max, 1500);
    assert_int_equal(spec.skew, KVA_SKEW_FOLD);
    assert_int_equal(parsed("infinigen:cap=8192").cap, 8192);
    assert_int_equal(parsed("q-hitter:3").bits, 3);
    assert_int_equal(parsed("q-hitter:16:pure=0").bits, 16);
    char text[KVA_KV_VALUE_MAX];
    kva_kv_setting_write(kva_kv_setting_find("heavy"), KVA_KV_PERCENT | 15, text);
    assert_string_equal(text, "15%");
    kva_kv_setting_write(kva_kv_setting_find("heavy"), 15, text);
    assert_string_equal(text, "15");
    kva_kv_setting_write(kva_kv_setting_find("mass"), KVA_MASS_ALL, text);
    assert_string_equal(text, "all");
}

/* Wherever it stands, paper=true is what the other settings start from. */
static void test_parse__paper(void **state KVA_UNUSED)
{
    struct kva_kv_spec expected = kva_kv_spec_paper(KVA_KV_SPECACHE);
    expected.bits = 1;
    expected.sinks = 4;
    struct kva_kv_spec before = parsed("specache:paper=true:bits=1:sinks=4");
    struct kva_kv_spec behind = parsed("specache:1:sinks=4:paper=true");
    assert_memory_equal(&before, &expected, sizeof(expected));
    assert_memory_equal(&behind, &expected, sizeof(expected));
    expected = kva_kv_spec_default(KVA_KV_SPECACHE);
    before = parsed("specache:paper=false");
    assert_memory_equal(&before, &expected, sizeof(expected));
    assert_int_equal(parsed("kivi:paper=true").window, 128);
}

static void test_parse__refuses(void **state KVA_UNUSED)
{
    static const struct {
        const char *text, *param, *says;
    } cases[] = {
        {"", "policy", "no such policy"},
        {"infinigen:cap=8193", "cap", "or from 0% to 100% of the tokens"},
        {"infinigen:cap=0", "cap", "from 1 to 8192"},
        {"infinigen:partial=0", "partial", "from 1 to 100"},
        {"infinigen:partial_bits=4", "partial_bits", "8, 16"},
        {"infinigen:skew=plane", "skew", "after, none, fold, planes"},
        {"infinigen:topk=3", "topk", "no setting"},
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
        {"kivi:4:value_bits=2", "value_bits", "goes with bits 1, not 4"},
        {"kivi:1:value_bits=1", "value_bits", "0 or 2"},
        {"kivi:1:value_bits=4", "value_bits", "0 or 2"},
        {"h2o:value_bits=2", "value_bits", "policies that have it: kivi, specache"},
        {"kivi:3", "bits", "one of: 1, 2, 4"},
        {"kivi:5", "bits", "one of: 1, 2, 4"},
        {"kivi:-1", "bits", "one of: 1, 2, 4"},
        {"kivi:2x", "bits", "'2x'"},
        {"kivi:bits=", "bits", "''"},
        {"specache:topk=99999999999999999999999", "topk", "from 0 to 16384"},
        {"specache:window=100", "window", "multiple of 64"},
        {"specache:predictor=oracle", "predictor", "spec-token, prev-query, sync, auto"},
        {"specache:predictor=syn", "predictor", "spec-token, prev-query, sync, auto"},
        {"specache:on_mispredict=again", "on_mispredict", "chain, predecode"},
        {"specache:levels=paper", "levels", "'paper' is called 'minmax' now"},
        {"kivi:levels=fit", "levels", "'fit' is called 'mse' now"},
        {"specache:plain=0", "plain", "'plain' is called 'min_tokens' now"},
        {"specache:exempt=1", "exempt", "'exempt' is called 'skip_layers' now"},
        {"specache:correct=1", "correct", "'correct' is called 'reselect_below' now"},
        {"specache:miss=chain", "miss", "'miss' is called 'on_mispredict' now"},
        {"full:1", "bits", "'full' has no setting 'bits'; policies that have it: kivi, specache"},
        {"kivi:2:64", "topk", "'kivi' has no setting 'topk'; policies that have it: specache"},
        {"offload:window=64", "window", "policies that have it: kivi, specache"},
        {"q-hitter:1", "bits", "one of: 2, 3, 4, 8, 16"},
        {"q-hitter:lambda=101", "lambda", "from 0 to 100"},
        {"h2o:heavy=101%", "heavy", "from 0% to 100% of the prompt"},
        {"h2o:heavy=1000%", "heavy", "from 0% to 100% of the prompt"},
        {"h2o:heavy=%", "heavy", "'%'"},
        {"h2o:heavy=5%%", "heavy", "'5%%'"},
        {"h2o:heavy=-1", "heavy", "'-1'"},
        {"h2o:recent=16777217", "recent", "from 0 to 16777216"},
        {"h2o:mass=some", "mass", "last, all"},
        {"h2o:sinks=5%", "sinks", "from 0 to 32"},
        {"specache:color=red", "policy", "'color' is no setting"},
        {"specache:=red", "policy", "'' is no setting"},
        {"specache:exact=true", "policy", "'exact' is no setting"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_err err = {0};
        struct kva_kv_spec spec, untouched;
        memset(&spec, 0x5a, sizeof(spec));
        untouched = spec;
        assert_int_equal(kva_kv_spec_parse(cases[i].text, NULL, &spec, &err), KVA_EINVAL);
        if (strcmp(err.param, cases[i].param) != 0 || !strstr(err.message, cases[i].says))
            fail_msg("%s: param '%s', message '%s'", cases[i].text, err.param, err.message);
        assert_memory_equal(&spec, &untouched, sizeof(spec));
    }
    assert_int_equal(kva_kv_spec_parse("none", NULL, &(struct kva_kv_spec){0}, NULL), KVA_EINVAL);
}

static void test_predictor__auto_asks_whether_the_host_reads(void **state KVA_UNUSED)
{
    for (uint32_t i = 0; i < KVA_PREDICTOR_COUNT; i++) {
        const struct kva_kv_spec spec = {.policy = KVA_KV_SPECACHE,
                                         .predictor = (enum kva_kv_predictor)i};
        assert_int_equal(kva_kv_predictor_of(&spec, false),
                         i == KVA_PREDICT_AUTO ? KVA_PREDICT_SPEC_TOKEN : i);
        assert_int_equal(kva_kv_predictor_of(&spec, true),
                         i == KVA_PREDICT_AUTO ? KVA_PREDICT_SYNC : i);
    }
}

/* Settings that a line does not name are those of the base; paper=true leaves the base. */
static void test_parse__goes_over_bases(void **state KVA_UNUSED)
{
    struct kva_err err;
    struct kva_kv_spec bases[KVA_KV_POLICY_COUNT], spec, expected;
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++)
        bases[id] = kva_kv_spec_default((enum kva_kv_policy_id)id);
    bases[KVA_KV_SPECACHE].bits = 4;
    bases[KVA_KV_SPECACHE].sinks = 9;
    assert_int_equal(kva_kv_spec_parse("specache:sinks=1", bases, &spec, &err), KVA_OK);
    expected = bases[KVA_KV_SPECACHE];
    expected.sinks = 1;
    assert_memory_equal(&spec, &expected, sizeof(spec));
    assert_int_equal(kva_kv_spec_parse("specache:paper=true", bases, &spec, &err), KVA_OK);
    expected = kva_kv_spec_paper(KVA_KV_SPECACHE);
    assert_memory_equal(&spec, &expected, sizeof(spec));
}

static void test_parse_list__first_is_the_default(void **state KVA_UNUSED)
{
    struct kva_err err;
    struct kva_kv_spec specs[KVA_KV_POLICY_COUNT];
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++)
        specs[id] = kva_kv_spec_default((enum kva_kv_policy_id)id);
    enum kva_kv_policy_id policy = KVA_KV_OFFLOAD;
    assert_int_equal(kva_kv_spec_parse_list(NULL, 0, specs, &policy, &err), KVA_OK);
    assert_int_equal(policy, KVA_KV_OFFLOAD);
    char first[] = "specache:1:16", second[] = "kivi:4", again[] = "kivi:2";
    char *lines[] = {first, second, again};
    assert_int_equal(kva_kv_spec_parse_list(lines, 2, specs, &policy, &err), KVA_OK);
    assert_int_equal(policy, KVA_KV_SPECACHE);
    assert_int_equal(specs[KVA_KV_SPECACHE].k, 16);
    assert_int_equal(specs[KVA_KV_KIVI].bits, 4);
    assert_int_equal(kva_kv_spec_parse_list(lines, 3, specs, &policy, &err), KVA_EINVAL);
    assert_non_null(strstr(err.message, "'kivi:2': policy kivi is given twice"));
}

/* A setting's default and paper value are values that it may have, and each is in one policy at
 * least: what the documentation lists can be given. */
static void test_settings__are_all_reachable(void **state KVA_UNUSED)
{
    bool used[KVA_SETTING_COUNT] = {false};
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++) {
        enum kva_kv_policy_id policy = (enum kva_kv_policy_id)id;
        const struct kva_kv_spec specs[] = {kva_kv_spec_default(policy), kva_kv_spec_paper(policy)};
        size_t count;
        const struct kva_kv_policy_setting *own = kva_kv_policy_settings(policy, &count);
        for (size_t i = 0; i < count; i++)
            used[own[i].id] = true;
        for (size_t i = 0; i < KVA_COUNT_OF(specs); i++)
            assert_int_equal(kva_kv_spec_check(&specs[i], NULL), KVA_OK);
    }
    for (uint32_t id = 0; id < KVA_SETTING_COUNT; id++) {
        const struct kva_kv_setting *setting = kva_kv_setting_at((enum kva_kv_setting_id)id);
        assert_true(used[id]);
        assert_ptr_equal(kva_kv_setting_find(setting->name), setting);
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
        cmocka_unit_test(test_parse__amounts),
        cmocka_unit_test(test_parse__paper),
        cmocka_unit_test(test_parse__goes_over_bases),
        cmocka_unit_test(test_parse_list__first_is_the_default),
        cmocka_unit_test(test_settings__are_all_reachable),
        cmocka_unit_test(test_parse__refuses),
        cmocka_unit_test(test_predictor__auto_asks_whether_the_host_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
