#include "tests/server/fixture.h"

#include "base/log.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const uint32_t eos_ids[] = {FIXTURE_EOS};

static void must(enum kva_status status, const struct kva_err *err, const char *what)
{
    if (status == KVA_OK)
        return;
    fprintf(stderr, "fixture: %s: %s\n", what, err->message);
    abort();
}

/* GPT-2's alphabet of printable characters for bytes. */
static uint32_t byte_symbol(unsigned byte)
{
    if ((byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
        (byte >= 0xAE && byte <= 0xFF))
        return byte;
    uint32_t shifted = 256;
    for (unsigned i = 0; i < byte; i++) {
        bool printable =
            (i >= '!' && i <= '~') || (i >= 0xA1 && i <= 0xAC) || (i >= 0xAE && i <= 0xFF);
        shifted += !printable;
    }
    return shifted;
}

static void put_vocabulary(struct kva_buf *json)
{
    kva_buf_puts(json, "\"vocab\":{");
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[4];
        int length = kva_utf8_encode(byte_symbol(byte), text);
        kva_buf_puts(json, byte ? "," : "");
        kva_buf_json_string(json, text, (size_t)length);
        kva_buf_printf(json, ":%u", byte);
    }
    kva_buf_puts(json, ",\"<s>\":256,\"</s>\":257,\"he\":258,\"ll\":259,\"hell\":260,\"ST\":261,"
                       "\"OP\":262,\"STOP\":263,\"ab\":264}");
}

struct kva_tokenizer *fixture_tokenizer(void)
{
    static const char config[] = "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_err err = {.status = KVA_OK};
    struct kva_buf json;
    kva_buf_init(&json, 65536);
    kva_buf_puts(&json, "{\"version\":\"1.0\",\"added_tokens\":["
                        "{\"id\":256,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,"
                        "\"rstrip\":false,\"normalized\":false,\"special\":true},"
                        "{\"id\":257,\"content\":\"</s>\",\"single_word\":false,\"lstrip\":false,"
                        "\"rstrip\":false,\"normalized\":false,\"special\":true}],"
                        "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                        "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},"
                        "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
                        "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
                        "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                        "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                        "\"fuse_unk\":false,\"byte_fallback\":false,");
    put_vocabulary(&json);
    kva_buf_puts(&json,
                 ",\"merges\":[\"h e\",\"l l\",\"he ll\",\"S T\",\"O P\",\"ST OP\",\"a b\"]}}");
    must(kva_tokenizer_load_buffers(json.data, json.length, config, sizeof(config) - 1, &tokenizer,
                                    &err),
         &err, "tokenizer");
    kva_buf_finish(&json);
    return tokenizer;
}

struct kva_template *fixture_template(void)
{
    /* A single message is its content: what is said is echoed. */
    static const char source[] =
        "{% for m in messages %}"
        "{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "{{ m.content }}{% if not loop.last %}|{% endif %}{% endfor %}";
    struct kva_template *tmpl = NULL;
    struct kva_err err = {.status = KVA_OK};
    must(kva_template_compile(source, sizeof(source) - 1, &tmpl, &err), &err, "template");
    return tmpl;
}

void fixture_api_config(struct kva_api_config *config, struct kva_tokenizer *tokenizer,
                        struct kva_template *chat_template)
{
    *config = (struct kva_api_config){
        .model_ids = {"echo", "org/echo-alias"},
        .model_id_count = 2,
        .tokenizer = tokenizer,
        .chat.compiled = chat_template,
        .context_max = 8192,
        .vocab_size = 265,
        .eos_ids = eos_ids,
        .eos_count = 1,
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .completion_tokens_default = 16,
        .kv_allowed_mask = 1u << KVA_KV_FULL | 1u << KVA_KV_OFFLOAD | 1u << KVA_KV_SPECACHE,
        .kv_default = KVA_KV_FULL,
    };
    kva_api_limits_default(&config->limits);
    config->kv_topk_max = 256;
    config->embedding_size = KVA_SCRIPTED_WIDTH;
    config->pooling = KVA_POOLING_MEAN;
    config->normalise = true;
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++)
        config->kv_specs[id] = kva_kv_spec_default((enum kva_kv_policy_id)id);
    kva_api_read_templates(config, NULL, NULL);
}

uint32_t fixture_echo(void *opaque, const struct kva_sequence_params *params, uint32_t index)
{
    (void)opaque;
    return index < params->prompt_tokens ? params->prompt[index] : FIXTURE_EOS;
}

void fixture_init(struct server_fixture *f)
{
    memset(f, 0, sizeof(*f));
    kva_log_setup(STDERR_FILENO, KVA_LOG_OFF, KVA_LOG_TEXT);
    kva_server_params_default(&f->params);
    f->params.port = 0;
    f->engine = kva_scripted_defaults();
    f->engine.vocab = 265;
    f->engine.next_token = fixture_echo;
    f->scheduling = (struct kva_scheduler_params){
        .running_max = 64,
        .waiting_max = 256,
        .step_tokens_max = 512,
        .prefill_share_pct = 50,
        .aging_ns = KVA_NS_PER_S,
        .clock = kva_clock_real(),
    };
    f->tokenizer = fixture_tokenizer();
    f->chat_template = fixture_template();
    fixture_api_config(&f->backend.api, f->tokenizer, f->chat_template);
}

static void *run(void *opaque)
{
    struct server_fixture *f = opaque;
    struct kva_err err;
    f->run_status = kva_server_run(f->server, &err);
    return NULL;
}

void fixture_attach(struct server_fixture *f)
{
    struct kva_err err = {.status = KVA_OK};
    struct kva_service_params service = {.scheduler = f->scheduling,
                                         .wake = kva_server_wake,
                                         .wake_opaque = f->server,
                                         .beside = f->beside};
    f->scripted = kva_scripted_create(&f->engine);
    service.scheduler.engine = kva_scripted_engine(f->scripted);
    must(kva_service_start(&service, &f->service, &err), &err, "service");
    f->backend.service = f->service;
    f->backend.api.context_max = f->engine.limits.context_max;
    must(kva_server_attach(f->server, &f->backend, &err), &err, "attach");
}

void fixture_init_template(struct server_fixture *f, const char *source)
{
    struct kva_err err = {.status = KVA_OK};
    fixture_init(f);
    kva_template_destroy(f->chat_template);
    must(kva_template_compile(source, strlen(source), &f->chat_template, &err), &err, "template");
    f->backend.api.chat.compiled = f->chat_template;
    kva_api_read_templates(&f->backend.api, NULL, NULL);
}

void fixture_start(struct server_fixture *f)
{
    struct kva_err err = {.status = KVA_OK};
    must(kva_server_create(&f->params, &f->server, &err), &err, "server");
    f->port = kva_server_port(f->server);
    if (!f->attach_later)
        fixture_attach(f);
    if (pthread_create(&f->thread, NULL, run, f) != 0)
        abort();
    f->running = true;
}

enum kva_status fixture_join(struct server_fixture *f)
{
    if (f->running)
        pthread_join(f->thread, NULL);
    f->running = false;
    return f->run_status;
}

void fixture_stop(struct server_fixture *f)
{
    if (f->running)
        kva_server_drain(f->server);
    fixture_join(f);
    kva_service_stop(f->service);
    kva_server_destroy(f->server);
    if (f->scripted)
        kva_scripted_destroy(f->scripted);
    kva_template_destroy(f->chat_template);
    kva_tokenizer_destroy(f->tokenizer);
}

bool fixture_is_idle(struct server_fixture *f)
{
    struct kva_scheduler_stats stats;
    kva_service_get_stats(f->service, &stats);
    return stats.running == 0 && stats.waiting == 0 && stats.suspended == 0 &&
           stats.engine.used.device == stats.engine.cached.device &&
           stats.engine.used.host == stats.engine.cached.host;
}

void fixture_wait(struct server_fixture *f, bool (*check)(struct server_fixture *f),
                  const char *what)
{
    for (int i = 0; i < 20000; i++) {
        struct timespec pause = {.tv_nsec = 1000000};
        if (check(f))
            return;
        nanosleep(&pause, NULL);
    }
    fprintf(stderr, "waited 20 s for: %s\n", what);
    abort();
}
