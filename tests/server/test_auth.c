/* Keys: the grammar of their file, what stays over a reload, the brake on wrong ones, and what a
 * key may use, on a clock of the test's own. */
#include "base/clock.h"
#include "base/log.h"
#include "server/auth/auth.h"
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND KVA_NS_PER_S

static char path[64];
static uint64_t now_ns;

static void write_keys(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int set_up(void **state KVA_UNUSED)
{
    snprintf(path, sizeof(path), "/tmp/kvahead-keys-XXXXXX");
    int fd = mkstemp(path);
    now_ns = 1000 * SECOND;
    kva_log_setup(STDERR_FILENO, KVA_LOG_OFF, KVA_LOG_TEXT);
    return fd < 0 || close(fd) != 0;
}

static int tear_down(void **state KVA_UNUSED)
{
    return unlink(path);
}

static enum kva_status create(const char *text, struct kva_auth **ret, struct kva_err *err)
{
    const struct kva_auth_params params = {.key_file = path, .defaults = kva_key_limits_default()};
    write_keys(text);
    return kva_auth_create(&params, ret, err);
}

static struct kva_auth *keys(const char *text)
{
    struct kva_auth *auth = NULL;
    struct kva_err err;
    if (create(text, &auth, &err) != KVA_OK)
        fail_msg("%s", err.message);
    return auth;
}

/* What presenting this key from that address gives; *ret_key may be NULL. */
static enum kva_status present(struct kva_auth *auth, const char *key, const char *peer,
                               int *ret_key)
{
    const struct kva_auth_request request = {.api_key_header = key, .peer = peer, .now_ns = now_ns};
    struct kva_err err = {.status = KVA_OK};
    uint32_t retry_s = 0;
    int index = -1;
    enum kva_status status = kva_auth_check(auth, &request, &index, &retry_s, &err);
    assert_int_equal(status == KVA_ERATE, retry_s > 0);
    assert_int_equal(status == KVA_OK, index >= 0);
    if (ret_key)
        *ret_key = index;
    return status;
}

static int index_of(struct kva_auth *auth, const char *key)
{
    int index = -1;
    assert_int_equal(present(auth, key, "::1", &index), KVA_OK);
    return index;
}

static void test_auth__reads_what_a_line_says(void **state KVA_UNUSED)
{
    struct kva_auth *auth =
        keys("# name them all\n\n  plain  \r\n"
             "k2 name=team.a-1@x weight=3 requests-per-minute=60 tokens-per-minute=100000\n"
             "\tk3\trunning=8 waiting=32\tpriority=-5..5 admin\n");
    assert_true(kva_auth_required(auth));
    struct kva_key_limits limits = kva_auth_limits(auth, index_of(auth, "plain"));
    assert_int_equal(limits.weight, 1);
    assert_int_equal(limits.requests_per_minute + limits.tokens_per_minute, 0);
    assert_int_equal(limits.running + limits.waiting, 0);
    assert_int_equal(limits.priority_min, 0);
    assert_false(limits.admin);
    limits = kva_auth_limits(auth, index_of(auth, "k2"));
    assert_string_equal(kva_auth_name(auth, index_of(auth, "k2")), "team.a-1@x");
    assert_int_equal(limits.weight, 3);
    assert_int_equal(limits.requests_per_minute, 60);
    assert_int_equal(limits.tokens_per_minute, 100000);
    limits = kva_auth_limits(auth, index_of(auth, "k3"));
    assert_int_equal(limits.running, 8);
    assert_int_equal(limits.waiting, 32);
    assert_int_equal(limits.priority_min, -5);
    assert_int_equal(limits.priority_max, 5);
    assert_true(limits.admin);
    assert_int_equal(present(auth, "# name them all", "::1", NULL), KVA_EAUTH);
    assert_int_equal(present(auth, "k2 name=team.a-1@x", "::1", NULL), KVA_EAUTH);
    assert_int_equal(present(auth, "", "::1", NULL), KVA_EAUTH);
    kva_auth_destroy(auth);
}

static void test_auth__names_line_and_word_but_no_key(void **state KVA_UNUSED)
{
    static const struct {
        const char *text, *says[3];
    } cases[] = {
        {"a\nsecret wieght=2\n", {":2:", "'wieght=2'", "weight="}},
        {"secret weight=0\n", {":1:", "'weight=0'", "1 to 1000"}},
        {"secret weight=1001\n", {":1:", "'weight=1001'", "1 to 1000"}},
        {"secret weight=2x\n", {":1:", "'weight=2x'", "whole"}},
        {"secret weight=\n", {":1:", "'weight='", "whole"}},
        {"secret running=-1\n", {":1:", "'running=-1'", "whole"}},
        {"secret waiting=99999999999999999999\n", {":1:", "waiting=", "whole"}},
        {"secret priority=5..-5\n", {":1:", "'priority=5..-5'", "FROM..TO"}},
        {"secret priority=5\n", {":1:", "'priority=5'", "FROM..TO"}},
        {"secret priority=0..5..9\n", {":1:", "'priority=0..5..9'", "FROM..TO"}},
        {"secret name=\n", {":1:", "'name='", "letters"}},
        {"secret name=a\"b\n", {":1:", "name=", "letters"}},
        {"secret weight=2 weight=3\n", {":1:", "'weight=3'", "twice"}},
        {"secret admin admin\n", {":1:", "'admin'", "twice"}},
        {"secret\n\nsecret weight=2\n", {":3:", "line 1", "key"}},
        {"secret name=x\nother name=x\n", {":2:", "line 1", "name"}},
        {"secret Admin\n", {":1:", "'Admin'", "unknown"}},
        {"sec\x01ret\n", {":1:", "control", "4"}},
        {"# none\n", {"no keys", path, path}},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_auth *auth = NULL;
        struct kva_err err = {.status = KVA_OK};
        assert_int_equal(create(cases[i].text, &auth, &err), KVA_EINVAL);
        assert_null(auth);
        for (size_t j = 0; j < 3; j++)
            if (!strstr(err.message, cases[i].says[j]))
                fail_msg("%s: '%s' is not in: %s", cases[i].text, cases[i].says[j], err.message);
        assert_null(strstr(err.message, "secret"));
    }
    char line[2048];
    memset(line, 'k', sizeof(line));
    memcpy(line + sizeof(line) - 2, "\n", 2);
    struct kva_auth *auth = NULL;
    struct kva_err err;
    assert_int_equal(create(line, &auth, &err), KVA_EINVAL);
    memcpy(line + KVA_KEY_BYTES_MAX + 1, "\n", 2);
    assert_int_equal(create(line, &auth, &err), KVA_EINVAL);
    memcpy(line + KVA_KEY_BYTES_MAX, "\n", 2);
    assert_int_equal(create(line, &auth, &err), KVA_OK);
    kva_auth_destroy(auth);
}

static void test_auth__keys_of_the_environment_have_commas_between(void **state KVA_UNUSED)
{
    static const char *const given[] = {"one, two", "three", "one"};
    struct kva_auth_params params = {
        .keys = given, .key_count = 3, .key_file = path, .defaults = kva_key_limits_default()};
    struct kva_auth *auth = NULL;
    struct kva_err err;
    params.defaults.weight = 7;
    write_keys("four weight=2\n");
    assert_int_equal(kva_auth_create(&params, &auth, &err), KVA_OK);
    assert_int_equal(index_of(auth, "four"), 3); /* the last one */
    assert_int_equal(kva_auth_limits(auth, index_of(auth, "two")).weight, 7);
    assert_int_equal(kva_auth_limits(auth, index_of(auth, "four")).weight, 2);
    assert_int_equal(present(auth, "one, two", "::1", NULL), KVA_EAUTH);
    kva_auth_destroy(auth);
    auth = NULL;
    write_keys("three admin\n");
    assert_int_equal(kva_auth_create(&params, &auth, &err), KVA_EINVAL);
    assert_non_null(strstr(err.message, ":1:"));
    assert_null(auth);
}

static void test_auth__an_index_stays_with_its_key(void **state KVA_UNUSED)
{
    struct kva_err err;
    uint64_t scope[2], again[2];
    struct kva_auth *auth = keys("a requests-per-minute=2\nb\nc\n");
    int a = index_of(auth, "a"), b = index_of(auth, "b"), c = index_of(auth, "c");
    uint64_t tenant_a = kva_auth_tenant(auth, a), tenant_b = kva_auth_tenant(auth, b);
    uint32_t retry_s = 0;
    kva_auth_scope(auth, c, scope);
    assert_true(tenant_a != 0 && tenant_b != 0 && tenant_a != tenant_b);
    assert_int_equal(kva_auth_tenant(auth, -1), 0);
    assert_int_equal(kva_auth_take(auth, a, now_ns, &retry_s, &err), KVA_OK);
    assert_int_equal(kva_auth_take(auth, a, now_ns, &retry_s, &err), KVA_OK);
    write_keys("d\nc weight=9\na requests-per-minute=2\n");
    assert_int_equal(kva_auth_reload(auth, &err), KVA_OK);
    assert_int_equal(index_of(auth, "a"), a);
    assert_int_equal(index_of(auth, "c"), c);
    assert_int_equal(kva_auth_limits(auth, c).weight, 9);
    assert_true(index_of(auth, "d") > c);
    assert_int_equal(present(auth, "b", "::1", NULL), KVA_EAUTH);
    kva_auth_scope(auth, c, again);
    assert_memory_equal(scope, again, sizeof(scope));
    /* A reload is no way to a new allowance. */
    assert_int_equal(kva_auth_take(auth, a, now_ns, &retry_s, &err), KVA_ERATE);
    /* What cannot be read changes nothing. */
    write_keys("e\nf unknown\n");
    assert_int_equal(kva_auth_reload(auth, &err), KVA_EINVAL);
    assert_int_equal(index_of(auth, "d"), 3);
    assert_int_equal(present(auth, "e", "::1", NULL), KVA_EAUTH);
    write_keys("b\n");
    assert_int_equal(kva_auth_reload(auth, &err), KVA_OK);
    assert_int_equal(index_of(auth, "b"), b);
    assert_int_equal(kva_auth_tenant(auth, b), tenant_b);
    kva_auth_destroy(auth);
}

static void test_auth__wrong_keys_meet_a_brake_right_ones_never(void **state KVA_UNUSED)
{
    struct kva_auth *auth = keys("right\n");
    uint32_t looked_into = 0;
    for (int i = 0; i < 10000; i++) {
        looked_into += present(auth, "wrong", "192.0.2.1", NULL) == KVA_EAUTH;
        assert_int_equal(present(auth, "right", "192.0.2.1", NULL), KVA_OK);
    }
    assert_int_equal(looked_into, 60);
    assert_int_equal(kva_auth_refused(auth)[KVA_AUTH_GUESSES], 10000 - 60);
    /* Nobody else, and nobody without a key. */
    assert_int_equal(present(auth, "wrong", "192.0.2.2", NULL), KVA_EAUTH);
    assert_int_equal(present(auth, NULL, "192.0.2.1", NULL), KVA_EAUTH);
    /* One line for all of them, and no other for a while. */
    assert_true(kva_auth_report(auth, now_ns));
    assert_int_equal(present(auth, "wrong", "192.0.2.1", NULL), KVA_ERATE);
    assert_false(kva_auth_report(auth, now_ns + KVA_AUTH_REPORT_NS - 1));
    assert_true(kva_auth_report(auth, now_ns + KVA_AUTH_REPORT_NS));
    assert_false(kva_auth_report(auth, now_ns + 2 * KVA_AUTH_REPORT_NS));
    now_ns += 6 * SECOND;
    assert_int_equal(present(auth, "wrong", "192.0.2.1", NULL), KVA_EAUTH);
    assert_int_equal(present(auth, "wrong", "192.0.2.1", NULL), KVA_ERATE);
    kva_auth_destroy(auth);
}

static void test_auth__many_addresses_meet_the_brake_together(void **state KVA_UNUSED)
{
    struct kva_auth *auth = keys("right\n");
    uint32_t looked_into = 0;
    char peer[64];
    for (int i = 0; i < 100000; i++) {
        snprintf(peer, sizeof(peer), "10.%d.%d.%d", i >> 16, i >> 8 & 255, i & 255);
        looked_into += present(auth, "wrong", peer, NULL) == KVA_EAUTH;
    }
    assert_int_equal(looked_into, 1000);
    assert_int_equal(present(auth, "right", "10.9.9.9", NULL), KVA_OK);
    /* A peer has a /64 of IPv6. */
    now_ns += 600 * SECOND;
    looked_into = 0;
    for (int i = 0; i < 500; i++) {
        snprintf(peer, sizeof(peer), "2001:db8:1:2::%x", i);
        looked_into += present(auth, "wrong", peer, NULL) == KVA_EAUTH;
    }
    assert_int_equal(looked_into, 60);
    assert_int_equal(present(auth, "wrong", "2001:db8:1:3::1", NULL), KVA_EAUTH);
    kva_auth_destroy(auth);
}

/* What a name has used; without a name: it has no row. */
static struct kva_key_row row_of(const struct kva_auth *auth, const char *name)
{
    struct kva_key_row rows[KVA_KEY_ROWS_MAX + 1];
    uint32_t count = kva_auth_get_rows(auth, rows);
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return rows[i];
    }
    return (struct kva_key_row){0};
}

static void test_auth__requests_per_minute(void **state KVA_UNUSED)
{
    struct kva_auth *auth = keys("a name=a requests-per-minute=3\nb\n");
    struct kva_err err;
    uint32_t retry_s = 0;
    int a = index_of(auth, "a");
    for (int i = 0; i < 3; i++)
        assert_int_equal(kva_auth_take(auth, a, now_ns, &retry_s, &err), KVA_OK);
    assert_int_equal(kva_auth_take(auth, a, now_ns, &retry_s, &err), KVA_ERATE);
    assert_int_equal(retry_s, 20);
    assert_non_null(strstr(err.message, "3 requests per minute"));
    assert_int_equal(kva_auth_take(auth, a, now_ns + 19 * SECOND, &retry_s, &err), KVA_ERATE);
    assert_int_equal(retry_s, 1);
    assert_int_equal(kva_auth_take(auth, a, now_ns + 20 * SECOND, &retry_s, &err), KVA_OK);
    /* Time that was not used does not add up, and a clock that goes back gives nothing. */
    for (int i = 0; i < 3; i++)
        assert_int_equal(kva_auth_take(auth, a, now_ns + 900 * SECOND, &retry_s, &err), KVA_OK);
    assert_int_equal(kva_auth_take(auth, a, now_ns, &retry_s, &err), KVA_ERATE);
    for (int i = 0; i < 100; i++)
        assert_int_equal(kva_auth_take(auth, index_of(auth, "b"), now_ns, &retry_s, &err), KVA_OK);
    assert_int_equal(kva_auth_refused(auth)[KVA_AUTH_REQUESTS], 3);
    assert_int_equal(row_of(auth, "a").requests, 7);
    kva_auth_destroy(auth);
}

static enum kva_status enter(struct kva_auth *auth, int key, uint64_t tokens, uint32_t choices,
                             uint32_t waiting_max, uint32_t *ret_retry_s)
{
    const struct kva_auth_work work = {tokens, choices, waiting_max};
    struct kva_err err;
    *ret_retry_s = 0;
    enum kva_status status = kva_auth_enter(auth, key, &work, now_ns, ret_retry_s, &err);
    assert_int_equal(status == KVA_ERATE, *ret_retry_s > 0);
    return status;
}

static void test_auth__tokens_per_minute_are_settled(void **state KVA_UNUSED)
{
    struct kva_auth *auth = keys("a name=a tokens-per-minute=600\n");
    uint32_t retry_s;
    int a = index_of(auth, "a");
    /* What can never be is no matter of time. */
    assert_int_equal(enter(auth, a, 601, 1, 0, &retry_s), KVA_EINVAL);
    assert_int_equal(enter(auth, a, 500, 1, 0, &retry_s), KVA_OK);
    assert_int_equal(enter(auth, a, 101, 1, 0, &retry_s), KVA_ERATE);
    assert_int_equal(retry_s, 1);
    assert_int_equal(enter(auth, a, 200, 1, 0, &retry_s), KVA_ERATE);
    assert_int_equal(retry_s, 10);
    assert_int_equal(enter(auth, a, 100, 1, 0, &retry_s), KVA_OK);
    /* Less was used than was asked for: the rest comes back. */
    kva_auth_settle(auth, a, 500, 50);
    assert_int_equal(enter(auth, a, 450, 1, 0, &retry_s), KVA_OK);
    assert_int_equal(enter(auth, a, 1, 1, 0, &retry_s), KVA_ERATE);
    /* More was used: it is paid off first. */
    kva_auth_settle(auth, a, 450, 750);
    assert_int_equal(enter(auth, a, 1, 1, 0, &retry_s), KVA_ERATE);
    assert_int_equal(retry_s, 31);
    now_ns += 31 * SECOND;
    assert_int_equal(enter(auth, a, 10, 1, 0, &retry_s), KVA_OK);
    assert_int_equal(row_of(auth, "a").tokens, 800);
    assert_int_equal(kva_auth_refused(auth)[KVA_AUTH_TOKENS], 4);
    kva_auth_destroy(auth);
}

static void test_auth__choices_that_wait(void **state KVA_UNUSED)
{
    struct kva_auth *auth = keys("a name=a waiting=4\nb\n");
    uint32_t retry_s;
    int a = index_of(auth, "a");
    assert_int_equal(enter(auth, a, 1, 5, 0, &retry_s), KVA_EINVAL);
    assert_int_equal(enter(auth, a, 1, 3, 0, &retry_s), KVA_OK);
    assert_int_equal(enter(auth, a, 1, 2, 0, &retry_s), KVA_ERATE);
    assert_int_equal(enter(auth, a, 1, 1, 0, &retry_s), KVA_OK);
    kva_auth_begun(auth, a, 2);
    assert_int_equal(row_of(auth, "a").waiting, 2);
    assert_int_equal(enter(auth, a, 1, 2, 0, &retry_s), KVA_OK);
    assert_int_equal(kva_auth_refused(auth)[KVA_AUTH_WAITING], 1);
    kva_auth_destroy(auth);
}

/* Whoever fills the queue leaves room for those who come later, each as much as itself. */
static void test_auth__keys_share_the_queue(void **state KVA_UNUSED)
{
    struct kva_auth *auth = keys("a name=a\nb name=b\nc weight=3\nd\n");
    uint32_t retry_s;
    int key[4];
    uint32_t count[4] = {0};
    for (int i = 0; i < 4; i++)
        key[i] = index_of(auth, (const char[]){(char)('a' + i), '\0'});
    while (enter(auth, key[0], 1, 1, 120, &retry_s) == KVA_OK)
        count[0]++;
    assert_int_equal(count[0], 60);
    while (enter(auth, key[1], 1, 1, 120, &retry_s) == KVA_OK)
        count[1]++;
    assert_int_equal(count[1], 30);
    while (enter(auth, key[2], 1, 1, 120, &retry_s) == KVA_OK)
        count[2]++;
    assert_int_equal(count[2], 22); /* 3/4 of what was left */
    assert_int_equal(enter(auth, key[3], 1, 1, 120, &retry_s), KVA_OK);
    assert_int_equal(enter(auth, key[0], 1, 1, 120, &retry_s), KVA_EBUSY);
    assert_int_equal(enter(auth, key[0], 1, 61, 120, &retry_s), KVA_EINVAL);
    /* As they begin, shares grow equal. */
    for (int round = 0; round < 1000; round++) {
        for (int i = 0; i < 2; i++) {
            kva_auth_begun(auth, key[i], 2);
            while (enter(auth, key[i], 1, 1, 120, &retry_s) == KVA_OK)
                continue;
        }
    }
    uint32_t wait_a = row_of(auth, "a").waiting;
    uint32_t wait_b = row_of(auth, "b").waiting;
    assert_true(wait_a <= wait_b + 3 && wait_b <= wait_a + 3);
    kva_auth_destroy(auth);

    /* Alone a key has all of it. */
    auth = keys("a\n");
    assert_int_equal(enter(auth, 0, 1, 120, 120, &retry_s), KVA_OK);
    kva_auth_destroy(auth);
}

/* --- what names have used -------------------------------------------------------------------- */

/* Requests of a name; -1: it has no row. */
static long requests_of(const struct kva_auth *auth, const char *name)
{
    const struct kva_key_row row = row_of(auth, name);
    return row.name ? (long)row.requests : -1;
}

static void use(struct kva_auth *auth, const char *key)
{
    struct kva_err err;
    uint32_t retry_s;
    assert_int_equal(kva_auth_take(auth, index_of(auth, key), now_ns, &retry_s, &err), KVA_OK);
}

static void reload(struct kva_auth *auth, const char *text)
{
    struct kva_err err;
    write_keys(text);
    assert_int_equal(kva_auth_reload(auth, &err), KVA_OK);
}

/* No counter falls, and none takes over what another one counted. */
static void test_auth__a_reload_moves_no_count(void **state KVA_UNUSED)
{
    struct kva_auth *auth = keys("a name=one\nb name=two\nc\n");
    use(auth, "a");
    use(auth, "a");
    use(auth, "b");
    use(auth, "c");
    assert_int_equal(requests_of(auth, "one"), 2);
    assert_int_equal(requests_of(auth, "two"), 1);
    assert_int_equal(requests_of(auth, ""), 1);
    /* One that is gone, one that has another name from now on, and one that gets a name. */
    int b = index_of(auth, "b");
    uint32_t retry_s;
    assert_int_equal(enter(auth, b, 10, 3, 0, &retry_s), KVA_OK);
    reload(auth, "a name=three\nc name=four\n");
    assert_int_equal(requests_of(auth, "one"), 2);
    assert_int_equal(requests_of(auth, "two"), 1);
    assert_int_equal(requests_of(auth, "three"), 0);
    assert_int_equal(requests_of(auth, "four"), 0);
    assert_int_equal(requests_of(auth, ""), 1);
    use(auth, "a");
    use(auth, "c");
    assert_int_equal(requests_of(auth, "three"), 1);
    assert_int_equal(requests_of(auth, "four"), 1);
    /* What a removed key had begun counts for its name. */
    struct kva_key_row rows[KVA_KEY_ROWS_MAX + 1];
    assert_int_equal(kva_auth_get_rows(auth, rows), 5);
    assert_string_equal(rows[2].name, "two");
    assert_int_equal(rows[2].waiting, 3);
    kva_auth_begun(auth, b, 3);
    kva_auth_settle(auth, b, 10, 7);
    assert_int_equal(kva_auth_get_rows(auth, rows), 5);
    assert_int_equal(rows[2].waiting, 0);
    assert_int_equal(rows[2].tokens, 7);
    /* A name goes on with another key. */
    reload(auth, "d name=one\na\n");
    use(auth, "d");
    use(auth, "a");
    assert_int_equal(requests_of(auth, "one"), 3);
    assert_int_equal(requests_of(auth, "three"), 1);
    assert_int_equal(requests_of(auth, ""), 2);
    kva_auth_destroy(auth);
}

/* Keys k<first> ... with names n<first> ... */
static void name_keys(char *text, size_t size, uint32_t first, uint32_t count)
{
    size_t length = 0;
    for (uint32_t i = first; i < first + count; i++)
        length += (size_t)snprintf(text + length, size - length, "k%u name=n%u\n", i, i);
}

static void test_auth__names_beyond_the_rows_share_one(void **state KVA_UNUSED)
{
    static char text[65536];
    const uint32_t most = KVA_KEY_ROWS_MAX;
    name_keys(text, sizeof(text), 0, most + 2);
    struct kva_auth *auth = keys(text);
    use(auth, "k0");
    use(auth, "k99");
    use(auth, "k100");
    use(auth, "k101");
    assert_int_equal(requests_of(auth, "n99"), 1);
    assert_int_equal(requests_of(auth, "n100"), -1);
    assert_int_equal(requests_of(auth, ""), 2);
    /* n0 has no key any more: n100 has its place, without what "" has counted. */
    int gone = index_of(auth, "k0");
    name_keys(text, sizeof(text), 1, most + 1);
    reload(auth, text);
    assert_int_equal(requests_of(auth, "n0"), -1);
    assert_int_equal(requests_of(auth, "n100"), 0);
    assert_int_equal(requests_of(auth, "n101"), -1);
    assert_int_equal(requests_of(auth, ""), 2);
    kva_auth_settle(auth, gone, 0, 5); /* of no other name */
    struct kva_key_row rows[KVA_KEY_ROWS_MAX + 1];
    assert_int_equal(kva_auth_get_rows(auth, rows), most + 1);
    assert_int_equal(rows[0].tokens, 5);
    use(auth, "k100");
    use(auth, "k101");
    assert_int_equal(requests_of(auth, "n100"), 1);
    assert_int_equal(requests_of(auth, ""), 3);
    kva_auth_destroy(auth);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auth__reads_what_a_line_says),
        cmocka_unit_test(test_auth__names_line_and_word_but_no_key),
        cmocka_unit_test(test_auth__keys_of_the_environment_have_commas_between),
        cmocka_unit_test(test_auth__an_index_stays_with_its_key),
        cmocka_unit_test(test_auth__wrong_keys_meet_a_brake_right_ones_never),
        cmocka_unit_test(test_auth__many_addresses_meet_the_brake_together),
        cmocka_unit_test(test_auth__requests_per_minute),
        cmocka_unit_test(test_auth__tokens_per_minute_are_settled),
        cmocka_unit_test(test_auth__choices_that_wait),
        cmocka_unit_test(test_auth__keys_share_the_queue),
        cmocka_unit_test(test_auth__a_reload_moves_no_count),
        cmocka_unit_test(test_auth__names_beyond_the_rows_share_one),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
