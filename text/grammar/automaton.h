/* automaton.h - what a grammar's masks are, worked out once (inside text/grammar, C++).
 *
 * The library follows a text by an Earley parser and, for a mask, tries some thousand tokens byte by
 * byte whose fate hangs on what is around the current rule. A configuration (configuration.h) is a
 * node here: edges are bytes, found out by the parser when they are first asked for, and a node keeps
 * its mask. Tokens are then tried along edges, and a place like one that was there before, in this
 * text or another one of the same grammar, has its mask at once. Masks are the library's own, bit
 * for bit.
 *
 * Thread rule: any thread; a lock is held during mask. */
#ifndef KVA_TEXT_GRAMMAR_AUTOMATON_H
#define KVA_TEXT_GRAMMAR_AUTOMATON_H

#include "text/grammar/configuration.h"

#include <xgrammar/xgrammar.h>

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace kva
{

/* What is the same for all grammars of a vocabulary. */
struct token_lengths {
    explicit token_lengths(const xgrammar::TokenizerInfo &info);

    int32_t bytes_max;
    std::vector<int32_t> long_ones;   /* places in the order of tokens, ascending */
    std::vector<uint32_t> short_ones; /* a bit for each id of any other token */
};

class automaton
{
  public:
    automaton(const xgrammar::CompiledGrammar &compiled,
              const std::shared_ptr<const token_lengths> &lengths);
    ~automaton();

    /* The tokens that may come next, [(vocab_size + 31) / 32] words. What the library throws comes
     * out, and memory that is refused; the matcher can only be destroyed then. False: not here, the
     * library has to be asked. */
    bool mask(xgrammar::GrammarMatcher &matcher, uint32_t *mask);

    /* Makes masks of places near the beginnings of texts and on their shortest ways, for at most so
     * much processor time. The matcher is new, and of no use afterwards. Throws as mask does. */
    void prepare(xgrammar::GrammarMatcher &matcher, uint64_t time_ns);

    /* Of memory, about; it grows with the texts that are followed, up to 16 MiB and what one mask
     * adds. */
    size_t bytes() const
    {
        return held.load(std::memory_order_relaxed);
    }

  private:
    struct node;
    class walk;

    int32_t find_or_add(const key &words);
    int32_t find_edge(node &from, xgrammar::GrammarMatcher::Impl &at, uint8_t byte);
    int32_t step(walk &way, uint8_t byte);
    void try_tokens(walk &way, const std::vector<int32_t> &uncertain, uint32_t *mask);
    bool add_uncertain(xgrammar::GrammarMatcher::Impl &at, int32_t place, uint32_t *mask);
    bool make_mask(xgrammar::GrammarMatcher::Impl &at, int32_t place, uint32_t *mask);
    void keep_mask(node &of, const uint32_t *mask);
    void forget();

    const xgrammar::CompiledGrammar compiled;
    const std::shared_ptr<const token_lengths> lengths;
    const size_t words;
    std::mutex lock;
    std::vector<std::unique_ptr<node>> nodes;
    std::unordered_map<key, int32_t, key_hash> places;
    /* By configurations that are told apart by what is within a short token: masks of those. */
    std::unordered_map<key, std::vector<uint32_t>, key_hash> short_masks;
    key scratch;
    std::atomic<size_t> held{0};
};

} // namespace kva

#endif
