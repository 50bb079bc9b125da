/* What doctor says of machines that are not this one. */
#include "tests/cmocka.h"

#include "cli/doctor/doctor.h"

#include <cjson/cJSON.h>
#include <string.h>

#define GIB ((uint64_t)1 << 30)

static struct kva_machine plain(void)
{
    return (struct kva_machine){
        .cores = 8,
        .cores_usable = 8,
        .cgroup = {.memory_limit = UINT64_MAX, .memory_room = UINT64_MAX},
        .memory = 64 * GIB,
        .memory_available = 60 * GIB,
        .memory_nodes = 1,
        .huge_pages = KVA_HUGE_PAGES_MADVISE,
    };
}

/* The finding about a subject, which has advice where there is something to do; NULL: none. */
static const struct kva_finding *find(const struct kva_findings *findings, const char *subject)
{
    for (uint32_t i = 0; i < findings->count; i++) {
        if (strcmp(findings->items[i].subject, subject) == 0)
            return &findings->items[i];
    }
    return NULL;
}

static void expect(const struct kva_machine *machine, const struct kva_config *config,
                   const char *subject, enum kva_verdict verdict, const char *words)
{
    struct kva_findings findings = {0};
    kva_doctor_judge_machine(machine, config, &findings);
    const struct kva_finding *finding = find(&findings, subject);
    if (verdict == KVA_VERDICT_OK && !words) {
        assert_null(finding);
    } else {
        assert_non_null(finding);
        assert_int_equal(finding->verdict, verdict);
        if (!strstr(finding->found, words))
            fail_msg("'%s' is not in '%s'", words, finding->found);
        if (verdict >= KVA_VERDICT_WARN)
            assert_non_null(finding->advice);
        assert_int_equal(kva_findings_count(&findings, KVA_VERDICT_WARN),
                         verdict == KVA_VERDICT_WARN);
    }
    kva_findings_finish(&findings);
}

static void test_doctor__a_good_machine(void **state KVA_UNUSED)
{
    const struct kva_machine machine = plain();
    const struct kva_config config = {0};
    expect(&machine, &config, "cores", KVA_VERDICT_OK, "8 of 8");
    expect(&machine, &config, "memory", KVA_VERDICT_OK, "60.0 GiB can be taken of 64.0");
    expect(&machine, &config, "huge pages", KVA_VERDICT_OK, "as the server does");
    const char *const silent[] = {"threads", "swap", "overcommit", "memory nodes"};
    for (size_t i = 0; i < KVA_COUNT_OF(silent); i++)
        expect(&machine, &config, silent[i], KVA_VERDICT_OK, NULL);
}

static void test_doctor__processors(void **state KVA_UNUSED)
{
    struct kva_machine machine = plain();
    struct kva_config config = {.threads = 8};
    expect(&machine, &config, "threads", KVA_VERDICT_OK, NULL);
    config.threads = 9;
    expect(&machine, &config, "threads", KVA_VERDICT_WARN, "--threads 9");
    config.threads = 0;
    machine.cgroup.cores = 2;
    machine.cores_usable = 2;
    expect(&machine, &config, "cores", KVA_VERDICT_OK, "2 of 8, and a quota of 2.00");
    expect(&machine, &config, "threads", KVA_VERDICT_OK, NULL);
    machine.cgroup.cores = 1.5;
    expect(&machine, &config, "threads", KVA_VERDICT_WARN, "2 threads share 1.50");
    config.threads = 1;
    expect(&machine, &config, "threads", KVA_VERDICT_OK, NULL);
    machine.memory_nodes = 2;
    expect(&machine, &config, "memory nodes", KVA_VERDICT_WARN, "2 (NUMA)");
}

static void test_doctor__memory(void **state KVA_UNUSED)
{
    const struct kva_config config = {0};
    struct kva_machine machine = plain();
    machine.cgroup.memory_limit = 16 * GIB;
    machine.cgroup.memory_room = GIB / 2;
    expect(&machine, &config, "memory", KVA_VERDICT_WARN, "limit of 16.0 GiB");
    machine = plain();
    machine.swap_used = 8 * GIB;
    expect(&machine, &config, "swap", KVA_VERDICT_WARN, "8.0 GiB");
    machine = plain();
    machine.overcommit_never = true;
    machine.commit_room = 100 * GIB;
    expect(&machine, &config, "overcommit", KVA_VERDICT_OK, NULL);
    machine.commit_room = 3 * GIB;
    expect(&machine, &config, "overcommit", KVA_VERDICT_WARN, "3.0 GiB more");
    machine = plain();
    machine.huge_pages = KVA_HUGE_PAGES_NEVER;
    expect(&machine, &config, "huge pages", KVA_VERDICT_WARN, "turned off");
    machine.huge_pages = KVA_HUGE_PAGES_UNKNOWN;
    expect(&machine, &config, "huge pages", KVA_VERDICT_NOTE, "does not say");
}

static enum kva_verdict judge_tiers(uint64_t tiers, uint64_t limit, bool gpu)
{
    struct kva_findings findings = {0};
    struct kva_machine machine = plain();
    machine.cgroup.memory_room = limit;
    kva_doctor_judge_tiers(&machine, tiers, gpu, &findings);
    enum kva_verdict verdict = findings.count ? findings.items[0].verdict : KVA_VERDICT_OK;
    kva_findings_finish(&findings);
    return verdict;
}

static void test_doctor__tiers_that_memory_lacks(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    assert_int_equal(kva_machine_check_tiers(8 * GIB, 8 * GIB, false, &err), KVA_OK);
    assert_int_equal(kva_machine_check_tiers(8 * GIB, 9 * GIB, false, &err), KVA_ENOMEM);
    assert_non_null(strstr(err.message, "the tiers are 9.0 GiB, and 8.0 can be taken"));
    assert_int_equal(kva_machine_check_tiers(8 * GIB, 9 * GIB, true, &err), KVA_ENOMEM);
    assert_non_null(strstr(err.message, "the host tier is 9.0 GiB"));
}

static void test_doctor__tiers(void **state KVA_UNUSED)
{
    assert_int_equal(judge_tiers(50 * GIB, UINT64_MAX, false), KVA_VERDICT_OK);
    assert_int_equal(judge_tiers(55 * GIB, UINT64_MAX, false), KVA_VERDICT_WARN);
    assert_int_equal(judge_tiers(61 * GIB, UINT64_MAX, true), KVA_VERDICT_FAIL);
    assert_int_equal(judge_tiers(6 * GIB, 8 * GIB, false), KVA_VERDICT_OK);
    assert_int_equal(judge_tiers(8 * GIB, 8 * GIB, false), KVA_VERDICT_WARN);
    assert_int_equal(judge_tiers(9 * GIB, 8 * GIB, false), KVA_VERDICT_FAIL);
}

static void test_doctor__findings_for_people_and_programs(void **state KVA_UNUSED)
{
    struct kva_findings findings = {0};
    struct kva_err err;
    struct kva_buf text;
    kva_buf_init(&text, 1 << 20);
    kva_findings_add(&findings, KVA_VERDICT_OK, "cores", NULL, "%d of %d", 2, 3);
    kva_findings_add(&findings, KVA_VERDICT_WARN, "swap", "Free \"memory\".", "used");
    kva_findings_print(&findings, &text);
    kva_buf_append(&text, "", 1);
    assert_string_equal(text.data, "ok    cores             2 of 3\n"
                                   "warn  swap              used\n"
                                   "                     -> Free \"memory\".\n"
                                   "\n0 to mend, 1 to look at\n");
    kva_buf_clear(&text);
    assert_int_equal(kva_findings_json(&findings, &text, &err), KVA_OK);
    cJSON *root = cJSON_ParseWithLength(text.data, text.length);
    assert_string_equal(cJSON_GetObjectItem(root, "verdict")->valuestring, "warn");
    const cJSON *list = cJSON_GetObjectItem(root, "findings");
    assert_int_equal(cJSON_GetArraySize(list), 2);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetArrayItem(list, 0), "advice")));
    const cJSON *swap = cJSON_GetArrayItem(list, 1);
    assert_string_equal(cJSON_GetObjectItem(swap, "verdict")->valuestring, "warn");
    assert_string_equal(cJSON_GetObjectItem(swap, "subject")->valuestring, "swap");
    assert_string_equal(cJSON_GetObjectItem(swap, "found")->valuestring, "used");
    assert_string_equal(cJSON_GetObjectItem(swap, "advice")->valuestring, "Free \"memory\".");
    cJSON_Delete(root);
    for (uint32_t i = 0; i < KVA_FINDINGS_MAX; i++)
        kva_findings_add(&findings, KVA_VERDICT_NOTE, "more", NULL, "of it");
    assert_int_equal(findings.count, KVA_FINDINGS_MAX);
    assert_int_equal(findings.lost, 2);
    kva_buf_finish(&text);
    kva_findings_finish(&findings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doctor__a_good_machine),
        cmocka_unit_test(test_doctor__processors),
        cmocka_unit_test(test_doctor__memory),
        cmocka_unit_test(test_doctor__tiers),
        cmocka_unit_test(test_doctor__tiers_that_memory_lacks),
        cmocka_unit_test(test_doctor__findings_for_people_and_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
