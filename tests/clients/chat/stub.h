/* stub.h - an OpenAI-compatible server of a few fixed behaviours, on a thread of its own.
 *
 * The last message's text chooses: "hello" streams an answer in pieces; "late" does so after
 * STUB_LATE_MS, all at once; "control" one with terminal control sequences; "endless" streams until
 * the client leaves; "interrupt" does too, and sends this process SIGINT after its first piece;
 * "error" sends an error frame in the middle; "cut" closes the connection in the middle; "limit"
 * ends for length; "document" answers without a stream; "html" answers with a page; a number is
 * answered with that status. Model "nope" is 404; a key other than "key" is 401 if the stub wants
 * one. */
#ifndef KVA_TESTS_CLIENTS_CHAT_STUB_H
#define KVA_TESTS_CLIENTS_CHAT_STUB_H

#include <stdbool.h>
#include <stddef.h>

struct stub;

/* How long the answer to "late" takes, which then comes whole. */
#define STUB_LATE_MS 50

struct stub *stub_start(bool want_key);
void stub_stop(struct stub *stub);

/* "http://127.0.0.1:PORT/v1/"; with "loading" behind it, of a server that lists no model yet. */
const char *stub_url(const struct stub *stub);

/* The chat requests' bodies so far, in order; valid until the stub stops. NULL: fewer came. */
const char *stub_body(struct stub *stub, size_t index);

/* Waits until `count` clients left before their answer's end. */
void stub_wait_left(struct stub *stub, size_t count);

#endif
