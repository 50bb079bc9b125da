/* The page at /: who gets it, in which form, and that nothing else changes; and what it asks for, the policies. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HTML "Accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8\r\n"

static struct server_fixture f;
static struct reply reply;

static int get(const char *method, const char *headers)
{
    reply_finish(&reply);
    client_request(f.port, method, "/", headers, NULL, &reply);
    return reply.status;
}

static void start(void)
{
    memset(&reply, 0, sizeof(reply));
    fixture_start(&f);
}

static void stop(void)
{
    reply_finish(&reply);
    fixture_stop(&f);
}

static void test_page__is_for_clients_that_name_html(void **state KVA_UNUSED)
{
    static const char *const others[] = {
        NULL,
        "Accept: */*\r\n",
        "Accept: application/json\r\n",
        "Accept: text/html;q=0\r\n",
        "Accept: text/htmlx, text/\r\n",
    };
    fixture_init(&f);
    start();
    for (size_t i = 0; i < KVA_COUNT_OF(others); i++) {
        assert_int_equal(get("GET", others[i]), 404);
        assert_non_null(strstr(reply.body, "There is no route '/'."));
    }
    assert_int_equal(get("GET", "Accept: TEXT/HTML ; level=1;q=0.4\r\n"), 200);
    assert_int_equal(get("GET", HTML), 200);
    assert_string_equal(reply_header(&reply, "Content-Type"), "text/html; charset=utf-8");
    assert_memory_equal(reply.body, "<!doctype html>", 15);
    assert_true(reply.complete);
    assert_int_equal(get("POST", HTML "Content-Type: application/json\r\n"), 404);
    stop();
}

static void test_page__lets_nothing_else_in(void **state KVA_UNUSED)
{
    fixture_init(&f);
    start();
    assert_int_equal(get("GET", HTML), 200);
    const char *policy = reply_header(&reply, "Content-Security-Policy");
    assert_non_null(strstr(policy, "default-src 'none'; script-src 'sha256-"));
    assert_non_null(strstr(policy, "frame-ancestors 'none'; require-trusted-types-for 'script'"));
    assert_null(strstr(policy, "unsafe"));
    assert_null(strstr(policy, "http"));
    assert_string_equal(reply_header(&reply, "X-Content-Type-Options"), "nosniff");
    assert_string_equal(reply_header(&reply, "Referrer-Policy"), "no-referrer");
    stop();
}

static void test_page__has_two_forms_with_tags(void **state KVA_UNUSED)
{
    char headers[512], plain[128], packed[128];
    fixture_init(&f);
    start();
    assert_int_equal(get("GET", HTML "Accept-Encoding: br, gzip;q=0\r\n"), 200);
    snprintf(plain, sizeof(plain), "%s", reply_header(&reply, "ETag"));
    assert_null(reply_header(&reply, "Content-Encoding"));
    size_t plain_bytes = reply.body_bytes;

    assert_int_equal(get("GET", HTML "Accept-Encoding: br , GZIP\r\n"), 200);
    snprintf(packed, sizeof(packed), "%s", reply_header(&reply, "ETag"));
    assert_string_equal(reply_header(&reply, "Content-Encoding"), "gzip");
    assert_memory_equal(reply.body, "\x1f\x8b", 2);
    assert_true(reply.body_bytes * 2 < plain_bytes);
    assert_string_not_equal(plain, packed);

    snprintf(headers, sizeof(headers), HTML "If-None-Match: \"x\", W/%s\r\n", plain);
    assert_int_equal(get("HEAD", headers), 304);
    snprintf(headers, sizeof(headers), HTML "Accept-Encoding: gzip\r\nIf-None-Match: %s\r\n",
             plain);
    assert_int_equal(get("GET", headers), 200);
    stop();
}

/* A 304 has no body, whatever length it announces: the next answer begins behind its head. */
static void test_page__not_modified_keeps_the_connection(void **state KVA_UNUSED)
{
    char request[256];
    fixture_init(&f);
    start();
    assert_int_equal(get("GET", HTML), 200);
    snprintf(request, sizeof(request),
             "GET / HTTP/1.1\r\nHost: localhost\r\n" HTML "If-None-Match: %s\r\n\r\n",
             reply_header(&reply, "ETag"));
    int fd = client_connect(f.port);
    client_puts(fd, request);
    reply_finish(&reply);
    client_read(fd, true, &reply);
    assert_int_equal(reply.status, 304);
    client_puts(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    reply_finish(&reply);
    client_read(fd, false, &reply);
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply.body, "{\"status\":\"ok\"}");
    close(fd);
    stop();
}

static void test_page__needs_no_key_and_gives_none_away(void **state KVA_UNUSED)
{
    static const char *const keys[] = {"secret-of-the-server"};
    fixture_init(&f);
    f.params.api_keys = keys;
    f.params.api_key_count = 1;
    start();
    assert_int_equal(get("GET", HTML), 200);
    assert_null(strstr(reply.body, keys[0]));
    assert_int_equal(get("GET", NULL), 401);
    assert_int_equal(get("POST", HTML), 401);
    stop();
}

static void test_page__is_for_this_machines_names_without_keys(void **state KVA_UNUSED)
{
    fixture_init(&f);
    start();
    int fd = client_connect(f.port);
    client_puts(fd, "GET / HTTP/1.1\r\nHost: evil.example\r\n" HTML "\r\n");
    client_read(fd, false, &reply);
    assert_int_equal(reply.status, 421);
    close(fd);
    stop();
}

static void test_page__can_be_switched_off(void **state KVA_UNUSED)
{
    fixture_init(&f);
    f.params.page = false;
    start();
    assert_int_equal(get("GET", HTML), 404);
    assert_non_null(strstr(reply.body, "There is no route '/'."));
    stop();
}

static void test_page__is_not_on_the_admin_listener(void **state KVA_UNUSED)
{
    fixture_init(&f);
    f.params.admin_host = "127.0.0.1";
    start();
    client_request(kva_server_admin_port(f.server), "GET", "/", HTML, NULL, &reply);
    assert_int_equal(reply.status, 404);
    stop();
}

static void test_policies__are_those_that_requests_may_choose(void **state KVA_UNUSED)
{
    fixture_init(&f);
    f.backend.api.kv_allowed_mask = 1u << KVA_KV_FULL | 1u << KVA_KV_SPECACHE;
    struct kva_kv_spec *spec = &f.backend.api.kv_specs[KVA_KV_SPECACHE];
    spec->bits = 1;
    struct kva_err err;
    assert_int_equal(kva_kv_spec_set(spec, "topk", "64+256@0-1", &err), KVA_OK);
    start();
    client_get(f.port, "/v1/kvahead/policies", &reply);
    assert_int_equal(reply.status, 200);
    cJSON *json = cJSON_Parse(reply.body);
    assert_int_equal(cJSON_GetArraySize(json_at(json, "data")), 2);
    assert_string_equal(json_text(json, "data.0.name"), "full");
    assert_true(cJSON_IsTrue(json_at(json, "data.0.exact")));
    assert_string_equal(json_text(json, "data.1.name"), "specache");
    assert_true(cJSON_IsFalse(json_at(json, "data.1.exact")));
    assert_string_equal(json_text(json, "data.1.settings.0.name"), "bits");
    assert_true(json_number(json, "data.1.settings.0.default") == 1);
    assert_true(json_number(json, "data.1.settings.0.paper") == 2);
    assert_true(json_number(json, "data.1.settings.0.values.2") == 4);
    const cJSON *setting;
    unsigned seen = 0;
    cJSON_ArrayForEach(setting, json_at(json, "data.1.settings"))
    {
        const char *name = json_text(setting, "name");
        if (strcmp(name, "topk") == 0 && ++seen)
            assert_string_equal(json_text(setting, "default"), "64+256@0-1");
        if (strcmp(name, "window") == 0 && ++seen)
            assert_true(json_number(setting, "multiple_of") == 64);
        if (strcmp(name, "fetch") == 0 && ++seen)
            assert_string_equal(json_text(setting, "values.1"), "delta");
    }
    assert_int_equal(seen, 3);
    cJSON_Delete(json);
    stop();
}

static void test_policies__are_none_while_the_model_loads(void **state KVA_UNUSED)
{
    fixture_init(&f);
    f.attach_later = true;
    start();
    client_get(f.port, "/v1/kvahead/policies", &reply);
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply.body, "{\"object\":\"list\",\"data\":[]}");
    fixture_attach(&f);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page__is_for_clients_that_name_html),
        cmocka_unit_test(test_page__lets_nothing_else_in),
        cmocka_unit_test(test_page__has_two_forms_with_tags),
        cmocka_unit_test(test_page__not_modified_keeps_the_connection),
        cmocka_unit_test(test_page__needs_no_key_and_gives_none_away),
        cmocka_unit_test(test_page__is_for_this_machines_names_without_keys),
        cmocka_unit_test(test_page__can_be_switched_off),
        cmocka_unit_test(test_page__is_not_on_the_admin_listener),
        cmocka_unit_test(test_policies__are_those_that_requests_may_choose),
        cmocka_unit_test(test_policies__are_none_while_the_model_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
