/* Behaviours 10 and 14: keys, rates, origins, TLS, and prefixes that are not shared. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct server_fixture f;

static const char *const two_keys[] = {"key-one", "key-two"};

static int status_of(const char *method, const char *path, const char *headers, const char *body)
{
    struct reply reply;
    client_request(f.port, method, path, headers, body, &reply);
    int status = reply.status;
    reply_finish(&reply);
    return status;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void make_path(char *path, size_t size)
{
    snprintf(path, size, "/tmp/kvahead-test-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
}

static void test_serving__10_key_on_every_route_but_liveness(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path, *body;
    } routes[] = {
        {"POST", "/v1/completions", "{\"prompt\":\"x\"}"},
        {"POST", "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"},
        {"GET", "/v1/models", NULL},
        {"GET", "/v1/models/echo", NULL},
        {"GET", "/v1/models/org%2Fecho-alias", NULL},
        {"POST", "/tokenize", "{\"prompt\":\"x\"}"},
        {"POST", "/detokenize", "{\"tokens\":[65]}"},
        {"GET", "/version", NULL},
        {"GET", "/metrics", NULL},
        {"GET", "/v1/kvahead/requests", NULL},
        {"GET", "/v1/kvahead/policies", NULL},
    };
    fixture_init(&f);
    f.params.api_keys = two_keys;
    f.params.api_key_count = 2;
    fixture_start(&f);
    assert_int_equal(status_of("GET", "/health", NULL, NULL), 200);
    for (size_t i = 0; i < KVA_COUNT_OF(routes); i++) {
        const char *method = routes[i].method;
        const char *path = routes[i].path;
        const char *body = routes[i].body;
        assert_int_equal(status_of(method, path, NULL, body), 401);
        assert_int_equal(status_of(method, path, "Authorization: Bearer key-onf\r\n", body), 401);
        assert_int_equal(status_of(method, path, "Authorization: Bearer key-on\r\n", body), 401);
        assert_int_equal(status_of(method, path, "Authorization: Bearer\r\n", body), 401);
        assert_int_equal(status_of(method, path, "Authorization: Basic key-one\r\n", body), 401);
        assert_int_equal(status_of(method, path, "Authorization: Bearer key-one\r\n", body), 200);
        assert_int_equal(status_of(method, path, "X-API-Key: key-two\r\n", body), 200);
    }
    /* What does not exist is not told to strangers. */
    assert_int_equal(status_of("GET", "/nowhere", NULL, NULL), 401);
    struct reply reply;
    client_get(f.port, "/v1/models", &reply);
    cJSON *json = cJSON_Parse(reply.body);
    assert_string_equal(json_text(json, "error.code"), "invalid_api_key");
    assert_string_equal(reply_header(&reply, "WWW-Authenticate"), "Bearer");
    cJSON_Delete(json);
    reply_finish(&reply);
    fixture_stop(&f);
}

static void test_serving__10_key_file_is_read_again(void **state)
{
    (void)state;
    char path[64];
    make_path(path, sizeof(path));
    write_file(path, "# keys\n\n  first  \nsecond\n");
    fixture_init(&f);
    f.params.api_key_file = path;
    fixture_start(&f);
    assert_int_equal(status_of("GET", "/version", "X-API-Key: first\r\n", NULL), 200);
    assert_int_equal(status_of("GET", "/version", "X-API-Key: # keys\r\n", NULL), 401);
    write_file(path, "third\n");
    kva_server_reload(f.server);
    for (int i = 0; i < 2000 && status_of("GET", "/version", "X-API-Key: third\r\n", NULL) != 200;
         i++)
        usleep(1000);
    assert_int_equal(status_of("GET", "/version", "X-API-Key: third\r\n", NULL), 200);
    assert_int_equal(status_of("GET", "/version", "X-API-Key: first\r\n", NULL), 401);
    fixture_stop(&f);
    unlink(path);
}

static void test_serving__10_unusable_keys_stop_the_start(void **state)
{
    (void)state;
    static const char *const empty[] = {""};
    struct kva_server_params params;
    struct kva_server *server = NULL;
    struct kva_err err;
    kva_server_params_default(&params);
    params.port = 0;
    params.api_key_file = "/nonexistent/keys";
    assert_int_equal(kva_server_create(&params, &server, &err), KVA_EIO);
    assert_non_null(strstr(err.message, "/nonexistent/keys"));
    params.api_key_file = NULL;
    params.api_keys = empty;
    params.api_key_count = 1;
    assert_int_equal(kva_server_create(&params, &server, &err), KVA_EINVAL);
    params.api_key_count = 0;
    params.workers = 0;
    assert_int_equal(kva_server_create(&params, &server, &err), KVA_EINVAL);
    assert_string_equal(err.message, "'workers' is 0, allowed is 1 to 256.");
    assert_null(server);
}

static void test_serving__10_rate_of_one_key(void **state)
{
    (void)state;
    fixture_init(&f);
    f.params.api_keys = two_keys;
    f.params.api_key_count = 2;
    f.params.key_limits.requests_per_minute = 3;
    fixture_start(&f);
    for (int i = 0; i < 3; i++)
        assert_int_equal(
            status_of("POST", "/v1/completions", "X-API-Key: key-one\r\n", "{\"prompt\":\"x\"}"),
            200);
    struct reply reply;
    client_request(f.port, "POST", "/v1/completions", "X-API-Key: key-one\r\n",
                   "{\"prompt\":\"x\"}", &reply);
    assert_int_equal(reply.status, 429);
    assert_true(atoi(reply_header(&reply, "Retry-After")) >= 1);
    reply_finish(&reply);
    assert_int_equal(
        status_of("POST", "/v1/completions", "X-API-Key: key-two\r\n", "{\"prompt\":\"x\"}"), 200);
    assert_int_equal(status_of("GET", "/v1/models", "X-API-Key: key-one\r\n", NULL), 200);
    fixture_stop(&f);
}

/* Cached prompt tokens of a 200-token prompt under this key and salt. */
static int cached_tokens(const char *key, const char *more)
{
    struct reply reply;
    struct kva_buf body;
    char header[64];
    kva_buf_init(&body, 4096);
    kva_buf_puts(&body, "{\"prompt\":\"");
    for (int i = 0; i < 200; i++)
        kva_buf_putc(&body, (char)('A' + i % 5));
    kva_buf_printf(&body, "\",\"max_tokens\":1%s}", more);
    snprintf(header, sizeof(header), "X-API-Key: %s\r\n", key);
    client_request(f.port, "POST", "/v1/completions", header, body.data, &reply);
    assert_int_equal(reply.status, 200);
    cJSON *json = cJSON_Parse(reply.body);
    int cached = (int)json_number(json, "usage.prompt_tokens_details.cached_tokens");
    cJSON_Delete(json);
    reply_finish(&reply);
    kva_buf_finish(&body);
    return cached;
}

static void test_serving__14_prefixes_are_isolated_by_key_and_salt(void **state)
{
    (void)state;
    fixture_init(&f);
    f.params.api_keys = two_keys;
    f.params.api_key_count = 2;
    fixture_start(&f);
    assert_int_equal(cached_tokens("key-one", ""), 0);
    assert_true(cached_tokens("key-one", "") >= 128);
    assert_int_equal(cached_tokens("key-two", ""), 0);
    assert_true(cached_tokens("key-two", "") >= 128);
    assert_int_equal(cached_tokens("key-one", ",\"cache_salt\":\"a\""), 0);
    assert_true(cached_tokens("key-one", ",\"cache_salt\":\"a\"") >= 128);
    assert_int_equal(cached_tokens("key-two", ",\"cache_salt\":\"a\""), 0);
    assert_int_equal(cached_tokens("key-one", ",\"cache_salt\":\"b\""), 0);
    fixture_stop(&f);
}

static void test_serving__14_operator_may_share_prefixes(void **state)
{
    (void)state;
    fixture_init(&f);
    f.params.api_keys = two_keys;
    f.params.api_key_count = 2;
    f.params.cache_shared_between_keys = true;
    fixture_start(&f);
    assert_int_equal(cached_tokens("key-one", ""), 0);
    assert_true(cached_tokens("key-two", "") >= 128);
    assert_int_equal(cached_tokens("key-two", ",\"cache_salt\":\"a\""), 0);
    fixture_stop(&f);
}

static void test_serving__cors_only_for_listed_origins(void **state)
{
    (void)state;
    static const char *const origins[] = {"https://chat.example.org"};
    struct reply reply;
    fixture_init(&f);
    f.params.api_keys = two_keys;
    f.params.api_key_count = 2;
    f.params.cors_origins = origins;
    f.params.cors_origin_count = 1;
    fixture_start(&f);
    client_request(f.port, "OPTIONS", "/v1/chat/completions",
                   "Origin: https://chat.example.org\r\nAccess-Control-Request-Method: POST\r\n",
                   NULL, &reply);
    assert_int_equal(reply.status, 204);
    assert_string_equal(reply_header(&reply, "Access-Control-Allow-Origin"),
                        "https://chat.example.org");
    assert_non_null(strstr(reply_header(&reply, "Access-Control-Allow-Headers"), "Authorization"));
    reply_finish(&reply);
    client_request(f.port, "OPTIONS", "/v1/chat/completions", "Origin: https://evil.example\r\n",
                   NULL, &reply);
    assert_null(reply_header(&reply, "Access-Control-Allow-Origin"));
    reply_finish(&reply);
    /* Errors too must be readable for the page. */
    client_request(f.port, "GET", "/v1/models", "Origin: https://chat.example.org\r\n", NULL,
                   &reply);
    assert_int_equal(reply.status, 401);
    assert_non_null(reply_header(&reply, "Access-Control-Allow-Origin"));
    reply_finish(&reply);
    fixture_stop(&f);
}

/* A self-signed certificate and its key in one PEM file. */
static void write_certificate(const char *path, long serial)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    X509_NAME *name = X509_get_subject_name(cert);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), serial);
    X509_gmtime_adj(X509_getm_notBefore(cert), -60);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1, -1,
                               0);
    X509_set_issuer_name(cert, name);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL);
    PEM_write_X509(file, cert);
    fclose(file);
    X509_free(cert);
    EVP_PKEY_free(key);
}

/* Send `text` over TLS; the answer, and the serial number of the server's certificate. */
static long tls_request(const char *text, char *answer, int size)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    int fd = client_connect(f.port);
    SSL_set_fd(ssl, fd);
    assert_int_equal(SSL_connect(ssl), 1);
    X509 *cert = SSL_get1_peer_certificate(ssl);
    long serial = ASN1_INTEGER_get(X509_get_serialNumber(cert));
    X509_free(cert);
    SSL_write(ssl, text, (int)strlen(text));
    int used = 0, got;
    while (used < size - 1 && (got = SSL_read(ssl, answer + used, size - 1 - used)) > 0)
        used += got;
    answer[used] = '\0';
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    return serial;
}

static void test_serving__tls_serves_streams_and_reloads(void **state)
{
    (void)state;
    static const char request[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Connection: close\r\nContent-Length: 47\r\n\r\n"
        "{\"prompt\":\"hello\",\"stream\":true,\"max_tokens\":9}  ";
    char path[64];
    char answer[8192];
    make_path(path, sizeof(path));
    write_certificate(path, 1);
    fixture_init(&f);
    f.params.tls_cert_path = path;
    fixture_start(&f);
    assert_int_equal(tls_request(request, answer, sizeof(answer)), 1);
    assert_non_null(strstr(answer, "\"text\":\"hell\""));
    assert_non_null(strstr(answer, "data: [DONE]"));
    assert_int_equal(tls_request("garbage\r\n\r\n", answer, sizeof(answer)), 1);
    assert_non_null(strstr(answer, "HTTP/1.1 400 "));
    assert_non_null(strstr(answer, "{\"error\":"));
    write_certificate(path, 2);
    kva_server_reload(f.server);
    long serial = 1;
    for (int i = 0; i < 2000 && serial == 1; i++)
        serial = tls_request("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", answer,
                             sizeof(answer));
    assert_int_equal(serial, 2);
    /* Plain HTTP on a TLS port is no request. */
    struct reply reply;
    client_get(f.port, "/health", &reply);
    assert_int_equal(reply.status, 0);
    reply_finish(&reply);
    fixture_stop(&f);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serving__10_key_on_every_route_but_liveness),
        cmocka_unit_test(test_serving__10_key_file_is_read_again),
        cmocka_unit_test(test_serving__10_unusable_keys_stop_the_start),
        cmocka_unit_test(test_serving__10_rate_of_one_key),
        cmocka_unit_test(test_serving__14_prefixes_are_isolated_by_key_and_salt),
        cmocka_unit_test(test_serving__14_operator_may_share_prefixes),
        cmocka_unit_test(test_serving__cors_only_for_listed_origins),
        cmocka_unit_test(test_serving__tls_serves_streams_and_reloads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
