/* sentencepiece.c - the tokenizer of a SentencePiece model (tokenizer.model of Llama 2, Mistral,
 * Gemma), put into the form of a tokenizer.json. The file is a message `ModelProto`; numbers below
 * are those of its fields. */
#include "text/tokenizer/folder.h"
#include "text/tokenizer/pieces.h"
#include "text/tokenizer/protobuf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIELD_PIECES = 1, FIELD_TRAINER = 2, FIELD_NORMALIZER = 3 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum { TRAINER_MODEL_TYPE = 3, TRAINER_SUFFIX = 24, TRAINER_BYTE_FALLBACK = 35 };
enum { TRAINER_UNK = 40, TRAINER_BOS = 41, TRAINER_EOS = 42, TRAINER_PAD = 43 };
enum { NORMALIZER_NAME = 1, NORMALIZER_MAP = 2, NORMALIZER_PREFIX = 3 };
enum { NORMALIZER_COLLAPSE = 4, NORMALIZER_ESCAPE = 5 };

struct model {
    struct kva_tok_place place;
    struct kva_proto_field trainer, normalizer; /* number 0: not there */
    struct kva_pieces pieces;
    uint64_t piece_count, text_bytes;
    bool byte_fallback;
    int64_t bos, eos, pad;
    struct kva_space_rules spaces;
};

static enum kva_status malformed(const struct model *m, const char *what)
{
    return kva_tok_complain(&m->place, KVA_EFORMAT, "%s: not a SentencePiece model", what);
}

/* Looks over the file once: how much of everything there is. */
static enum kva_status survey(struct model *m, const char *data, size_t length)
{
    struct kva_proto proto = kva_proto_init(data, length);
    struct kva_proto_field field;
    while (kva_proto_next(&proto, &field)) {
        if (field.number <= FIELD_NORMALIZER && field.wire != KVA_PROTO_BYTES)
            return malformed(m, "a field has another type than it should have");
        if (field.number == FIELD_PIECES) {
            m->piece_count++;
            m->text_bytes += field.length;
        } else if (field.number == FIELD_TRAINER) {
            m->trainer = field;
        } else if (field.number == FIELD_NORMALIZER) {
            m->normalizer = field;
        }
    }
    if (proto.malformed)
        return kva_tok_complain(&m->place, KVA_EFORMAT,
                                "not a SentencePiece model: byte %zu begins no field",
                                (size_t)(proto.at - data));
    return m->piece_count > 0 ? KVA_OK : malformed(m, "it has no pieces");
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static enum kva_status read_piece(struct model *m, uint32_t id, const struct kva_proto_field *piece)
{
    struct kva_proto proto = kva_proto_init(piece->data, piece->length);
    struct kva_proto_field field;
    const char *text = "";
    size_t length = 0;
    uint64_t type = KVA_PIECE_NORMAL;
    float score = 0;
    enum kva_status status;
    while (kva_proto_next(&proto, &field)) {
        if (field.number == PIECE_TEXT && field.wire == KVA_PROTO_BYTES) {
            text = field.data;
            length = field.length;
        } else if (field.number == PIECE_SCORE && field.wire == KVA_PROTO_FIXED32) {
            score = kva_proto_float(&field);
        } else if (field.number == PIECE_TYPE && field.wire == KVA_PROTO_VARINT) {
            type = field.value;
        }
    }
    if (proto.malformed || length == 0 || isnan(score))
        return kva_tok_complain(&m->place, KVA_EFORMAT, "piece %u is malformed or empty", id);
    if (type < KVA_PIECE_NORMAL || type > KVA_PIECE_BYTE)
        return kva_tok_complain(&m->place, KVA_EFORMAT,
                                "piece %u is of type %llu, allowed are 1..%d", id,
                                (unsigned long long)type, KVA_PIECE_BYTE);
    if (type == KVA_PIECE_UNUSED)
        return kva_tok_complain(&m->place, KVA_EUNSUPPORTED,
                                "piece %u is marked unused, which is not supported", id);
    if (type == KVA_PIECE_UNKNOWN && m->pieces.unk >= 0)
        return kva_tok_complain(&m->place, KVA_EFORMAT,
                                "pieces %lld and %u are both unknown tokens",
                                (long long)m->pieces.unk, id);
    if (type == KVA_PIECE_UNKNOWN)
        m->pieces.unk = id;
    m->pieces.items[id].type = (uint8_t)type;
    m->pieces.items[id].score = score;
    status = kva_pieces_set_text(&m->pieces, id, text, length);
    /* Found in the text as it is, before its spaces are marks. */
    if (!status && type == KVA_PIECE_USER_DEFINED)
        kva_pieces_unmark(&m->pieces, id);
    return status;
}

static enum kva_status read_pieces(struct model *m, const char *data, size_t length)
{
    struct kva_proto proto = kva_proto_init(data, length);
    struct kva_proto_field field;
    uint32_t id = 0;
    enum kva_status status =
        kva_pieces_init(&m->pieces, &m->place, m->piece_count, (size_t)m->text_bytes);
    while (!status && kva_proto_next(&proto, &field))
        if (field.number == FIELD_PIECES)
            status = read_piece(m, id++, &field);
    return status;
}

/* ---- options --------------------------------------------------------------------------------- */

static enum kva_status check_model_type(const struct model *m, uint64_t type)
{
    static const char *const names[] = {"", "unigram", "bpe", "word", "char"};
    const uint64_t bpe = 2;
    if (type == bpe)
        return KVA_OK;
    return kva_tok_complain(&m->place, KVA_EUNSUPPORTED,
                            "a SentencePiece model of type %s is not supported, only bpe is",
                            type < KVA_COUNT_OF(names) ? names[type] : "unknown");
}

static enum kva_status read_trainer(struct model *m)
{
    struct kva_proto proto = kva_proto_init(m->trainer.data, m->trainer.length);
    struct kva_proto_field field;
    uint64_t type = 1;
    int64_t unk = 0;
    bool suffix = false;
    m->bos = 1;
    m->eos = 2;
    m->pad = -1;
    while (m->trainer.number && kva_proto_next(&proto, &field)) {
        if (field.wire != KVA_PROTO_VARINT)
            continue;
        int64_t value = (int32_t)field.value;
        switch (field.number) {
        case TRAINER_MODEL_TYPE:
            type = field.value;
            break;
        case TRAINER_SUFFIX:
            suffix = value != 0;
            break;
        case TRAINER_BYTE_FALLBACK:
            m->byte_fallback = value != 0;
            break;
        case TRAINER_UNK:
            unk = value;
            break;
        case TRAINER_BOS:
            m->bos = value;
            break;
        case TRAINER_EOS:
            m->eos = value;
            break;
        case TRAINER_PAD:
            m->pad = value;
            break;
        default:
            break;
        }
    }
    if (proto.malformed)
        return malformed(m, "its trainer_spec is malformed");
    if (suffix)
        return kva_tok_complain(&m->place, KVA_EUNSUPPORTED,
                                "treat_whitespace_as_suffix is not supported");
    if (m->pieces.unk < 0 || m->pieces.unk != unk)
        return kva_tok_complain(&m->place, KVA_EFORMAT,
                                "the unknown token is to be piece %lld, and is %lld",
                                (long long)unk, (long long)m->pieces.unk);
    return check_model_type(m, type);
}

static enum kva_status read_normalizer(struct model *m)
{
    struct kva_proto proto = kva_proto_init(m->normalizer.data, m->normalizer.length);
    struct kva_proto_field field;
    const char *name = "";
    size_t name_length = 0, map_bytes = 0;
    bool escape = true;
    m->spaces = (struct kva_space_rules){.prefix = true, .collapse = true};
    while (m->normalizer.number && kva_proto_next(&proto, &field)) {
        if (field.number == NORMALIZER_NAME && field.wire == KVA_PROTO_BYTES) {
            name = field.data;
            name_length = kva_min_size(field.length, 60);
        } else if (field.number == NORMALIZER_MAP && field.wire == KVA_PROTO_BYTES) {
            map_bytes = field.length;
        } else if (field.number == NORMALIZER_PREFIX) {
            m->spaces.prefix = field.value != 0;
        } else if (field.number == NORMALIZER_COLLAPSE) {
            m->spaces.collapse = field.value != 0;
        } else if (field.number == NORMALIZER_ESCAPE) {
            escape = field.value != 0;
        }
    }
    if (proto.malformed)
        return malformed(m, "its normalizer_spec is malformed");
    if (map_bytes > 0)
        return kva_tok_complain(&m->place, KVA_EUNSUPPORTED,
                                "normalizer '%.*s' is not supported, only identity is",
                                (int)name_length, name);
    if (!escape)
        return kva_tok_complain(&m->place, KVA_EUNSUPPORTED,
                                "escape_whitespaces false is not supported");
    return KVA_OK;
}

/* ---- as a tree ------------------------------------------------------------------------------- */

/* What transformers takes where tokenizer_config.json does not say it. */
static enum kva_status add_default(const struct model *m, cJSON *config, const char *name,
                                   int64_t id)
{
    if (id < 0 || id >= (int64_t)m->pieces.count || cJSON_HasObjectItem(config, name) ||
        m->pieces.items[id].type == KVA_PIECE_NORMAL)
        return KVA_OK;
    return kva_tok_tree_add(&m->place, config, name, cJSON_CreateString(m->pieces.items[id].text));
}

static enum kva_status add_defaults(const struct model *m, cJSON *config)
{
    enum kva_status status = add_default(m, config, "bos_token", m->bos);
    if (!status)
        status = add_default(m, config, "eos_token", m->eos);
    if (!status)
        status = add_default(m, config, "pad_token", m->pad);
    if (!status)
        status = add_default(m, config, "unk_token", m->pieces.unk);
    if (!status && !cJSON_HasObjectItem(config, "add_bos_token"))
        status = kva_tok_tree_add(&m->place, config, "add_bos_token", cJSON_CreateTrue());
    return status;
}

/* tokenizer_config.json may say otherwise than the model. */
static enum kva_status add_spaces(struct model *m, const struct kva_tok_place *config_place,
                                  const cJSON *config, cJSON *root)
{
    bool legacy = true;
    enum kva_status status = kva_tok_json_bool(config_place, config, "add_prefix_space",
                                               m->spaces.prefix, &m->spaces.prefix);
    if (!status)
        status = kva_tok_json_bool(config_place, config, "legacy", true, &legacy);
    m->spaces.prefix_first = !legacy;
    return status ? status : kva_tok_tree_add_spaces(&m->place, root, &m->spaces);
}

static enum kva_status add_model(const struct model *m, cJSON *root)
{
    cJSON *model = cJSON_AddObjectToObject(root, "model");
    cJSON *merges = cJSON_AddArrayToObject(model, "merges");
    if (!merges || !cJSON_AddStringToObject(model, "type", "BPE") ||
        !cJSON_AddBoolToObject(model, "byte_fallback", m->byte_fallback) ||
        !cJSON_AddBoolToObject(model, "fuse_unk", true) ||
        !cJSON_AddStringToObject(model, "unk_token", m->pieces.items[m->pieces.unk].text))
        return kva_tok_complain(&m->place, KVA_ENOMEM, "no memory for the vocabulary");
    enum kva_status status = kva_pieces_put(&m->pieces, root, model);
    return status ? status : kva_pieces_put_merges(&m->pieces, merges);
}

enum kva_status kva_sentencepiece_tree(const struct kva_tok_place *place,
                                       const struct kva_tokenizer_file *file,
                                       const struct kva_tok_place *config_place, cJSON *config,
                                       cJSON *root)
{
    struct model m = {.place = *place};
    enum kva_status status = survey(&m, file->data, file->length);
    if (!status)
        status = read_pieces(&m, file->data, file->length);
    if (!status)
        status = read_trainer(&m);
    if (!status)
        status = read_normalizer(&m);
    if (!status)
        status = add_defaults(&m, config);
    if (!status)
        status = add_spaces(&m, config_place, config, root);
    if (!status)
        status = add_model(&m, root);
    kva_pieces_finish(&m.pieces);
    return status;
}
