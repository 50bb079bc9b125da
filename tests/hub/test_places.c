/* Where models are kept, by the environment. */
#include "tests/cmocka.h"

#include "hub/places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "NAME=value", NULL at its end */
static const char *const *variables;

static const char *env(const char *name)
{
    size_t length = strlen(name);
    for (const char *const *v = variables; *v; v++) {
        if (strncmp(*v, name, length) == 0 && (*v)[length] == '=')
            return *v + length + 1;
    }
    return NULL;
}

static enum kva_status read_places(struct kva_hub_places *places, const char *const *given)
{
    struct kva_err err;
    variables = given;
    enum kva_status status = kva_hub_places_init(places, env, &err);
    assert_int_equal(status, KVA_OK);
    status = kva_hub_places_check_hub(places, &err);
    if (status)
        kva_hub_places_finish(places);
    return status;
}

static void expect(const char *const *given, const char *known, const char *cache)
{
    struct kva_hub_places places;
    assert_int_equal(read_places(&places, given), KVA_OK);
    assert_string_equal(places.known_path, known);
    assert_string_equal(places.cache_path, cache);
    kva_hub_places_finish(&places);
}

static void test_places__folders(void **state KVA_UNUSED)
{
    expect((const char *const[]){"HOME=/h", NULL}, "/h/.cache/kvahead/models",
           "/h/.cache/huggingface/hub");
    expect((const char *const[]){"HOME=/h", "XDG_CACHE_HOME=/c", NULL}, "/c/kvahead/models",
           "/c/huggingface/hub");
    expect((const char *const[]){"HOME=/h", "XDG_CACHE_HOME=c", NULL}, "/h/.cache/kvahead/models",
           "/h/.cache/huggingface/hub");
    expect((const char *const[]){"HOME=/h", "HF_HOME=/f", NULL}, "/h/.cache/kvahead/models",
           "/f/hub");
    expect((const char *const[]){"HOME=/h", "HF_HOME=/f", "HUGGINGFACE_HUB_CACHE=/g", NULL},
           "/h/.cache/kvahead/models", "/g");
    expect((const char *const[]){"HOME=/h", "HF_HUB_CACHE=/k", "HUGGINGFACE_HUB_CACHE=/g", NULL},
           "/h/.cache/kvahead/models", "/k");
    /* Where no shell has read them. */
    expect((const char *const[]){"HOME=/h", "HF_HOME=~/f", NULL}, "/h/.cache/kvahead/models",
           "/h/f/hub");
    expect((const char *const[]){"HOME=/h", "HF_HOME=$HOME/f${HOME}", NULL},
           "/h/.cache/kvahead/models", "/h/f/h/hub");
    expect((const char *const[]){"HOME=/h", "HF_HUB_CACHE=/a$NO/${NO}/$/~/${HOME$HOME", NULL},
           "/h/.cache/kvahead/models", "/a$NO/${NO}/$/~/${HOME/h");
}

static void test_places__without_a_home(void **state KVA_UNUSED)
{
    struct kva_hub_places places;
    assert_int_equal(read_places(&places, (const char *const[]){NULL}), KVA_OK);
    assert_null(places.known_path);
    assert_null(places.cache_path);
    assert_int_equal(kva_hub_places_check(places.known_path, NULL), KVA_EINVAL);
    assert_string_equal(places.endpoint, "https://huggingface.co");
    assert_false(places.offline);
    kva_hub_places_finish(&places);
}

static void test_places__endpoint(void **state KVA_UNUSED)
{
    struct kva_hub_places places;
    assert_int_equal(
        read_places(&places, (const char *const[]){"HF_ENDPOINT=http://m:1/h//", NULL}), KVA_OK);
    assert_string_equal(places.endpoint, "http://m:1/h");
    kva_hub_places_finish(&places);
    static const char *const wrong[] = {"HF_ENDPOINT=mirror", "HF_ENDPOINT=file:///etc",
                                        "HF_ENDPOINT=http://u:p@m", "HF_ENDPOINT=http://m/?x"};
    for (size_t i = 0; i < KVA_COUNT_OF(wrong); i++)
        assert_int_equal(read_places(&places, (const char *const[]){wrong[i], NULL}), KVA_EINVAL);
}

static void test_places__offline(void **state KVA_UNUSED)
{
    static const char *const on[] = {"HF_HUB_OFFLINE=1", "HF_HUB_OFFLINE=Yes",
                                     "TRANSFORMERS_OFFLINE=ON"};
    struct kva_hub_places places;
    for (size_t i = 0; i < KVA_COUNT_OF(on); i++) {
        assert_int_equal(read_places(&places, (const char *const[]){on[i], NULL}), KVA_OK);
        assert_true(places.offline);
        kva_hub_places_finish(&places);
    }
    assert_int_equal(read_places(&places, (const char *const[]){"HF_HUB_OFFLINE=0", NULL}), KVA_OK);
    assert_false(places.offline);
    kva_hub_places_finish(&places);
}

static void expect_token(const char *const *given, const char *token)
{
    struct kva_hub_places places;
    assert_int_equal(read_places(&places, given), KVA_OK);
    if (token)
        assert_string_equal(places.token, token);
    else
        assert_null(places.token);
    kva_hub_places_finish(&places);
}

static void test_places__token(void **state KVA_UNUSED)
{
    char folder[] = "/tmp/kvahead-places-XXXXXX", path[64], home[96], named[96];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/token", folder);
    snprintf(home, sizeof(home), "HF_HOME=%s", folder);
    snprintf(named, sizeof(named), "HF_TOKEN_PATH=%s", path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("  hf_file\n\n", file);
    fclose(file);
    expect_token((const char *const[]){home, NULL}, "hf_file");
    expect_token((const char *const[]){named, NULL}, "hf_file");
    expect_token((const char *const[]){home, "HF_TOKEN=hf_env", NULL}, "hf_env");
    expect_token((const char *const[]){home, "HF_HUB_DISABLE_IMPLICIT_TOKEN=1", NULL}, NULL);
    expect_token((const char *const[]){"HF_HOME=/nowhere", NULL}, NULL);
    struct kva_hub_places places;
    assert_int_equal(read_places(&places, (const char *const[]){"HF_TOKEN=a\x01z", NULL}),
                     KVA_EINVAL);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places__folders),  cmocka_unit_test(test_places__without_a_home),
        cmocka_unit_test(test_places__endpoint), cmocka_unit_test(test_places__offline),
        cmocka_unit_test(test_places__token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
