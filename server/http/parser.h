/* parser.h - HTTP/1.1 requests from bytes, strictly: llhttp's tables and what it leaves open.
 *
 * Bytes in, events out; no socket, no clock. A message is framed as RFC 9112 has it or it is
 * refused, and after a refusal nothing more is read, so that no two parties can disagree about
 * where a request ends: lines end in CRLF, lengths are digits, there is one length, the only coding
 * is "chunked", a field has no space before its colon and is on one line, HTTP/1.1 names one host.
 * Chunk extensions and trailers are read past, within bounds.
 *
 * Thread rule: one thread at a time. Invariant: the strings of a head stay valid until the next
 * message begins. */
#ifndef KVA_SERVER_HTTP_PARSER_H
#define KVA_SERVER_HTTP_PARSER_H

#include "base/err.h"

#include <stdbool.h>

#define KVA_HTTP_FIELDS_MAX 100u

/* Bits, so that a route can say which of them it has. */
enum kva_http_method {
    KVA_HTTP_GET = 1u << 0,
    KVA_HTTP_HEAD = 1u << 1,
    KVA_HTTP_POST = 1u << 2,
    KVA_HTTP_PUT = 1u << 3,
    KVA_HTTP_DELETE = 1u << 4,
    KVA_HTTP_OPTIONS = 1u << 5,
    KVA_HTTP_PATCH = 1u << 6,
    KVA_HTTP_OTHER = 1u << 7, /* a method that no route has */
};

struct kva_http_field {
    const char *name;
    const char *value; /* without white space around it */
};

/* A request's line and header fields. */
struct kva_http_head {
    enum kva_http_method method;
    const char *method_name;
    const char *path;      /* not decoded, without the query; "*" of OPTIONS * */
    const char *query;     /* NULL: none */
    const char *authority; /* of an absolute target, else Host's value; "": none (HTTP/1.0) */
    struct kva_http_field fields[KVA_HTTP_FIELDS_MAX];
    uint32_t field_count;
    uint64_t content_length; /* 0 with `chunked` */
    uint8_t minor;           /* HTTP/1.minor: 0 or 1 */
    bool chunked;
    bool keep_alive;
    bool expects_continue; /* the peer waits for 100 before it sends the body */
};

/* NULL: absent. Names are compared without regard to case; the first of several counts. */
const char *kva_http_head_field(const struct kva_http_head *head, const char *name);

enum kva_http_event {
    KVA_HTTP_EVENT_MORE, /* all bytes are used up, the message is not complete */
    KVA_HTTP_EVENT_HEAD, /* the head is complete; the rest of the bytes is the body's and later */
    KVA_HTTP_EVENT_END,  /* the message is complete */
    KVA_HTTP_EVENT_REFUSED, /* see kva_http_parser_error; for good */
};

struct kva_http_parser_params {
    size_t head_bytes_max; /* of request line and fields; of trailers and chunk extensions too */
    size_t body_bytes_max; /* a chunk that would lead over it is refused before it comes */
    /* A piece of the body; false ends parsing with a refusal that the callee has noted itself. */
    bool (*body)(void *opaque, const char *data, size_t length);
    void *opaque;
};

struct kva_http_parser;

/* NULL: out of memory. */
struct kva_http_parser *kva_http_parser_create(const struct kva_http_parser_params *params);
void kva_http_parser_destroy(struct kva_http_parser *parser);

/* Parse up to the next event. *ret_used: bytes of `data` that are done with. After
 * KVA_HTTP_EVENT_HEAD a call without bytes is of use: a request without a body ends with it. */
enum kva_http_event kva_http_parser_feed(struct kva_http_parser *parser, const char *data,
                                         size_t length, size_t *ret_used);

/* Whether bytes of a message have been seen that has not ended. */
bool kva_http_parser_begun(const struct kva_http_parser *parser);

/* The head that KVA_HTTP_EVENT_HEAD has announced, or as much of one as there is. */
const struct kva_http_head *kva_http_parser_head(const struct kva_http_parser *parser);

/* Why the message was refused; the status decides the HTTP code. */
const struct kva_err *kva_http_parser_error(const struct kva_http_parser *parser);

#endif
