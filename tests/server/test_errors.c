/* Errors in the words of whoever is asked, and what they tell clients to do. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct server_fixture f;

/* What no retry mends must not look as if one did: SDKs would compute it three times. */
static void test_errors__a_contradiction_is_the_requests(void **state)
{
    (void)state;
    static const char body[] =
        "{\"prompt\":\"x\",\"bad_words\":[\"a\"],\"allowed_token_ids\":[97]%s}";
    struct reply reply;
    char text[256];
    fixture_init(&f);
    f.engine.item_fails_every = 1;
    f.engine.item_status = KVA_EINVAL; /* of the sampler */
    fixture_start(&f);
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof(text), body, i ? ",\"stream\":true" : "");
        client_post(f.port, "/v1/completions", text, &reply);
        assert_int_equal(reply.status, 400);
        assert_null(reply_header(&reply, "Retry-After"));
        assert_non_null(strstr(reply.body, "No token is left that this request allows by "
                                           "'allowed_token_ids', 'bad_words'."));
        assert_non_null(strstr(reply.body, "invalid_request_error"));
        reply_finish(&reply);
    }
    fixture_stop(&f);
}

static void expect_too_large(const char *path, const char *body, const char *words)
{
    struct reply reply;
    client_post(f.port, path, body, &reply);
    if (reply.status != 400 || !strstr(reply.body, words))
        fail_msg("%s %s: %d, %s", path, body, reply.status, reply.body);
    assert_null(reply_header(&reply, "Retry-After"));
    reply_finish(&reply);
}

/* Nor does another try make an answer smaller. */
static void test_errors__answers_that_are_too_large_are_the_requests(void **state)
{
    (void)state;
    static const char ask[] = "limit of 4096 bytes: ask for fewer choices, logprobs or inputs.";
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz";
    char body[2048];
    fixture_init(&f);
    f.params.answer_bytes_max = 4096;
    fixture_start(&f);
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"n\":64,\"max_tokens\":60}", letters);
    expect_too_large("/v1/completions", body, ask);
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"logprobs\":20,\"max_tokens\":60}", letters);
    expect_too_large("/v1/completions", body, ask);
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"prompt_logprobs\":20,\"max_tokens\":1}",
             letters);
    expect_too_large("/v1/completions", body, ask);
    strcpy(body, "{\"return_token_strs\":true,\"prompt\":\"");
    for (int i = 0; i < 16; i++)
        strcat(body, letters);
    strcat(body, "\"}");
    expect_too_large("/tokenize", body, ask);
    fixture_stop(&f);
}

static void test_errors__vectors_that_are_too_large_are_not_computed(void **state)
{
    (void)state;
    char body[8192] = "{\"input\":[\"x\"";
    fixture_init(&f);
    f.params.answer_bytes_max = 4096;
    fixture_start(&f);
    for (unsigned i = 0; i < 4096 / (KVA_SCRIPTED_WIDTH * 16 / 3); i++)
        strcat(body, ",\"x\"");
    strcat(body, "],\"encoding_format\":\"base64\"}");
    expect_too_large("/v1/embeddings", body, "ask for fewer inputs or 'dimensions'.");
    strcpy(strstr(body, "base64"), "float\"}");
    expect_too_large("/v1/embeddings", body,
                     "ask for fewer inputs or 'dimensions', or for base64.");
    assert_true(client_metric(f.port, "kvahead_embeddings_total", NULL) <= 0);
    assert_true(client_metric(f.port, "kvahead_prompt_tokens_total", NULL) <= 0);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors__a_contradiction_is_the_requests),
        cmocka_unit_test(test_errors__answers_that_are_too_large_are_the_requests),
        cmocka_unit_test(test_errors__vectors_that_are_too_large_are_not_computed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
