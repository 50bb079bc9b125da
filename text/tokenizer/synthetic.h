/* synthetic.h - a vocabulary without a training: the tokenizer of a synthetic model.
 *
 * The 256 bytes, then invented words that begin with a space (" bakelu"), then the special tokens;
 * no merges. Any text can be tokenised, every id has a text of its own, and text made of the words
 * is one token a word.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_TEXT_TOKENIZER_SYNTHETIC_H
#define KVA_TEXT_TOKENIZER_SYNTHETIC_H

#include "base/buf.h"

/* Special tokens, counted from the end of the vocabulary: the id is vocab_size minus this. */
enum kva_synthetic_id {
    KVA_SYNTHETIC_BOS = 4,      /* <|begin_of_text|> */
    KVA_SYNTHETIC_EOS = 3,      /* <|end_of_text|> */
    KVA_SYNTHETIC_TURN = 2,     /* <|im_start|> */
    KVA_SYNTHETIC_TURN_END = 1, /* <|im_end|> */
};

/* Appends tokenizer.json of a vocabulary of `vocab_size` ids, at least 260. */
void kva_tokenizer_put_synthetic(struct kva_buf *out, uint32_t vocab_size);

/* Appends the tokenizer_config.json that goes with it: special tokens and a chat template. */
void kva_tokenizer_put_synthetic_config(struct kva_buf *out);

#endif
