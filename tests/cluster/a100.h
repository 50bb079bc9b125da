/* a100.h - LLaMA2-7B on an A100 80GB, as Infinite-LLM has it, in constants of data sheets: to see
 * shapes of curves with, not to predict a machine. */
#ifndef KVA_TESTS_CLUSTER_A100_H
#define KVA_TESTS_CLUSTER_A100_H

#include "cluster/cost.h"

/* KV of one instance: 80 GB less weights and activations, at 512 KiB a token. */
#define A100_PAGES 1760u

/* 32 layers of 202 M weights at 2 bytes; 1.7 TB/s of memory, 220 TFLOP/s of products, 20 us of
 * launches a layer; 16 KiB of K and V a token and layer; NVLink. */
struct kva_cost_params a100_llama7b(void);

#endif
