/* page.h - the page at /: one document with its script and its style, made at build time.
 *
 * It is served to whoever asks for text/html, without a key: there is nothing secret in it, and what
 * it asks for afterwards needs the key that its user enters. Other clients get what `/` is without
 * a page, a 404. The policy lets nothing run or load but the script and the style of the document
 * itself, by their hashes, and lets it talk to this server only.
 *
 * Thread rule: the event loop's thread. Invariant: the document is constant. */
#ifndef KVA_SERVER_PAGE_PAGE_H
#define KVA_SERVER_PAGE_PAGE_H

#include "server/http/http.h"

/* The document, in page_data.c, which bundle.py writes. */
struct kva_page_data {
    const unsigned char *plain;
    const unsigned char *gzip;
    size_t plain_bytes;
    size_t gzip_bytes;
    const char *plain_tag; /* ETag, with its quotes */
    const char *gzip_tag;
    const char *policy; /* Content-Security-Policy */
};
extern const struct kva_page_data kva_page_data;

/* Whether a request wants the page: GET or HEAD of / by a client that names text/html. */
bool kva_page_is_wanted(const struct kva_exchange *exchange);

/* Answer with the document, compressed where the client takes that, or with 304. */
void kva_page_reply(struct kva_exchange *exchange);

#endif
