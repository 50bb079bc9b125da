/* server.h - the HTTP server: OpenAI's API, keys, limits, metrics, drain.
 *
 * Start-up: create (listens at once: /health answers, everything else says 503 "loading") -> run
 * on the main thread, while another one loads the model and starts the service with
 * kva_server_wake as its wake -> attach (ready) -> drain (new work refused, running streams end)
 * -> run returns and uses the service no more -> stop the service (it may wake the server until
 * then) -> destroy -> free tokenizer and template. Attaching before run is allowed too.
 *
 * Thread rule: create, run and destroy on one thread; attach, drain, stop, reload and wake on any
 * thread, drain and stop in signal handlers too. */
#ifndef KVA_SERVER_SERVER_H
#define KVA_SERVER_SERVER_H

#include "cluster/view.h"
#include "scheduler/service.h"
#include "server/api/api.h"
#include "server/auth/auth.h"

struct kva_server;

struct kva_server_params {
    /* --- where --- */
    const char *host;          /* "127.0.0.1" */
    uint16_t port;             /* 8000; 0: any free one, see kva_server_port */
    const char *admin_host;    /* /health, /ready, /metrics, /version without a key, without TLS;
                                  NULL: no such listener */
    uint16_t admin_port;       /* 0: any free one, see kva_server_admin_port */
    const char *agent_host;    /* a weight for HAProxy (agent.h); NULL: no such listener */
    uint16_t agent_port;       /* 0: any free one, see kva_server_agent_port */
    const char *tls_cert_path; /* PEM chain; NULL: plain HTTP */
    const char *tls_key_path;  /* NULL: in the certificate's file */

    /* --- who --- */
    const char *const *api_keys; /* each may be several with commas between */
    uint32_t api_key_count;
    const char *api_key_file;         /* one key per line; read again by kva_server_reload */
    struct kva_key_limits key_limits; /* where a line of the file says nothing else */
    const char *const *cors_origins;  /* "https://chat.example.org", or "*"; none: no CORS */
    uint32_t cors_origin_count;
    const char *const *allowed_hosts; /* answered to, besides this machine's, without keys on a
                                         loopback address; "*": all */
    uint32_t allowed_host_count;
    bool cache_shared_between_keys; /* the prefix cache is then a timing channel between clients */

    /* --- bounds --- */
    uint32_t connections_max;
    uint32_t waiting_per_address_max; /* connections of one address without a request; the oldest
                                         makes room for a new one */
    uint32_t backlog;
    size_t header_bytes_max;
    size_t body_bytes_max;
    size_t bodies_bytes_max;     /* of all requests that arrive or are being prepared */
    size_t bodies_account_max;   /* of those of one key; without keys: of one address */
    uint32_t prompts_live_max;   /* prompts of all calls at once */
    size_t answer_bytes_max;     /* of one answer */
    size_t stream_unsent_max;    /* a stream is paused when its peer leaves this much unread */
    size_t stream_buffered_max;  /* a paused stream is closed when this much is buffered */
    uint64_t write_timeout_ns;   /* a peer that reads nothing for this long is closed */
    uint64_t idle_timeout_ns;    /* of a connection without a request */
    uint64_t head_timeout_ns;    /* for a TLS handshake and a request's headers */
    uint64_t receive_timeout_ns; /* for a request to arrive */
    uint64_t request_timeout_ns; /* for a request to be answered; 0: none */
    uint64_t keep_alive_ns;      /* between comments in a silent stream; 0: none */
    uint64_t drain_timeout_ns;   /* then running requests are ended */
    uint32_t retry_after_s;      /* of 503 answers */

    size_t responses_bytes_max; /* of stored responses; 0: none are */

    /* --- work --- */
    uint32_t workers; /* tokenisation and templates */
    uint32_t worker_jobs_max;
    size_t inline_bytes_max; /* completions up to this are prepared on the event loop; no chats */

    bool metrics_vllm; /* --metrics-vllm */
    bool log_requests; /* one line per request */
    bool metrics_keys; /* what each named key has used */
    bool debug_view;   /* GET /v1/kvahead/requests */
    bool page;         /* GET / for browsers */
    const char *version;
    const struct kva_clock *clock; /* the scheduler's; NULL: the real one */
};

/* Loopback, port 8000, no keys, bounds as in docs/api.md. */
void kva_server_params_default(struct kva_server_params *params);

/* Strings and arrays of `params` are borrowed until destroy. Fails: KVA_EINVAL (err names the
 * parameter), KVA_EIO (address in use, unreadable file), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_server_create(const struct kva_server_params *params,
                                                 struct kva_server **ret, struct kva_err *err);

uint16_t kva_server_port(const struct kva_server *server);
uint16_t kva_server_admin_port(const struct kva_server *server); /* 0: none */
uint16_t kva_server_agent_port(const struct kva_server *server); /* 0: none */

/* For struct kva_service_params: wake = kva_server_wake, wake_opaque = the server. */
void kva_server_wake(void *server);

/* The cluster that the server is in, if it is in one: called on the event loop's thread. */
struct kva_server_cluster {
    void *opaque;
    void (*get_view)(void *opaque, struct kva_cluster_view *ret); /* NULL: there is none */
};

/* What is served. The service is borrowed until run has returned, the rest until destroy. */
struct kva_server_backend {
    struct kva_service *service;
    struct kva_api_config api;
    struct kva_server_cluster cluster;
};

/* From now on requests are taken. Once only; fails: KVA_EINVAL. */
KVA_MUST_CHECK enum kva_status kva_server_attach(struct kva_server *server,
                                                 const struct kva_server_backend *backend,
                                                 struct kva_err *err);

/* Loading has failed: /ready says so with `message` until the process ends. */
void kva_server_fail(struct kva_server *server, const char *message);

/* Serve until drained or stopped. KVA_OK: drained in time; KVA_ETIMEOUT: requests had to be ended;
 * KVA_EDEVICE: the device failed; KVA_ECANCELLED: kva_server_stop. */
KVA_MUST_CHECK enum kva_status kva_server_run(struct kva_server *server, struct kva_err *err);

/* Readiness turns 503, new work is refused, run returns when the last answer has left. */
void kva_server_drain(struct kva_server *server);

/* run returns at once; connections are closed. */
void kva_server_stop(struct kva_server *server);

/* Read certificate, key and key file again; what cannot be read is logged and stays as it was. */
void kva_server_reload(struct kva_server *server);

/* After run, and after the service was stopped. NULL is allowed. */
void kva_server_destroy(struct kva_server *server);

#endif
