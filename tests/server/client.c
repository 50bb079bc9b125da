#include "tests/server/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void die(const char *what)
{
    fprintf(stderr, "client: %s: %s\n", what, strerror(errno));
    abort();
}

int client_connect(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval limit = {.tv_sec = 20};
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        die("connect");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

/* A server that refuses may close before it has read everything: not the client's failure. */
void client_send(int fd, const void *data, size_t length)
{
    const char *at = data;
    while (length > 0) {
        ssize_t sent = send(fd, at, length, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        at += sent;
        length -= (size_t)sent;
    }
}

void client_puts(int fd, const char *text)
{
    client_send(fd, text, strlen(text));
}

struct input {
    int fd;
    char *data;
    size_t length;
    size_t capacity;
    bool ended;
};

static bool read_more(struct input *input)
{
    if (input->ended)
        return false;
    if (input->capacity - input->length < 65536) {
        input->capacity = input->capacity * 2 + 131072;
        input->data = realloc(input->data, input->capacity);
        if (!input->data)
            die("realloc");
        input->data[input->length] = '\0';
    }
    ssize_t got = recv(input->fd, input->data + input->length, 65535, 0);
    if (got <= 0) {
        input->ended = true;
        return false;
    }
    input->length += (size_t)got;
    input->data[input->length] = '\0';
    return true;
}

/* Length of the chunked body at `at`, decoded in place; -1: not complete yet. */
static long decode_chunks(struct input *input, size_t at, bool *ret_complete)
{
    size_t out = at;
    size_t in = at;
    *ret_complete = false;
    for (;;) {
        char *line_end = in < input->length ? strstr(input->data + in, "\r\n") : NULL;
        if (!line_end)
            return (long)(out - at);
        size_t size = strtoul(input->data + in, NULL, 16);
        size_t begin = (size_t)(line_end - input->data) + 2;
        if (size == 0) {
            *ret_complete = true;
            return (long)(out - at);
        }
        if (begin + size + 2 > input->length)
            return (long)(out - at);
        memmove(input->data + out, input->data + begin, size);
        out += size;
        in = begin + size + 2;
    }
}

static void take_body(struct input *input, size_t head_bytes, struct reply *reply)
{
    const char *length = reply_header(reply, "Content-Length");
    if (length) {
        size_t want = strtoul(length, NULL, 10);
        while (input->length - head_bytes < want && read_more(input)) {
        }
        reply->complete = input->length - head_bytes >= want;
        reply->body_bytes = reply->complete ? want : input->length - head_bytes;
        reply->body = strndup(input->data + head_bytes, reply->body_bytes);
        return;
    }
    bool chunked = reply_header(reply, "Transfer-Encoding") != NULL;
    while (!(chunked && input->length - head_bytes >= 5 &&
             memcmp(input->data + input->length - 5, "0\r\n\r\n", 5) == 0) &&
           read_more(input)) {
    }
    if (chunked)
        reply->body_bytes = (size_t)decode_chunks(input, head_bytes, &reply->complete);
    else
        reply->body_bytes = input->length - head_bytes;
    reply->body = strndup(input->data + head_bytes, reply->body_bytes);
}

void client_read(int fd, bool head_only, struct reply *reply)
{
    struct input input = {.fd = fd};
    char *end = NULL;
    memset(reply, 0, sizeof(*reply));
    while (!(input.data && (end = strstr(input.data, "\r\n\r\n"))) && read_more(&input)) {
    }
    if (!end) {
        reply->head = strdup(input.data ? input.data : "");
        reply->body = strdup("");
        free(input.data);
        return;
    }
    size_t head_bytes = (size_t)(end - input.data) + 4;
    reply->head = strndup(input.data, head_bytes);
    sscanf(reply->head, "HTTP/%*d.%*d %d", &reply->status);
    if (head_only || reply->status == 204)
        reply->body = strdup("");
    else
        take_body(&input, head_bytes, reply);
    free(input.data);
}

void reply_finish(struct reply *reply)
{
    free(reply->head);
    free(reply->body);
    memset(reply, 0, sizeof(*reply));
}

const char *reply_header(const struct reply *reply, const char *name)
{
    static char value[1024];
    char want[128];
    snprintf(want, sizeof(want), "\r\n%s:", name);
    const char *at = strcasestr(reply->head, want);
    if (!at)
        return NULL;
    at += strlen(want);
    at += strspn(at, " ");
    snprintf(value, sizeof(value), "%.*s", (int)strcspn(at, "\r\n"), at);
    return value;
}

bool client_read_until(int fd, const char *text)
{
    struct input input = {.fd = fd};
    bool found = false;
    while (!(found = input.data && strstr(input.data, text)) && read_more(&input)) {
    }
    free(input.data);
    return found;
}

static int send_request(uint16_t port, const char *method, const char *path, const char *headers,
                        const char *body)
{
    char head[4096];
    size_t length = body ? strlen(body) : 0;
    int fd = client_connect(port);
    snprintf(head, sizeof(head), "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s",
             method, path, headers ? headers : "");
    client_puts(fd, head);
    if (body) {
        snprintf(head, sizeof(head), "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                 length);
        client_puts(fd, head);
    }
    client_puts(fd, "\r\n");
    if (body)
        client_send(fd, body, length);
    return fd;
}

void client_request(uint16_t port, const char *method, const char *path, const char *headers,
                    const char *body, struct reply *reply)
{
    int fd = send_request(port, method, path, headers, body);
    client_read(fd, strcmp(method, "HEAD") == 0, reply);
    close(fd);
}

void client_get(uint16_t port, const char *path, struct reply *reply)
{
    client_request(port, "GET", path, NULL, NULL, reply);
}

void client_post(uint16_t port, const char *path, const char *body, struct reply *reply)
{
    client_request(port, "POST", path, NULL, body, reply);
}

cJSON *client_post_json(uint16_t port, const char *path, const char *body, int *ret_status)
{
    struct reply reply;
    client_post(port, path, body, &reply);
    cJSON *json = cJSON_Parse(reply.body);
    if (ret_status)
        *ret_status = reply.status;
    reply_finish(&reply);
    return json;
}

int client_post_open(uint16_t port, const char *path, const char *body)
{
    return send_request(port, "POST", path, NULL, body);
}

double client_metric(uint16_t port, const char *name, const char *label)
{
    struct reply reply;
    double sum = -1;
    size_t name_bytes = strlen(name);
    client_get(port, "/metrics", &reply);
    for (char *at = reply.body; *at;) {
        size_t length = strcspn(at, "\n");
        char line[1024];
        snprintf(line, sizeof(line), "%.*s", (int)length, at);
        if (strncmp(line, name, name_bytes) == 0 && strchr("{ ", line[name_bytes]) &&
            (!label || strstr(line, label)))
            sum = (sum < 0 ? 0 : sum) + strtod(strrchr(line, ' '), NULL);
        at += length + (at[length] == '\n');
    }
    reply_finish(&reply);
    return sum;
}

const cJSON *json_at(const cJSON *root, const char *path)
{
    char key[64];
    while (root && *path) {
        size_t length = strcspn(path, ".");
        snprintf(key, sizeof(key), "%.*s", (int)length, path);
        root = cJSON_IsArray(root) ? cJSON_GetArrayItem(root, atoi(key))
                                   : cJSON_GetObjectItemCaseSensitive(root, key);
        path += length + (path[length] == '.');
    }
    return root;
}

const char *json_text(const cJSON *root, const char *path)
{
    const cJSON *item = json_at(root, path);
    return cJSON_IsString(item) ? item->valuestring : "";
}

double json_number(const cJSON *root, const char *path)
{
    const cJSON *item = json_at(root, path);
    return cJSON_IsNumber(item) ? item->valuedouble : -1e300;
}

static void append(char **text, const char *more)
{
    size_t old = *text ? strlen(*text) : 0;
    *text = realloc(*text, old + strlen(more) + 1);
    if (!*text)
        die("realloc");
    strcpy(*text + old, more);
}

static void take_frame(struct stream *stream, cJSON *frame)
{
    const cJSON *choice;
    stream->frames++;
    stream->error = stream->error || json_at(frame, "error");
    cJSON_ArrayForEach(choice, json_at(frame, "choices"))
    {
        unsigned index = (unsigned)json_number(choice, "index");
        if (index >= 16)
            continue;
        append(&stream->text[index], json_text(choice, "text"));
        append(&stream->text[index], json_text(choice, "delta.content"));
        const char *finish = json_text(choice, "finish_reason");
        if (*finish)
            snprintf(stream->finish[index], sizeof(stream->finish[index]), "%s", finish);
    }
    cJSON_Delete(stream->last);
    stream->last = frame;
}

void stream_parse(const char *body, struct stream *stream)
{
    memset(stream, 0, sizeof(*stream));
    for (const char *at = body; *at;) {
        size_t length = strcspn(at, "\n");
        if (*at == ':')
            stream->comments++;
        if (strncmp(at, "data: [DONE]", 12) == 0) {
            stream->done = true;
        } else if (strncmp(at, "data: ", 6) == 0) {
            cJSON *frame = cJSON_ParseWithLength(at + 6, length - 6);
            if (frame)
                take_frame(stream, frame);
            else
                stream->error = true;
        }
        at += length + (at[length] == '\n');
    }
    for (unsigned i = 0; i < 16; i++) {
        if (!stream->text[i])
            append(&stream->text[i], "");
    }
}

void stream_finish(struct stream *stream)
{
    for (unsigned i = 0; i < 16; i++)
        free(stream->text[i]);
    cJSON_Delete(stream->last);
}
