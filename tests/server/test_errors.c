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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors__a_contradiction_is_the_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
