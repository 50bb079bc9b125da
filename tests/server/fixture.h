/* fixture.h - a real server on a loopback port, on a scripted engine that answers with its prompt.
 *
 * The model "echo" continues a prompt with the prompt's own tokens, then EOS, unless a test gives a
 * function of its own: what a test wants to read back, it sends. Its tokenizer is byte-level, with
 * a few merges, so that characters and stop strings lie across tokens. */
#ifndef KVA_TESTS_SERVER_FIXTURE_H
#define KVA_TESTS_SERVER_FIXTURE_H

#include "scheduler/service.h"
#include "server/server.h"
#include "tests/scheduler/scripted_engine.h"

#include <pthread.h>

#define FIXTURE_BOS 256u
#define FIXTURE_EOS 257u

struct server_fixture {
    /* Before fixture_start: change what the test needs. */
    struct kva_server_params params;
    struct kva_scripted_params engine;
    struct kva_scheduler_params scheduling;
    struct kva_server_backend backend;
    const struct kva_service_beside *beside; /* or NULL */
    bool attach_later;

    struct kva_tokenizer *tokenizer;
    struct kva_template *chat_template;
    struct kva_scripted *scripted;
    struct kva_service *service;
    struct kva_server *server;
    pthread_t thread;
    enum kva_status run_status;
    bool running;
    uint16_t port;
};

/* Defaults: quiet log, no step time, keep-alives as the server has them. */
void fixture_init(struct server_fixture *f);
void fixture_start(struct server_fixture *f);

/* fixture_init with another chat template: what it says of calls is read, too. */
void fixture_init_template(struct server_fixture *f, const char *source);
/* For attach_later. */
void fixture_attach(struct server_fixture *f);
/* Drain, join, free everything. */
void fixture_stop(struct server_fixture *f);
/* Wait for run to return (after a drain or stop of the test's own). */
enum kva_status fixture_join(struct server_fixture *f);

/* The tokenizer and the template, for tests without a server. */
struct kva_tokenizer *fixture_tokenizer(void);
struct kva_template *fixture_template(void);
void fixture_api_config(struct kva_api_config *config, struct kva_tokenizer *tokenizer,
                        struct kva_template *chat_template);

/* The prompt's own tokens, then EOS. */
uint32_t fixture_echo(void *opaque, const struct kva_sequence_params *params, uint32_t index);

/* Wait, at most 20 s, until `check` holds; fails the test otherwise. */
void fixture_wait(struct server_fixture *f, bool (*check)(struct server_fixture *f),
                  const char *what);
bool fixture_is_idle(struct server_fixture *f);

#endif
