/* protobuf.h - the wire format of Protocol Buffers, as far as reading one file needs it.
 *
 * SentencePiece's models are such messages, of which eleven scalar fields matter here. A generated
 * parser would bring a code generator to the build, and allocates for every field that a hostile
 * file makes up; this one allocates nothing and looks at each byte once.
 *
 * Thread rule: a reader belongs to one thread. Invariant: never reads beyond `end`. */
#ifndef KVA_TEXT_TOKENIZER_PROTOBUF_H
#define KVA_TEXT_TOKENIZER_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kva_proto {
    const char *at, *end;
    bool malformed; /* sticky: what stands at `at` is no field */
};

enum kva_proto_wire {
    KVA_PROTO_VARINT = 0,
    KVA_PROTO_FIXED64 = 1,
    KVA_PROTO_BYTES = 2, /* a string, bytes, or a message */
    KVA_PROTO_FIXED32 = 5,
};

struct kva_proto_field {
    uint32_t number;
    enum kva_proto_wire wire;
    uint64_t value;   /* all but BYTES */
    const char *data; /* BYTES: into the message */
    size_t length;
};

/* `data` may be NULL: an empty message. */
struct kva_proto kva_proto_init(const char *data, size_t length);

/* The next field; false at the end and where the message is malformed. */
bool kva_proto_next(struct kva_proto *proto, struct kva_proto_field *ret_field);

/* The value of a `float` field. */
float kva_proto_float(const struct kva_proto_field *field);

#endif
