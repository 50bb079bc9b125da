/* synthetic.c - a vocabulary of bytes and words of syllables, written as a tokenizer.json. */
#include "text/tokenizer/synthetic.h"

#include "text/tokenizer/internal.h"

#define BYTES         256u
#define SYLLABLES     100u
#define SYLLABLES_MIN 3
#define SYLLABLES_MAX 8

#define SPECIAL_ENTRY                                                                              \
    "%s\n{\"id\":%u,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"   \
    "\"normalized\":false,\"special\":true}"

static const struct {
    enum kva_synthetic_id id;
    const char *text;
} specials[] = {
    {KVA_SYNTHETIC_BOS, "<|begin_of_text|>"},
    {KVA_SYNTHETIC_EOS, "<|end_of_text|>"},
    {KVA_SYNTHETIC_TURN, "<|im_start|>"},
    {KVA_SYNTHETIC_TURN_END, "<|im_end|>"},
};

/* The splitting of Llama 3 and its kin. */
static const char pre_tokenizer[] =
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\""
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|"
    " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
    "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
    "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]}";

/* " bakelu": a number in base 100, a syllable of a consonant and a vowel for each digit. */
static void put_word(struct kva_buf *out, uint32_t number)
{
    static const char consonants[] = "bdfghjklmnpqrstvwxyz", vowels[] = "aeiou";
    char word[1 + 2 * SYLLABLES_MAX];
    size_t at = sizeof(word);
    for (int digits = 0; digits < SYLLABLES_MIN || number > 0; digits++) {
        uint32_t digit = number % SYLLABLES;
        number /= SYLLABLES;
        word[--at] = vowels[digit % 5];
        word[--at] = consonants[digit / 5];
    }
    word[--at] = ' ';
    kva_bytelevel_spell(out, word + at, sizeof(word) - at);
}

static void put_vocabulary(struct kva_buf *out, uint32_t word_count)
{
    struct kva_buf token;
    kva_buf_init(&token, 64);
    for (uint32_t id = 0; id < BYTES + word_count && !out->failed; id++) {
        char byte = (char)id;
        kva_buf_clear(&token);
        if (id < BYTES)
            kva_bytelevel_spell(&token, &byte, 1);
        else
            put_word(&token, id - BYTES);
        kva_buf_puts(out, id ? "," : "");
        kva_buf_json_string(out, token.data ? token.data : "", token.length);
        kva_buf_printf(out, ":%u", id);
    }
    out->failed = out->failed || token.failed;
    kva_buf_finish(&token);
}

void kva_tokenizer_put_synthetic(struct kva_buf *out, uint32_t vocab_size)
{
    kva_buf_puts(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n"
                      "\"added_tokens\":[");
    for (size_t i = 0; i < KVA_COUNT_OF(specials); i++)
        kva_buf_printf(out, SPECIAL_ENTRY, i ? "," : "", vocab_size - specials[i].id,
                       specials[i].text);
    kva_buf_puts(out, "],\n\"normalizer\":null,\n\"pre_tokenizer\":");
    kva_buf_puts(out, pre_tokenizer);
    kva_buf_printf(out,
                   ",\n\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                   "{\"SpecialToken\":{\"id\":\"%s\",\"type_id\":0}},"
                   "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":["
                   "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
                   "{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":{\"%s\":"
                   "{\"id\":\"%s\",\"ids\":[%u],\"tokens\":[\"%s\"]}}},\n",
                   specials[0].text, specials[0].text, specials[0].text,
                   vocab_size - KVA_SYNTHETIC_BOS, specials[0].text);
    kva_buf_puts(out, "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                      "\"trim_offsets\":true,\"use_regex\":true},\n"
                      "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                      "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                      "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":true,"
                      "\"merges\":[],\n\"vocab\":{");
    put_vocabulary(out, vocab_size - BYTES - (uint32_t)KVA_COUNT_OF(specials));
    kva_buf_puts(out, "}}}");
}

void kva_tokenizer_put_synthetic_config(struct kva_buf *out)
{
    kva_buf_puts(
        out, "{\"add_bos_token\":true,\"bos_token\":\"<|begin_of_text|>\","
             "\"eos_token\":\"<|end_of_text|>\",\"clean_up_tokenization_spaces\":false,"
             "\"tokenizer_class\":\"PreTrainedTokenizerFast\",\n\"chat_template\":\""
             "{{- bos_token }}{%- for message in messages %}{{- '<|im_start|>' + message['role'] + "
             "'\\\\n' + message['content'] | trim + '<|im_end|>\\\\n' }}{%- endfor %}"
             "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\\\n' }}{%- endif %}\"}");
}
