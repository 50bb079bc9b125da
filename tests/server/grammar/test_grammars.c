#include "tests/cmocka.h"

#include "base/buf.h"
#include "server/grammar/grammars.h"
#include "text/tokenizer/synthetic.h"

#include <pthread.h>
#include <string.h>

#define VOCAB   1000u
#define EOS     (VOCAB - KVA_SYNTHETIC_EOS)
#define THREADS 8

static struct kva_tokenizer *tokenizer;
static const uint32_t eos = EOS;

static int set_up(void **state KVA_UNUSED)
{
    struct kva_buf json;
    kva_buf_init(&json, 1 << 24);
    kva_tokenizer_put_synthetic(&json, VOCAB);
    assert_int_equal(kva_tokenizer_load_buffers(json.data, json.length, NULL, 0, &tokenizer, NULL),
                     KVA_OK);
    kva_buf_finish(&json);
    return 0;
}

static int tear_down(void **state KVA_UNUSED)
{
    kva_tokenizer_destroy(tokenizer);
    return 0;
}

static struct kva_grammars *open_grammars(uint32_t kept_max)
{
    struct kva_grammars *grammars = NULL;
    const struct kva_grammars_params params = {
        .vocab = {tokenizer, VOCAB, &eos, 1, NULL, 0},
        .kept_bytes = (size_t)64 << 20,
        .kept_max = kept_max,
        .mask_threads = 2,
    };
    assert_int_equal(kva_grammars_create(&params, &grammars, NULL), KVA_OK);
    return grammars;
}

static struct kva_grammar_source regex(const char *text)
{
    return (struct kva_grammar_source){KVA_GRAMMAR_REGEX, text, strlen(text), false};
}

static struct kva_constraint *get(struct kva_grammars *grammars, const char *text)
{
    const struct kva_grammar_source source = regex(text);
    struct kva_constraint *constraint = NULL;
    assert_int_equal(kva_grammars_get(grammars, &source, NULL, &constraint, NULL), KVA_OK);
    return constraint;
}

static struct kva_grammars_stats stats_of(struct kva_grammars *grammars)
{
    struct kva_grammars_stats stats;
    kva_grammars_get_stats(grammars, &stats);
    return stats;
}

/* --- keeping --------------------------------------------------------------------------------- */

static void test_grammars__the_least_recently_used_go(void **state KVA_UNUSED)
{
    struct kva_grammars *g = open_grammars(2);
    const struct kva_grammar_source a = regex("a"), b = regex("b"), c = regex("c");
    kva_constraint_release(get(g, "a"));
    struct kva_constraint *kept = get(g, "b");
    kva_constraint_release(get(g, "a"));
    assert_true(kva_grammars_holds(g, &a) && kva_grammars_holds(g, &b));
    kva_constraint_release(get(g, "c"));
    assert_true(kva_grammars_holds(g, &a) && kva_grammars_holds(g, &c));
    assert_false(kva_grammars_holds(g, &b));
    struct kva_grammars_stats stats = stats_of(g);
    assert_int_equal(stats.misses, 3);
    assert_int_equal(stats.hits, 1);
    assert_int_equal(stats.kept, 2);
    assert_true(stats.kept_bytes > 0);
    /* Who has it goes on with it. */
    struct kva_constraint_state *s = NULL;
    const uint32_t *mask = NULL;
    assert_int_equal(kept->ops->begin(kept, &s, NULL), KVA_OK);
    assert_int_equal(kept->ops->mask(s, false, &mask), KVA_OK);
    assert_true(kva_constraint_allows(mask, 'b'));
    kept->ops->end(s);
    kva_constraint_release(kept);
    kva_grammars_destroy(g);
}

static void test_grammars__what_cannot_be_made_is_not_kept(void **state KVA_UNUSED)
{
    struct kva_grammars *g = open_grammars(8);
    const struct kva_grammar_source bad = regex("(");
    struct kva_constraint *constraint = NULL;
    for (int i = 0; i < 2; i++) {
        struct kva_err err = {.status = KVA_OK};
        assert_int_equal(kva_grammars_get(g, &bad, NULL, &constraint, &err), KVA_EINVAL);
        assert_true(err.message[0] != '\0');
    }
    assert_null(constraint);
    assert_int_equal(stats_of(g).failures, 2);
    assert_int_equal(stats_of(g).kept, 0);
    kva_grammars_destroy(g);
}

static void *get_on_thread(void *opaque)
{
    return get(opaque, "[a-z]{3,40}@[a-z]{3,40}");
}

static void test_grammars__many_at_once_make_it_once(void **state KVA_UNUSED)
{
    struct kva_grammars *g = open_grammars(8);
    pthread_t threads[THREADS];
    void *first = NULL, *each;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, get_on_thread, g), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &each);
        first = i == 0 ? each : first;
        assert_ptr_equal(first, each);
        kva_constraint_release(each);
    }
    assert_int_equal(stats_of(g).misses, 1);
    assert_int_equal(stats_of(g).hits, THREADS - 1);
    kva_grammars_destroy(g);
}

/* --- following ------------------------------------------------------------------------------- */

/* The tokens of the bytes are the bytes themselves (synthetic.h). */
static void expect_allowed(const struct kva_constraint *c, struct kva_constraint_state *s,
                           bool behind, const char *allowed, const char *forbidden)
{
    const uint32_t *mask = NULL;
    assert_int_equal(c->ops->mask(s, behind, &mask), KVA_OK);
    for (; *allowed; allowed++)
        assert_true(kva_constraint_allows(mask, (unsigned char)*allowed));
    for (; *forbidden; forbidden++)
        assert_false(kva_constraint_allows(mask, (unsigned char)*forbidden));
}

static void test_states__follow_and_look_ahead(void **state KVA_UNUSED)
{
    struct kva_grammars *g = open_grammars(8);
    struct kva_constraint *c = get(g, "a(b|c)d");
    struct kva_constraint_state *s = NULL;
    const uint32_t *mask = NULL;
    assert_int_equal(c->ops->begin(c, &s, NULL), KVA_OK);
    expect_allowed(c, s, false, "a", "bcd");
    /* Nothing is expected: there is nothing behind it. */
    assert_int_equal(c->ops->mask(s, true, &mask), KVA_EINVAL);
    c->ops->expect(s, 'a');
    expect_allowed(c, s, true, "bc", "ad");
    expect_allowed(c, s, false, "a", "bcd"); /* as before */
    c->ops->take(s, 'a');                    /* as expected */
    expect_allowed(c, s, false, "bc", "ad");
    c->ops->expect(s, 'x'); /* which may not come */
    assert_int_equal(c->ops->mask(s, true, &mask), KVA_EINVAL);
    c->ops->expect(s, 'b'); /* one look is enough */
    assert_int_equal(c->ops->mask(s, true, &mask), KVA_EINVAL);
    c->ops->take(s, 'c'); /* not as expected */
    expect_allowed(c, s, false, "d", "abc");
    c->ops->expect(s, 'd');
    c->ops->take(s, 'd'); /* before anybody has looked */
    assert_int_equal(c->ops->mask(s, false, &mask), KVA_OK);
    assert_true(kva_constraint_allows(mask, EOS));
    c->ops->take(s, EOS);
    assert_int_equal(c->ops->mask(s, false, &mask), KVA_EINVAL);
    c->ops->end(s);
    kva_constraint_release(c);
    kva_grammars_destroy(g);
}

/* States come and go while threads work on them. */
static void test_states__end_at_any_time(void **state KVA_UNUSED)
{
    struct kva_grammars *g = open_grammars(8);
    struct kva_constraint *c = get(g, "(ab|ac)*");
    for (int round = 0; round < 200; round++) {
        struct kva_constraint_state *s[4];
        const uint32_t *mask = NULL;
        for (int i = 0; i < 4; i++)
            assert_int_equal(c->ops->begin(c, &s[i], NULL), KVA_OK);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(c->ops->mask(s[i], false, &mask), KVA_OK);
            c->ops->take(s[i], 'a');
            if (i > 0)
                c->ops->expect(s[i], 'b');
            if (i > 1)
                assert_int_equal(c->ops->mask(s[i], true, &mask), KVA_OK);
        }
        for (int i = 0; i < 4; i++)
            c->ops->end(s[i]);
    }
    kva_constraint_release(c);
    kva_grammars_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grammars__the_least_recently_used_go),
        cmocka_unit_test(test_grammars__what_cannot_be_made_is_not_kept),
        cmocka_unit_test(test_grammars__many_at_once_make_it_once),
        cmocka_unit_test(test_states__follow_and_look_ahead),
        cmocka_unit_test(test_states__end_at_any_time),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
