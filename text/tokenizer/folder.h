/* folder.h - the forms in which a model's folder may have its tokenizer, each put into the form of a
 * tokenizer.json. Nothing here is for other modules.
 *
 * Where there is a tokenizer.json it counts. Else tokenizer.model, else vocab.json with merges.txt;
 * for these, which have no added tokens, added_tokens.json and special_tokens_map.json are read
 * too. tokenizer_config.json belongs to all. */
#ifndef KVA_TEXT_TOKENIZER_FOLDER_H
#define KVA_TEXT_TOKENIZER_FOLDER_H

#include "text/tokenizer/internal.h"

/* Fills `root`, which is an empty object, and puts into `config`, the tree of tokenizer_config.json
 * or an empty object, what goes without saying (sentencepiece.c). */
KVA_MUST_CHECK enum kva_status kva_sentencepiece_tree(const struct kva_tok_place *place,
                                                      const struct kva_tokenizer_file *file,
                                                      const struct kva_tok_place *config_place,
                                                      cJSON *config, cJSON *root);

/* The same of vocab.json and merges.txt (vocab_merges.c). `model_type`, of config.json, may be NULL.
 * `place` is vocab.json. */
KVA_MUST_CHECK enum kva_status kva_vocab_merges_tree(const struct kva_tok_place *place,
                                                     const struct kva_tokenizer_files *files,
                                                     const struct kva_tok_place *config_place,
                                                     cJSON *config, const char *model_type,
                                                     cJSON *root);

/* Into `config` the special tokens of special_tokens_map.json that it does not name itself, and then
 * as its added_tokens_decoder those of added_tokens.json, which may be NULL, and all tokens that it
 * names special (added_files.c). */
KVA_MUST_CHECK enum kva_status kva_added_take_map(const struct kva_tok_place *place,
                                                  const cJSON *specials, cJSON *config);
KVA_MUST_CHECK enum kva_status kva_added_take(const struct kva_tok_place *place, const cJSON *added,
                                              cJSON *config);

#endif
