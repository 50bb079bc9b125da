/* Every case is fed whole, byte by byte, and cut in two at every place: what is read must not
 * depend on it. */
#include "server/http/parser.h"
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_MAX 600u
#define BODY_MAX 1000u

/* What a run of bytes came to: "GET /x a=1 [body]; ...", and the refusal at its end. */
struct reading {
    char text[4096];
    size_t length;
    enum kva_status refused;
    bool begun;
};

static void note(struct reading *reading, const char *text, size_t length)
{
    assert_true(reading->length + length < sizeof(reading->text));
    memcpy(reading->text + reading->length, text, length);
    reading->length += length;
    reading->text[reading->length] = '\0';
}

static void note_text(struct reading *reading, const char *text)
{
    note(reading, text, strlen(text));
}

static bool on_body(void *opaque, const char *data, size_t length)
{
    note(opaque, data, length);
    return true;
}

static void note_head(struct reading *reading, const struct kva_http_head *head)
{
    char text[256];
    snprintf(text, sizeof(text), "%s %s%s%s 1.%u%s%s%s %s [", head->method_name, head->path,
             head->query ? " ?" : "", head->query ? head->query : "", head->minor,
             head->keep_alive ? "" : " close", head->chunked ? " chunked" : "",
             head->expects_continue ? " continue" : "", head->authority);
    note_text(reading, text);
}

static void feed(struct kva_http_parser *parser, struct reading *reading, const char *data,
                 size_t length)
{
    bool in_body = false;
    for (;;) {
        size_t used = 0;
        enum kva_http_event event = kva_http_parser_feed(parser, data, length, &used);
        assert_true(used <= length);
        data += used;
        length -= used;
        switch (event) {
        case KVA_HTTP_EVENT_HEAD:
            note_head(reading, kva_http_parser_head(parser));
            in_body = true;
            continue;
        case KVA_HTTP_EVENT_END:
            note_text(reading, "]; ");
            in_body = false;
            break;
        case KVA_HTTP_EVENT_REFUSED:
            reading->refused = kva_http_parser_error(parser)->status;
            assert_true(kva_http_parser_error(parser)->message[0] != '\0');
            return;
        case KVA_HTTP_EVENT_MORE:
            break;
        }
        if (length == 0 && !in_body)
            return;
        if (length == 0 && event == KVA_HTTP_EVENT_MORE)
            return;
    }
}

/* `cut`: where the bytes are cut in two; 0: after each of them. */
static void run(const char *data, size_t length, size_t cut, struct reading *reading)
{
    struct kva_http_parser_params params = {
        .head_bytes_max = HEAD_MAX, .body_bytes_max = BODY_MAX, .body = on_body, .opaque = reading};
    struct kva_http_parser *parser = kva_http_parser_create(&params);
    assert_non_null(parser);
    memset(reading, 0, sizeof(*reading));
    for (size_t at = 0; at < length;) {
        size_t piece = cut == 0 ? 1 : at < cut ? cut - at : length - at;
        /* A copy of its own size, so that a sanitizer sees what is read beyond it. */
        char *copy = malloc(piece);
        assert_non_null(copy);
        memcpy(copy, data + at, piece);
        feed(parser, reading, copy, piece);
        free(copy);
        at += piece;
    }
    reading->begun = kva_http_parser_begun(parser);
    kva_http_parser_destroy(parser);
}

struct http_case {
    const char *bytes;
    const char *text;        /* what is read before the refusal, if there is one */
    enum kva_status refused; /* KVA_OK: nothing is */
};

static void check(const struct http_case *expected)
{
    static struct reading reading;
    size_t length = strlen(expected->bytes);
    for (size_t cut = 0; cut <= length; cut++) {
        run(expected->bytes, length, cut, &reading);
        if (strcmp(reading.text, expected->text) != 0 || reading.refused != expected->refused)
            fail_msg("cut at %zu of:\n%s\n'%s' and %s instead of '%s' and %s", cut, expected->bytes,
                     reading.text, kva_status_info(reading.refused)->name, expected->text,
                     kva_status_info(expected->refused)->name);
    }
}

#define H  "Host: h\r\n"
#define CL "Content-Length: "
#define TE "Transfer-Encoding: "

static void test_parser__reads_what_is_valid(void **state)
{
    (void)state;
    static const struct http_case cases[] = {
        {"GET / HTTP/1.1\r\n" H "\r\n", "GET / 1.1 h []; ", KVA_OK},
        {"\r\n\r\nGET /a?b=c?d HTTP/1.1\r\n" H "\r\n", "GET /a ?b=c?d 1.1 h []; ", KVA_OK},
        {"HEAD /a HTTP/1.1\r\nhOST:h:80 \t\r\n" CL "3\r\n\r\nabcGET /b HTTP/1.1\r\n" H "\r\n",
         "HEAD /a 1.1 h:80 [abc]; GET /b 1.1 h []; ", KVA_OK},
        {"TRACE / HTTP/1.1\r\n" H CL "3\r\n\r\nabc", "TRACE / 1.1 h [abc]; ", KVA_OK},
        {"GET / HTTP/1.0\r\n\r\n", "GET / 1.0 close  []; ", KVA_OK},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET / 1.0  []; ", KVA_OK},
        {"GET / HTTP/1.1\r\n" H "Connection: close\r\n\r\n", "GET / 1.1 close h []; ", KVA_OK},
        {"POST / HTTP/1.1\r\n" H TE "Chunked\r\n\r\n3\r\nabc\r\n2;x=y;z=\"q\\\"r\"\r\nde\r\n0\r\n"
         "X-Sum: 1\r\n\r\nGET /n HTTP/1.1\r\n" H "\r\n",
         "POST / 1.1 chunked h [abcde]; GET /n 1.1 h []; ", KVA_OK},
        {"POST / HTTP/1.1\r\n" H CL "0\r\n\r\n", "POST / 1.1 h []; ", KVA_OK},
        {"POST / HTTP/1.1\r\n" H CL "007 \r\n\r\nabcdefg", "POST / 1.1 h [abcdefg]; ", KVA_OK},
        {"POST / HTTP/1.1\r\n" H CL "1\r\nExpect: 100-Continue\r\n\r\na",
         "POST / 1.1 continue h [a]; ", KVA_OK},
        {"GET / HTTP/1.1\r\n" H "Expect: 100-continue\r\n\r\n", "GET / 1.1 h []; ", KVA_OK},
        {"GET http://H/a?b HTTP/1.1\r\n" H "\r\n", "GET /a ?b 1.1 H []; ", KVA_OK},
        {"GET https://h:1?b HTTP/1.1\r\nHost: h:1\r\n\r\n", "GET / ?b 1.1 h:1 []; ", KVA_OK},
        {"OPTIONS * HTTP/1.1\r\n" H "\r\n", "OPTIONS * 1.1 h []; ", KVA_OK},
        {"GET //x/metrics HTTP/1.1\r\n" H "\r\n", "GET //x/metrics 1.1 h []; ", KVA_OK},
        /* An offer to speak something else is declined in silence. */
        {"POST / HTTP/1.1\r\n" H "Connection: Upgrade\r\nUpgrade: h2c\r\n" CL "2\r\n\r\nabGET /n "
         "HTTP/1.1\r\n" H "\r\n",
         "POST / 1.1 h [ab]; GET /n 1.1 h []; ", KVA_OK},
        {"GET / HTTP/1.1\r\n" H "Connection: upgrade\r\nUpgrade: websocket\r\n\r\nGET /n "
         "HTTP/1.1\r\n" H "\r\n",
         "GET / 1.1 h []; GET /n 1.1 h []; ", KVA_OK},
        {"GET / HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", "GET / 1.1 [::1]:8000 []; ", KVA_OK},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++)
        check(&cases[i]);
}

static void test_parser__refuses_what_is_ambiguous(void **state)
{
    (void)state;
    static const struct http_case cases[] = {
        /* Lines. */
        {"GET / HTTP/1.1\n" H "\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\nHost: h\n\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\n" H "\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\n" H "A: b\r\n folded\r\n\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\n A: b\r\n" H "\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\n" H "A: b\rc\r\n\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\n" H "A : b\r\n\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\n" H "no colon\r\n\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\n" H ": nameless\r\n\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\n" H "A: \x01\r\n\r\n", "", KVA_EINVAL},
        {"GET /a b HTTP/1.1\r\n" H "\r\n", "", KVA_EINVAL},
        /* Versions and methods. */
        {"GET / HTTP/2.0\r\n" H "\r\n", "", KVA_EVERSION},
        {"GET / HTTP/1.2\r\n" H "\r\n", "", KVA_EVERSION},
        {"GET / HTTP/0.9\r\n\r\n", "", KVA_EVERSION},
        {"GET /\r\n\r\n", "", KVA_EINVAL},
        {"GET\r\n\r\n", "", KVA_EINVAL},
        {"GET\t/ HTTP/1.1\r\n" H "\r\n", "", KVA_EINVAL},
        {"GET  / HTTP/1.1\r\n" H "\r\n", "", KVA_EINVAL},
        {"GET /  HTTP/1.1\r\n" H "\r\n", "", KVA_EINVAL},
        {"\r\nGET /  HTTP/1.1\r\n" H TE "cow\r\n\r\n", "", KVA_EINVAL},
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", KVA_EVERSION},
        {"FETCH / HTTP/1.1\r\n" H "\r\n", "", KVA_EMETHOD},
        {"get / HTTP/1.1\r\n" H "\r\n", "", KVA_EINVAL},
        {"CONNECT h:80 HTTP/1.1\r\n" H "\r\n", "", KVA_EMETHOD},
        {"garbage\r\n\r\n", "", KVA_EINVAL},
        {"\x16\x03\x01\x02", "", KVA_EINVAL},
        /* Targets and hosts. */
        {"GET x HTTP/1.1\r\n" H "\r\n", "", KVA_EINVAL},
        {"GET * HTTP/1.1\r\n" H "\r\n", "", KVA_EINVAL},
        {"GET /#f HTTP/1.1\r\n" H "\r\n", "", KVA_EINVAL},
        {"GET /\x80 HTTP/1.1\r\n" H "\r\n", "", KVA_EINVAL},
        {"GET http:// HTTP/1.1\r\n" H "\r\n", "", KVA_EINVAL},
        {"GET http://other/ HTTP/1.1\r\n" H "\r\n", "", KVA_EINVAL},
        {"GET ftp://h/ HTTP/1.1\r\n" H "\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\n\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\n" H H "\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.0\r\n" H H "\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "", KVA_EINVAL},
        {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "", KVA_EINVAL},
        /* Lengths. */
        {"POST / HTTP/1.1\r\n" H CL "+3\r\n\r\nabc", "", KVA_EINVAL},
        {"POST / HTTP/1.1\r\n" H CL "-3\r\n\r\nabc", "", KVA_EINVAL},
        {"POST / HTTP/1.1\r\n" H CL "3 3\r\n\r\nabc", "", KVA_EINVAL},
        {"POST / HTTP/1.1\r\n" H CL "3, 3\r\n\r\nabc", "", KVA_EINVAL},
        {"POST / HTTP/1.1\r\n" H CL "0x3\r\n\r\nabc", "", KVA_EINVAL},
        {"POST / HTTP/1.1\r\n" H CL "\r\n\r\nabc", "", KVA_EINVAL},
        {"POST / HTTP/1.1\r\n" H CL "3\r\n" CL "3\r\n\r\nabc", "", KVA_EINVAL},
        {"POST / HTTP/1.1\r\n" H CL "99999999999999999999\r\n\r\n", "", KVA_EINVAL},
        {"POST / HTTP/1.1\r\n" H CL "3\r\n" TE "chunked\r\n\r\n0\r\n\r\n", "", KVA_EINVAL},
        {"POST / HTTP/1.1\r\n" H TE "chunked\r\n" CL "3\r\n\r\n0\r\n\r\n", "", KVA_EINVAL},
        /* Codings. */
        {"POST / HTTP/1.1\r\n" H "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "", KVA_EINVAL},
        {"POST / HTTP/1.1\r\n" H TE "gzip, chunked\r\n\r\n0\r\n\r\n", "", KVA_ECODING},
        {"POST / HTTP/1.1\r\n" H TE "chunked, identity\r\n\r\n0\r\n\r\n", "", KVA_EINVAL},
        {"POST / HTTP/1.1\r\n" H TE "chunked, chunked\r\n\r\n0\r\n\r\n", "", KVA_EINVAL},
        {"POST / HTTP/1.1\r\n" H TE "xchunked\r\n\r\n0\r\n\r\n", "", KVA_ECODING},
        {"POST / HTTP/1.1\r\n" H TE "identity\r\n\r\n", "", KVA_ECODING},
        {"POST / HTTP/1.1\r\n" H TE "chunked\r\n" TE "chunked\r\n\r\n0\r\n\r\n", "", KVA_EINVAL},
        {"POST / HTTP/1.0\r\n" H TE "chunked\r\n\r\n0\r\n\r\n", "", KVA_EINVAL},
        /* Expectations. */
        {"POST / HTTP/1.1\r\n" H "Expect: a-miracle\r\n" CL "3\r\n\r\nabc", "", KVA_EEXPECT},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++)
        check(&cases[i]);
}

#define CHUNKED "POST / HTTP/1.1\r\n" H TE "chunked\r\n\r\n"
#define READ    "POST / 1.1 chunked h ["

static void test_parser__refuses_bad_chunks(void **state)
{
    (void)state;
    static const struct http_case cases[] = {
        {CHUNKED "0x3\r\nabc\r\n0\r\n\r\n", READ, KVA_EINVAL},
        {CHUNKED "+3\r\nabc\r\n0\r\n\r\n", READ, KVA_EINVAL},
        {CHUNKED "-3\r\nabc\r\n0\r\n\r\n", READ, KVA_EINVAL},
        {CHUNKED "3 \r\nabc\r\n0\r\n\r\n", READ, KVA_EINVAL},
        {CHUNKED "3 garbage\r\nabc\r\n0\r\n\r\n", READ, KVA_EINVAL},
        {CHUNKED "\r\nabc", READ, KVA_EINVAL},
        {CHUNKED "zz\r\n", READ, KVA_EINVAL},
        {CHUNKED "3\nabc\r\n0\r\n\r\n", READ, KVA_EINVAL},
        {CHUNKED "3\r\nabc0\r\n\r\n", READ "abc", KVA_EINVAL},
        {CHUNKED "3\r\nabc\n0\r\n\r\n", READ "abc", KVA_EINVAL},
        {CHUNKED "3\r\nabcd\r\n0\r\n\r\n", READ "abc", KVA_EINVAL},
        {CHUNKED "3e9\r\n", READ, KVA_ETOOBIG},
        {CHUNKED "ffffffffffffffff\r\n", READ, KVA_ETOOBIG},
        {CHUNKED "10000000000000003\r\nabc\r\n", READ, KVA_EINVAL},
        {CHUNKED "0\r\nA : b\r\n\r\n", READ, KVA_EINVAL},
        {CHUNKED "0\r\n folded\r\n\r\n", READ, KVA_EINVAL},
        {CHUNKED "0\r\n" CL "5\r\n\r\n", READ, KVA_EINVAL},
        {CHUNKED "3\r\nab", READ "ab", KVA_OK},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++)
        check(&cases[i]);
}

/* `head`, `unit` again and again, `tail`. */
static enum kva_status status_of(const char *head, const char *unit, unsigned times,
                                 const char *tail, size_t cut)
{
    static struct reading reading;
    char *bytes = malloc(strlen(head) + strlen(unit) * times + strlen(tail) + 1);
    assert_non_null(bytes);
    strcpy(bytes, head);
    size_t length = strlen(head);
    for (unsigned i = 0; i < times; i++, length += strlen(unit))
        memcpy(bytes + length, unit, strlen(unit));
    strcpy(bytes + length, tail);
    run(bytes, length + strlen(tail), cut, &reading);
    free(bytes);
    return reading.refused;
}

static void test_parser__bounds_everything(void **state)
{
    (void)state;
    for (size_t cut = 0; cut < 3; cut++) {
        static const char head[] = "GET / HTTP/1.1\r\n" H;
        unsigned room = HEAD_MAX - (unsigned)strlen(head) - 4;
        assert_int_equal(status_of("GET / HTTP/1.1\r\n" H "A:", "b", room - 2, "\r\n\r\n", cut), 0);
        assert_int_equal(status_of("GET / HTTP/1.1\r\n" H "A:", "b", room - 1, "\r\n\r\n", cut),
                         KVA_EHEADERS);
        assert_int_equal(status_of("GET /", "a", 100000, "", cut), KVA_EHEADERS);
        assert_int_equal(status_of("", "\r\n", 100000, "", cut), KVA_EHEADERS);
        assert_int_equal(status_of(head, "A:\r\n", 99, "\r\n", cut), 0);
        assert_int_equal(status_of(head, "A:\r\n", 100, "\r\n", cut), KVA_EHEADERS);
        assert_int_equal(status_of(CHUNKED, "0", 100000, "", cut), KVA_EINVAL);
        assert_int_equal(status_of(CHUNKED "1;", "x", 100000, "", cut), KVA_EINVAL);
        assert_int_equal(status_of(CHUNKED "0\r\nA:", "b", 100000, "", cut), KVA_EINVAL);
        assert_int_equal(status_of(CHUNKED, "1\r\na\r\n", 1000, "0\r\n\r\n", cut), 0);
        assert_int_equal(status_of(CHUNKED, "1\r\na\r\n", 1001, "0\r\n\r\n", cut), KVA_ETOOBIG);
    }
}

/* Too large a chunk behind extensions: that they are too many is said wherever the bytes are cut. */
static void test_parser__extensions_are_bounded_in_any_pieces(void **state)
{
    (void)state;
    static const char head[] = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (unsigned framing = HEAD_MAX - 2; framing <= HEAD_MAX + 40; framing++) {
        char bytes[sizeof(head) + HEAD_MAX + 64];
        struct reading reading;
        unsigned length = (unsigned)snprintf(bytes, sizeof(bytes), "%s4ffffffffff;%0*d\r\n", head,
                                             (int)(framing - strlen("4ffffffffff;\r\n")), 0);
        assert_int_equal(length, strlen(head) + framing);
        for (size_t cut = 0; cut < length; cut++) {
            run(bytes, length, cut, &reading);
            assert_int_equal(reading.refused, framing > HEAD_MAX + 1 ? KVA_EINVAL : KVA_ETOOBIG);
        }
    }
}

static void test_parser__nul_bytes_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "GET /@ HTTP/1.1\r\n" H "\r\n",
        "GET / HTTP/1.1\r\nHost: h@\r\n\r\n",
        "GET / HTTP/1.1\r\n" H "A@: b\r\n\r\n",
        "GET / HTTP/1.1\r\n" H "Authorization: Bearer key@x\r\n\r\n",
        "POST / HTTP/1.1\r\n" H TE "chunked@\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\n" H CL "3@\r\n\r\nabc",
    };
    static struct reading reading;
    for (size_t i = 0; i < KVA_COUNT_OF(texts); i++) {
        char bytes[256];
        size_t length = strlen(texts[i]);
        memcpy(bytes, texts[i], length);
        *(char *)memchr(bytes, '@', length) = '\0';
        run(bytes, length, length, &reading);
        assert_int_not_equal(reading.refused, KVA_OK);
        assert_string_equal(reading.text, "");
    }
}

static void test_parser__begun_tells_whether_a_message_is_open(void **state)
{
    (void)state;
    static struct reading reading;
    run("GET / HT", 8, 8, &reading);
    assert_true(reading.begun);
    static const char whole[] = "GET / HTTP/1.1\r\n" H "\r\n";
    run(whole, sizeof(whole) - 1, 0, &reading);
    assert_false(reading.begun);
    static const char open[] = "POST / HTTP/1.1\r\n" H CL "9\r\n\r\nab";
    run(open, sizeof(open) - 1, 0, &reading);
    assert_true(reading.begun);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parser__reads_what_is_valid),
        cmocka_unit_test(test_parser__refuses_what_is_ambiguous),
        cmocka_unit_test(test_parser__refuses_bad_chunks),
        cmocka_unit_test(test_parser__bounds_everything),
        cmocka_unit_test(test_parser__extensions_are_bounded_in_any_pieces),
        cmocka_unit_test(test_parser__nul_bytes_are_refused),
        cmocka_unit_test(test_parser__begun_tells_whether_a_message_is_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
