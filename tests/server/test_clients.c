/* What clients of OpenAI and of its imitators send, and go by in the answers. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct server_fixture f;

static int setup(void **state)
{
    (void)state;
    fixture_init(&f);
    fixture_start(&f);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_stop(&f);
    return 0;
}

#define CHAT     "/v1/chat/completions"
#define COMPLETE "/v1/completions"
#define HELLO    "\"messages\":[{\"role\":\"user\",\"content\":\"Hello there, all of you\"}]"
#define PROMPT   "\"prompt\":\"Hello there, all of you\""

static cJSON *post(const char *path, const char *body, int want)
{
    int status;
    cJSON *json = client_post_json(f.port, path, body, &status);
    if (status != want)
        fail_msg("%s %s: %d, not %d: %s", path, body, status, want,
                 json_text(json, "error.message"));
    return json;
}

static void expect_tokens(const char *path, const char *body, int want)
{
    cJSON *json = post(path, body, 200);
    if ((int)json_number(json, "usage.completion_tokens") != want)
        fail_msg("%s: %d tokens, not %d", body, (int)json_number(json, "usage.completion_tokens"),
                 want);
    cJSON_Delete(json);
}

static void expect_error(const char *path, const char *body, const char *param, const char *words)
{
    cJSON *json = post(path, body, 400);
    assert_string_equal(json_text(json, "error.param"), param);
    if (!strstr(json_text(json, "error.message"), words))
        fail_msg("'%s' does not say '%s'", json_text(json, "error.message"), words);
    cJSON_Delete(json);
}

static void test_clients__max_completion_tokens_counts_in_any_order(void **state)
{
    (void)state;
    expect_tokens(CHAT, "{\"max_completion_tokens\":3,\"max_tokens\":9," HELLO "}", 3);
    expect_tokens(CHAT, "{\"max_tokens\":9,\"max_completion_tokens\":3," HELLO "}", 3);
    expect_tokens(CHAT, "{\"max_tokens\":9,\"max_completion_tokens\":null," HELLO "}", 9);
    expect_tokens(CHAT, "{\"max_tokens\":4," HELLO "}", 4);
    expect_error(CHAT, "{\"max_completion_tokens\":3,\"max_tokens\":0," HELLO "}", "max_tokens",
                 "'max_tokens' is 0");
    expect_error(CHAT, "{\"max_tokens\":100000," HELLO "}", "max_tokens", "'max_tokens' is 100000");
    expect_error(CHAT, "{\"max_completion_tokens\":100000," HELLO "}", "max_completion_tokens",
                 "'max_completion_tokens' is 100000");
}

/* LiteLLM and others find out by these words that a prompt wants a model of a longer context. */
static void test_clients__context_errors_are_in_everybodys_words(void **state)
{
    (void)state;
    static const char words[] = "This model's maximum context length is 8192 tokens";
    static const int counts[] = {9000, 60000}; /* counted, and too long to be counted */
    for (size_t i = 0; i < KVA_COUNT_OF(counts); i++) {
        struct kva_buf body;
        kva_buf_init(&body, 1u << 20);
        kva_buf_puts(&body, "{\"prompt\":\"");
        for (int j = 0; j < counts[i]; j++)
            kva_buf_puts(&body, "x ");
        kva_buf_append(&body, "\"}", 3);
        expect_error(COMPLETE, body.data, "prompt", words);
        kva_buf_finish(&body);
    }
    expect_error(COMPLETE, "{\"max_tokens\":8192," PROMPT "}", "max_tokens", words);
}

/* ---- fields of others ------------------------------------------------------------------------ */

static void test_clients__foreign_fields_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const fields[][2] = {
        {"truncation_side", "\"right\""},
        {"regex", "\"[0-9]+\""},
        {"ebnf", "\"root ::= 1\""},
        {"return_tokens_as_token_ids", "true"},
        {"logprob_token_ids", "[1]"},
        {"repetition_detection", "{\"max_pattern_size\":3}"},
        {"thinking_token_budget", "100"},
        {"stream_interval", "5"},
        {"return_prompt_text", "true"},
        {"request_id", "\"mine\""},
        {"detokenize", "false"},
        {"kv_transfer_params", "{\"a\":1}"},
        {"vllm_xargs", "{\"a\":1}"},
        {"mm_processor_kwargs", "{\"a\":1}"},
        {"early_stopping", "true"},
        {"moderation", "{\"model\":\"m\"}"},
        {"typical_p", "0.9"},
        {"repeat_penalty", "1.1"},
        {"n_predict", "5"},
        {"mirostat", "2"},
        {"dry_multiplier", "0.8"},
        {"xtc_probability", "0.5"},
        {"top_a", "0.2"},
        {"tfs_z", "0.9"},
        {"n_probs", "3"},
        {"samplers", "[\"top_k\"]"},
        {"id_slot", "0"},
        {"lora", "[{\"id\":0}]"},
        {"adapter_id", "\"a/b\""},
        {"length_penalty", "0.5"},
        {"max_completion_tokens", "5"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(fields); i++) {
        char body[256];
        snprintf(body, sizeof(body), "{" PROMPT ",\"%s\":%s}", fields[i][0], fields[i][1]);
        expect_error(COMPLETE, body, fields[i][0], "is not supported by this server");
    }
}

static void test_clients__values_that_ask_for_nothing_are_accepted(void **state)
{
    (void)state;
    static const char *const members[] = {
        "\"suffix\":\"\"",
        "\"length_penalty\":1.0",
        "\"stream_options\":{}",
        "\"stream_options\":{\"include_usage\":false}",
        "\"truncation_side\":\"left\"",
        "\"regex\":\"\"",
        "\"detokenize\":true",
        "\"stream_interval\":1",
        "\"early_stopping\":false",
        "\"typical_p\":1",
        "\"repeat_penalty\":1.0",
        "\"n_predict\":-1",
        "\"mirostat\":0",
        "\"samplers\":[]",
        "\"id_slot\":-1",
        "\"vllm_xargs\":{}",
        "\"cache_prompt\":false",
        "\"spaces_between_special_tokens\":false",
        "\"prompt_cache_retention\":\"24h\"",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(members); i++) {
        char body[256];
        snprintf(body, sizeof(body), "{" PROMPT ",%s}", members[i]);
        cJSON_Delete(post(COMPLETE, body, 200));
    }
    cJSON_Delete(post(CHAT, "{" HELLO ",\"top_logprobs\":0}", 200));
    expect_error(CHAT, "{" HELLO ",\"top_logprobs\":1}", "top_logprobs", "needs 'logprobs'");
    assert_true(client_metric(f.port, "kvahead_unknown_fields_total", NULL) == 0);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void expect_prompt(const char *message, const char *want)
{
    char body[512];
    snprintf(body, sizeof(body), "{\"messages\":[%s],\"max_tokens\":400}", message);
    cJSON *json = post(CHAT, body, 200);
    if (!strstr(json_text(json, "choices.0.message.content"), want))
        fail_msg("'%s' does not have '%s'", json_text(json, "choices.0.message.content"), want);
    cJSON_Delete(json);
}

static void test_clients__parts_of_messages(void **state)
{
    (void)state;
    expect_prompt("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"one\"},\"two\","
                  "{\"type\":\"input_text\",\"text\":\"three\"}]}",
                  "one\ntwo\nthree");
    expect_prompt("{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"I "
                  "won't\"}]},{\"role\":\"user\",\"content\":\"so\"}",
                  "I won't");
    expect_error(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"refusal\"}]}]}",
                 "messages[0].content[0]", "messages[0].content[0].refusal' must be a string");
    expect_error(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[7]}]}",
                 "messages[0].content[0]", "must be a string or an object");
    expect_error(CHAT,
                 "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
                 "messages[0].content[0]", "has type 'image_url'");
}

/* ---- answers --------------------------------------------------------------------------------- */

/* vLLM's places: what is said of the prompt is beside the choices of a chat. */
static void test_clients__what_a_chat_says_of_its_prompt_is_said_once(void **state)
{
    (void)state;
    cJSON *json = post(CHAT,
                       "{" HELLO ",\"n\":2,\"max_tokens\":2,\"return_token_ids\":true,"
                       "\"prompt_logprobs\":1}",
                       200);
    int count = (int)json_number(json, "usage.prompt_tokens");
    assert_int_equal(cJSON_GetArraySize(json_at(json, "prompt_token_ids")), count);
    assert_int_equal(cJSON_GetArraySize(json_at(json, "prompt_logprobs")), count);
    assert_int_equal(cJSON_GetArraySize(json_at(json, "choices.1.token_ids")), 2);
    assert_null(json_at(json, "choices.0.prompt_token_ids"));
    assert_null(json_at(json, "choices.0.prompt_logprobs"));
    cJSON_Delete(json);
    json = post(COMPLETE, "{\"prompt\":[\"a\",\"b\"],\"return_token_ids\":true}", 200);
    assert_int_equal(cJSON_GetArraySize(json_at(json, "choices.1.prompt_token_ids")), 1);
    assert_null(json_at(json, "prompt_token_ids"));
    cJSON_Delete(json);
    struct reply reply;
    client_post(f.port, CHAT, "{" HELLO ",\"stream\":true,\"return_token_ids\":true}", &reply);
    const char *frame_end = strstr(reply.body, "\n\n");
    const char *ids = strstr(reply.body, "}],\"prompt_token_ids\":[");
    assert_true(ids && ids < frame_end);
    assert_null(strstr(frame_end, "prompt_token_ids"));
    reply_finish(&reply);
}

static void test_clients__eight_stop_strings(void **state)
{
    (void)state;
    cJSON *json = post(COMPLETE,
                       "{" PROMPT ",\"stop\":[\"a!\",\"b!\",\"c!\",\"d!\",\"e!\",\"f!\","
                       "\"all\",\"h!\"],\"max_tokens\":100}",
                       200);
    assert_string_equal(json_text(json, "choices.0.text"), "Hello there, ");
    assert_string_equal(json_text(json, "choices.0.stop_reason"), "all");
    cJSON_Delete(json);
}

static void test_clients__an_escaped_nul_is_named(void **state)
{
    (void)state;
    expect_error(COMPLETE, "{\"prompt\":\"a\\u0000b\"}", "", "The body has \\u0000 at byte 12");
}

/* Waiting and prefill are a matter of milliseconds where nothing is overloaded. */
static void test_clients__histograms_have_buckets_where_values_are(void **state)
{
    (void)state;
    static const char *const names[] = {
        "kvahead_request_queue_time_seconds_bucket", "kvahead_request_prefill_time_seconds_bucket",
        "kvahead_request_decode_time_seconds_bucket", "kvahead_e2e_request_latency_seconds_bucket"};
    static const char *const bounds[] = {"le=\"0.001\"", "le=\"0.01\"", "le=\"0.3\"",
                                         "le=\"7680\""};
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++)
        for (size_t j = 0; j < KVA_COUNT_OF(bounds); j++)
            assert_true(client_metric(f.port, names[i], bounds[j]) >= 0);
}

/* ---- routes and origins ---------------------------------------------------------------------- */

static void expect_not_found(const char *path, const char *words)
{
    cJSON *json = post(path, "{}", 404);
    if (!strstr(json_text(json, "error.message"), words))
        fail_msg("%s: '%s' does not say '%s'", path, json_text(json, "error.message"), words);
    cJSON_Delete(json);
}

static void test_clients__routes_that_are_not_here(void **state)
{
    (void)state;
    static const char *const paths[] = {"/rerank", "/v2/rerank", "/score", "/infill", "/pooling"};
    for (size_t i = 0; i < KVA_COUNT_OF(paths); i++)
        expect_not_found(paths[i], "is not supported by this server");
    expect_not_found("/chat/completions",
                     "'/chat/completions', but there is '/v1/chat/completions'");
    expect_not_found("/v1/completions/", "but there is '/v1/completions'");
    expect_not_found("/models", "but there is '/v1/models'");
    expect_not_found("/api/chat", "'/api/chat': Ollama's API is not supported by this server");
    expect_not_found("//v1/chat/completions", "There is no route '//v1/chat/completions'.");
}

static void test_clients__a_model_that_is_not_here(void **state)
{
    (void)state;
    struct reply reply;
    client_get(f.port, "/v1/models/gpt-9", &reply);
    assert_int_equal(reply.status, 404);
    if (!strstr(reply.body, "The model 'gpt-9' does not exist here; served is 'echo'."))
        fail_msg("%s", reply.body);
    reply_finish(&reply);
}

static double number_at(const cJSON *vector, int index)
{
    return cJSON_GetArrayItem(vector, index)->valuedouble;
}

/* The scripted engine's vector is known: what is answered is its unit vector. */
static void test_clients__embeddings_are_unit_vectors_in_the_order_of_the_texts(void **state)
{
    (void)state;
    cJSON *json =
        post("/v1/embeddings",
             "{\"model\": \"echo\", \"input\": [\"ab\", [97, 98], \"abc\"], \"user\": \"u\"}", 200);
    const cJSON *data = json_at(json, "data");
    assert_string_equal(json_text(json, "object"), "list");
    assert_string_equal(json_text(json, "model"), "echo");
    assert_int_equal(cJSON_GetArraySize(data), 3);
    for (int i = 0; i < 3; i++) {
        const cJSON *entry = cJSON_GetArrayItem(data, i);
        const cJSON *vector = json_at(entry, "embedding");
        double squares = 0;
        assert_string_equal(json_text(entry, "object"), "embedding");
        assert_true(json_number(entry, "index") == i);
        assert_int_equal(cJSON_GetArraySize(vector), KVA_SCRIPTED_WIDTH);
        for (int j = 0; j < cJSON_GetArraySize(vector); j++)
            squares += number_at(vector, j) * number_at(vector, j);
        assert_true(squares > 0.99999 && squares < 1.00001);
    }
    assert_true(json_number(json_at(json, "usage"), "prompt_tokens") ==
                json_number(json_at(json, "usage"), "total_tokens"));
    cJSON_Delete(json);
    json = post("/v1/embeddings",
                "{\"input\": \"ab\", \"encoding_format\": \"base64\", \"dimensions\": 3}", 200);
    const cJSON *entry = cJSON_GetArrayItem(json_at(json, "data"), 0);
    assert_int_equal(strlen(json_text(entry, "embedding")), 16);
    cJSON_Delete(json);
    assert_true(client_metric(f.port, "kvahead_embeddings_total", NULL) == 4);
}

static double length_of(const char *body)
{
    cJSON *json = post("/v1/embeddings", body, 200);
    const cJSON *vector = json_at(cJSON_GetArrayItem(json_at(json, "data"), 0), "embedding");
    double squares = 0;
    for (int i = 0; i < cJSON_GetArraySize(vector); i++)
        squares += number_at(vector, i) * number_at(vector, i);
    cJSON_Delete(json);
    return squares;
}

/* The model's files decide where a request says nothing. */
static void test_clients__vectors_are_as_the_model_has_them(void **state KVA_UNUSED)
{
    for (int unit = 0; unit <= 1; unit++) {
        fixture_init(&f);
        f.backend.api.normalise = unit;
        fixture_start(&f);
        double own = length_of("{\"input\":\"ab\"}");
        double one = length_of("{\"input\":\"ab\",\"normalize\":true}");
        double raw = length_of("{\"input\":\"ab\",\"normalize\":false}");
        assert_true(one > 0.99999 && one < 1.00001);
        assert_true(raw > 1.01 || raw < 0.99);
        assert_true(own == (unit ? one : raw));
        assert_true(length_of("{\"input\":\"ab\",\"use_activation\":false}") == raw);
        assert_true(length_of("{\"input\":\"ab\",\"normalize\":false,\"dimensions\":2}") < raw);
        expect_error("/v1/embeddings", "{\"input\":\"ab\",\"normalize\":1}", "normalize",
                     "'normalize'");
        fixture_stop(&f);
    }
}

/* Vectors that the model is not made for are made if they are asked for by name. */
static void test_clients__a_pooling_that_is_not_here_is_told(void **state KVA_UNUSED)
{
    fixture_init(&f);
    f.backend.api.pooling = KVA_POOLING_NONE;
    f.backend.api.pooling_why = "the pooling 'cls' (1_Pooling/config.json)";
    fixture_start(&f);
    expect_error("/v1/embeddings", "{\"input\":\"ab\"}", "pooling",
                 "made with the pooling 'cls' (1_Pooling/config.json), which is not implemented");
    cJSON_Delete(post("/v1/embeddings", "{\"input\":\"ab\",\"pooling\":\"last\"}", 200));
    expect_tokens(CHAT, "{\"max_tokens\":4," HELLO "}", 4);
    fixture_stop(&f);
}

/* Whatever would make text is refused; vectors are made, and tokens counted. */
static void test_clients__a_base_model_makes_vectors_alone(void **state KVA_UNUSED)
{
    static const char *const refused[][2] = {
        {CHAT, "{" HELLO "}"},
        {COMPLETE, "{" PROMPT "}"},
        {"/v1/responses", "{\"input\":\"Hello\"}"},
        {"/v1/messages", "{\"model\":\"echo\",\"max_tokens\":3," HELLO "}"},
    };
    fixture_init(&f);
    f.backend.api.headless = true;
    fixture_start(&f);
    for (size_t i = 0; i < KVA_COUNT_OF(refused); i++) {
        cJSON *json = post(refused[i][0], refused[i][1], 400);
        if (!strstr(json_text(json, "error.message"), "'echo' is a base model without an output"))
            fail_msg("%s: %s", refused[i][0], json_text(json, "error.message"));
        cJSON_Delete(json);
    }
    cJSON_Delete(post("/v1/embeddings", "{\"input\":\"ab\"}", 200));
    cJSON_Delete(post("/tokenize", "{" PROMPT "}", 200));
    cJSON_Delete(post("/v1/messages/count_tokens", "{\"model\":\"echo\"," HELLO "}", 200));
    fixture_stop(&f);
}

static int run_preflight(const char *origin, const char *asked, char *ret, size_t size)
{
    struct reply reply;
    char headers[512];
    snprintf(headers, sizeof(headers),
             "Origin: %s\r\nAccess-Control-Request-Method: POST\r\n"
             "Access-Control-Request-Headers: %s\r\n",
             origin, asked);
    client_request(f.port, "OPTIONS", CHAT, headers, NULL, &reply);
    const char *got = reply_header(&reply, "Access-Control-Allow-Headers");
    snprintf(ret, size, "%s", got ? got : "");
    int status = reply.status;
    reply_finish(&reply);
    return status;
}

/* OpenAI's SDK for browsers has headers of its own, and its next version has others. */
static void test_clients__a_page_may_send_any_header(void **state)
{
    (void)state;
    static const char *const origins[] = {"https://app"};
    static const char asked[] = "authorization,content-type,x-stainless-os,x-stainless-lang";
    char got[512];
    fixture_init(&f);
    f.params.cors_origins = origins;
    f.params.cors_origin_count = 1;
    fixture_start(&f);
    assert_int_equal(run_preflight("https://app", asked, got, sizeof(got)), 204);
    assert_string_equal(got, asked);
    assert_int_equal(run_preflight("https://other", asked, got, sizeof(got)), 204);
    assert_null(strstr(got, "stainless"));
    assert_int_equal(run_preflight("https://app", "a; b<c>", got, sizeof(got)), 204);
    assert_null(strstr(got, "<c>"));
    fixture_stop(&f);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_SERVER(test_clients__max_completion_tokens_counts_in_any_order),
        WITH_SERVER(test_clients__context_errors_are_in_everybodys_words),
        WITH_SERVER(test_clients__foreign_fields_are_refused_by_name),
        WITH_SERVER(test_clients__values_that_ask_for_nothing_are_accepted),
        WITH_SERVER(test_clients__parts_of_messages),
        WITH_SERVER(test_clients__what_a_chat_says_of_its_prompt_is_said_once),
        WITH_SERVER(test_clients__eight_stop_strings),
        WITH_SERVER(test_clients__an_escaped_nul_is_named),
        WITH_SERVER(test_clients__histograms_have_buckets_where_values_are),
        WITH_SERVER(test_clients__routes_that_are_not_here),
        WITH_SERVER(test_clients__a_model_that_is_not_here),
        WITH_SERVER(test_clients__embeddings_are_unit_vectors_in_the_order_of_the_texts),
        cmocka_unit_test(test_clients__vectors_are_as_the_model_has_them),
        cmocka_unit_test(test_clients__a_pooling_that_is_not_here_is_told),
        cmocka_unit_test(test_clients__a_base_model_makes_vectors_alone),
        cmocka_unit_test(test_clients__a_page_may_send_any_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
