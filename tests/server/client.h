/* client.h - a plain HTTP client for the tests: blocking sockets, nothing of the server's. */
#ifndef KVA_TESTS_SERVER_CLIENT_H
#define KVA_TESTS_SERVER_CLIENT_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reply {
    int status; /* 0: the connection ended without an answer */
    char *head; /* status line and headers */
    char *body; /* chunks joined */
    size_t body_bytes;
    bool complete; /* the body ended as announced */
};

/* Aborts the test when the server cannot be reached. Reads give up after 20 s. */
int client_connect(uint16_t port);
void client_send(int fd, const void *data, size_t length);
void client_puts(int fd, const char *text);

/* Read one answer; for HEAD without its body. Free with reply_finish. */
void client_read(int fd, bool head_only, struct reply *reply);
void reply_finish(struct reply *reply);

/* Value of a header, in a static buffer; NULL: absent. */
const char *reply_header(const struct reply *reply, const char *name);

/* Read until `text` has been seen; false: the connection ended or 20 s passed before. */
bool client_read_until(int fd, const char *text);

/* One request on a connection of its own. `headers` (may be NULL): lines ended by \r\n. */
void client_request(uint16_t port, const char *method, const char *path, const char *headers,
                    const char *body, struct reply *reply);
void client_get(uint16_t port, const char *path, struct reply *reply);
void client_post(uint16_t port, const char *path, const char *body, struct reply *reply);

/* The same, parsed; NULL if the body is not JSON. *ret_status may be NULL. */
cJSON *client_post_json(uint16_t port, const char *path, const char *body, int *ret_status);

/* Start a POST and leave the answer unread. */
int client_post_open(uint16_t port, const char *path, const char *body);

/* Sum of the samples of /metrics whose line begins with `name` and has `label` (may be NULL) in it;
 * -1: there is none. */
double client_metric(uint16_t port, const char *name, const char *label);

/* Text at a dotted path ("choices.0.text"), "" if it is not there. Numbers index arrays. */
const char *json_text(const cJSON *root, const char *path);
double json_number(const cJSON *root, const char *path);
const cJSON *json_at(const cJSON *root, const char *path);

/* What an SSE body says, joined. */
struct stream {
    char *text[16];
    char finish[16][16];
    unsigned frames; /* data frames, [DONE] not counted */
    unsigned comments;
    bool done;
    bool error;
    cJSON *last; /* the last frame; the usage if it was asked for */
};
void stream_parse(const char *body, struct stream *stream);
void stream_finish(struct stream *stream);

#endif
